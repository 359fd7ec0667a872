//! Gradients of a target with respect to sources, as people ask for them.

use super::GradientTape;
use crate::base::error::{Error, Result};
use crate::eager::context;
use crate::eager::tape::{AfterUse, Pass, count_as_gradient};
use crate::eager::tensor::Tensor;
use crate::eager::variable::Variable;
use crate::ops::backward::add_gradients;

/// What stands for the gradient of a source that the target does not depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unconnected {
    /// Nothing.
    #[default]
    None,
    /// Zeros of the source's shape.
    Zeros,
}

impl GradientTape {
    /// The gradients of `target` (of the sum of its elements) with respect to each source.
    ///
    /// # Errors
    /// A target that this tape did not record, a source that the target does not depend on (see
    /// [`gradient_or_none`](GradientTape::gradient_or_none)), a second call on a tape that is not persistent, memory that is full.
    #[doc(alias("grad", "backward", "autograd"))]
    #[track_caller]
    pub fn gradient<const N: usize>(&self, target: &Tensor, sources: [&Tensor; N]) -> Result<[Tensor; N]> {
        let _line = context::at_callers_line();
        let gradients = self.gradients(&[target], None, &sources, Unconnected::None)?;
        let named = |(idx, gradient): (usize, Option<Tensor>)| {
            gradient.ok_or_else(|| self.core.not_connected("gradient", target, idx, sources[idx]))
        };
        let gradients: Vec<Tensor> = gradients.into_iter().enumerate().map(named).collect::<Result<_>>()?;
        Ok(gradients.try_into().unwrap_or_else(|_| unreachable!("one gradient per source")))
    }

    /// Like [`gradient`](GradientTape::gradient), with nothing where the target does not depend on a source.
    ///
    /// # Errors
    /// A second call on a tape that is not persistent, memory that is full.
    #[track_caller]
    pub fn gradient_or_none<const N: usize>(
        &self,
        target: &Tensor,
        sources: [&Tensor; N],
    ) -> Result<[Option<Tensor>; N]> {
        let _line = context::at_callers_line();
        let gradients = self.gradients(&[target], None, &sources, Unconnected::None)?;
        Ok(gradients.try_into().unwrap_or_else(|_| unreachable!("one gradient per source")))
    }

    /// Like [`gradient`](GradientTape::gradient), with zeros where the target does not depend on a source.
    ///
    /// # Errors
    /// A second call on a tape that is not persistent, memory that is full.
    #[doc(alias = "unconnected_gradients")]
    #[track_caller]
    pub fn gradient_or_zeros<const N: usize>(
        &self,
        target: &Tensor,
        sources: [&Tensor; N],
    ) -> Result<[Tensor; N]> {
        let _line = context::at_callers_line();
        let gradients = self.gradients(&[target], None, &sources, Unconnected::Zeros)?;
        let gradients: Vec<Tensor> = gradients.into_iter().flatten().collect();
        Ok(gradients.try_into().unwrap_or_else(|_| unreachable!("one gradient per source")))
    }

    /// The gradient of `target` with respect to each of a model's variables, in their order.
    ///
    /// # Errors
    /// Variables that the target does not depend on, by name; a second call on a tape that is not persistent; memory
    /// that is full.
    #[doc(alias = "grad")]
    #[track_caller]
    pub fn variable_gradients(&self, target: &Tensor, variables: &[Variable]) -> Result<Vec<Tensor>> {
        let _line = context::at_callers_line();
        self.variable_gradients_with(target, variables, Unconnected::None)
    }

    /// Like [`GradientTape::variable_gradients`], with a choice for variables that the target does not depend on: an error,
    /// or zeros.
    ///
    /// # Errors
    /// As [`GradientTape::variable_gradients`].
    #[track_caller]
    pub fn variable_gradients_with(
        &self,
        target: &Tensor,
        variables: &[Variable],
        unconnected: Unconnected,
    ) -> Result<Vec<Tensor>> {
        let _line = context::at_callers_line();
        let sources: Vec<&Tensor> = variables.iter().map(|variable| &**variable).collect();
        let gradients = self.gradients(&[target], None, &sources, unconnected)?;
        let missing = variables.iter().zip(&gradients).filter(|(_, gradient)| gradient.is_none());
        let missing: Vec<String> = missing.map(|(variable, _)| format!("{:?}", variable.name())).collect();
        if !missing.is_empty() && !self.core.has_recorded(target) {
            return Err(Error::tape(format!("gradient: {}", self.core.unrecorded(target))));
        }
        if !missing.is_empty() {
            return Err(Error::tape(format!(
                "gradient: the target does not depend on {}; leave them out, freeze their layers, or ask for zeros",
                missing.join(", ")
            )));
        }
        Ok(gradients.into_iter().flatten().collect())
    }

    /// The gradients of several targets, added up, with respect to any number of sources. `output_gradients` has one
    /// tensor per target, of its shape; without it, each element of a target counts once.
    ///
    /// # Errors
    /// A second call on a tape that is not persistent, output gradients that do not fit, memory that is full.
    #[doc(alias = "grad")]
    #[track_caller]
    pub fn gradients(
        &self,
        targets: &[&Tensor],
        output_gradients: Option<&[&Tensor]>,
        sources: &[&Tensor],
        unconnected: Unconnected,
    ) -> Result<Vec<Option<Tensor>>> {
        let _line = context::at_callers_line();
        check_output_gradients(targets, output_gradients)?;
        let core = &self.core;
        core.begin_use()?;
        let seed = |target: usize| match output_gradients {
            Some(gradients) => Ok(gradients[target].clone()),
            None => Tensor::full_like_scalar(targets[target], 1.0),
        };
        let pass = Pass { targets, sources, seed: &seed, add: add_gradients, after_use: AfterUse::Free };
        let ran = self.stop_recording(|| core.run_backward(&pass));
        core.end_use();
        let mut gradients = ran?;
        for (gradient, source) in gradients.iter_mut().zip(sources) {
            if gradient.is_none() && unconnected == Unconnected::Zeros {
                *gradient = Some(source.zeros_like()?);
            }
            gradient.iter().for_each(count_as_gradient);
        }
        Ok(gradients)
    }
}

fn check_output_gradients(targets: &[&Tensor], output_gradients: Option<&[&Tensor]>) -> Result<()> {
    let Some(gradients) = output_gradients else { return Ok(()) };
    if gradients.len() != targets.len() {
        return Err(Error::argument(
            "gradient",
            format!(
                "{} targets but {} output gradients; give one per target",
                targets.len(),
                gradients.len()
            ),
        ));
    }
    for (target, gradient) in targets.iter().zip(gradients) {
        if target.shape() != gradient.shape() || target.dtype() != gradient.dtype() {
            return Err(Error::shape(
                "gradient",
                format!(
                    "the output gradient is {} {} but its target {} {}; they must agree",
                    gradient.shape(),
                    gradient.dtype(),
                    target.shape(),
                    target.dtype()
                ),
            ));
        }
    }
    Ok(())
}
