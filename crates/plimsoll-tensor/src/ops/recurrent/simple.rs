//! The simple cell: h' = activation(sum of inputs + sum of hidden states). Its hidden states are all that is saved.

use super::cell::{CarriedState, StepBack, StepGradients};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;
use crate::ops::activation::Activation;
use crate::ops::compute::Compute;

pub(super) fn step<C: Compute>(activation: Activation, row: &mut [C], hidden: &mut [C]) {
    if let Some(function) = activation.in_kernel() {
        function(row);
    }
    hidden.copy_from_slice(row);
}

pub(super) fn back<C: Compute>(activation: Activation, step: StepBack<'_, C>) {
    let StepBack { row, d_hidden, .. } = step;
    activation.back_in_kernel(d_hidden, row);
    row.copy_from_slice(d_hidden);
    d_hidden.fill(C::ZERO);
}

pub(super) fn plain_step(
    activation: Activation,
    of_input: &Tensor,
    of_hidden: &Tensor,
) -> Result<CarriedState> {
    Ok(CarriedState { hidden: activation.apply(of_input.add(of_hidden)?)?, cell: None })
}

pub(super) fn plain_back(activation: Activation, row: &Tensor, d_hidden: &Tensor) -> Result<StepGradients> {
    Ok(StepGradients {
        row: activation.plain_back(d_hidden, row)?,
        hidden: row.clone(),
        d_hidden: d_hidden.zeros_like()?,
        d_cell: None,
    })
}
