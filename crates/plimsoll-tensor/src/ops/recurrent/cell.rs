//! The three cells: what they differ in. Everything else (shapes, loops over time, threads, memory) is shared.
//!
//! Sums of inputs and hidden states come in columns of `hidden` numbers each, one per gate; what is saved of a step comes
//! in such columns too, in the same row, and its gradients are written over it.

use super::{gru, lstm, simple};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;
use crate::ops::activation::Activation;
use crate::ops::compute::Compute;

/// Which cell is run over a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cell {
    Lstm,
    Gru,
    /// A function of the sums whose derivative is read from its output.
    Simple(Activation),
}

/// Some gates of the recurrent weights whose sums go to neighbouring columns of a row.
#[derive(Debug)]
pub(super) struct GateGroup {
    /// The first gate, and how many there are.
    pub gate: usize,
    pub n_gates: usize,
    /// The column of the first gate's sums in a row.
    pub column: usize,
    /// Whether the sums are added to those of the inputs, or lie apart.
    pub accumulate: bool,
}

/// The numbers that the gradient of one step reads and writes, for one example.
pub(super) struct StepBack<'a, C> {
    /// What was saved; becomes the gradients of the sums.
    pub row: &'a mut [C],
    /// What the cell carries (an LSTM's cell state, else the hidden state), before the step.
    pub before: &'a [C],
    /// The same after the step; becomes the hidden state after the step.
    pub after: &'a mut [C],
    /// The gradient of the hidden state after the step; becomes the part of the gradient before the step that does
    /// not go through the recurrent weights.
    pub d_hidden: &'a mut [C],
    /// The gradient of the cell state, after the step and then before it; empty if there is none.
    pub d_cell: &'a mut [C],
}

/// The same as [`StepBack`] in tensors: what one step's gradient gives.
pub(super) struct StepGradients {
    /// The gradients of the sums, in the columns of what was saved.
    pub row: Tensor,
    /// The hidden state after the step.
    pub hidden: Tensor,
    /// The gradients before the step; that of the hidden state without what goes through the recurrent weights.
    pub d_hidden: Tensor,
    pub d_cell: Option<Tensor>,
}

/// What is carried from step to step, as tensors.
#[derive(Clone)]
pub(super) struct CarriedState {
    pub hidden: Tensor,
    pub cell: Option<Tensor>,
}

/// The columns of a row `[batch, N x hidden]`.
pub(super) fn columns<const N: usize>(row: &Tensor) -> Result<[Tensor; N]> {
    let parts = row.split(-1, &[row.shape()[1] / N; N])?;
    parts.try_into().map_err(|_| unreachable!("a split gives as many parts as sizes"))
}

impl Cell {
    pub fn name(self) -> &'static str {
        match self {
            Cell::Lstm => "lstm",
            Cell::Gru => "gru",
            Cell::Simple(_) => "simple_rnn",
        }
    }

    pub fn backward_name(self) -> &'static str {
        match self {
            Cell::Lstm => "lstm_backward",
            Cell::Gru => "gru_backward",
            Cell::Simple(_) => "simple_rnn_backward",
        }
    }

    /// Gates, which is columns of the weights over the hidden extent.
    pub fn n_gates(self) -> usize {
        match self {
            Cell::Lstm => 4,
            Cell::Gru => 3,
            Cell::Simple(_) => 1,
        }
    }

    /// Columns that are saved for each step.
    pub fn n_saved(self) -> usize {
        match self {
            Cell::Lstm | Cell::Gru => 4,
            Cell::Simple(_) => 1,
        }
    }

    /// Biases: of the sums of inputs, and of those of hidden states where the cell keeps them apart.
    pub fn n_biases(self) -> usize {
        if self == Cell::Gru { 2 } else { 1 }
    }

    /// Tensors that are carried from step to step.
    pub fn n_states(self) -> usize {
        if self == Cell::Lstm { 2 } else { 1 }
    }

    /// How the recurrent weights' gates lie in a row.
    pub fn gate_groups(self) -> &'static [GateGroup] {
        match self {
            Cell::Lstm => &[GateGroup { gate: 0, n_gates: 4, column: 0, accumulate: true }],
            Cell::Gru => &[
                GateGroup { gate: 0, n_gates: 2, column: 0, accumulate: true },
                GateGroup { gate: 2, n_gates: 1, column: 3, accumulate: false },
            ],
            Cell::Simple(_) => &[GateGroup { gate: 0, n_gates: 1, column: 0, accumulate: true }],
        }
    }

    /// One step of one example: `row` holds the sums and becomes what is saved; the states go from before the step to
    /// after it.
    pub fn step<C: Compute>(self, row: &mut [C], hidden: &mut [C], cell: &mut [C]) {
        match self {
            Cell::Lstm => lstm::step(row, hidden, cell),
            Cell::Gru => gru::step(row, hidden),
            Cell::Simple(activation) => simple::step(activation, row, hidden),
        }
    }

    /// Brings what is carried from before a step to after it, from what was saved.
    pub fn advance<C: Compute>(self, row: &[C], carried: &mut [C]) {
        match self {
            Cell::Lstm => lstm::advance(row, carried),
            Cell::Gru => gru::advance(row, carried),
            Cell::Simple(_) => carried.copy_from_slice(row),
        }
    }

    /// The gradient of one step of one example.
    pub fn back<C: Compute>(self, step: StepBack<'_, C>) {
        match self {
            Cell::Lstm => lstm::back(step),
            Cell::Gru => gru::back(step),
            Cell::Simple(activation) => simple::back(activation, step),
        }
    }

    /// [`Cell::step`] in plain ops, from the sums of inputs and those of hidden states.
    pub fn plain_step(
        self,
        of_input: &Tensor,
        of_hidden: &Tensor,
        state: &CarriedState,
    ) -> Result<CarriedState> {
        match self {
            Cell::Lstm => lstm::plain_step(of_input, of_hidden, state),
            Cell::Gru => gru::plain_step(of_input, of_hidden, state),
            Cell::Simple(activation) => simple::plain_step(activation, of_input, of_hidden),
        }
    }

    /// [`Cell::advance`] in plain ops.
    pub fn plain_advance(self, row: &Tensor, carried: &Tensor) -> Result<Tensor> {
        match self {
            Cell::Lstm => lstm::plain_advance(row, carried),
            Cell::Gru => gru::plain_advance(row, carried),
            Cell::Simple(_) => Ok(row.clone()),
        }
    }

    /// [`Cell::back`] in plain ops; `carried` is what is carried before and after the step.
    pub fn plain_back(
        self,
        row: &Tensor,
        carried: [&Tensor; 2],
        d_hidden: &Tensor,
        d_cell: Option<&Tensor>,
    ) -> Result<StepGradients> {
        match self {
            Cell::Lstm => lstm::plain_back(row, carried, d_hidden, d_cell),
            Cell::Gru => gru::plain_back(row, carried, d_hidden),
            Cell::Simple(activation) => simple::plain_back(activation, row, d_hidden),
        }
    }
}
