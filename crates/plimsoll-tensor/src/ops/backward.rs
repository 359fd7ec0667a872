//! What the backward of ops shares.

use std::sync::Arc;

use crate::base::error::Result;
use crate::eager::context;
use crate::eager::tape::{AfterUse, Backward, Pass, TapeCore, count_as_gradient};
use crate::eager::tensor::Tensor;

/// Adds two gradients of one value.
pub(crate) fn add_gradients(sum: Tensor, gradient: Tensor) -> Result<Tensor> {
    sum.into_add(gradient)
}

/// The gradients of what `forward` makes of floats, by a tape of its own; zeros where it does not depend on one. For ops whose
/// gradient, or a gradient's gradient, is that of plain ops.
pub(super) fn gradients_of_plain_ops(
    tape: &Arc<TapeCore>,
    forward: impl FnOnce() -> Result<Tensor>,
    gradient: &Tensor,
    sources: &[&Tensor],
) -> Result<Vec<Tensor>> {
    let _clear = context::on_drop(|| tape.clear());
    for source in sources {
        tape.watch(source);
    }
    tape.begin_step_log();
    let target = {
        let _recording = context::start_tape(tape.clone());
        forward()?
    };
    let pass = Pass {
        targets: &[&target],
        sources,
        seed: &|_| Ok(gradient.clone()),
        add: add_gradients,
        after_use: AfterUse::Free,
    };
    let gradients = {
        let _paused = context::stop_tape(tape.clone());
        tape.run_backward(&pass)?
    };
    tape.clear();
    let gradients: Vec<Tensor> = gradients
        .into_iter()
        .zip(sources)
        .map(|(gradient, source)| gradient.map_or_else(|| source.zeros_like(), Ok))
        .collect::<Result<_>>()?;
    gradients.iter().for_each(count_as_gradient);
    Ok(gradients)
}

impl Backward<'_> {
    /// Takes the gradient of the first output; it may be overwritten if nobody else holds it.
    ///
    /// # Errors
    /// Memory that is full.
    #[doc(alias("grad", "backward", "autograd"))]
    pub fn gradient(&mut self) -> Result<Tensor> {
        match self.gradient_of(0) {
            Some(gradient) => Ok(gradient),
            None => {
                let (shape, dtype) = self.first_output();
                Tensor::zeros_of(shape, dtype)
            }
        }
    }
}
