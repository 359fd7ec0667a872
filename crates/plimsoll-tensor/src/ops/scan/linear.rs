//! `linear_scan`: `s[i] = a[i] s[i - 1] + b[i]`. Running averages, recurrent states and products are made of it.

use plimsoll_cuda::Gpu;

use super::kernel::{Direction, Recurrence, scan, scan_cuda};
use crate::base::axes::Integer;
use crate::base::error::{Error, Result};
use crate::eager::check;
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{Meta, Op, OpRef, Outputs, Run, SavedRef, SavedRefs, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::kernel::for_floats;
use crate::ops::registry::{Array, Sample, Values, floats, input, within};

/// `s[0] = b[0]`, `s[i] = a[i] s[i - 1] + b[i]`; or the adjoint of that, from the end: `s[n - 1] = b[n - 1]`,
/// `s[i] = a[i + 1] s[i + 1] + b[i]`. Either way `a[0]` is not read. The gradient of b is the adjoint scan of the gradient,
/// and that of a the product of it with the states before.
#[derive(Debug)]
struct LinearScan {
    axis: usize,
    is_adjoint: bool,
}

/// The state is s.
#[derive(Clone, Copy)]
struct Linear;

impl Recurrence<f64, 3> for Linear {
    #[inline(always)]
    fn first(self, [_, b, _]: [f64; 3]) -> f64 {
        b
    }

    #[inline(always)]
    fn next(self, state: f64, [a, b, _]: [f64; 3]) -> f64 {
        a * state + b
    }
}

impl Op for LinearScan {
    fn name(&self) -> &'static str {
        match self.is_adjoint {
            false => "linear_scan",
            true => "linear_scan_backward",
        }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let [a, b] = inputs else { unreachable!("factors and summands") };
        if !a.dtype.is_float() {
            return Err(Error::dtype(
                self.name(),
                format!("takes floats, not {}; convert with `cast`", a.dtype),
            ));
        }
        if a.dtype != b.dtype {
            return Err(Error::mixed_dtypes(self.name(), a.dtype, b.dtype));
        }
        if a.shape() != b.shape() {
            return Err(Error::shape(
                self.name(),
                format!(
                    "factors of shape {} and summands of shape {}; they must agree (see `broadcast_to`)",
                    a.shape(),
                    b.shape()
                ),
            ));
        }
        check::axis(self.name(), self.axis, b.shape())?;
        one(*b.shape(), b.dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let operands = [&run.inputs[0], &run.inputs[1], &run.outputs[0]];
        let direction = match self.is_adjoint {
            false => Direction::Forward,
            true => Direction::Backward { shifted: true },
        };
        for_floats!(operands[0].dtype(), T => {
            // SAFETY: `execute` hands out operands that are valid for their layouts; the output is fresh, and all are of
            // one shape and dtype.
            unsafe { scan::<T, f64, 3>(operands, self.axis, direction, Linear) }
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let (factors, states) = (&run.inputs[0], (&run.inputs[1], &run.outputs[0]));
        scan_cuda(self.name(), Some(factors), states, self.axis, self.is_adjoint, gpu)
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        let states = wanted[0].then_some(SavedRef::Output(0));
        [SavedRef::Input(0)].into_iter().chain(states).collect()
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let adjoint = LinearScan { axis: self.axis, is_adjoint: !self.is_adjoint };
        let summands = call(OpRef::shipped(adjoint), &[&backward.input(0)?, &backward.gradient()?])?;
        if backward.wants(0) {
            let shape = *backward.input_shape(0);
            let (axis, n_first) = (self.axis, shape[self.axis].min(1));
            let n_rest = shape[self.axis] - n_first;
            let earlier = |x: &Tensor| x.narrow(axis, 0, n_rest);
            let later = |x: &Tensor| x.narrow(axis, n_first, n_rest);
            let states = backward.output(0)?;
            let factors = match self.is_adjoint {
                false => later(&summands)?.mul(&earlier(&states)?)?,
                true => earlier(&summands)?.mul(&later(&states)?)?,
            };
            let mut widths = vec![(0, 0); shape.rank()];
            widths[self.axis] = (n_first, 0);
            backward.set_grad(0, factors.pad(&widths, 0.0)?)?;
        }
        if backward.wants(1) {
            backward.set_grad(1, summands)?;
        }
        Ok(())
    }
}

impl Tensor {
    /// The states of a linear recurrence along `axis`, with this tensor as its factors: `s[0] = b[0]` and
    /// `s[i] = self[i] * s[i - 1] + b[i]`. The first factor is not read.
    ///
    /// # Errors
    /// An axis that the tensor does not have, shapes or dtypes that differ, dtypes that are not floats; memory that is
    /// full.
    #[doc = example!("linear_scan")]
    #[doc(alias = "associative_scan")]
    #[track_caller]
    pub fn linear_scan(&self, b: &Tensor, axis: impl Integer) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let axis = self.shape().axis("linear_scan", axis)?;
        call(OpRef::shipped(LinearScan { axis, is_adjoint: false }), &[self, b])
    }

    /// The products of all elements up to each place along `axis`; differentiable where elements are zero, too.
    ///
    /// # Errors
    /// An axis that the tensor does not have, a dtype that is not a float; memory that is full.
    #[doc = example!("cumprod")]
    #[track_caller]
    pub fn cumprod(&self, axis: impl Integer) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let axis = self.shape().axis("cumprod", axis)?;
        let extent = self.shape()[axis];
        if extent <= 1 {
            return Ok(self.clone());
        }
        let mut widths = vec![(0, 0); self.rank()];
        widths[axis] = (0, extent - 1);
        let first = self.narrow(axis, 0, 1)?.pad(&widths, 0.0)?;
        self.linear_scan(&first, axis)
    }
}

/// The recurrence by its definition; `at_place` gives the values at a place along the axis.
fn reference(x: &[Array], axis: usize, is_adjoint: bool) -> Array {
    fn state(x: &[Array], axis: usize, is_adjoint: bool, at: &[usize]) -> f64 {
        let mut from = at.to_vec();
        match is_adjoint {
            false if at[axis] == 0 => x[1].at(at),
            true if at[axis] + 1 == x[1].shape[axis] => x[1].at(at),
            false => {
                from[axis] -= 1;
                x[0].at(at) * state(x, axis, is_adjoint, &from) + x[1].at(at)
            }
            true => {
                from[axis] += 1;
                x[0].at(&from) * state(x, axis, is_adjoint, &from) + x[1].at(at)
            }
        }
    }
    Array::build(&x[1].shape, |at| state(x, axis, is_adjoint, at))
}

pub(super) fn samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &'static [usize], axis: usize| {
        Sample::new(name, vec![within(shape, -1.0, 1.0), floats(shape)], move |x| {
            x[0].linear_scan(&x[1], axis)
        })
        .reference(move |x| reference(x, axis, false))
        .example(format!("x0.linear_scan(&x1, {axis})"))
    };
    vec![
        sample("rows", &[3, 5], 1)
            .refuses(
                vec![floats(&[3, 5]), floats(&[3, 4])],
                "factors of shape [3, 5] and summands of shape [3, 4]",
            )
            .refuses(vec![input(&[3, 5], Values::Indices(3)), floats(&[3, 5])], "takes floats, not int64"),
        sample("columns", &[4, 3], 0),
    ]
}

pub(super) fn adjoint_samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &'static [usize], axis: usize| {
        Sample::new(name, vec![within(shape, -1.0, 1.0), floats(shape)], move |x| {
            call(OpRef::shipped(LinearScan { axis, is_adjoint: true }), &[&x[0], &x[1]])
        })
        .reference(move |x| reference(x, axis, true))
    };
    vec![sample("rows", &[3, 5], 1), sample("columns", &[4, 3], 0)]
}

pub(super) fn cumprod_samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &'static [usize], axis: usize| {
        Sample::new(name, vec![floats(shape)], move |x| x[0].cumprod(axis))
            .reference(move |x| {
                Array::build(shape, |at| {
                    let mut from = at.to_vec();
                    let factor = |idx: usize| {
                        from[axis] = idx;
                        x[0].at(&from)
                    };
                    (0..=at[axis]).map(factor).product()
                })
            })
            .torch(format!("x0.cumprod({axis})"))
            .example(format!("x0.cumprod({axis})"))
    };
    vec![
        sample("rows", &[3, 4], 1).refuses(vec![floats(&[5])], "cumprod: axis 1 of shape [5]"),
        sample("columns", &[4, 2], 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::autograd::GradientTape;

    #[test]
    fn products_are_differentiated_where_factors_are_zero() -> Result<()> {
        let x = Tensor::from_vec(vec![2.0f64, 0.0, 3.0, 0.0])?;
        let tape = GradientTape::new();
        tape.watch(&x)?;
        let y = tape.record(|| x.cumprod(0))?;
        let [dx] = tape.gradient(&y, [&x])?;
        // y = x0 + x0 x1 + x0 x1 x2 + x0 x1 x2 x3, summed.
        assert_eq!(dx.to_vec::<f64>()?, [1.0, 2.0 + 6.0, 0.0, 0.0]);
        Ok(())
    }

    #[test]
    fn an_infinite_first_factor_is_only_a_summand() -> Result<()> {
        let x = Tensor::from_vec(vec![f32::INFINITY, 2.0])?;
        assert_eq!(x.cumprod(0)?.to_vec::<f32>()?, [f32::INFINITY; 2]);
        Ok(())
    }
}
