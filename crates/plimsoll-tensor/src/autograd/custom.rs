//! Gradients that the user states, and functions that backward recomputes (activation checkpointing).

use std::fmt;
use std::sync::Arc;

use super::{GradientTape, Unconnected};
use crate::base::error::{Error, Result};
use crate::eager::context::{self, LayerPath};
use crate::eager::execute::{Arg, Args, execute};
use crate::eager::op::{Meta, Op, OpRef, Output, Outputs, Run, SavedRef, SavedRefs, Tensors};
use crate::eager::random::Generator;
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;

/// Turns the gradient of a result into the gradients of the inputs.
type BackwardFn = dyn Fn(&Tensor) -> Result<Vec<Tensor>> + Send + Sync;

/// A function of tensors that can be rerun.
type Function = dyn Fn(&[Tensor]) -> Result<Tensor> + Send + Sync;

/// Runs `forward` without recording it, and gives its result the gradient that the returned function states: from
/// the gradient of the result to one gradient per input.
///
/// # Errors
/// Those of `forward`; when the gradient is asked for, a number of gradients that differs from that of the inputs.
#[doc(alias("custom_vjp", "autograd"))]
#[track_caller]
pub fn custom_gradient<B>(
    inputs: &[&Tensor],
    forward: impl FnOnce(&[Tensor]) -> Result<(Tensor, B)>,
) -> Result<Tensor>
where
    B: Fn(&Tensor) -> Result<Vec<Tensor>> + Send + Sync + 'static,
{
    let _line = context::at_callers_line();
    let values: Vec<Tensor> = inputs.iter().map(|&input| input.clone()).collect();
    let (result, backward) = context::without_tapes(|| forward(&values))?;
    let op = CustomGradient { n_inputs: inputs.len(), backward: Box::new(backward) };
    attach(OpRef::shipped(op), inputs, result)
}

/// Runs `function` without saving anything of its inside for backward, which recomputes it. Random draws are the same,
/// and variables are read as they were, so the gradients are the same bits as without.
///
/// Recorded tensors that the function uses must be among `inputs`; variables are found by themselves.
///
/// # Errors
/// Those of `function`; a recorded tensor that is used inside but is not among `inputs`.
#[doc(alias("checkpoint", "remat", "recompute_grad"))]
#[track_caller]
pub fn recompute(
    inputs: &[&Tensor],
    function: impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    let _line = context::at_callers_line();
    let generator = context::generator();
    let values: Vec<Tensor> = inputs.iter().map(|input| input.without_nodes()).collect();
    let scout = GradientTape::new();
    // The scout finds the variables that the function reads; it is thrown away with all that it saved.
    let result = context::sealed(scout.core.clone(), || function(&values))?.without_nodes();
    let variables = scout.watched_variables();
    drop(scout);
    let mut all: Vec<&Tensor> = inputs.to_vec();
    all.extend(variables.iter().map(|variable| &**variable));
    let op = Recompute {
        n_inputs: inputs.len(),
        variables: variables.clone(),
        generator,
        layer: context::current_layer(),
        function: Arc::new(function),
    };
    attach(OpRef::shipped(op), &all, result)
}

/// Records `result` as made by `op` from `inputs`: the op runs as a view of the result.
fn attach(op: OpRef, inputs: &[&Tensor], result: Tensor) -> Result<Tensor> {
    if !context::is_recording() {
        return Ok(result);
    }
    let mut args: Args<'_> = inputs.iter().map(|input| Arg::Lent(input)).collect();
    args.push(Arg::Given(result));
    Ok(execute(op, args)?.remove(0))
}

/// A result whose gradient the user states. Its last input is the result itself, which it passes on.
struct CustomGradient {
    n_inputs: usize,
    backward: Box<BackwardFn>,
}

impl fmt::Debug for CustomGradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomGradient")
    }
}

/// The output of an op that passes its last input on.
fn pass_on(inputs: &[&Meta]) -> Result<Outputs> {
    let last = inputs.len() - 1;
    Ok(smallvec::smallvec![Output::View { input: last, layout: Box::new(inputs[last].layout) }])
}

impl Op for CustomGradient {
    fn name(&self) -> &'static str {
        "custom_gradient"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        pass_on(inputs)
    }

    fn run(&self, _run: &mut Run<'_>) -> Result<()> {
        Ok(())
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradients = (self.backward)(&backward.gradient()?)?;
        if gradients.len() != self.n_inputs {
            return Err(Error::argument(
                self.name(),
                format!(
                    "the gradient function gave {} gradients for {} inputs",
                    gradients.len(),
                    self.n_inputs
                ),
            ));
        }
        for (input, gradient) in gradients.into_iter().enumerate() {
            backward.set_grad(input, gradient)?;
        }
        Ok(())
    }
}

/// A result whose function backward reruns. Its inputs are the function's, the variables that it read, and the
/// result itself, which it passes on.
struct Recompute {
    n_inputs: usize,
    variables: Vec<crate::eager::variable::Variable>,
    generator: Generator,
    /// The layer that the function belongs to: its bytes are labelled so in backward, too.
    layer: LayerPath,
    function: Arc<Function>,
}

impl Recompute {
    /// Runs the function as it ran the first time, without its side effects.
    fn rerun(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let now = context::generator();
        context::set_generator(self.generator);
        let _restore = context::on_drop(move || context::set_generator(now));
        context::in_layer(&self.layer, || context::without_effects(|| (self.function)(inputs)))
    }
}

impl fmt::Debug for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recompute")
    }
}

impl Op for Recompute {
    fn name(&self) -> &'static str {
        "recompute"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        pass_on(inputs)
    }

    fn run(&self, _run: &mut Run<'_>) -> Result<()> {
        Ok(())
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let values: Vec<Tensor> = inputs[..self.n_inputs].iter().map(|&input| input.clone()).collect();
        Some(self.rerun(&values).map(|result| smallvec::smallvec![result]))
    }

    fn saved(&self, _wanted: &[bool]) -> SavedRefs {
        (0..self.n_inputs + self.variables.len()).map(SavedRef::Input).collect()
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        let inputs: Vec<Tensor> = (0..self.n_inputs).map(|idx| backward.input(idx)).collect::<Result<_>>()?;
        let pinned: Vec<Tensor> = (0..self.variables.len())
            .map(|idx| backward.input(self.n_inputs + idx))
            .collect::<Result<_>>()?;
        let tape = GradientTape::new();
        for input in inputs.iter().filter(|input| input.dtype().is_float()) {
            tape.watch(input)?;
        }
        let result = crate::eager::variable::with_pinned(&self.variables, &pinned, || {
            tape.record(|| self.rerun(&inputs))
        })?;
        let mut sources: Vec<&Tensor> = inputs.iter().collect();
        sources.extend(self.variables.iter().map(|variable| &**variable));
        let gradients = tape.gradients(&[&result], Some(&[&gradient]), &sources, Unconnected::None)?;
        for (input, gradient) in gradients.into_iter().enumerate() {
            if let Some(gradient) = gradient.filter(|_| backward.wants(input)) {
                backward.set_grad(input, gradient)?;
            }
        }
        Ok(())
    }
}
