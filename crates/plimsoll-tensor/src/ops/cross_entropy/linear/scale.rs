//! `scale_gradient`: a tensor times a number of the accumulator's dtype, rounded once; written over the tensor where it may.

use plimsoll_cpu::element::Number;
use plimsoll_cuda::Gpu;

use crate::base::error::{Error, Result};
use crate::eager::execute::{Arg, call_with};
use crate::eager::op::{Gradient, Meta, Op, OpRef, Operand, Outputs, Run, Tensors, one};
use crate::eager::tensor::Tensor;
use crate::ops::cuda::elementwise::Elementwise;
use crate::ops::kernel::{computed, for_computed_floats};

/// From a gradient and a factor, which need not be of one dtype, to their product.
#[derive(Debug)]
pub(super) struct ScaleGradient;

/// A gradient that nobody else reads, times a factor.
pub(super) fn scaled(gradient: Tensor, factor: &Tensor) -> Result<Tensor> {
    call_with(OpRef::fixed(&ScaleGradient), smallvec::smallvec![Arg::Given(gradient), Arg::Lent(factor)])
}

impl Op for ScaleGradient {
    fn name(&self) -> &'static str {
        "scale_gradient"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let [gradient, factor] = inputs else { unreachable!("two operands") };
        if !gradient.dtype.is_float() || factor.dtype != gradient.dtype.accumulator() {
            return Err(Error::dtype(
                self.name(),
                format!(
                    "a gradient of {} takes a factor of {}, not {}",
                    gradient.dtype,
                    gradient.dtype.accumulator(),
                    factor.dtype
                ),
            ));
        }
        if factor.shape().rank() != 0 {
            return Err(Error::shape(
                self.name(),
                format!("the factor has shape {}; it is one number", factor.shape()),
            ));
        }
        one(*gradient.shape(), gradient.dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let [gradient, factor] = run.inputs else { unreachable!("two operands") };
        for_computed_floats!(gradient.dtype(), C => scale::<C>(gradient, factor, &run.outputs[0]));
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let kernel = Elementwise {
            op: self.name(),
            inputs: &[&run.inputs[0], &run.inputs[1]],
            outputs: &[&run.outputs[0]],
            numbers: &[],
            words: &[],
            variant: 0,
        };
        kernel.run(gpu, || "y0 = x0 * x1;".to_owned())
    }

    fn gradient(&self) -> Gradient {
        Gradient::Composite
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let product = || {
            let wide = inputs[0].cast(inputs[1].dtype())?.mul(inputs[1])?;
            wide.cast(inputs[0].dtype())
        };
        Some(product().map(|product| smallvec::smallvec![product]))
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

fn scale<C: Number>(gradient: &Operand, factor: &Operand, y: &Operand) {
    // SAFETY: `infer` checks that the factor is one number of the compute type, and nobody writes it now.
    let factor = unsafe { *factor.ptr().cast::<C>() };
    let tile = |x: &[C], y: &mut [C]| {
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = Number::mul(x, factor));
    };
    // SAFETY: `execute` hands out operands that are valid for their layouts; the output is fresh, or the input itself.
    unsafe { plimsoll_cpu::map::map1(gradient.shape(), computed(y), computed(gradient), tile) }
}
