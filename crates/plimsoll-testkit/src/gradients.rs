//! Gradients against finite differences, along one random direction, in f64.
//!
//! One direction is enough: a wrong entry of a gradient is seen by a random direction but for luck that the fixed seed
//! does not have. The function is a weighted sum of the outputs, so that errors of opposite sign do not cancel.

use plimsoll_tensor::ops::registry::Array;
use plimsoll_tensor::{DType, GradientTape, Result, Tensor, Unconnected};

use crate::draw::{Uniform, tensor, weights};
use crate::outcome::Outcome;

/// How far the inputs are moved. The error of a central difference is of the order of its square, 1e-10, and the
/// rounding of the function's values, 1e-16, is divided by it.
const STEP: f64 = 1e-5;

/// What the two errors above leave room for, with a margin for large third derivatives.
const TOLERANCE: f64 = 1e-6;

/// A function of tensors.
pub type Function<'a> = &'a dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>;

/// A function at a point, and which of its inputs move.
pub struct Point<'a> {
    /// The function.
    pub function: Function<'a>,
    /// The inputs.
    pub inputs: &'a [Tensor],
    /// The positions of the float64 inputs whose gradients are wanted.
    pub watched: &'a [usize],
}

impl Point<'_> {
    /// Compares the derivative along a random direction with a central difference.
    ///
    /// # Errors
    /// The two differ, or the function fails.
    pub fn check_first_order(&self) -> Outcome {
        let directions = self.directions("first")?;
        let gradients = self.gradients(self.inputs)?;
        let analytic = dot(&gradients, &directions)?;
        let numeric = self.difference(&directions, |inputs| self.weighted_sum(inputs))?;
        agree("the derivative along a random direction", analytic, numeric)
    }

    /// The same for the derivative of the first derivative, by nested tapes.
    ///
    /// # Errors
    /// The two differ, or the function fails.
    pub fn check_second_order(&self) -> Outcome {
        let [along, directions] = [self.directions("first")?, self.directions("second")?];
        let analytic = dot(&self.second_gradients(&along)?, &directions)?;
        let numeric = self.difference(&directions, |inputs| dot(&self.gradients(inputs)?, &along))?;
        agree("the second derivative along two random directions", analytic, numeric)
    }

    /// A random direction for every input that moves.
    fn directions(&self, key: &str) -> Result<Vec<Tensor>> {
        let mut uniform = Uniform::new(key);
        let one = |&input: &usize| {
            let shape = self.inputs[input].shape();
            let values = (0..shape.n_elems()).map(|_| 2.0 * uniform.next() - 1.0).collect();
            tensor(&Array::new(shape, values), DType::F64)
        };
        self.watched.iter().map(one).collect()
    }

    /// The central difference of a number that depends on the inputs.
    fn difference(&self, directions: &[Tensor], number: impl Fn(&[Tensor]) -> Outcome<f64>) -> Outcome<f64> {
        let moved = |by: f64| -> Outcome<f64> {
            let mut inputs = self.inputs.to_vec();
            for (&input, direction) in self.watched.iter().zip(directions) {
                let (from, along) = (self.inputs[input].to_f64_vec()?, direction.to_f64_vec()?);
                let values = from.iter().zip(&along).map(|(from, along)| from + by * along).collect();
                inputs[input] = tensor(&Array::new(direction.shape(), values), DType::F64)?;
            }
            number(&inputs)
        };
        Ok((moved(STEP)? - moved(-STEP)?) / (2.0 * STEP))
    }

    /// The weighted sum of all float outputs.
    fn weighted_sum(&self, inputs: &[Tensor]) -> Outcome<f64> {
        let outputs = float_outputs((self.function)(inputs)?);
        let weights: Vec<Option<Tensor>> =
            outputs.iter().map(|output| weights(output).map(Some)).collect::<Result<_>>()?;
        dot(&weights, &outputs)
    }

    /// The gradients of the weighted sum; none where it does not depend on an input.
    fn gradients(&self, inputs: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let tape = GradientTape::new();
        let sources: Vec<&Tensor> = self.watched.iter().map(|&input| &inputs[input]).collect();
        for source in &sources {
            tape.watch(source)?;
        }
        let outputs = tape.record(|| (self.function)(inputs))?;
        weighted_gradients(&tape, &float_outputs(outputs), &sources)
    }

    /// The gradients of the gradient along a direction.
    fn second_gradients(&self, along: &[Tensor]) -> Outcome<Vec<Option<Tensor>>> {
        let (outer, inner) = (GradientTape::new(), GradientTape::new());
        let sources: Vec<&Tensor> = self.watched.iter().map(|&input| &self.inputs[input]).collect();
        for source in &sources {
            outer.watch(source)?;
            inner.watch(source)?;
        }
        let first = outer.record(|| {
            let outputs = inner.record(|| (self.function)(self.inputs))?;
            weighted_gradients(&inner, &float_outputs(outputs), &sources)
        })?;
        let (targets, seeds): (Vec<&Tensor>, Vec<&Tensor>) =
            first.iter().zip(along).filter_map(|(gradient, along)| Some((gradient.as_ref()?, along))).unzip();
        Ok(outer.gradients(&targets, Some(&seeds), &sources, Unconnected::None)?)
    }
}

fn float_outputs(outputs: Vec<Tensor>) -> Vec<Tensor> {
    outputs.into_iter().filter(|output| output.dtype().is_float()).collect()
}

fn weighted_gradients(
    tape: &GradientTape,
    outputs: &[Tensor],
    sources: &[&Tensor],
) -> Result<Vec<Option<Tensor>>> {
    let weights: Vec<Tensor> = outputs.iter().map(weights).collect::<Result<_>>()?;
    let (targets, weights): (Vec<&Tensor>, Vec<&Tensor>) = outputs.iter().zip(&weights).unzip();
    tape.gradients(&targets, Some(&weights), sources, Unconnected::None)
}

/// The sum of products of all elements; what is none counts as zeros.
fn dot(lhs: &[Option<Tensor>], rhs: &[Tensor]) -> Outcome<f64> {
    let mut sum = 0.0;
    for (lhs, rhs) in lhs.iter().zip(rhs) {
        let Some(lhs) = lhs else { continue };
        sum += lhs.to_f64_vec()?.iter().zip(rhs.to_f64_vec()?).map(|(lhs, rhs)| lhs * rhs).sum::<f64>();
    }
    Ok(sum)
}

fn agree(what: &str, analytic: f64, numeric: f64) -> Outcome {
    if (analytic - numeric).abs() <= TOLERANCE * (1.0 + numeric.abs()) {
        return Ok(());
    }
    Err(format!("{what} is {analytic:e} by the tape, but {numeric:e} by finite differences").into())
}

/// Asserts that the gradients of a function are right, first and second order, at float64 inputs.
///
/// # Panics
/// They are not, the function fails, or an input is not float64; the text says which.
#[track_caller]
pub fn check_gradients(function: impl Fn(&[Tensor]) -> Result<Tensor>, inputs: &[Tensor]) {
    assert!(inputs.iter().all(|input| input.dtype() == DType::F64), "differences need float64 inputs");
    let function = |inputs: &[Tensor]| Ok(vec![function(inputs)?]);
    let watched: Vec<usize> = (0..inputs.len()).collect();
    let point = Point { function: &function, inputs, watched: &watched };
    if let Err(failure) = point.check_first_order().and_then(|()| point.check_second_order()) {
        panic!("{}", failure.text());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> [Tensor; 2] {
        let array = |key: &str| {
            let mut uniform = Uniform::new(key);
            Array::new(&[2, 3], (0..6).map(|_| uniform.next() + 0.5).collect())
        };
        ["lhs", "rhs"].map(|key| tensor(&array(key), DType::F64).expect("room for six numbers"))
    }

    #[test]
    fn right_gradients_pass() {
        check_gradients(|x| x[0].mul(&x[1])?.exp()?.mul(&x[0]), &inputs());
    }

    #[test]
    #[should_panic(expected = "by finite differences")]
    fn a_wrong_gradient_is_seen() {
        check_gradients(
            |x| {
                plimsoll_tensor::custom_gradient(&[&x[0]], |values| {
                    let doubled = values[0].mul(2.0)?;
                    Ok((doubled, |gradient: &Tensor| Ok(vec![gradient.mul(2.001)?])))
                })
            },
            &inputs()[..1],
        );
    }
}
