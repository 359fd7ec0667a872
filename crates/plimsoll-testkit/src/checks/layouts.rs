//! The same values in any layout give the same results.
//!
//! Elementwise ops and views give the same bits. An op that sums may choose the order by the strides (rule 2 of the
//! rules of execution), so its results, and all gradients, are compared to the tolerance of their dtype.

use plimsoll_tensor::ops::registry::{Array, OpInfo};
use plimsoll_tensor::{Result, Tensor};

use super::forward::{native_and_widened, tolerance};
use crate::case::{Case, for_each_sample};
use crate::close::{compare, same_bits};
use crate::needs::{CheckOutcome, Need};
use crate::outcome::{Failure, Outcome};
use crate::views::Arrangement;

/// Results do not depend on how the inputs lie in memory, whether all of them or only one lie so.
pub fn layouts(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    for_each_sample(op, native_and_widened(), &[Need::Axes], |case| {
        let is_elementwise = case.records()?.iter().all(|record| record.is_cheap());
        let watched = case.differentiable()?;
        for arrangement in Arrangement::OTHERS {
            for chosen in choices(case, arrangement) {
                let place = format!("{arrangement} inputs {chosen:?}");
                agrees(case, arrangement, &chosen, &watched, is_elementwise)
                    .map_err(|failure: Failure| failure.at(place))?;
            }
        }
        Ok(())
    })
}

/// Which inputs are arranged: all that can be, and each alone.
fn choices(case: &Case<'_>, arrangement: Arrangement) -> Vec<Vec<usize>> {
    let fitting: Vec<usize> =
        (0..case.inputs.len()).filter(|&input| arrangement.fits(&case.inputs[input].shape)).collect();
    match fitting.len() {
        0 => vec![],
        1 => vec![fitting],
        _ => fitting.iter().map(|&input| vec![input]).chain([fitting.clone()]).collect(),
    }
}

fn agrees(
    case: &Case<'_>,
    arrangement: Arrangement,
    chosen: &[usize],
    watched: &[usize],
    is_elementwise: bool,
) -> Outcome {
    let of = |input: usize| if chosen.contains(&input) { arrangement } else { Arrangement::Contiguous };
    let values: Vec<Array> =
        case.inputs.iter().enumerate().map(|(input, array)| of(input).values(array)).collect();
    let plain = Case::with(case.op, case.sample, case.dtype, values);
    let arranged: Vec<Tensor> = (0..plain.inputs.len())
        .map(|input| of(input).tensor(&plain.inputs[input], plain.input_dtype(input)))
        .collect::<Result<_>>()?;
    let expected = plain.differentiate(&plain.tensors()?, watched)?;
    let actual = plain.differentiate(&arranged, watched)?;
    for (idx, (actual, expected)) in actual.outputs.iter().zip(&expected.outputs).enumerate() {
        let outcome = match is_elementwise {
            true => same_bits(actual, expected),
            false => close(case, actual, expected),
        };
        outcome.map_err(|failure| failure.at(format_args!("output {idx}")))?;
    }
    for (idx, (actual, expected)) in actual.gradients.iter().zip(&expected.gradients).enumerate() {
        let outcome = match (actual, expected) {
            (Some(actual), Some(expected)) => close(case, actual, expected),
            (None, None) => Ok(()),
            _ => Err("one layout has a gradient and the other has none".into()),
        };
        outcome.map_err(|failure| failure.at(format_args!("gradient of input {}", watched[idx])))?;
    }
    Ok(())
}

/// Compares two results of one function to the tolerance of their dtype.
pub(super) fn close(case: &Case<'_>, actual: &Tensor, expected: &Tensor) -> Outcome {
    let (values, wanted) = (actual.to_f64_vec()?, expected.to_f64_vec()?);
    compare(actual.shape(), &values, expected.shape(), &wanted, tolerance(case, expected))
}
