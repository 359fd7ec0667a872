//! Records tell enough to run their ops again.

use std::collections::HashMap;

use plimsoll_tensor::ops::registry::OpInfo;
use plimsoll_tensor::{Device, Generator, RecordInput, Step, StepRecord, Tensor, apply};

use super::forward::native_and_widened;
use crate::case::{Case, Results, for_each_sample};
use crate::close::{bits, same_bits};
use crate::needs::CheckOutcome;
use crate::outcome::{Failure, Outcome};
use crate::views::mark;

/// Running each record of a call again, from the inputs alone and with another state of the generator, gives the bits of
/// the call; so does the call itself with its backward.
pub fn replayed_records(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    for_each_sample(op, native_and_widened(), &[], |case| {
        let inputs = case.tensors()?;
        replayed_one_by_one(case, &inputs)?;
        let watched = case.differentiable()?;
        let first = bits_of(&case.differentiate(&inputs, &watched)?)?;
        match bits_of(&case.differentiate(&inputs, &watched)?)? == first {
            true => Ok(()),
            false => Err("the same call with its backward gives other bits the second time".into()),
        }
    })
}

fn replayed_one_by_one(case: &Case<'_>, inputs: &[Tensor]) -> Outcome {
    let (outputs, records) = Step::traced(&Device::current(), || {
        // The records of the marks tell by which numbers the call's records know inputs and outputs.
        inputs.iter().try_for_each(mark)?;
        let outputs = case.call(inputs)?;
        outputs.iter().try_for_each(mark)?;
        Ok(outputs)
    })?;
    let (marks, records) = records.split_at(inputs.len());
    let (records, output_marks) = records.split_at(records.len() - outputs.len());
    if records.iter().any(|record| record.inputs.contains(&RecordInput::Overwritten)) {
        // What a call writes over inside itself is gone; such a call is replayed as a whole.
        return Ok(());
    }
    let mut values: HashMap<u64, Tensor> = HashMap::new();
    for (record, input) in marks.iter().zip(inputs) {
        values.insert(number(record.inputs[0])?, input.clone());
    }
    Generator::new(1234).make_current();
    for record in records {
        let replayed = replay(record, &values)?;
        values.extend(record.outputs.iter().copied().zip(replayed));
    }
    for (idx, (record, output)) in output_marks.iter().zip(&outputs).enumerate() {
        let place = |failure: Failure| failure.at(format_args!("output {idx} from its records"));
        let replayed =
            values.get(&number(record.inputs[0])?).ok_or("no record makes it").map_err(Failure::from);
        replayed.and_then(|replayed| same_bits(replayed, output)).map_err(place)?;
    }
    Ok(())
}

fn replay(record: &StepRecord, values: &HashMap<u64, Tensor>) -> Outcome<Vec<Tensor>> {
    let input = |&input: &RecordInput| {
        let known = values.get(&number(input)?);
        known.ok_or_else(|| format!("{} reads a tensor that no record makes", record.name()).into())
    };
    let inputs: Vec<&Tensor> = record.inputs.iter().map(input).collect::<Outcome<_>>()?;
    Ok(apply(record.op().clone(), &inputs)?.into_vec())
}

/// The number of a tensor that a record read.
fn number(input: RecordInput) -> Outcome<u64> {
    match input {
        RecordInput::Tensor(number) => Ok(number),
        other => Err(format!("a sample reads tensors, not {other:?}").into()),
    }
}

/// The bits of all results.
pub(super) fn bits_of(results: &Results) -> Outcome<Vec<Vec<u64>>> {
    results.outputs.iter().chain(results.gradients.iter().flatten()).map(bits).collect()
}
