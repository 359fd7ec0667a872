//! Gradients of several backwards added up in place.

use plimsoll_tensor::{Error, Owner, Result, Tensor, at_callers_line, with_owner};

/// Adds up the gradients of the parts of a batch, in place: the first are moved in, later ones are added to them.
/// 16-bit gradients are added up in float32.
///
/// The sum is the gradient of the whole batch's mean loss if each part's loss is weighted by its share of the batch.
#[doc(alias = "gradient_accumulation_steps")]
#[derive(Debug, Default)]
pub struct Accumulator {
    sums: Vec<Tensor>,
}

impl Accumulator {
    /// An accumulator that holds nothing.
    pub fn new() -> Accumulator {
        Accumulator::default()
    }

    /// Whether nothing has been added since the last [`Accumulator::take`].
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// Adds the gradients of one part.
    ///
    /// # Errors
    /// Another number of gradients, or other shapes, than before; memory that is full. The sums are dropped then: a part
    /// may have been added, so the batch begins anew.
    #[track_caller]
    pub fn add(&mut self, gradients: Vec<Tensor>) -> Result<()> {
        let _line = at_callers_line();
        let sums = std::mem::take(&mut self.sums);
        if sums.is_empty() {
            self.sums = gradients.into_iter().map(wide).collect::<Result<_>>()?;
            return Ok(());
        }
        if sums.len() != gradients.len() {
            return Err(Error::argument(
                "accumulator",
                format!("{} gradients are added up, but {} were to be added", sums.len(), gradients.len()),
            ));
        }
        let add = |(sum, gradient): (Tensor, Tensor)| match sum.shape() == gradient.shape() {
            true => sum.into_add(wide(gradient)?),
            false => Err(Error::shape(
                "accumulator",
                format!("a gradient of {} cannot be added to one of {}", gradient.shape(), sum.shape()),
            )),
        };
        self.sums = sums.into_iter().zip(gradients).map(add).collect::<Result<_>>()?;
        Ok(())
    }

    /// The sums, moved out: what [`apply_gradients`](super::Optimizer::apply_gradients) takes.
    pub fn take(&mut self) -> Vec<Tensor> {
        std::mem::take(&mut self.sums)
    }
}

/// A gradient in the dtype that it is added up in; the gradient itself if that is its own.
fn wide(gradient: Tensor) -> Result<Tensor> {
    with_owner(Owner::Gradients, || gradient.cast(gradient.dtype().accumulator()))
}
