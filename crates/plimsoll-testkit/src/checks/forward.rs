//! Values against plain loops in f64.

use plimsoll_tensor::ops::registry::{OpInfo, Reference};
use plimsoll_tensor::{DType, Tensor};

use crate::case::{Case, FLOATS, for_each_sample};
use crate::close::{Tolerance, compare};
use crate::device::is_emulated;
use crate::needs::{CheckOutcome, Need};
use crate::outcome::{Failure, Outcome};

/// More than two tiles of a kernel hold.
const MANY_ELEMENTS: usize = 3_000;

/// The op's values are those of its reference, in every float dtype, on inputs that the dtype holds exactly.
pub fn forward_values(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    for_each_sample(op, &FLOATS, &[Need::Reference], |case| {
        let reference = case.sample.reference.as_ref().ok_or("the sample has no reference")?;
        agrees(case, reference)?;
        // On the emulated GPU vectors of another length are another kernel to compile: two of the four dtypes do.
        let is_left_out = is_emulated() && matches!(case.dtype, DType::F64 | DType::F16);
        if is_left_out || !case.is_elementwise()? {
            return Ok(());
        }
        // A kernel takes many elements at a time; a vector of few shows only how it treats the rest.
        match case.enlarged(MANY_ELEMENTS) {
            Some(large) if reference(&large.inputs)[0].shape == large.inputs[0].shape => {
                agrees(&large, reference)
            }
            _ => Ok(()),
        }
    })
}

fn agrees(case: &Case<'_>, reference: &Reference) -> Outcome {
    let outputs = case.call(&case.tensors()?)?;
    let expected = reference(&case.inputs);
    if outputs.len() != expected.len() {
        return Err(format!("{} outputs, but the reference has {}", outputs.len(), expected.len()).into());
    }
    for (idx, (output, expected)) in outputs.iter().zip(&expected).enumerate() {
        compare(
            output.shape(),
            &output.to_f64_vec()?,
            &expected.shape,
            &expected.values,
            tolerance(case, output),
        )
        .map_err(|failure: Failure| failure.at(format_args!("output {idx}")))?;
    }
    Ok(())
}

/// The tolerance of an output: that of its dtype, or of the dtype that it was computed in if that is coarser.
pub(super) fn tolerance(case: &Case<'_>, output: &Tensor) -> Tolerance {
    let of_output = Tolerance::of(output.dtype());
    let input_dtypes = (0..case.inputs.len()).map(|input| case.input_dtype(input));
    let of_inputs = input_dtypes.filter(|dtype| dtype.is_float()).map(Tolerance::of);
    if !output.dtype().is_float() {
        return of_output;
    }
    of_inputs.fold(
        of_output,
        |coarsest, other| {
            if other.absolute > coarsest.absolute { other } else { coarsest }
        },
    )
}

/// The dtypes of checks that compare one run with another: one that is computed as it is stored, and one that is not.
///
/// On the emulated GPU each dtype is another kernel to compile, which takes longer than anything else there, and how a
/// dtype is widened shows in the values; so there it is the first alone.
pub(super) fn native_and_widened() -> &'static [DType] {
    if is_emulated() { &[DType::F32] } else { &[DType::F32, DType::BF16] }
}
