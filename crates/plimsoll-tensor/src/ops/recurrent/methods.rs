//! How recurrent cells are called.

use super::Recurrent;
use super::cell::Cell;
use crate::base::error::{Error, Result};
use crate::eager::context;
use crate::eager::execute::{Arg, execute};
use crate::eager::op::{OpRef, Tensors};
use crate::eager::tensor::Tensor;
use crate::ops::activation::Activation;

/// The weights of an LSTM (gates in the order i, f, g, o) or of a simple cell (one gate).
#[derive(Clone, Copy, Debug)]
pub struct RecurrentWeights<'a> {
    /// The weights of the inputs, `[features, gates x hidden]`.
    pub kernel: &'a Tensor,
    /// The weights of the hidden states, `[hidden, gates x hidden]`.
    pub recurrent: &'a Tensor,
    /// Added to the sums, `[gates x hidden]`.
    pub bias: Option<&'a Tensor>,
}

/// The weights of a GRU, with gates in the order r, z, n.
#[derive(Clone, Copy, Debug)]
pub struct GruWeights<'a> {
    /// The weights of the inputs, `[features, 3 hidden]`.
    pub kernel: &'a Tensor,
    /// The weights of the hidden states, `[hidden, 3 hidden]`.
    pub recurrent: &'a Tensor,
    /// Added to the sums of inputs, and to those of hidden states; each `[3 hidden]`.
    pub biases: Option<[&'a Tensor; 2]>,
}

/// What an LSTM carries from step to step; each `[batch, hidden]`.
#[derive(Clone, Debug)]
pub struct LstmState {
    /// The hidden state, which is also the output of a step.
    pub hidden: Tensor,
    /// The cell state.
    pub cell: Tensor,
}

/// One call of any cell.
struct Call<'a> {
    cell: Cell,
    operands: [&'a Tensor; 3],
    biases: &'a [&'a Tensor],
    initial: &'a [&'a Tensor],
}

impl Call<'_> {
    /// The final states, then the sequence if it is wanted.
    fn run(&self, sequence: bool) -> Result<Tensors> {
        let (biased, initial) = (!self.biases.is_empty(), !self.initial.is_empty());
        let op = Recurrent { cell: self.cell, biased, initial, sequence };
        let inputs = self.operands.iter().chain(self.biases).chain(self.initial);
        execute(OpRef::shipped(op), inputs.map(|input| Arg::Lent(input)).collect())
    }
}

/// The last of the outputs, which is the sequence where there is one.
fn last(outputs: &mut Tensors) -> Tensor {
    outputs.pop().unwrap_or_else(|| unreachable!("a cell has one state or more"))
}

impl Tensor {
    /// An LSTM over this sequence `[batch, time, features]`: the hidden states `[batch, time, hidden]` and the state
    /// after the last step. The initial state is zero unless it is given.
    ///
    /// # Errors
    /// Shapes that do not fit, dtypes that differ or are not floats; memory that is full.
    #[doc = example!("lstm")]
    #[doc(alias = "LSTM")]
    #[track_caller]
    pub fn lstm(
        &self,
        weights: &RecurrentWeights<'_>,
        initial: Option<&LstmState>,
    ) -> Result<(Tensor, LstmState)> {
        let _line = context::at_callers_line();
        let mut outputs = run_lstm(self, weights, initial, true)?;
        let sequence = last(&mut outputs);
        Ok((sequence, lstm_state(outputs)))
    }

    /// The state of an LSTM after this sequence; the states between take no memory. See [`Tensor::lstm`].
    ///
    /// # Errors
    /// Those of [`Tensor::lstm`].
    #[doc = example!("lstm_state")]
    #[track_caller]
    pub fn lstm_state(
        &self,
        weights: &RecurrentWeights<'_>,
        initial: Option<&LstmState>,
    ) -> Result<LstmState> {
        let _line = context::at_callers_line();
        run_lstm(self, weights, initial, false).map(lstm_state)
    }

    /// A GRU over this sequence `[batch, time, features]`: the hidden states `[batch, time, hidden]` and the one after
    /// the last step, `[batch, hidden]`. The reset gate comes after the product with the hidden state, as in cuDNN,
    /// PyTorch and Keras. The initial state is zero unless it is given.
    ///
    /// # Errors
    /// Shapes that do not fit, dtypes that differ or are not floats; memory that is full.
    #[doc = example!("gru")]
    #[doc(alias = "GRU")]
    #[track_caller]
    pub fn gru(&self, weights: &GruWeights<'_>, initial: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        let _line = context::at_callers_line();
        let mut outputs = run_gru(self, weights, initial, true)?;
        Ok((last(&mut outputs), last(&mut outputs)))
    }

    /// The hidden state of a GRU after this sequence; the states between take no memory. See [`Tensor::gru`].
    ///
    /// # Errors
    /// Those of [`Tensor::gru`].
    #[doc = example!("gru_state")]
    #[track_caller]
    pub fn gru_state(&self, weights: &GruWeights<'_>, initial: Option<&Tensor>) -> Result<Tensor> {
        let _line = context::at_callers_line();
        run_gru(self, weights, initial, false).map(|mut outputs| last(&mut outputs))
    }

    /// A simple recurrent cell, `h' = activation(x kernel + h recurrent + bias)`, over this sequence `[batch, time,
    /// features]`: the hidden states `[batch, time, hidden]` and the one after the last step, `[batch, hidden]`. The
    /// activation is one whose derivative is read from its output, such as tanh or relu. The initial state is zero unless it
    /// is given.
    ///
    /// # Errors
    /// Shapes that do not fit, dtypes that differ or are not floats, another activation; memory that is full.
    #[doc = example!("simple_rnn")]
    #[doc(alias("RNN", "SimpleRNN"))]
    #[track_caller]
    pub fn simple_rnn(
        &self,
        weights: &RecurrentWeights<'_>,
        activation: Activation,
        initial: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let _line = context::at_callers_line();
        let mut outputs = run_simple(self, weights, activation, initial, true)?;
        Ok((last(&mut outputs), last(&mut outputs)))
    }

    /// The hidden state of a simple recurrent cell after this sequence. See [`Tensor::simple_rnn`].
    ///
    /// # Errors
    /// Those of [`Tensor::simple_rnn`].
    #[doc = example!("simple_rnn_state")]
    #[track_caller]
    pub fn simple_rnn_state(
        &self,
        weights: &RecurrentWeights<'_>,
        activation: Activation,
        initial: Option<&Tensor>,
    ) -> Result<Tensor> {
        let _line = context::at_callers_line();
        run_simple(self, weights, activation, initial, false).map(|mut outputs| last(&mut outputs))
    }
}

fn run_lstm(
    x: &Tensor,
    weights: &RecurrentWeights<'_>,
    initial: Option<&LstmState>,
    sequence: bool,
) -> Result<Tensors> {
    let initial = initial.map(|state| [&state.hidden, &state.cell]);
    Call {
        cell: Cell::Lstm,
        operands: [x, weights.kernel, weights.recurrent],
        biases: weights.bias.as_slice(),
        initial: initial.as_ref().map_or(&[], |states| states),
    }
    .run(sequence)
}

fn lstm_state(mut outputs: Tensors) -> LstmState {
    let cell = last(&mut outputs);
    LstmState { hidden: last(&mut outputs), cell }
}

fn run_gru(
    x: &Tensor,
    weights: &GruWeights<'_>,
    initial: Option<&Tensor>,
    sequence: bool,
) -> Result<Tensors> {
    Call {
        cell: Cell::Gru,
        operands: [x, weights.kernel, weights.recurrent],
        biases: weights.biases.as_ref().map_or(&[], |biases| biases),
        initial: initial.as_slice(),
    }
    .run(sequence)
}

fn run_simple(
    x: &Tensor,
    weights: &RecurrentWeights<'_>,
    activation: Activation,
    initial: Option<&Tensor>,
    sequence: bool,
) -> Result<Tensors> {
    if activation.split().1 != Activation::None {
        return Err(Error::argument(
            "simple_rnn",
            format!("the activation is {activation:?}; it must be Tanh, Relu, Sigmoid or None"),
        ));
    }
    Call {
        cell: Cell::Simple(activation),
        operands: [x, weights.kernel, weights.recurrent],
        biases: weights.bias.as_slice(),
        initial: initial.as_slice(),
    }
    .run(sequence)
}
