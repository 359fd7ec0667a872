//! Normalisation: layer and RMS norm along the last axis, batch norm over all axes but the last,
//! group norm over the places and groups of channels of each example.
//!
//! Backward reads the input, the scale and the statistics of each lane or column, never the normalised values. An
//! output that a later op wants to keep is rebuilt from those by applying the saved statistics.

mod add;
mod batch;
mod batch_add_relu;
mod batch_cuda;
mod batch_kernel;
mod columns;
mod group;
mod group_cuda;
mod group_kernel;
mod kernel;
mod last_axis;
mod last_axis_cuda;
mod methods;

use std::sync::Arc;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::op::{Meta, Tensors};
use crate::eager::tape::TapeCore;
use crate::eager::tensor::Tensor;
use crate::ops::backward::gradients_of_plain_ops;
use crate::ops::lanes::{expect_dtype, expect_shape};
use crate::ops::registry::OpInfo;

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &last_axis::LAYER_INFO,
    &last_axis::LAYER_APPLY_INFO,
    &last_axis::LAYER_BACKWARD_INFO,
    &last_axis::RMS_INFO,
    &last_axis::RMS_APPLY_INFO,
    &last_axis::RMS_BACKWARD_INFO,
    &add::LAYER_INFO,
    &add::RMS_INFO,
    &batch::INFO,
    &batch::APPLY_INFO,
    &batch::BACKWARD_INFO,
    &batch_add_relu::INFO,
    &group::INFO,
    &group::APPLY_INFO,
    &group::BACKWARD_INFO,
];

/// Refuses an input without a last axis, and scales or shifts that do not fit it.
fn check(op: &'static str, x: &Meta, parameters: &[&Meta]) -> Result<()> {
    if !x.dtype.is_float() {
        let detail = format!("takes floats, not {}; convert with `cast(DType::F32)` first", x.dtype);
        return Err(Error::dtype(op, detail));
    }
    let Some(&width) = x.shape().last() else {
        return Err(Error::shape(op, "the input is a scalar; it needs a last axis"));
    };
    for (parameter, name) in parameters.iter().zip(["gamma", "beta"]) {
        if parameter.dtype != x.dtype {
            return Err(Error::mixed_dtypes(op, x.dtype, parameter.dtype));
        }
        if parameter.shape().dims() != [width] {
            return Err(Error::shape(
                op,
                format!("{name} is {} but the last axis of {} wants [{width}]", parameter.shape(), x.shape()),
            ));
        }
    }
    Ok(())
}

/// Refuses saved statistics that do not belong to the input.
fn check_statistics(op: &'static str, statistics: &[&Meta], shape: &Shape, dtype: DType) -> Result<()> {
    statistics.iter().try_for_each(|meta| {
        expect_shape(op, "a statistic", meta, shape)?;
        expect_dtype(op, "a statistic", meta, dtype.accumulator())
    })
}

/// Refuses inputs of a backward op that do not belong together: the gradient, x, gamma, and the statistics.
fn check_backward(op: &'static str, inputs: &[&Meta], statistics_shape: &Shape) -> Result<()> {
    let (gradient, x) = (&inputs[0], &inputs[1]);
    check(op, x, &inputs[2..3])?;
    expect_shape(op, "the gradient", gradient, x.shape())?;
    expect_dtype(op, "the gradient", gradient, x.dtype)?;
    check_statistics(op, &inputs[3..], statistics_shape, x.dtype)
}

/// The gradients of input, scale and shift in plain ops, those that are wanted: a tape over the plain forward.
fn composite_backward(
    forward: impl FnOnce() -> Result<Tensor>,
    (gradient, x, gamma): (&Tensor, &Tensor, &Tensor),
    wanted: [bool; 3],
) -> Result<Tensors> {
    // Another tape records what is computed here: the log, if there is one, is that tape's.
    let tape = Arc::new(TapeCore::new(false, false, |_| None));
    let gradients = gradients_of_plain_ops(&tape, forward, gradient, &[x, gamma])?;
    let beta = wanted[2].then(|| gradient.sum_to(gamma.shape())).transpose()?;
    let all = gradients.into_iter().map(Some).chain([beta]);
    Ok(all.zip(wanted).filter_map(|(gradient, wanted)| gradient.filter(|_| wanted)).collect())
}
