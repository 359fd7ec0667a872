//! `any` and `all`: whether some or all elements are true, that is, not zero.

use plimsoll_cpu::reduce::{All as AllFold, Any as AnyFold};

use super::{Reduce, fold, methods};
use crate::dtype::DType;
use crate::error::Result;
use crate::op::{Gradient, Operand};
use crate::ops::kernel::for_all;
use crate::shape::{Axes, IntoAxes};
use crate::tensor::Tensor;

/// Whether any element is true; of nothing, false.
#[derive(Clone, Copy, Debug)]
pub struct Any;

/// Whether all elements are true; of nothing, true.
#[derive(Clone, Copy, Debug)]
pub struct All;

macro_rules! truth {
    ($op:ident, $name:ident, $doc:literal, $fold:ident) => {
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

            fn run(self, x: &Operand, axes: Axes, y: &Operand, _extras: &[Operand]) {
                for_all!(x.dtype(), T => fold(&$fold::<T>::new(), x, axes, y));
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

truth!(Any, any, "Whether any element is true.", AnyFold);
truth!(All, all, "Whether all elements are true.", AllFold);

methods!(Any, any, any_keepdims, "Whether any element is true (not zero)");
methods!(All, all, all_keepdims, "Whether all elements are true (not zero)");
