//! Attention in plain ops, for derivatives of higher order; it forms all scores.

use super::{Attention, statistics_dtype};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::eager::op::Tensors;
use crate::eager::tensor::Tensor;

/// The output, from queries, keys, values and the mask if there is one.
pub(super) fn forward(op: &Attention, inputs: &[&Tensor]) -> Result<Tensor> {
    let scores = scores(op, inputs[0], inputs[1], inputs.get(3).copied())?;
    if scores.n_elems() == 0 {
        return scores.matmul(inputs[2]);
    }
    // Any reference gives the same weights, so no gradient flows through it; that of a query that sees no key must be
    // finite. Such a query has a total of zero, and gives zeros.
    let greatest = scores.stop_gradient().max_keepdims(-1)?;
    let reference = greatest.is_finite()?.where_(&greatest, &greatest.zeros_like()?)?;
    let weights = scores.sub(&reference)?.exp()?;
    let totals = weights.sum_keepdims(-1)?;
    let divisors = totals.add(&totals.eq(0.0)?.cast(totals.dtype())?)?;
    weights.div(&divisors)?.matmul(inputs[2])
}

/// The gradients of queries, keys and values, from the inputs of the backward op.
pub(super) fn backward(op: &Attention, inputs: &[&Tensor]) -> Result<Tensors> {
    let &[gradient, q, k, v, output, log_sums, ..] = inputs else { unreachable!("six operands or more") };
    let scores = scores(op, q, k, inputs.get(6).copied())?.cast(statistics_dtype(q.dtype()))?;
    let weights = scores.sub(&log_sums.unsqueeze(-1)?)?.exp()?.cast(q.dtype())?;
    let dots = gradient.mul(output)?.sum_keepdims(-1)?;
    let of_scores = gradient.matmul(&v.t()?)?.sub(&dots)?.mul(&weights)?.mul(op.scale)?;
    let (dq, dk) = (of_scores.matmul(k)?, of_scores.t()?.matmul(q)?);
    Ok(smallvec::smallvec![dq, dk, weights.t()?.matmul(gradient)?])
}

/// All scores, with minus infinity where a query may not see a key.
fn scores(op: &Attention, q: &Tensor, k: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let mut scores = q.matmul(&k.t()?)?.mul(op.scale)?;
    if let Some(mask) = mask {
        scores = match mask.dtype() {
            DType::Bool => scores.add(&added(mask, q.dtype())?)?,
            _ => scores.add(mask)?,
        };
    }
    if op.causal {
        let position = |n: usize| Tensor::arange_of(0.0, n as f64, 1.0, DType::I64);
        let queries = position(q.shape()[q.rank() - 2])?.unsqueeze(1)?;
        let keys = position(k.shape()[k.rank() - 2])?;
        scores = scores.add(&added(&queries.ge(&keys)?, q.dtype())?)?;
    }
    Ok(scores)
}

/// What is added to scores: nothing where true, minus infinity where false.
fn added(visible: &Tensor, dtype: DType) -> Result<Tensor> {
    let number = |value: f64| Tensor::full_of([], value, dtype);
    visible.where_(&number(0.0)?, &number(f64::NEG_INFINITY)?)
}
