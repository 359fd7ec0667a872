//! `contiguous` and `cast`: the same values in row-major order, or as another dtype.

use plimsoll_cpu::copy as kernels;
use plimsoll_cuda::Gpu;

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{Gradient, Meta, Op, OpRef, Operand, Outputs, Pointwise, Run, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::cuda;
use crate::ops::kernel::{dst, for_all, src};
use crate::ops::registry::{OpInfo, Sample, Values, floats, input};

/// Copies the values of one operand to another of the same shape, converting them if the dtypes differ.
pub(crate) fn copy(from: &Operand, to: &Operand) {
    debug_assert_eq!(from.shape(), to.shape());
    for_all!(from.dtype(), I => for_all!(to.dtype(), O => {
        // SAFETY: `execute` hands out operands that are valid for their layouts, and the output is nobody else's.
        unsafe { kernels::cast::<I, O>(from.shape(), dst(to), src(from)) }
    }));
}

/// The same on a GPU, for an op. Where the dtypes differ the target is row-major.
pub(crate) fn copy_cuda(op: &'static str, gpu: &Gpu, from: &Operand, to: &Operand) -> Result<()> {
    // An element that is repeated is read once and written 16 bytes at a time by elementwise kernels; whatever else keeps
    // its bits is moved.
    let repeats = from.meta.layout.strides().last() == Some(&0) && to.is_contiguous();
    match from.dtype() == to.dtype() && !repeats {
        true => cuda::moves::start(op, gpu, &[cuda::moves::Move::new(from, to)]),
        false => cuda::elementwise::convert(op, gpu, from, to),
    }
}

/// The values in row-major order, in memory of their own.
#[derive(Debug)]
struct Contiguous;

impl Op for Contiguous {
    fn name(&self) -> &'static str {
        "contiguous"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        one(*inputs[0].shape(), inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        copy(&run.inputs[0], &run.outputs[0]);
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        copy_cuda(self.name(), gpu, &run.inputs[0], &run.outputs[0])
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        backward.set_grad(0, gradient)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// The values as another dtype.
#[derive(Debug)]
struct Cast(DType);

impl Op for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        one(*inputs[0].shape(), self.0)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        copy(&run.inputs[0], &run.outputs[0]);
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        copy_cuda(self.name(), gpu, &run.inputs[0], &run.outputs[0])
    }

    fn pointwise(&self) -> Option<Pointwise> {
        Some(Pointwise::new(["y0 = cast<Compute<", cuda::c_name(self.0), ">>(x0);"]))
    }

    fn gradient(&self) -> Gradient {
        if self.0.is_float() { Gradient::Backward } else { Gradient::Zero }
    }

    fn never_refuses(&self) -> bool {
        true
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?.cast(backward.input_dtype(0))?;
        backward.set_grad(0, gradient)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

impl Tensor {
    /// The same values in row-major order; the tensor itself if they lie so already.
    ///
    /// # Errors
    /// Memory that is full.
    #[doc(alias = "ascontiguousarray")]
    #[track_caller]
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.layout().is_contiguous() {
            return Ok(self.clone());
        }
        self.copied()
    }

    /// The same values in memory of their own.
    ///
    /// # Errors
    /// Memory that is full.
    #[doc = example!("copied")]
    #[doc(alias("clone", "copy"))]
    #[track_caller]
    pub fn copied(&self) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::fixed(&Contiguous), &[self])
    }

    /// The values as another dtype: floats become whole numbers by truncation, and what is not zero is true.
    ///
    /// # Errors
    /// Memory that is full.
    #[doc = example!("cast")]
    #[doc(alias("astype", "to", "type", "int", "double", "float", "half"))]
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> Result<Tensor> {
        let _line = context::at_callers_line();
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        call(OpRef::shipped(Cast(dtype)), &[self])
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &OpInfo { name: "contiguous", doc: "The values in row-major order.", samples: contiguous_samples },
    &OpInfo { name: "cast", doc: "The values as another dtype.", samples: cast_samples },
];

fn contiguous_samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize]| {
        Sample::new(name, vec![floats(shape)], |x| x[0].copied())
            .reference(|x| x[0].clone())
            .torch("x0.clone()")
            .example("x0.copied()")
    };
    vec![sample("square", &[3, 4]), sample("cube", &[2, 3, 2])]
}

fn cast_samples() -> Vec<Sample> {
    let whole = input(&[5], Values::Of(DType::I64, -3.0, 4.0));
    vec![
        Sample::new("to float64", vec![floats(&[2, 3])], |x| x[0].cast(DType::F64))
            .reference(|x| x[0].clone())
            .torch("x0.double()"),
        Sample::new("integers to float64", vec![whole], |x| x[0].cast(DType::F64))
            .reference(|x| x[0].clone())
            .torch("x0.double()"),
        Sample::new("to whole numbers", vec![input(&[7], Values::Constants(-3.0, 3.0))], |x| {
            x[0].cast(DType::I32)
        })
        .reference(|x| x[0].map(f64::trunc))
        .torch("x0.int()")
        .example("x0.cast(DType::I32)"),
    ]
}
