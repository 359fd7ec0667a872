//! `clamp`: each element, brought between two bounds.

use plimsoll_cpu::bits;
use plimsoll_cpu::element::{CastTo, Element as Stored, Number};
use plimsoll_cpu::{map, simd};
use plimsoll_cuda::{Gpu, Grid, Template};
use smallvec::SmallVec;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::context;
use crate::eager::execute::{Arg, call, call_with};
use crate::eager::op::{
    AuxOutput, Form, Meta, Op, OpRef, Operand, Outputs, Pointwise, Run, SavedRef, SavedRefs, one,
};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::copy::{copy, copy_cuda};
use crate::ops::cuda::{self, elementwise};
use crate::ops::kernel::{computed, for_computed_numbers, for_numbers, src};
use crate::ops::lanes::expect_float;
use crate::ops::registry::{Array, OpInfo, Sample, Values, floats, input};

/// f(x) = min(max(x, low), high); f'(x) = 1 from bound to bound, the bounds included, else 0. Neither the input nor the
/// output tells a bound from what was brought to it in less than a value per element, so a bit per element is kept.
#[derive(Clone, Copy, Debug)]
struct Clamp {
    low: f64,
    high: f64,
}

impl Op for Clamp {
    fn name(&self) -> &'static str {
        "clamp"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        match inputs[0].dtype {
            DType::Bool => Err(Error::dtype("clamp", "takes numbers, not bool; convert with `cast`")),
            dtype => one(*inputs[0].shape(), dtype),
        }
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (mut x, y) = (&run.inputs[0], &run.outputs[0]);
        if let Some(mask) = run.aux_outputs.first() {
            x = in_order(x, y);
            for_numbers!(x.dtype(), T => self.pack::<T>(x, mask));
        }
        for_computed_numbers!(x.dtype(), C => {
            // SAFETY: `execute` hands out operands that are valid for their layouts; the output is fresh, or the input.
            unsafe { map::map1::<C, C>(x.shape(), computed(y), computed(x), |x, y| tile(*self, x, y)) }
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        match run.aux_outputs.first() {
            Some(mask) => with_mask("clamp", gpu, &run.inputs[0], &run.outputs[0], mask, Some(*self)),
            None => elementwise::start(self, run, gpu),
        }
    }

    fn pointwise(&self) -> Option<Pointwise> {
        Some(
            Pointwise::new(["y0 = m::min(m::max(x0, NUMBER(0)), NUMBER(1));", "", ""])
                .numbers(&[self.low, self.high]),
        )
    }

    fn saved(&self, _wanted: &[bool]) -> SavedRefs {
        smallvec::smallvec![SavedRef::Aux(0)]
    }

    fn aux_outputs(&self, inputs: &[&Meta], _wanted: &[bool]) -> SmallVec<[AuxOutput; 2]> {
        smallvec::smallvec![AuxOutput { form: Form::Mask, meta: mask_meta(inputs[0]) }]
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let args = smallvec::smallvec![Arg::Given(backward.gradient()?), Arg::Given(backward.aux(0)?)];
        backward.set_grad(0, call_with(OpRef::fixed(&ClampBackward), args)?)
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

impl Clamp {
    /// Sets the bits of the elements that lie between the bounds.
    fn pack<T: Stored<Compute: Number>>(self, x: &Operand, mask: &Operand)
    where
        f64: CastTo<T::Compute>,
    {
        let (low, high): (T::Compute, T::Compute) = (self.low.cast(), self.high.cast());
        let holds = |x: T::Compute| x >= low && x <= high;
        // SAFETY: `in_order` gives contiguous elements, and the mask has the bytes that `mask_meta` states.
        unsafe { bits::pack::<T>(x.n_elems(), x.ptr().cast_const().cast(), mask.ptr(), holds) }
    }
}

#[inline(never)]
fn tile<T: Number>(op: Clamp, x: &[T], y: &mut [T])
where
    f64: CastTo<T>,
{
    let (low, high): (T, T) = (op.low.cast(), op.high.cast());
    simd::vectorize(
        #[inline(always)]
        || {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = x.max(low).min(high);
            }
        },
    );
}

static MASKED: Template = Template { name: "mask", text: include_str!("clamp.cu") };

/// On a GPU: brings the elements between the bounds and sets the bits of those that lay there, or, without bounds, keeps
/// the elements whose bits are set.
fn with_mask(
    op: &'static str,
    gpu: &Gpu,
    x: &Operand,
    y: &Operand,
    mask: &Operand,
    bounds: Option<Clamp>,
) -> Result<()> {
    let (n, size) = (y.n_elems(), y.dtype().size());
    let mut from = x.ptr();
    if !x.is_contiguous() {
        copy_cuda(op, gpu, x, y)?;
        from = y.ptr();
    }
    let is_aligned =
        |bytes: usize| (from as usize).is_multiple_of(bytes) && (y.ptr() as usize).is_multiple_of(bytes);
    let mut v = std::cmp::min(8, 16 / size);
    while v > 1 && !is_aligned(v * size) {
        v /= 2;
    }
    let variant = cuda::code(y.dtype()) << 8 | (v as u64) << 1 | u64::from(bounds.is_none());
    let kernel = gpu.kernel(&MASKED, op, variant, || {
        let backward = u8::from(bounds.is_none());
        format!("#define T {}\n#define V {v}\n#define BACKWARD {backward}\n", cuda::c_name(y.dtype()))
    })?;
    let (low, high) = bounds.map_or((0.0, 0.0), |bounds| (bounds.low, bounds.high));
    let stride = mask.meta.layout.strides()[0];
    let grid = Grid::covering(bits::mask_len(n), 256);
    // SAFETY: `from` and the output are `n` elements in row-major order, the mask has a byte for each eight of them, and
    // groups of `v` elements are aligned.
    unsafe { gpu.launch(&kernel, grid, &[&y.ptr(), &from, &mask.ptr(), &stride, &low, &high, &n]) }?;
    Ok(())
}

/// The elements in row-major order: as they lie, or else copied to where the result will be.
fn in_order<'a, 'b>(x: &'a Operand<'b>, y: &'a Operand<'b>) -> &'a Operand<'b> {
    if x.is_contiguous() {
        return x;
    }
    copy(x, y);
    y
}

/// The form of a mask with a bit for each element.
fn mask_meta(of: &Meta) -> Meta {
    Meta::fresh(Shape::within_bounds([bits::mask_len(of.n_elems())]), DType::U8)
}

/// The gradient where a bit is set, else zero. It is linear in the gradient and its own transpose, so that it is its own
/// backward, to any order.
#[derive(Debug)]
struct ClampBackward;

impl Op for ClampBackward {
    fn name(&self) -> &'static str {
        "clamp_backward"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        expect_float(self.name(), inputs[0])?;
        let expected = mask_meta(inputs[0]);
        if inputs[1].dtype != expected.dtype || inputs[1].shape() != expected.shape() {
            return Err(Error::shape(
                "clamp_backward",
                format!(
                    "a mask for shape {} is uint8 of shape {}, not {} of shape {}",
                    inputs[0].shape(),
                    expected.shape(),
                    inputs[1].dtype,
                    inputs[1].shape()
                ),
            ));
        }
        one(*inputs[0].shape(), inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let [gradient, mask] = run.inputs else { unreachable!("a gradient and a mask") };
        let y = &run.outputs[0];
        let gradient = in_order(gradient, y);
        for_numbers!(y.dtype(), T => {
            // SAFETY: both are contiguous and of one shape, the output is fresh or the gradient itself, and `infer`
            // checks the shape of the mask.
            unsafe {
                bits::keep::<T>(y.n_elems(), src(mask), gradient.ptr().cast_const().cast(), y.ptr().cast());
            }
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let [gradient, mask] = run.inputs else { unreachable!("a gradient and a mask") };
        with_mask("clamp_backward", gpu, gradient, &run.outputs[0], mask, None)
    }

    fn saved(&self, _wanted: &[bool]) -> SavedRefs {
        smallvec::smallvec![SavedRef::Input(1)]
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let args = smallvec::smallvec![Arg::Given(backward.gradient()?), Arg::Given(backward.input(1)?)];
        backward.set_grad(0, call_with(OpRef::fixed(&ClampBackward), args)?)
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }
}

impl Tensor {
    /// Each element, at least `low` and at most `high`; an infinite bound leaves that side open.
    ///
    /// # Errors
    /// Bounds that are no numbers or in the wrong order, a tensor of truth values; memory that is full.
    #[doc = example!("clamp")]
    #[doc(alias("clip", "clip_by_value"))]
    #[track_caller]
    pub fn clamp(&self, low: f64, high: f64) -> Result<Tensor> {
        let _line = context::at_callers_line();
        if low <= high {
            return call(OpRef::shipped(Clamp { low, high }), &[self]);
        }
        Err(Error::argument(
            "clamp",
            format!("no number is at least {low} and at most {high}; the lower bound comes first"),
        ))
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &OpInfo { name: "clamp", doc: "Each element, brought between two bounds.", samples },
    &OpInfo {
        name: "clamp_backward",
        doc: "The gradient where a bit is set, else zero.",
        samples: backward_samples,
    },
];

fn samples() -> Vec<Sample> {
    let bounded = |x: f64| if x < -0.5 { -0.5 } else { x.min(1.1) };
    let sample = |name: &str, shape: &[usize]| {
        Sample::new(name, vec![floats(shape)], |x| x[0].clamp(-0.5, 1.1))
            .reference(move |x| x[0].map(bounded))
            .torch("x0.clamp(-0.5, 1.1)")
            .example("x0.clamp(-0.5, 1.1)")
            .refuses(vec![input(&[2], Values::Truths)], "not bool")
    };
    vec![
        sample("vector", &[13]),
        sample("cube", &[2, 3, 5]),
        Sample::new("one side", vec![floats(&[3, 4])], |x| x[0].clamp(0.25, f64::INFINITY))
            .reference(|x| x[0].map(|x| x.max(0.25)))
            .torch("x0.clamp(min=0.25)"),
    ]
}

fn backward_samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize], n_bytes: usize| {
        let mask = input(&[n_bytes], Values::Of(DType::U8, 0.0, 256.0));
        Sample::new(name, vec![floats(shape), mask], |x| call(OpRef::fixed(&ClampBackward), &[&x[0], &x[1]]))
            .reference(|x| {
                let bit = |idx: usize| (x[1].values[idx / 8] / 2f64.powi((idx % 8) as i32)).floor() % 2.0;
                let kept = x[0].values.iter().enumerate().map(|(idx, x)| x * bit(idx));
                Array::new(&x[0].shape, kept.collect())
            })
            .refuses(
                vec![floats(&[17]), input(&[2], Values::Of(DType::U8, 0.0, 256.0))],
                "a mask for shape [17] is uint8 of shape [3]",
            )
    };
    vec![sample("vector", &[13], 2), sample("square", &[4, 4], 2)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::autograd::GradientTape;

    #[test]
    fn the_gradient_flows_from_bound_to_bound() {
        let x = Tensor::from_slice(&[-1.0f32, 0.0, 0.5, 1.0, 1.5, 0.25], [2, 3]).unwrap();
        for x in [x.clone(), x.t().unwrap()] {
            let tape = GradientTape::new();
            tape.watch(&x).unwrap();
            let y = tape.record(|| x.clamp(0.0, 1.0)).unwrap();
            let [gradient] = tape.gradient(&y, [&x]).unwrap();
            let expected: Vec<f32> =
                x.to_vec::<f32>().unwrap().iter().map(|x| f32::from((0.0..=1.0).contains(x))).collect();
            assert_eq!(gradient.to_vec::<f32>().unwrap(), expected);
        }
    }

    #[test]
    fn bounds_in_the_wrong_order_are_refused() {
        let x = Tensor::zeros(3).unwrap();
        assert!(x.clamp(1.0, 0.0).unwrap_err().to_string().contains("at least 1 and at most 0"));
        assert!(x.clamp(f64::NAN, 0.0).is_err());
    }
}
