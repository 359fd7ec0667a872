//! `affine`: each element times a number plus a number; what a tensor and a weak number make together.

use plimsoll_cpu::element::{CastTo, Number};
use plimsoll_cpu::{map, simd};
use plimsoll_cuda::Gpu;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::eager::context;
use crate::eager::execute::{Arg, call, call_with};
use crate::eager::op::{Meta, Op, OpRef, Outputs, Pointwise, Run, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::cuda::elementwise;
use crate::ops::kernel::{computed, for_computed_numbers};
use crate::ops::registry::{OpInfo, Sample, floats};

/// f(x) = scale x + shift, f'(x) = scale: nothing is saved.
#[derive(Clone, Copy, Debug)]
struct Affine {
    scale: f64,
    shift: f64,
}

impl Op for Affine {
    fn name(&self) -> &'static str {
        "affine"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        match inputs[0].dtype {
            DType::Bool => Err(Error::dtype("affine", "takes numbers, not bool; convert with `cast`")),
            dtype => one(*inputs[0].shape(), dtype),
        }
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (x, y) = (&run.inputs[0], &run.outputs[0]);
        for_computed_numbers!(x.dtype(), C => {
            // SAFETY: `execute` hands out operands that are valid for their layouts; the output is fresh, or the input.
            unsafe { map::map1::<C, C>(x.shape(), computed(y), computed(x), |x, y| tile(*self, x, y)) }
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        elementwise::start(self, run, gpu)
    }

    fn pointwise(&self) -> Option<Pointwise> {
        Some(Pointwise::new(["y0 = x0 * NUMBER(0) + NUMBER(1);", "", ""]).numbers(&[self.scale, self.shift]))
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?.into_affine(self.scale, 0.0)?;
        backward.set_grad(0, gradient)
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

#[inline(never)]
fn tile<T: Number>(op: Affine, x: &[T], y: &mut [T])
where
    f64: CastTo<T>,
{
    let (scale, shift): (T, T) = (op.scale.cast(), op.shift.cast());
    simd::vectorize(
        #[inline(always)]
        || {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = x.mul(scale).add(shift);
            }
        },
    );
}

impl Tensor {
    /// Each element times `scale`, plus `shift`.
    ///
    /// # Errors
    /// A tensor of truth values; memory that is full.
    #[doc = example!("affine")]
    #[track_caller]
    pub fn affine(&self, scale: f64, shift: f64) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::shipped(Affine { scale, shift }), &[self])
    }

    /// Each element times `scale`, plus `shift`, written over this tensor if nobody else holds it.
    ///
    /// # Errors
    /// A tensor of truth values; memory that is full.
    #[track_caller]
    pub fn into_affine(self, scale: f64, shift: f64) -> Result<Tensor> {
        let _line = context::at_callers_line();
        if scale == 1.0 && shift == 0.0 {
            return Ok(self);
        }
        call_with(OpRef::shipped(Affine { scale, shift }), smallvec::smallvec![Arg::Given(self)])
    }

    /// Each element with its sign changed.
    ///
    /// # Errors
    /// A tensor of truth values; memory that is full.
    #[doc = example!("neg")]
    #[doc(alias = "negative")]
    #[track_caller]
    pub fn neg(&self) -> Result<Tensor> {
        self.affine(-1.0, 0.0)
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] =
    &[&OpInfo { name: "affine", doc: "Each element times a number plus a number.", samples }];

fn samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize]| {
        Sample::new(name, vec![floats(shape)], |x| x[0].affine(1.5, -0.25))
            .reference(|x| x[0].map(|x| 1.5 * x - 0.25))
            .torch("x0 * 1.5 - 0.25")
            .example("x0.affine(1.5, -0.25)")
    };
    let negative = Sample::new("negative", vec![floats(&[5])], |x| x[0].neg())
        .reference(|x| x[0].map(|x| -x))
        .example("x0.neg()");
    vec![sample("vector", &[6]), sample("square", &[3, 4]), negative]
}
