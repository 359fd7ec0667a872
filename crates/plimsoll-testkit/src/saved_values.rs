//! The document that shows what every op keeps for backward, made from the registry's samples.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use plimsoll_tensor::op::Gradient;
use plimsoll_tensor::ops::registry::{OpInfo, registry};
use plimsoll_tensor::{DType, Device, GradientTape, SavedValue};

use crate::case::Case;
use crate::outcome::{Failure, Outcome};

/// How the document is made anew.
const COMMAND: &str = "cargo run -p plimsoll-testkit --bin saved-values";

const HEAD: &str = "\
# What each op keeps for backward

An op keeps only what its gradient reads, in the smallest form that needs no repeated matmul, convolution, attention or
reduction. This table is made from the registry: each op is called on a sample in float32 with every differentiable
input watched, and the tape is asked what it keeps. *Input* and *output* are storages that the call has anyway; they are
shared with whoever else holds them. A *derived* value takes no memory: it is rebuilt from values that are kept anyway.

| op | saved for backward | bytes | on inputs |
|---|---|---:|---|
";

/// The document as the registry has it now.
///
/// # Errors
/// A sample's call that fails.
pub fn render() -> Outcome<String> {
    let mut document = String::from(HEAD);
    for op in registry() {
        let (kept, bytes, inputs) = row(op).map_err(|failure: Failure| failure.at(op.name))?;
        writeln!(document, "| {} | {kept} | {bytes} | {inputs} |", op.name)?;
    }
    Ok(document)
}

/// What an op keeps, how many bytes that is, and on which inputs.
fn row(op: &'static OpInfo) -> Outcome<(String, String, String)> {
    let device = Device::separate_cpu();
    let _there = device.enter();
    let samples = (op.samples)();
    let dash = || "–".to_owned();
    let Some(first) = samples.first() else { return Err("the op has no samples".into()) };
    match Case::new(op, first, DType::F32).executed()?.gradient() {
        Gradient::None(reason) => return Ok((format!("has no gradient: {reason}"), dash(), dash())),
        Gradient::Zero => {
            return Ok(("has a gradient of zero, and is not recorded".to_owned(), dash(), dash()));
        }
        Gradient::Composite => {
            return Ok(("is a backward op; recorded as plain ops".to_owned(), dash(), dash()));
        }
        Gradient::Backward => {}
    }
    let cases = samples.iter().map(|sample| Case::new(op, sample, DType::F32));
    let Some(case) = cases.into_iter().find(|case| !case.watched().is_empty()) else {
        return Ok(("takes no input that could be watched".to_owned(), dash(), dash()));
    };
    let inputs = case.tensors()?;
    let tape = GradientTape::new();
    for &input in &case.watched() {
        tape.watch(&inputs[input])?;
    }
    let outputs = tape.record(|| case.call(&inputs))?;
    let saved = tape.saved();
    let kept: Vec<String> = saved.values().iter().map(|value| describe(value, op.name)).collect();
    let kept = if kept.is_empty() { "nothing".to_owned() } else { kept.join(", ") };
    let shapes: Vec<String> =
        inputs.iter().map(|input| format!("{} {}", input.dtype(), input.shape())).collect();
    drop(outputs);
    Ok((kept, saved.bytes().to_string(), shapes.join(", ")))
}

/// A saved value in words; the op is named where it is another one, of which the call is made.
fn describe(value: &SavedValue, op: &str) -> String {
    let form = value.form.name();
    let form = if value.op == op { form.to_owned() } else { format!("{form} of {}", value.op) };
    match (value.dtype, value.shape) {
        (Some(dtype), Some(shape)) => format!("{form} {dtype} {shape}"),
        _ => form,
    }
}

/// Writes the document.
///
/// # Errors
/// A sample's call that fails, or a file that cannot be written.
pub fn write() -> io::Result<()> {
    let document = render().map_err(|failure| io::Error::other(failure.text().to_owned()))?;
    fs::write(path(), document)
}

/// The document in the repository is the one that the registry gives.
pub(crate) fn document_is_current() -> Outcome {
    let wanted = render()?;
    let found = fs::read_to_string(path()).unwrap_or_default();
    let differs = wanted.lines().zip(found.lines().chain(std::iter::repeat(""))).find(|(a, b)| a != b);
    match differs {
        None if wanted.lines().count() == found.lines().count() => Ok(()),
        None => Err(format!("docs/saved-values.md has lines too many; write it with `{COMMAND}`").into()),
        Some((wanted, found)) => Err(format!(
            "docs/saved-values.md has `{found}` where the registry gives `{wanted}`; write it with `{COMMAND}`"
        )
        .into()),
    }
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/saved-values.md")
}
