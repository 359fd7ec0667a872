//! Gradients one by one: each handed out as soon as it is complete, so that they need not be there together.

use super::GradientTape;
use crate::base::error::Result;
use crate::eager::context;
use crate::eager::tape::{AfterUse, Pass, count_as_gradient};
use crate::eager::tensor::Tensor;
use crate::ops::backward::add_gradients;

impl GradientTape {
    /// Hands out the gradient of `target` with respect to each source as soon as it is complete, in the order in which
    /// backward reaches them: last used first. `take` gets the source's position and the gradient; what it drops is gone
    /// before the next one is computed. A source that is read in several places is handed out when all of them have been
    /// visited, and the tape has then freed its value.
    ///
    /// # Errors
    /// A source that the target does not depend on, before anything is handed out; those of `take`, which end backward;
    /// a second call on a tape that is not persistent; memory that is full.
    #[doc(alias = "register_post_accumulate_grad_hook")]
    #[track_caller]
    pub fn gradient_each(
        &self,
        target: &Tensor,
        sources: &[&Tensor],
        mut take: impl FnMut(usize, Tensor) -> Result<()>,
    ) -> Result<()> {
        let _line = context::at_callers_line();
        let core = &self.core;
        if let Some(source) = core.unconnected(target, sources)? {
            return Err(core.not_connected("gradient_each", target, source, sources[source]));
        }
        core.begin_use()?;
        let mut is_taken = vec![false; sources.len()];
        let mut hand_out = |source: usize, gradient: Tensor| {
            is_taken[source] = true;
            count_as_gradient(&gradient);
            take(source, gradient)
        };
        let seed = |_: usize| Tensor::full_like_scalar(target, 1.0);
        let pass =
            Pass { targets: &[target], sources, seed: &seed, add: add_gradients, after_use: AfterUse::Free };
        let ran = self.stop_recording(|| core.run_backward_each(&pass, &mut hand_out));
        core.end_use();
        ran?;
        match is_taken.iter().position(|&is_taken| !is_taken) {
            Some(source) => Err(core.not_connected("gradient_each", target, source, sources[source])),
            None => Ok(()),
        }
    }
}
