//! `any` and `all`: whether some or all elements are true, that is, not zero.

use plimsoll_cpu::reduce::{All as AllFold, Any as AnyFold};

use super::{Reduce, fold, methods};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::eager::op::{Gradient, Operand};
use crate::ops::cuda::reduce as cuda;
use crate::ops::kernel::for_computed;
use crate::base::axes::{Axes, IntoAxes};
use crate::eager::tensor::Tensor;

/// Whether any element is true; of nothing, false.
#[derive(Clone, Copy, Debug)]
pub struct Any;

/// Whether all elements are true; of nothing, true.
#[derive(Clone, Copy, Debug)]
pub struct All;

macro_rules! truth {
    ($op:ident, $name:ident, $doc:literal, $fold:ident, $empty:literal, $both:literal) => {
        impl Reduce for $op {
            const NAME: &'static str = stringify!($name);
            const DOC: &'static str = $doc;
            const GRADIENT: Gradient = Gradient::Zero;

            fn sample() -> $op {
                $op
            }

            fn output(self, _input: DType) -> Result<DType> {
                Ok(DType::Bool)
            }

            fn run(self, x: &Operand, axes: Axes, y: &Operand, _aux_outputs: &[Operand]) {
                for_computed!(x.dtype(), C => fold(&$fold::<C>::new(), x, axes, y));
            }

            fn cuda(self, _input: DType, _is_recorded: bool) -> cuda::Fold {
                let text = cuda::plain_fold!("u32", $empty, "x != (C)0", $both);
                cuda::Fold { variant: 0, text, finish: "y0 = acc.value != 0;", acc_bytes: 4, is_ordered: false }
            }

            fn reference(self, values: &[f64]) -> f64 {
                f64::from(values.iter().$name(|&value| value != 0.0))
            }

            fn torch(self, dim: &str, _several: bool) -> Option<String> {
                Some(format!(concat!("x0.", stringify!($name), "({})"), dim))
            }
        }
    };
}

truth!(Any, any, "Whether any element is true.", AnyFold, "0", "a | b");
truth!(All, all, "Whether all elements are true.", AllFold, "1", "a & b");

methods!(Any, any, any_keepdims, "Whether any element is true (not zero)", ["reduce_any"]);
methods!(All, all, all_keepdims, "Whether all elements are true (not zero)", ["reduce_all"]);
