//! Cross entropy: of rows of logits against dense labels or class indices, and of each element against its own label.
//!
//! The loss of a row is `Σ label (lse - logit)` with the row's log-sum-exp `lse`. No probabilities are made: backward
//! reads logits, labels and one saved number per row, and writes its result over the logits where the tape alone held
//! them.

mod binary;
mod dense;
mod linear;
mod sparse;

use smallvec::{SmallVec, smallvec};

use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::op::{AuxOutput, Form, Meta, Outputs, one};
use crate::ops::lanes::{expect_dtype, expect_shape};
use crate::ops::registry::OpInfo;

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &binary::LOGITS_INFO,
    &binary::LOGITS_BACKWARD_INFO,
    &binary::PROBABILITIES_INFO,
    &binary::PROBABILITIES_BACKWARD_INFO,
    &dense::INFO,
    &dense::BACKWARD_INFO,
    &linear::INFO,
    &linear::SCALE_INFO,
    &sparse::INFO,
    &sparse::BACKWARD_INFO,
];

/// The shape of the losses: one per row of logits.
fn rows_of(op: &'static str, logits: &Meta) -> Result<Shape> {
    let shape = logits.shape();
    if !logits.dtype.is_float() {
        return Err(Error::dtype(
            op,
            format!("takes logits of floats, not {}; convert with `cast`", logits.dtype),
        ));
    }
    match shape.rank().checked_sub(1) {
        Some(n_rows) => Ok(shape.leading(n_rows)),
        None => Err(Error::shape(op, "the logits are a scalar; they need a last axis of classes")),
    }
}

/// One loss per row.
fn losses(op: &'static str, logits: &Meta) -> Result<Outputs> {
    one(rows_of(op, logits)?, logits.dtype)
}

/// The auxiliary output that backward reads: the log-sum-exp of each row, in the type that it is computed in.
fn log_sum_exp_aux(op: &'static str, logits: &Meta) -> SmallVec<[AuxOutput; 2]> {
    match rows_of(op, logits) {
        Ok(rows) => {
            smallvec![AuxOutput {
                form: Form::Statistics,
                meta: Meta::fresh(rows, logits.dtype.accumulator())
            }]
        }
        Err(_) => SmallVec::new(),
    }
}

/// What the two backward ops give: the gradient of the logits, if gradient and log-sum-exps have one number per row.
fn logits_gradient(op: &'static str, inputs: &[&Meta]) -> Result<Outputs> {
    let [logits, _, gradient, log_sum_exp] = inputs else { unreachable!("four operands") };
    let rows = rows_of(op, logits)?;
    expect_shape(op, "the gradient", gradient, &rows)?;
    expect_dtype(op, "the gradient", gradient, logits.dtype)?;
    expect_shape(op, "the log-sum-exp", log_sum_exp, &rows)?;
    expect_dtype(op, "the log-sum-exp", log_sum_exp, logits.dtype.accumulator())?;
    one(*logits.shape(), logits.dtype)
}
