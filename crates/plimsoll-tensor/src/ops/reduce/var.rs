//! `var` and `std`: the variance over some axes, and its root.

use plimsoll_cpu::reduce::{Mean as MeanFold, Variance};
use smallvec::{SmallVec, smallvec};

use super::{Reduce, Reduced, fold, n_reduced};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::eager::op::{AuxOutput, Form, SavedRef, SavedRefs, Meta, Operand};
use crate::ops::cuda::reduce as cuda;
use crate::ops::kernel::for_computed_floats;
use crate::base::axes::{Axes, IntoAxes};
use crate::base::shape::Shape;
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;

/// y = Σ (x - mean)² / (n - correction). Backward reads the input and the mean, so it repeats no reduction.
#[derive(Clone, Copy, Debug)]
pub struct Var {
    correction: f64,
}

/// The root of the variance. Backward reads the output, too; where it is zero, so is the gradient.
#[derive(Clone, Copy, Debug)]
pub struct Std {
    correction: f64,
}

/// The divisor of a variance.
fn divisor(n: usize, correction: f64) -> f64 {
    (n as f64 - correction).max(0.0)
}

fn run(correction: f64, is_root: bool, x: &Operand, axes: Axes, y: &Operand, aux_outputs: &[Operand]) {
    for_computed_floats!(x.dtype(), C => {
        fold(&Variance::<C, C>::new(correction, is_root), x, axes, y);
        if let [mean] = aux_outputs {
            fold(&MeanFold::<C, C>::new(), x, axes, mean);
        }
    });
}

/// The GPU's fold: the variance, and the mean as a second result where it is saved.
fn cuda_fold(is_root: bool, input: DType, is_recorded: bool) -> cuda::Fold {
    let finish = match (is_root, is_recorded) {
        (false, false) => "y0 = acc.squares / DIVISOR;",
        (false, true) => "y0 = acc.squares / DIVISOR; y1 = acc.mean;",
        (true, false) => "y0 = m::sqrt(acc.squares / DIVISOR);",
        (true, true) => "y0 = m::sqrt(acc.squares / DIVISOR); y1 = acc.mean;",
    };
    let acc_bytes = 2 * cuda::wide_bytes(input);
    cuda::Fold { variant: u64::from(is_recorded), text: cuda::MOMENTS, finish, acc_bytes, is_ordered: false }
}

/// The auxiliary output that both save: the mean, in the type that it is computed in.
fn mean_aux(input: DType, result: Shape) -> SmallVec<[AuxOutput; 2]> {
    smallvec![AuxOutput { form: Form::Statistics, meta: Meta::fresh(result, input.accumulator()) }]
}

/// The distances from the saved mean times `scale`, one number per result.
fn scaled_distances(reduced: &Reduced, backward: &Backward<'_>, scale: &Tensor) -> Result<Tensor> {
    let x = backward.input(0)?;
    let mean = reduced.aux(backward, 0)?.cast(x.dtype())?;
    x.sub(&mean)?.into_mul(scale)
}

fn composite(x: &Tensor, axes: Axes, correction: f64) -> Result<Tensor> {
    let distances = x.sub(&x.mean_keepdims(axes)?)?;
    let share = 1.0 / divisor(n_reduced(x.shape(), axes), correction);
    distances.mul(&distances)?.sum_keepdims(axes)?.affine(share, 0.0)
}

fn reference(values: &[f64], correction: f64) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    squares / (values.len() as f64 - correction)
}

impl Reduce for Var {
    const NAME: &'static str = "var";
    const DOC: &'static str = "The variance over some axes.";

    fn sample() -> Var {
        Var { correction: 1.0 }
    }

    fn run(self, x: &Operand, axes: Axes, y: &Operand, aux_outputs: &[Operand]) {
        run(self.correction, false, x, axes, y, aux_outputs);
    }

    fn cuda(self, input: DType, is_recorded: bool) -> cuda::Fold {
        cuda_fold(false, input, is_recorded)
    }

    fn number(self) -> f64 {
        self.correction
    }

    fn saved(self) -> SavedRefs {
        smallvec![SavedRef::Input(0), SavedRef::Aux(0)]
    }

    fn aux_outputs(self, input: DType, result: Shape) -> SmallVec<[AuxOutput; 2]> {
        mean_aux(input, result)
    }

    fn backward(self, reduced: &Reduced, backward: &mut Backward<'_>) -> Result<()> {
        let share = 2.0 / divisor(reduced.n_elems(backward), self.correction);
        let scale = reduced.gradient(backward)?.into_affine(share, 0.0)?;
        let gradient = scaled_distances(reduced, backward, &scale)?;
        backward.set_grad(0, gradient)
    }

    fn composite(self, x: &Tensor, axes: Axes) -> Option<Result<Tensor>> {
        Some(composite(x, axes, self.correction))
    }

    fn reference(self, values: &[f64]) -> f64 {
        reference(values, self.correction)
    }

    fn torch(self, dim: &str, _several: bool) -> Option<String> {
        Some(format!("x0.var({dim}, correction={})", self.correction))
    }
}

impl Reduce for Std {
    const NAME: &'static str = "std";
    const DOC: &'static str = "The standard deviation over some axes.";

    fn sample() -> Std {
        Std { correction: 1.0 }
    }

    fn run(self, x: &Operand, axes: Axes, y: &Operand, aux_outputs: &[Operand]) {
        run(self.correction, true, x, axes, y, aux_outputs);
    }

    fn cuda(self, input: DType, is_recorded: bool) -> cuda::Fold {
        cuda_fold(true, input, is_recorded)
    }

    fn number(self) -> f64 {
        self.correction
    }

    fn saved(self) -> SavedRefs {
        smallvec![SavedRef::Input(0), SavedRef::Output(0), SavedRef::Aux(0)]
    }

    fn aux_outputs(self, input: DType, result: Shape) -> SmallVec<[AuxOutput; 2]> {
        mean_aux(input, result)
    }

    fn backward(self, reduced: &Reduced, backward: &mut Backward<'_>) -> Result<()> {
        let share = 1.0 / divisor(reduced.n_elems(backward), self.correction);
        let y = reduced.output(backward)?;
        let not_zero = y.add(&y.eq(0.0)?.cast(y.dtype())?)?;
        let scale = reduced.gradient(backward)?.div(&not_zero)?.into_affine(share, 0.0)?;
        let gradient = scaled_distances(reduced, backward, &scale)?;
        backward.set_grad(0, gradient)
    }

    fn composite(self, x: &Tensor, axes: Axes) -> Option<Result<Tensor>> {
        Some(composite(x, axes, self.correction).and_then(|variance| variance.sqrt()))
    }

    fn reference(self, values: &[f64]) -> f64 {
        reference(values, self.correction).sqrt()
    }

    fn torch(self, dim: &str, _several: bool) -> Option<String> {
        Some(format!("x0.std({dim}, correction={})", self.correction))
    }
}

/// Declares the four methods of one of the ops.
macro_rules! corrected_methods {
    ($op:ident, $doc:literal, $alias:literal, $name:ident, $keepdims:ident, $corrected:ident, $corrected_keepdims:ident) => {
        impl Tensor {
            #[doc = concat!($doc, " over `axes`, as the estimate from a sample: squares are divided by n - 1.")]
            ///
            /// # Errors
            /// An axis that the tensor does not have, a tensor that is not of floats; memory that is full.
            #[doc = example!(stringify!($name))]
            #[doc(alias = $alias)]
            #[track_caller]
            pub fn $name(&self, axes: impl IntoAxes) -> Result<Tensor> {
                super::reduce($op { correction: 1.0 }, self, axes, false)
            }

            #[doc = concat!($doc, " over `axes`, which stay with extent one; squares are divided by n - 1.")]
            ///
            /// # Errors
            /// An axis that the tensor does not have, a tensor that is not of floats; memory that is full.
            #[doc = example!(stringify!($keepdims))]
            #[track_caller]
            pub fn $keepdims(&self, axes: impl IntoAxes) -> Result<Tensor> {
                super::reduce($op { correction: 1.0 }, self, axes, true)
            }

            #[doc = concat!($doc, " over `axes`, where squares are divided by n - `correction`.")]
            ///
            /// # Errors
            /// An axis that the tensor does not have, a tensor that is not of floats; memory that is full.
            #[track_caller]
            pub fn $corrected(&self, axes: impl IntoAxes, correction: f64) -> Result<Tensor> {
                super::reduce($op { correction }, self, axes, false)
            }

            #[doc = concat!($doc, " over `axes`, which stay with extent one; squares are divided by n - `correction`.")]
            ///
            /// # Errors
            /// An axis that the tensor does not have, a tensor that is not of floats; memory that is full.
            #[track_caller]
            pub fn $corrected_keepdims(&self, axes: impl IntoAxes, correction: f64) -> Result<Tensor> {
                super::reduce($op { correction }, self, axes, true)
            }
        }
    };
}

corrected_methods!(Var, "The variance", "reduce_variance", var, var_keepdims, var_corrected, var_corrected_keepdims);
corrected_methods!(Std, "The standard deviation", "reduce_std", std, std_keepdims, std_corrected, std_corrected_keepdims);
