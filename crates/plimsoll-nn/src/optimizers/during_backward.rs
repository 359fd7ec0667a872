//! Updating during backward: each variable as soon as its gradient is complete, so that gradients are never there
//! together. An explicit option, because it gives up that an update changes everything or nothing.

use plimsoll_tensor::{GradientTape, Result, Tensor, Variable, at_callers_line};

use super::Optimizer;

impl Optimizer {
    /// Walks back from `loss` and updates each variable as soon as its gradient is complete, which is dropped then: at
    /// its peak, backward holds the largest gradient instead of all of them. The bits are those of
    /// [`Optimizer::apply_gradients`].
    ///
    /// A walk that fails, for want of memory for example, leaves the variables that it has reached updated and the
    /// others not. Where that matters, use `apply_gradients`.
    ///
    /// # Errors
    /// Before anything has changed: clipping by global norm or a dynamic loss scale, which need all gradients first; a
    /// step that is open, which promises that nothing changes if it fails; a variable that the loss does not depend on;
    /// other variables than before. Gradients accumulated over several backwards cannot be passed in. During the walk:
    /// memory that is full.
    #[track_caller]
    pub fn apply_during_backward(
        &mut self,
        tape: &GradientTape,
        loss: &Tensor,
        variables: &[Variable],
    ) -> Result<()> {
        let _line = at_callers_line();
        self.check_during_backward()?;
        self.prepare(variables)?;
        let Some(state) = &self.state else { unreachable!("`prepare` has made it") };
        let common = self.common_of_groups();
        let rules = self.rules(&common);
        let sources: Vec<&Tensor> = variables.iter().map(|variable| &**variable).collect();
        let mut begin = Some(self.begin_steps(false));
        tape.gradient_each(loss, &sources, |idx, gradient| {
            // The step begins with the first gradient: what is refused before it changes nothing.
            if begin.is_some() {
                self.copy_controls()?;
            }
            for (begin, control) in begin.take().into_iter().flatten() {
                Variable::update(begin, &[control], &[])?;
            }
            let (update, group) = state.update_of(&rules, idx);
            Variable::update(
                update,
                &state.operands(&[idx], self.control_of(group, &gradient.device())),
                &[&gradient],
            )
        })
    }
}
