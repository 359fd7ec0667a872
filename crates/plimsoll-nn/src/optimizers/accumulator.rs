//! Gradients of several backwards added up in place.

use plimsoll_tensor::{Error, Owner, Result, Tensor, at_callers_line, with_owner};

/// Adds up the gradients of the parts of a batch, in place: the first are moved in, later ones are added to them.
/// 16-bit gradients are added up in float32.
///
/// The sum is the gradient of the whole batch's mean loss if each part's loss is weighted by its share of the batch.
#[derive(Debug, Default)]
pub struct Accumulator {
    sums: Vec<Option<Tensor>>,
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

    /// Adds the gradients of one part; a source without a gradient adds nothing.
    ///
    /// # Errors
    /// Another number of gradients, or other shapes, than before; memory that is full. The sums are dropped then: a part
    /// may have been added, so the batch begins anew.
    #[track_caller]
    pub fn add(&mut self, gradients: Vec<Option<Tensor>>) -> Result<()> {
        let _line = at_callers_line();
        let sums = std::mem::take(&mut self.sums);
        if !sums.is_empty() && sums.len() != gradients.len() {
            return Err(Error::argument(
                "accumulator",
                format!("{} gradients are added up, but {} were added", sums.len(), gradients.len()),
            ));
        }
        let before = sums.into_iter().chain(std::iter::repeat_with(|| None));
        self.sums = before.zip(gradients).map(|(sum, gradient)| added(sum, gradient)).collect::<Result<_>>()?;
        Ok(())
    }

    /// The sums, moved out: what [`apply_gradients`](super::Optimizer::apply_gradients) takes.
    pub fn take(&mut self) -> Vec<Option<Tensor>> {
        std::mem::take(&mut self.sums)
    }
}

fn added(sum: Option<Tensor>, gradient: Option<Tensor>) -> Result<Option<Tensor>> {
    let Some(gradient) = gradient else { return Ok(sum) };
    let wide = with_owner(Owner::Gradients, || gradient.cast(gradient.dtype().accumulator()))?;
    drop(gradient);
    match sum {
        None => Ok(Some(wide)),
        Some(sum) => sum.into_add(wide).map(Some),
    }
}
