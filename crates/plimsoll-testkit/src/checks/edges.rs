//! Inputs without elements and without dimensions.

use plimsoll_tensor::ops::registry::{Array, OpInfo};
use plimsoll_tensor::{DType, Device, Error};

use crate::case::{Case, for_each_sample};
use crate::close::same_bits;
use crate::needs::{CheckOutcome, Need};
use crate::outcome::{Failure, Outcome, guarded};

/// An extent of zero gives the right shape or a clear error, forward and backward, and never a panic.
pub fn empty_inputs(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    for_each_sample(op, &[DType::F32], &[Need::Axes], |case| {
        let (is_elementwise, watched) = (case.is_elementwise()?, case.differentiable()?);
        for shapes in emptied(case) {
            let inputs = shapes.iter().map(|shape| Array::build(shape, |_| 0.5)).collect();
            let empty = Case::with(case.op, case.sample, case.dtype, inputs);
            let place = |failure: Failure| failure.at(format_args!("inputs of shapes {shapes:?}"));
            guarded(|| empty_case(&empty, &watched, is_elementwise)).map_err(place)?;
        }
        Ok(())
    })
}

fn empty_case(empty: &Case<'_>, watched: &[usize], is_elementwise: bool) -> Outcome {
    let inputs = empty.tensors()?;
    let is_elementwise = is_elementwise && inputs.iter().all(|input| input.shape() == inputs[0].shape());
    // A GPU refuses values when the host waits for it.
    let synchronized = |results| Device::current().synchronize().map(|()| results);
    let results = match empty.differentiate(&inputs, watched).and_then(synchronized) {
        Ok(results) => results,
        Err(error) if is_elementwise => return Err(error.into()),
        Err(error) => return explains(empty, &error),
    };
    if is_elementwise && results.outputs.iter().any(|output| output.shape() != inputs[0].shape()) {
        let shapes: Vec<_> = results.outputs.iter().map(|output| *output.shape()).collect();
        return Err(format!("an elementwise op gave shapes {shapes:?}").into());
    }
    // Reading proves that what the shape promises is there.
    for output in &results.outputs {
        if output.to_f64_vec()?.len() != output.n_elems() {
            return Err(format!("an output of shape {} has another number of values", output.shape()).into());
        }
    }
    Ok(())
}

/// An error names its op, or one that the call is made of, and the shape that it refuses.
fn explains(case: &Case<'_>, error: &Error) -> Outcome {
    let text = error.to_string();
    match text.contains(": ") && text.chars().any(|c| c.is_ascii_digit()) {
        true => Ok(()),
        false => Err(format!("the error must name op and values: `{text}` for {}", case.op.name).into()),
    }
}

/// The inputs' shapes with the extent of one axis set to zero: in all inputs that have it, and in each alone.
fn emptied(case: &Case<'_>) -> Vec<Vec<Vec<usize>>> {
    let shapes: Vec<Vec<usize>> = case.inputs.iter().map(|input| input.shape.clone()).collect();
    let rank = shapes.iter().map(Vec::len).max().unwrap_or(0);
    let mut all = Vec::new();
    // Axes are counted from the right, as broadcasting does.
    for axis in 1..=rank {
        let empty = |chosen: &dyn Fn(usize) -> bool| {
            let mut shapes = shapes.clone();
            for (input, shape) in shapes.iter_mut().enumerate() {
                if shape.len() >= axis && chosen(input) {
                    let at = shape.len() - axis;
                    shape[at] = 0;
                }
            }
            shapes
        };
        all.push(empty(&|_| true));
        all.extend((0..shapes.len()).map(|alone| empty(&|input| input == alone)));
    }
    all.retain(|emptied| *emptied != shapes);
    all.dedup();
    all
}

/// An elementwise op takes a single number without dimensions, and gives what it gives for a vector of one.
pub fn zero_dimensional_inputs(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    for_each_sample(op, &[DType::F32], &[Need::Elementwise], |case| {
        let reshaped = |shape: &[usize]| {
            let first = |array: &Array| Array::new(shape, vec![array.values[0]]);
            Case::with(case.op, case.sample, case.dtype, case.inputs.iter().map(first).collect())
        };
        let (scalar, vector) = (reshaped(&[]), reshaped(&[1]));
        let watched = case.differentiable()?;
        let actual = scalar.differentiate(&scalar.tensors()?, &watched)?;
        let expected = vector.differentiate(&vector.tensors()?, &watched)?;
        let gradients =
            |results: &crate::case::Results| results.gradients.iter().flatten().cloned().collect::<Vec<_>>();
        let actual = [actual.outputs.clone(), gradients(&actual)].concat();
        let expected = [expected.outputs.clone(), gradients(&expected)].concat();
        for (idx, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
            if actual.rank() != 0 {
                return Err(format!("result {idx} of numbers has shape {}", actual.shape()).into());
            }
            same_bits(&actual.reshape([1])?, expected)
                .map_err(|failure| failure.at(format_args!("result {idx}")))?;
        }
        Ok(())
    })
}
