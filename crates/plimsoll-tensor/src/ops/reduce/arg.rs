//! `argmax` and `argmin`: where the greatest and the least element is.

use plimsoll_cpu::reduce::{ArgMax as ArgMaxFold, ArgMin as ArgMinFold};

use super::extreme::extreme_and_place;
use super::{Reduce, fold, methods, numbers_only};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::eager::op::{Gradient, Operand};
use crate::ops::cuda::reduce as cuda;
use crate::ops::kernel::for_computed_numbers;
use crate::base::axes::{Axes, IntoAxes};
use crate::eager::tensor::Tensor;

/// The position of the greatest element along the reduced axes.
#[derive(Clone, Copy, Debug)]
pub struct ArgMax;

/// The position of the least element along the reduced axes.
#[derive(Clone, Copy, Debug)]
pub struct ArgMin;

macro_rules! arg_extreme {
    ($op:ident, $name:literal, $doc:literal, $fold:ident, $is_beyond:tt) => {
        impl Reduce for $op {
            const NAME: &'static str = $name;
            const DOC: &'static str = $doc;
            const NEEDS_ELEMENTS: bool = true;
            const GRADIENT: Gradient = Gradient::Zero;

            fn sample() -> $op {
                $op
            }

            fn output(self, input: DType) -> Result<DType> {
                numbers_only($name, input).map(|_| DType::I64)
            }

            fn run(self, x: &Operand, axes: Axes, y: &Operand, _aux_outputs: &[Operand]) {
                for_computed_numbers!(x.dtype(), C => fold(&$fold::<C>::new(), x, axes, y));
            }

            fn cuda(self, _input: DType, _is_recorded: bool) -> cuda::Fold {
                cuda::Fold { variant: 0, finish: "y0 = acc.at;", ..extreme_and_place!($is_beyond) }
            }

            fn reference(self, values: &[f64]) -> f64 {
                let mut best = 0;
                for (idx, value) in values.iter().enumerate() {
                    if *value $is_beyond values[best] {
                        best = idx;
                    }
                }
                best as f64
            }

            fn torch(self, dim: &str, several: bool) -> Option<String> {
                (!several).then(|| format!(concat!("x0.", $name, "({})"), dim))
            }
        }
    };
}

arg_extreme!(ArgMax, "argmax", "Where the greatest element is.", ArgMaxFold, >);
arg_extreme!(ArgMin, "argmin", "Where the least element is.", ArgMinFold, <);

methods!(
    ArgMax,
    argmax,
    argmax_keepdims,
    "The position (int64) of the greatest element, the first of equal ones, counted in row-major order",
    ["arg_max"]
);
methods!(
    ArgMin,
    argmin,
    argmin_keepdims,
    "The position (int64) of the least element, the first of equal ones, counted in row-major order",
    ["arg_min"]
);
