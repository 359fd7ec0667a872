//! `max` and `min`: the greatest and the least element over some axes.
//!
//! Backward reads one position per result and neither input nor output. Where several elements are equally extreme
//! the first of them gets the whole gradient, as in PyTorch's `max` along an axis and in max pooling: sharing it out
//! would need a mark for every element.

use plimsoll_cpu::reduce::{ArgMax, ArgMin, Max as MaxFold, Min as MinFold};
use smallvec::{SmallVec, smallvec};

use super::positions::{pick_at, place_at};
use super::{Reduce, Reduced, fold, methods, numbers_only};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::eager::op::{AuxOutput, Form, SavedRef, SavedRefs, Meta, Operand};
use crate::ops::cuda::reduce as cuda;
use crate::ops::kernel::for_computed_numbers;
use crate::base::axes::{Axes, IntoAxes};
use crate::base::shape::Shape;
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;

/// The greatest element, or NaN where there is one.
#[derive(Clone, Copy, Debug)]
pub struct Max;

/// The least element, or NaN where there is one.
#[derive(Clone, Copy, Debug)]
pub struct Min;

/// The GPU's fold that finds the extreme and the first place where it is, or those of the first that is not a number.
macro_rules! extreme_and_place {
    ($is_beyond:tt) => {
        cuda::Fold {
            variant: 0,
            text: concat!(
                "struct Acc { C value; i64 at; }; ",
                "DEVICE bool is_beyond(C a, C b) { return b ",
                stringify!($is_beyond),
                " a || (b != b && a == a); } ",
                "DEVICE Acc first_of(Acc a, Acc b) { ",
                "bool is_earlier = b.at < a.at && !is_beyond(b.value, a.value); ",
                "return a.at < 0 || is_beyond(a.value, b.value) || is_earlier ? b : a; } ",
                "DEVICE Acc empty() { return {(C)0, -1}; } ",
                "template <int N> DEVICE Acc leaf(const Values<N>& values) { Acc known = empty(); ",
                "_Pragma(\"unroll\") for (int i = 0; i < N; i++) ",
                "known = first_of(known, {values.x0[i], (i64)values.at(i)}); return known; } ",
                "DEVICE Acc merge(Acc a, Count, Acc b, Count) { return first_of(a, b); }"
            ),
            finish: "",
            acc_bytes: 16,
            is_ordered: true,
        }
    };
}
pub(super) use extreme_and_place;

macro_rules! extreme {
    ($op:ident, $name:literal, $doc:literal, $fold:ident, $arg:ident, $arg_method:ident, $reference:expr, $torch:literal, $is_beyond:tt, $least:literal, $both:literal) => {
        impl Reduce for $op {
            const NAME: &'static str = $name;
            const DOC: &'static str = $doc;
            const NEEDS_ELEMENTS: bool = true;

            fn sample() -> $op {
                $op
            }

            fn output(self, input: DType) -> Result<DType> {
                numbers_only($name, input)
            }

            fn run(self, x: &Operand, axes: Axes, y: &Operand, aux_outputs: &[Operand]) {
                for_computed_numbers!(x.dtype(), C => fold(&$fold::<C>::new(), x, axes, y));
                if let [positions] = aux_outputs {
                    for_computed_numbers!(x.dtype(), C => fold(&$arg::<C>::new(), x, axes, positions));
                }
            }

            fn cuda(self, input: DType, is_recorded: bool) -> cuda::Fold {
                if is_recorded {
                    let finish = "y0 = acc.value; y1 = acc.at;";
                    return cuda::Fold { variant: 1, finish, ..extreme_and_place!($is_beyond) };
                }
                let text = cuda::plain_fold!("C", $least, "x", $both);
                let acc_bytes = input.accumulator().size();
                cuda::Fold { variant: 0, text, finish: "y0 = acc.value;", acc_bytes, is_ordered: false }
            }

            fn saved(self) -> SavedRefs {
                smallvec![SavedRef::Aux(0)]
            }

            fn aux_outputs(self, _input: DType, result: Shape) -> SmallVec<[AuxOutput; 2]> {
                smallvec![AuxOutput { form: Form::Indices, meta: Meta::fresh(result, DType::I64) }]
            }

            fn backward(self, reduced: &Reduced, backward: &mut Backward<'_>) -> Result<()> {
                let gradient = reduced.gradient(backward)?;
                let positions = reduced.aux(backward, 0)?;
                let gradient = place_at(&gradient, &positions, *backward.input_shape(0), reduced.axes)?;
                backward.set_grad(0, gradient)
            }

            fn composite(self, x: &Tensor, axes: Axes) -> Option<Result<Tensor>> {
                Some(x.$arg_method(axes).and_then(|positions| pick_at(x, &positions, axes)))
            }

            fn reference(self, values: &[f64]) -> f64 {
                values.iter().copied().fold(f64::NAN, $reference)
            }

            fn torch(self, dim: &str, _several: bool) -> Option<String> {
                Some(format!($torch, dim))
            }
        }
    };
}

extreme!(
    Max, "max", "The greatest element over some axes.", MaxFold, ArgMax, argmax_keepdims, f64::max, "x0.amax({})",
    >, "least(C())", "m::max(a, b)"
);
extreme!(Min, "min", "The least element over some axes.", MinFold, ArgMin, argmin_keepdims, f64::min, "x0.amin({})",
    <, "greatest(C())", "m::min(a, b)"
);

methods!(
    Max,
    max,
    max_keepdims,
    "The greatest element",
    ["amax", "reduce_max"],
    "NaN where there is one. Where several are equally great, the first of them in row-major order gets the whole gradient. \
     The greater elements of two tensors are [`maximum`](Tensor::maximum)'s."
);
methods!(
    Min,
    min,
    min_keepdims,
    "The least element",
    ["amin", "reduce_min"],
    "NaN where there is one. Where several are equally small, the first of them in row-major order gets the whole gradient. \
     The lesser elements of two tensors are [`minimum`](Tensor::minimum)'s."
);
