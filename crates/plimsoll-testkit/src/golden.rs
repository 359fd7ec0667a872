//! Values and gradients that PyTorch gives, recorded in a file.
//!
//! The samples with PyTorch's expressions go out as JSON ([`samples`]); `golden/generate.py` runs them and writes
//! `golden/values.json`, with the inputs that it was given, so that the file can be checked by itself. The inputs are
//! numbers that f32 holds, and serve for both dtypes.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use plimsoll_tensor::ops::registry::{Array, Input, OpInfo, Sample, Values, composed, registry};
use plimsoll_tensor::{DType, Tensor};
use serde_json::{Value, json};

use crate::case::{Case, for_each_sample};
use crate::close::{Tolerance, compare};
use crate::draw::{draw_all, dtype_of};
use crate::needs::{CheckOutcome, Need};
use crate::outcome::{Failure, Outcome};

/// How the file is made anew.
const COMMAND: &str =
    "cargo run -p plimsoll-testkit --bin samples | python crates/plimsoll-testkit/golden/generate.py";

/// PyTorch and the op may each be off by the tolerance.
const BOTH: f64 = 2.0;

/// Every sample that has an expression for PyTorch, with its inputs, as JSON.
pub fn samples() -> Value {
    let of_op = |op: &'static OpInfo| {
        let with_torch = (op.samples)().into_iter().filter(|sample| sample.torch.is_some());
        with_torch.map(move |sample| describe(op, &sample)).collect::<Vec<Value>>()
    };
    Value::Array(registry().into_iter().chain(composed()).flat_map(of_op).collect())
}

fn describe(op: &OpInfo, sample: &Sample) -> Value {
    let arrays = draw_all(op, &sample.name, &sample.inputs, DType::F32);
    let input = |(input, array): (&Input, &Array)| {
        let dtype = match input.values {
            Values::Floats(..) | Values::Constants(..) => "open",
            fixed => dtype_of(fixed, DType::F32).name(),
        };
        let watched = matches!(input.values, Values::Floats(..));
        json!({ "dtype": dtype, "watched": watched, "shape": array.shape, "values": array.values })
    };
    let inputs: Vec<Value> = sample.inputs.iter().zip(&arrays).map(input).collect();
    json!({ "op": op.name, "sample": sample.name, "torch": sample.torch, "inputs": inputs })
}

/// Values and gradients are those that PyTorch gave, in f32 and f64.
pub fn golden_values(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    for_each_sample(op, &[DType::F32, DType::F64], &[Need::Torch], |case| {
        let torch = case.sample.torch.as_ref().ok_or("PyTorch has no such op")?;
        let advice = |problem: &str| Failure::from(format!("{problem}; record them with `{COMMAND}`"));
        let recorded = recorded()?.get(&(op.name.to_owned(), case.sample.name.clone()));
        let recorded = recorded.ok_or_else(|| advice("there are no recorded values"))?;
        if recorded["torch"] != torch.as_str() {
            return Err(advice("PyTorch's expression has changed since its values were recorded"));
        }
        let inputs =
            recorded["inputs"].as_array().ok_or_else(|| advice("the recorded inputs are not there"))?;
        let inputs: Vec<Array> = inputs.iter().map(array).collect::<Outcome<_>>()?;
        let same_shapes = inputs.iter().map(|input| &input.shape).eq(case.inputs.iter().map(|i| &i.shape));
        if !same_shapes {
            return Err(advice("the inputs' shapes have changed since the values were recorded"));
        }
        agrees(&Case::with(op, case.sample, case.dtype, inputs), &recorded[case.dtype.name()])
    })
}

/// Compares the results of a call with the recorded ones.
fn agrees(case: &Case<'_>, recorded: &Value) -> Outcome {
    let watched = case.differentiable()?;
    let results = case.differentiate(&case.tensors()?, &watched)?;
    let outputs = recorded["outputs"].as_array().ok_or("no outputs were recorded")?;
    if outputs.len() != results.outputs.len() {
        return Err(format!("{} outputs, but PyTorch gave {}", results.outputs.len(), outputs.len()).into());
    }
    for (idx, (actual, expected)) in results.outputs.iter().zip(outputs).enumerate() {
        let place = |failure: Failure| failure.at(format_args!("output {idx} against PyTorch"));
        near(case, actual, &array(expected)?).map_err(place)?;
    }
    for (&input, actual) in watched.iter().zip(&results.gradients) {
        let place = |failure: Failure| failure.at(format_args!("gradient of input {input} against PyTorch"));
        match (actual, &recorded["gradients"][input]) {
            (None, Value::Null) => {}
            (Some(actual), expected @ Value::Object(_)) => {
                near(case, actual, &array(expected)?).map_err(place)?;
            }
            (Some(_), _) => return Err(place("PyTorch gave none".into())),
            (None, _) => return Err(place("the tape gave none, and PyTorch did".into())),
        }
    }
    Ok(())
}

fn near(case: &Case<'_>, actual: &Tensor, expected: &Array) -> Outcome {
    let coarser = Tolerance::of(if actual.dtype().is_float() { case.dtype } else { actual.dtype() });
    let tolerance = Tolerance::new(BOTH * coarser.absolute);
    compare(actual.shape(), &actual.to_f64_vec()?, &expected.shape, &expected.values, tolerance)
}

/// The recorded values by op and sample.
type Recorded = HashMap<(String, String), Value>;

fn recorded() -> Outcome<&'static Recorded> {
    static RECORDED: OnceLock<Result<Recorded, String>> = OnceLock::new();
    RECORDED.get_or_init(read).as_ref().map_err(|problem| Failure::from(problem.as_str()))
}

fn read() -> Result<Recorded, String> {
    // A bundle of test programs brings the file along.
    let path = std::env::var_os("PLIMSOLL_GOLDEN").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/values.json"),
        std::path::PathBuf::from,
    );
    let text = fs::read_to_string(&path)
        .map_err(|error| format!("{}: {error}; make it with `{COMMAND}`", path.display()))?;
    let file: Value = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    let samples = file["samples"].as_array().ok_or("the golden file has no samples")?;
    let key =
        |sample: &Value| Some((sample["op"].as_str()?.to_owned(), sample["sample"].as_str()?.to_owned()));
    samples
        .iter()
        .map(|sample| Some((key(sample)?, sample.clone())))
        .collect::<Option<Recorded>>()
        .ok_or_else(|| "a sample of the golden file has no op or no name".to_owned())
}

/// An array of the file. Values that JSON has no numbers for are words.
fn array(value: &Value) -> Outcome<Array> {
    let malformed = || Failure::from("an array of the golden file has no shape or no values");
    let shape: Vec<usize> = value["shape"]
        .as_array()
        .ok_or_else(malformed)?
        .iter()
        .map(|dim| dim.as_u64().map(|dim| dim as usize).ok_or_else(malformed))
        .collect::<Outcome<_>>()?;
    let number = |value: &Value| match value.as_str() {
        Some(word) => word.parse().map_err(|_| malformed()),
        None => value.as_f64().ok_or_else(malformed),
    };
    let values: Vec<f64> =
        value["values"].as_array().ok_or_else(malformed)?.iter().map(number).collect::<Outcome<_>>()?;
    Ok(Array::new(&shape, values))
}
