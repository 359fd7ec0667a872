//! The examples in the docs of tensors' methods, made from the registry's samples.
//!
//! A sample that says how a user writes its call ([`Sample::example`]) becomes the example of that method: its inputs in
//! short numbers, the call, and what the sample's own call gives as `println!` shows it. Each is a file that the method's
//! docs include; `cargo test --doc` runs the text, so that text, sample and printed result cannot drift apart, and
//! [`are_current`] compares the files with the registry. Methods that no sample calls have no example here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use plimsoll_tensor::ops::registry::{Array, Input, OpInfo, Sample, Values, composed, registry};
use plimsoll_tensor::{DType, Device, Result, Tensor};

use crate::case::Case;
use crate::draw::{dtype_of, tensor};
use crate::outcome::{Failure, Outcome};

/// How the files are made anew.
const COMMAND: &str = "cargo run -p plimsoll-testkit --bin doc-examples";

/// The most elements of an input that are written out; longer ones are evenly spaced numbers.
const MAX_WRITTEN: usize = 24;

/// The most elements of a result that are shown; of longer ones the shape and the mean are.
const MAX_SHOWN: usize = 48;

/// The example of every method that a sample calls, by the method's name.
///
/// # Errors
/// A sample's call that fails.
pub fn render() -> Outcome<BTreeMap<String, String>> {
    let mut examples = BTreeMap::new();
    let _there = Device::separate_cpu().enter();
    for op in registry().into_iter().chain(composed()) {
        for sample in (op.samples)() {
            let Some(call) = &sample.example else { continue };
            let method = method_of(call).ok_or_else(|| format!("`{call}` ends in no call of a method"))?;
            if !examples.contains_key(method) {
                let text = example(op, &sample, call).map_err(|failure: Failure| failure.at(method))?;
                examples.insert(method.to_owned(), text);
            }
        }
    }
    Ok(examples)
}

/// The method whose call ends the text: what stands before the parenthesis that the last one closes.
fn method_of(call: &str) -> Option<&str> {
    let mut depth = 0;
    let open = call.char_indices().rev().find_map(|(at, c)| {
        depth += i32::from(c == ')') - i32::from(c == '(');
        (depth == 0).then_some(at)
    })?;
    let name = call[..open].rsplit(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (call.ends_with(')') && !name.is_empty()).then_some(name)
}

/// The file of one method.
fn example(op: &'static OpInfo, sample: &Sample, call: &str) -> Outcome<String> {
    let mut text = String::from("\n# Examples\n\n```\n# use plimsoll_tensor::*;\n");
    let drawn = Case::new(op, sample, DType::F32);
    let names = names(drawn.inputs.len());
    let mut inputs = Vec::new();
    for ((input, array), name) in sample.inputs.iter().zip(&drawn.inputs).zip(&names) {
        let (made, tensor) = made(input, array)?;
        writeln!(text, "let {name} = {made};")?;
        inputs.push(tensor);
    }
    let outputs = drawn.call(&inputs)?;
    let (before, call) = call.rsplit_once("; ").map_or((None, call), |(before, call)| (Some(before), call));
    let (pattern, call) = match call.strip_prefix("let ").and_then(|bound| bound.split_once(" = ")) {
        Some((pattern, call)) => (pattern, call),
        None => ("result", call),
    };
    let named = |text: &str| {
        let numbered =
            |text: String, (number, name): (usize, &String)| text.replace(&format!("x{number}"), name);
        names.iter().enumerate().fold(text.to_owned(), numbered)
    };
    for statement in before.iter().flat_map(|before| before.split("; ")) {
        writeln!(text, "{};", named(statement))?;
    }
    writeln!(text, "let {pattern} = {}?;", named(call))?;
    for (name, output) in results(pattern, outputs.len()).iter().zip(&outputs) {
        show(&mut text, name, output)?;
    }
    text.push_str("# Ok::<(), Error>(())\n```\n");
    Ok(text)
}

/// What the inputs are called.
fn names(n: usize) -> Vec<String> {
    match n {
        0..=3 => ["x", "y", "z"][..n].iter().map(|&name| name.to_owned()).collect(),
        _ => (0..n).map(|number| format!("x{number}")).collect(),
    }
}

/// What the results are called: the names of a pattern, or the elements of the one list that it names.
fn results(pattern: &str, n: usize) -> Vec<String> {
    let words = pattern.split(|c: char| !c.is_alphanumeric() && c != '_');
    let names: Vec<String> =
        words.filter(|word| word.starts_with(|c: char| c.is_lowercase())).map(str::to_owned).collect();
    match names.as_slice() {
        [list] if n > 1 => (0..n).map(|number| format!("{list}[{number}]")).collect(),
        _ => names,
    }
}

/// An input as it is written, and the tensor that it makes.
fn made(input: &Input, drawn: &Array) -> Result<(String, Tensor)> {
    let dtype = dtype_of(input.values, DType::F32);
    let (shape, n_elems) = (&drawn.shape, drawn.values.len());
    if let (Values::Floats(low, high) | Values::Constants(low, high), true) =
        (input.values, n_elems > MAX_WRITTEN)
    {
        let reshaped = if shape.len() == 1 { String::new() } else { format!(".reshape({shape:?})?") };
        let text = format!("Tensor::linspace({low:?}, {high:?}, {n_elems})?{reshaped}");
        return Ok((text, Tensor::linspace(low, high, n_elems)?.reshape(shape)?));
    }
    // Adding zero makes a negative zero a plain one.
    let short = |x: f64| if dtype.is_float() { (x * 10.0).round() / 10.0 + 0.0 } else { x };
    let values: Vec<f64> = drawn.values.iter().copied().map(short).collect();
    let written = |(place, &x): (usize, &f64)| match (dtype, place) {
        (DType::Bool, _) => (x != 0.0).to_string(),
        (DType::F32, 0) => format!("{x:?}f32"),
        (DType::F32, _) => format!("{x:?}"),
        (DType::I32, 0) => format!("{x}i32"),
        (DType::U8, 0) => format!("{x}u8"),
        (_, 0) => format!("{x}i64"),
        _ => format!("{x}"),
    };
    let list: Vec<String> = values.iter().enumerate().map(written).collect();
    let text = format!("Tensor::from_slice(&[{}], {shape:?})?", list.join(", "));
    Ok((text, tensor(&Array::new(shape, values), dtype)?))
}

/// Writes what a result is: as it is printed, or its shape and mean.
fn show(text: &mut String, name: &str, output: &Tensor) -> Outcome {
    if output.n_elems() <= MAX_SHOWN {
        let printed = output.to_string();
        let start = if printed.contains('\n') { "\\\n" } else { "" };
        writeln!(text, "assert_eq!({name}.to_string(), \"{start}{printed}\");")?;
        return Ok(());
    }
    writeln!(text, "assert_eq!({name}.shape().dims(), {});", output.shape())?;
    let mean = format!("{:.3}", output.mean(..)?.item::<f32>()?);
    writeln!(text, "assert_eq!(format!(\"{{:.3}}\", {name}.mean(..)?.item::<f32>()?), {mean:?});")?;
    Ok(())
}

/// Writes the files, and removes those of methods that have no example any more.
///
/// # Errors
/// A sample's call that fails, or a file that cannot be written.
pub fn write() -> io::Result<()> {
    let examples = render().map_err(|failure| io::Error::other(failure.text().to_owned()))?;
    fs::create_dir_all(folder())?;
    for (method, _) in written()?.iter().filter(|(method, _)| !examples.contains_key(*method)) {
        fs::remove_file(folder().join(format!("{method}.md")))?;
    }
    examples.iter().try_for_each(|(method, text)| fs::write(folder().join(format!("{method}.md")), text))
}

/// The files in the repository are those that the registry gives.
pub(crate) fn are_current() -> Outcome {
    let (wanted, found) = (render()?, written().unwrap_or_default());
    let methods = wanted.keys().chain(found.keys());
    match methods.into_iter().find(|&method| wanted.get(method) != found.get(method)) {
        None => Ok(()),
        Some(method) => {
            Err(format!("the example of `{method}` is not the registry's; write it with `{COMMAND}`").into())
        }
    }
}

/// The files that are there, by method.
fn written() -> io::Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder())? {
        let path = entry?.path();
        if let Some(method) = path.file_stem().and_then(|method| method.to_str()) {
            files.insert(method.to_owned(), fs::read_to_string(&path)?);
        }
    }
    Ok(files)
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-tensor/docs/examples")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_call_names_the_method() {
        assert_eq!(method_of("x0.ln()?.is_nan()"), Some("is_nan"));
        assert_eq!(method_of("x0.slice((-3.., Slice::from(1..6).step(2)))"), Some("slice"));
        assert_eq!(method_of("set_seed(7); Tensor::uniform([7, 3], -1.0, 1.0, DType::F32)"), Some("uniform"));
        assert_eq!(method_of("let (values, indices) = x0.sort(1, false)"), Some("sort"));
        assert_eq!((method_of("x0 + x1"), method_of("(x0)")), (None, None));
    }

    #[test]
    fn results_are_called_as_their_pattern_says() {
        assert_eq!(results("(sequence, LstmState { hidden, cell })", 3), ["sequence", "hidden", "cell"]);
        assert_eq!(results("parts", 2), ["parts[0]", "parts[1]"]);
        assert_eq!(results("result", 1), ["result"]);
    }
}
