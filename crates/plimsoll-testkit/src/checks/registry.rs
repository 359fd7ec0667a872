//! What an entry of the registry declares.

use std::collections::HashSet;

use plimsoll_tensor::DType;
use plimsoll_tensor::op::Gradient;
use plimsoll_tensor::ops::registry::{OpInfo, Sample, composed, registry};

use crate::case::for_each_sample;
use crate::needs::CheckOutcome;
use crate::outcome::{Failure, Outcome};

/// The entry's samples execute an op of its name (unless they are composed), its sentence for the documents is one, and a
/// gradient is defined or declared not to be.
pub fn declarations(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    if !op.doc.ends_with('.') {
        return Err(format!("{}: the sentence for the documents has no end: `{}`", op.name, op.doc).into());
    }
    let samples = (op.samples)();
    let mut names = HashSet::new();
    if let Some(twice) = samples.iter().find(|sample| !names.insert(&sample.name)) {
        return Err(format!("{}: two samples are called `{}`", op.name, twice.name).into());
    }
    at_two_shapes(op.name, &samples)?;
    for_each_sample(op, &[DType::F32], &[], |case| {
        let gradient = case.gradient()?;
        let n_outputs = case.call(&case.tensors()?)?.len();
        if n_outputs == 0 {
            return Err("the call gives no output".into());
        }
        match gradient {
            Gradient::None("") => Err("an op without a gradient must say why".into()),
            _ => Ok(()),
        }
    })
}

/// An op that PyTorch has is compared with it at two shapes, unless it takes no input.
fn at_two_shapes(op: &str, samples: &[Sample]) -> Outcome {
    let compared = samples.iter().filter(|sample| sample.torch.is_some() && !sample.inputs.is_empty());
    let shapes = |sample: &Sample| sample.inputs.iter().map(|input| input.shape.clone()).collect::<Vec<_>>();
    let shapes: HashSet<Vec<Vec<usize>>> = compared.map(shapes).collect();
    match shapes.len() {
        1 => {
            Err(format!("{op}: PyTorch's values are compared at one shape only; add a second sample").into())
        }
        _ => Ok(()),
    }
}

/// No two entries of the registry have one name.
pub fn unique_names() -> Outcome {
    let mut names = HashSet::new();
    let all = registry().into_iter().chain(composed()).map(|op| op.name);
    let twice: Vec<&str> = all.filter(|name| !names.insert(*name)).collect();
    match twice.is_empty() {
        true => Ok(()),
        false => Err(Failure::from(format!("the registry has more than one entry for {twice:?}"))),
    }
}
