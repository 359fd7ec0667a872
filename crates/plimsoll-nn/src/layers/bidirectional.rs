//! `Bidirectional`: a recurrent layer that reads a sequence from both ends.

use plimsoll_tensor::{Error, Nested, Result, Shape, Site, Tensor};

use crate::layer::{BuiltLayer, Layer, build};

/// What is made of the two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Merge {
    /// Both, side by side.
    #[default]
    Concatenate,
    /// Their sum.
    Sum,
    /// Their product, element by element.
    Multiply,
    /// Their mean.
    Average,
}

/// Two layers of one description over a sequence, `[batch, time, features]`: one reads it forwards and the other backwards. Where they
/// give sequences, what the second gives lies in the order of time again.
///
/// Variables: those of `forward`, then those of `backward`.
#[derive(Clone, Debug)]
pub struct Bidirectional<L> {
    layer: L,
    merge: Merge,
}

impl<L: Layer + Clone> Bidirectional<L> {
    /// Both readings side by side.
    pub fn new(layer: L) -> Bidirectional<L> {
        Bidirectional { layer, merge: Merge::Concatenate }
    }

    /// With something else made of the two.
    #[must_use]
    pub fn merge(self, merge: Merge) -> Bidirectional<L> {
        Bidirectional { merge, ..self }
    }
}

impl Merge {
    fn of(self, forwards: &Tensor, backwards: &Tensor) -> Result<Tensor> {
        match self {
            Merge::Concatenate => Tensor::concat(&[forwards, backwards], -1),
            Merge::Sum => forwards.add(backwards),
            Merge::Multiply => forwards.mul(backwards),
            Merge::Average => forwards.add(backwards)?.mul(0.5),
        }
    }

    fn shape(self, one: &Shape) -> Result<Shape> {
        match (self, one.dims()) {
            (Merge::Concatenate, [others @ .., last]) => Shape::new(&[others, &[2 * last]].concat()),
            _ => Ok(*one),
        }
    }
}

impl<L: Layer + Clone> Layer for Bidirectional<L> {
    fn name(&self) -> &str {
        "bidirectional"
    }

    fn is_pure(&self) -> bool {
        self.layer.is_pure()
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let part = |name| build(&self.layer.clone().named(name), &Nested::One(*input), Site::UNKNOWN);
        let (forward, backward) = (part("forward")?, part("backward")?);
        let output = *forward.output_shape();
        if input.rank() != 2 || !(1..=2).contains(&output.rank()) {
            return Err(Error::shape(
                "bidirectional",
                format!(
                    "the layer makes {output} of {input}; it must take a sequence, [time, features], and give one or its end"
                ),
            ));
        }
        let (merge, is_sequence) = (self.merge, output.rank() == 2);
        BuiltLayer::new(merge.shape(&output)?, move |x, mode| {
            let forwards = forward.forward(x, mode)?;
            let backwards = backward.forward(&x.flip(1)?, mode)?;
            merge.of(&forwards, &if is_sequence { backwards.flip(1)? } else { backwards })
        })
    }
}
