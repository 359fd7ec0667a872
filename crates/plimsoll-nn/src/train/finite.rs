//! Why a loss is not a number: looked for when one is not, and never otherwise.

use plimsoll_tensor::{DType, Result, Tensor, Variable};

use super::examples::Batch;

/// What holds values that are not finite, in words: the data, or the weights.
pub(super) fn cause(batch: &Batch, names: &[String], variables: &[Variable]) -> Result<String> {
    for (tensor, name) in batch.tensors().zip(names) {
        if let Some((position, value)) = first_not_finite(tensor)? {
            return Ok(format!(
                "{name:?} holds {value} at {position:?}; leave such examples out, or let `Dataset::check_finite` find \
                 them"
            ));
        }
    }
    let floats: Vec<&Variable> = variables.iter().filter(|variable| variable.dtype().is_float()).collect();
    let values: Vec<&Tensor> = floats.iter().map(|variable| &***variable).collect();
    Ok(match first_bad(&values)?.map(|idx| floats[idx]) {
        Some(variable) => format!("variable {:?} holds values that are not finite", variable.name()),
        None => "data and weights are finite, so the model's own arithmetic went out of range; try a smaller learning \
                 rate, or clip the gradients"
            .to_owned(),
    })
}

/// Which tensor is the first that holds a value that is not finite.
fn first_bad(tensors: &[&Tensor]) -> Result<Option<usize>> {
    if tensors.is_empty() {
        return Ok(None);
    }
    let (_, first_bad) = Tensor::global_norm(tensors)?;
    Ok(usize::try_from(first_bad.item::<i64>()?).ok())
}

/// Where the first value that is not finite is, and what it is.
fn first_not_finite(tensor: &Tensor) -> Result<Option<(Vec<usize>, f64)>> {
    if !tensor.dtype().is_float() || tensor.n_elems() == 0 {
        return Ok(None);
    }
    let finite = tensor.is_finite()?.cast(DType::U8)?.flatten()?;
    let at = finite.argmin(0)?.item::<i64>()?;
    if finite.get(at as isize)?.item::<u8>()? == 1 {
        return Ok(None);
    }
    let value = tensor.flatten()?.get(at as isize)?.to_f64_vec()?[0];
    let mut rest = at as usize;
    let mut position: Vec<usize> = Vec::new();
    for &extent in tensor.shape().dims().iter().rev() {
        position.push(rest % extent);
        rest /= extent;
    }
    position.reverse();
    Ok(Some((position, value)))
}
