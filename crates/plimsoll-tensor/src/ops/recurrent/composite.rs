//! The same in plain ops, step by step, for derivatives of higher order.

use super::Recurrent;
use super::cell::CarriedState;
use super::gradient::RecurrentBackward;
use super::kernel::Extents;
use crate::base::error::Result;
use crate::base::shape::Shape;
use crate::eager::op::{Meta, Tensors};
use crate::eager::tensor::Tensor;
use crate::ops::matmul::as_rows;

/// The final states and, if it is wanted, the sequence of hidden states.
pub(super) fn forward(op: &Recurrent, inputs: &[&Tensor]) -> Result<Tensors> {
    let (x, kernel, recurrent) = (inputs[0], inputs[1], inputs[2]);
    let Extents { batch, steps, hidden, .. } = op.check(&metas(inputs))?;
    let zeros = |dims: &[usize]| Tensor::zeros_of(Shape::new(dims)?, x.dtype());
    let with_bias = |sums: Tensor, idx: usize| match (op.biased, idx < op.cell.n_biases()) {
        (true, true) => sums.add(inputs[3 + idx]),
        _ => Ok(sums),
    };
    let sums = with_bias(as_rows(x)?.matmul(kernel)?, 0)?;
    let sums = sums.reshape([batch, steps, kernel.shape()[1]])?;
    let first = op.first_state();
    let initial = |idx: usize| match inputs.get(first + idx) {
        Some(&state) => Ok(state.clone()),
        None => zeros(&[batch, hidden]),
    };
    let cell = (op.cell.n_states() > 1).then(|| initial(1)).transpose()?;
    let mut state = CarriedState { hidden: initial(0)?, cell };
    let mut states = Vec::new();
    for step in 0..steps {
        let of_hidden = with_bias(state.hidden.matmul(recurrent)?, 1)?;
        state = op.cell.plain_step(&sums.select(1, step as isize)?, &of_hidden, &state)?;
        states.push(state.hidden.clone());
    }
    let mut outputs: Tensors = [state.hidden].into_iter().chain(state.cell).collect();
    if op.sequence {
        outputs.push(stacked(&states, || zeros(&[batch, 0, hidden]))?);
    }
    Ok(outputs)
}

/// The gradients of the sums, the hidden states before each step, and the gradients of the initial states if there are
/// any; from the inputs of the backward op.
pub(super) fn backward(op: &RecurrentBackward, inputs: &[&Tensor]) -> Result<Tensors> {
    let cell = op.cell;
    let (saved, recurrent) = (inputs[0], inputs[1]);
    let Extents { batch, steps, hidden, .. } = op.check(&metas(inputs))?;
    let zeros = |dims: &[usize]| Tensor::zeros_of(Shape::new(dims)?, saved.dtype());
    let given = |idx: Option<usize>| match idx {
        Some(idx) => Ok(inputs[idx].clone()),
        None => zeros(&[batch, hidden]),
    };
    let initial = |idx: usize| given(op.initial.then_some(2 + idx));
    let mut carried = vec![initial(cell.n_states() - 1)?];
    for step in 0..steps {
        carried.push(cell.plain_advance(&saved.select(1, step as isize)?, &carried[step])?);
    }
    let [d_sequence, d_hidden, d_cell] = op.gradients();
    let mut d_hidden = given(d_hidden)?;
    let mut d_cell = (cell.n_states() > 1).then(|| given(d_cell)).transpose()?;
    let (mut d_sums, mut hiddens) = (Vec::new(), Vec::new());
    for step in (0..steps).rev() {
        if let Some(idx) = d_sequence {
            d_hidden = d_hidden.add(&inputs[idx].select(1, step as isize)?)?;
        }
        let row = saved.select(1, step as isize)?;
        let around = [&carried[step], &carried[step + 1]];
        let back = cell.plain_back(&row, around, &d_hidden, d_cell.as_ref())?;
        d_hidden = back.d_hidden;
        for part in cell.gate_groups() {
            let len = part.n_gates * hidden;
            let sums = back.row.narrow(-1, part.column * hidden, len)?;
            let weights = recurrent.narrow(-1, part.gate * hidden, len)?;
            d_hidden = d_hidden.add(&sums.matmul(&weights.t()?)?)?;
        }
        d_cell = back.d_cell;
        d_sums.push(back.row);
        hiddens.push(back.hidden);
    }
    d_sums.reverse();
    // The state after the last step is before none; the one before the first comes last, as all are in reverse.
    hiddens.push(initial(0)?);
    let mut previous = hiddens.split_off(1);
    previous.reverse();
    let mut outputs = Tensors::new();
    outputs.push(stacked(&d_sums, || Ok(saved.clone()))?);
    outputs.push(stacked(&previous, || zeros(&[batch, 0, hidden]))?);
    if op.initial {
        outputs.push(d_hidden);
        outputs.extend(d_cell);
    }
    Ok(outputs)
}

fn metas<'a>(inputs: &[&'a Tensor]) -> Vec<&'a Meta> {
    inputs.iter().map(|input| input.meta()).collect()
}

/// Steps side by side, or what an empty sequence gives.
fn stacked(steps: &[Tensor], empty: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
    match steps {
        [] => empty(),
        steps => Tensor::stack(&steps.iter().collect::<Vec<_>>(), 1),
    }
}
