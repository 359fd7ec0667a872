//! `masked_fill`: one number where a mask is true, the elements elsewhere.

use plimsoll_cpu::element::Element as Stored;
use plimsoll_cpu::{map, simd};
use plimsoll_cuda::Gpu;

use crate::base::dtype::{DType, Element};
use crate::base::error::{Error, Result};
use crate::eager::context;
use crate::eager::execute::{Arg, call, call_with};
use crate::eager::op::{Meta, Op, OpRef, Operand, Outputs, Pointwise, Run, SavedRef, SavedRefs, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::cuda::elementwise;
use crate::ops::kernel::{computed, for_all, stretched};
use crate::ops::registry::{Array, OpInfo, Sample, Values, floats, input};

/// y = value where the mask is true, else x. The gradient is zero where the mask is true; only the mask is kept, as it
/// was given: a mask that repeats is smaller than any made from it.
#[derive(Debug)]
struct MaskedFill {
    value: f64,
}

impl Op for MaskedFill {
    fn name(&self) -> &'static str {
        "masked_fill"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let [x, mask] = inputs else { unreachable!("a tensor and a mask") };
        if mask.dtype != DType::Bool {
            return Err(Error::dtype(
                "masked_fill",
                format!(
                    "the mask is bool, not {}; make one by a comparison or `cast(DType::Bool)`",
                    mask.dtype
                ),
            ));
        }
        if mask.layout.broadcast_to(x.shape()).is_none() {
            return Err(Error::not_broadcastable("masked_fill", mask.shape(), x.shape()));
        }
        one(*x.shape(), x.dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let [x, mask] = run.inputs else { unreachable!("a tensor and a mask") };
        for_all!(x.dtype(), T => fill_masked(x, mask, &run.outputs[0], Stored::widen(T::from_f64(self.value))));
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        elementwise::start(self, run, gpu)
    }

    fn pointwise(&self) -> Option<Pointwise> {
        Some(Pointwise::new(["y0 = x1 ? NUMBER(0) : x0;", "", ""]).numbers(&[self.value]))
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        wanted[0].then_some(SavedRef::Input(1)).into_iter().collect()
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let args = smallvec::smallvec![Arg::Given(backward.gradient()?), Arg::Given(backward.input(1)?)];
        backward.set_grad(0, call_with(OpRef::shipped(MaskedFill { value: 0.0 }), args)?)
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

fn fill_masked<C: Copy + Sync>(x: &Operand, mask: &Operand, y: &Operand, value: C) {
    let mask_layout = mask.meta.layout.broadcast_to(x.shape());
    let mask_layout = mask_layout.unwrap_or_else(|| unreachable!("`infer` checks the shapes"));
    let mask = stretched(mask, &mask_layout);
    // SAFETY: `execute` hands out operands that are valid for their layouts, and a stretched layout repeats elements of
    // its operand; the output is fresh, or the first input itself.
    unsafe {
        map::map2(x.shape(), computed(y), computed(x), mask, |x, mask, y| fill_tile(value, x, mask, y));
    }
}

#[inline(never)]
fn fill_tile<T: Copy>(value: T, x: &[T], mask: &[bool], y: &mut [T]) {
    simd::vectorize(
        #[inline(always)]
        || {
            // A copy of its own: the compiler then chooses between values, in vectors, and not between addresses.
            let filling = value;
            for ((y, &x), &mask) in y.iter_mut().zip(x).zip(mask) {
                *y = if mask { filling } else { x };
            }
        },
    );
}

impl Tensor {
    /// `value` where `mask` is true, the elements elsewhere; the mask broadcasts to the tensor's shape.
    ///
    /// # Errors
    /// A mask that is not bool or does not broadcast; memory that is full.
    #[doc = example!("masked_fill")]
    #[track_caller]
    pub fn masked_fill(&self, mask: &Tensor, value: f64) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::shipped(MaskedFill { value }), &[self, mask])
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[&OpInfo {
    name: "masked_fill",
    doc: "A number where a mask is true, the elements elsewhere.",
    samples,
}];

fn samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &'static [usize], mask: &[usize]| {
        let inputs = vec![floats(shape), input(mask, Values::Truths)];
        Sample::new(name, inputs, |x| x[0].masked_fill(&x[1], -0.5))
            .reference(move |x| Array::build(shape, |i| if x[1].at(i) != 0.0 { -0.5 } else { x[0].at(i) }))
            .torch("x0.masked_fill(x1, -0.5)")
            .example("x0.masked_fill(&x1, -0.5)")
    };
    vec![
        sample("equal shapes", &[3, 5], &[3, 5])
            .refuses(vec![floats(&[3, 5]), floats(&[3, 5])], "the mask is bool")
            .refuses(vec![floats(&[5]), input(&[3, 5], Values::Truths)], "do not broadcast"),
        sample("repeated mask", &[2, 3, 4], &[3, 1]),
    ]
}
