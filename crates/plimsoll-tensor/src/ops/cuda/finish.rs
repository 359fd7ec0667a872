//! What follows a product or a convolution that its library does not do itself: a bias per column, an activation.

use plimsoll_cuda::Gpu;

use super::elementwise::Elementwise;
use crate::base::error::Result;
use crate::eager::op::Operand;
use crate::ops::Activation;

/// Tells these kernels from others of the same op.
const VARIANT: u64 = 0x100;

/// Adds a bias to each row of `y` and applies an activation, in place, in one pass over memory; nothing is launched where
/// there is nothing to do.
pub(crate) fn finish(
    gpu: &Gpu,
    op: &'static str,
    y: &Operand,
    bias: Option<&Operand>,
    activation: Activation,
) -> Result<()> {
    if bias.is_none() && activation == Activation::None {
        return Ok(());
    }
    let with_bias = [y, bias.unwrap_or(y)];
    let kernel = Elementwise {
        op,
        inputs: if bias.is_some() { &with_bias } else { &with_bias[..1] },
        outputs: &[y],
        numbers: &[],
        words: &[],
        variant: VARIANT + activation as u64,
    };
    kernel.run(gpu, || {
        let sum = if bias.is_some() { "x0 + x1" } else { "x0" };
        format!("C sum = {sum}; y0 = {};", value(activation))
    })
}

/// An activation of `sum`, in CUDA C.
fn value(activation: Activation) -> &'static str {
    match activation {
        Activation::None => "sum",
        Activation::Relu => "m::max(sum, (C)0)",
        Activation::Sigmoid => "(C)1 / ((C)1 + m::exp(-sum))",
        Activation::Tanh => "m::tanh(sum)",
        other => unreachable!("{other:?} runs as an op of its own"),
    }
}
