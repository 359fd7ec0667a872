//! Samples of recurrent cells, with plain loops over f64 as their reference.

use super::cell::Cell;
use super::gradient::RecurrentBackward;
use super::{GruWeights, LstmState, RecurrentWeights};
use crate::base::error::Result;
use crate::eager::execute::apply;
use crate::eager::op::OpRef;
use crate::eager::tensor::Tensor;
use crate::ops::activation::Activation;
use crate::ops::registry::{Array, Input, Sample, within};

/// A call of a cell: what it is given, and what it is asked for.
#[derive(Clone, Copy)]
struct Call {
    cell: Cell,
    /// Batch, steps, features and hidden units.
    extents: [usize; 4],
    biased: bool,
    initial: bool,
    sequence: bool,
    /// The greatest input.
    range: f64,
}

impl Call {
    /// A call of a cell that is given and asked for everything.
    fn full(cell: Cell, extents: [usize; 4]) -> Call {
        Call { cell, extents, biased: true, initial: true, sequence: true, range: 1.0 }
    }

    fn inputs(&self) -> Vec<Input> {
        let [batch, steps, features, hidden] = self.extents;
        let gates = self.cell.n_gates() * hidden;
        let input = |shape: &[usize]| within(shape, -self.range, self.range);
        let mut inputs =
            vec![input(&[batch, steps, features]), input(&[features, gates]), input(&[hidden, gates])];
        let n_biases = if self.biased { self.cell.n_biases() } else { 0 };
        let n_states = if self.initial { self.cell.n_states() } else { 0 };
        inputs.extend((0..n_biases).map(|_| input(&[gates])));
        inputs.extend((0..n_states).map(|_| input(&[batch, hidden])));
        inputs
    }

    /// The same inputs with one of another shape, which must be refused.
    fn with(&self, input: usize, shape: &[usize]) -> Vec<Input> {
        let mut inputs = self.inputs();
        inputs[input].shape = shape.to_vec();
        inputs
    }

    fn sample(self, name: &str) -> Sample {
        Sample::many(name, self.inputs(), move |x| self.run(x)).references(move |x| self.reference(x))
    }

    fn first_state(&self) -> usize {
        3 + if self.biased { self.cell.n_biases() } else { 0 }
    }

    /// The sequence if it is asked for, then the final states.
    fn run(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        let bias = self.biased.then(|| &x[3]);
        let weights = RecurrentWeights { kernel: &x[1], recurrent: &x[2], bias };
        let state = self.initial.then(|| &x[self.first_state()]);
        match self.cell {
            Cell::Lstm => {
                let state = state.map(|hidden| LstmState {
                    hidden: hidden.clone(),
                    cell: x[self.first_state() + 1].clone(),
                });
                if self.sequence {
                    let (sequence, state) = x[0].lstm(&weights, state.as_ref())?;
                    return Ok(vec![sequence, state.hidden, state.cell]);
                }
                let state = x[0].lstm_state(&weights, state.as_ref())?;
                Ok(vec![state.hidden, state.cell])
            }
            Cell::Gru => {
                let biases = self.biased.then(|| [&x[3], &x[4]]);
                let weights = GruWeights { kernel: &x[1], recurrent: &x[2], biases };
                match self.sequence {
                    true => x[0].gru(&weights, state).map(|(sequence, hidden)| vec![sequence, hidden]),
                    false => Ok(vec![x[0].gru_state(&weights, state)?]),
                }
            }
            Cell::Simple(of) => match self.sequence {
                true => x[0].simple_rnn(&weights, of, state).map(|(sequence, hidden)| vec![sequence, hidden]),
                false => Ok(vec![x[0].simple_rnn_state(&weights, of, state)?]),
            },
        }
    }

    fn reference(&self, x: &[Array]) -> Vec<Array> {
        let (batch, steps) = (x[0].shape[0], x[0].shape[1]);
        let n = x[2].shape[0];
        let first = self.first_state();
        let initial = |state: usize| match self.initial {
            true => x[first + state].clone(),
            false => Array::build(&[batch, n], |_| 0.0),
        };
        let (mut h, mut c) = (initial(0), initial(self.cell.n_states() - 1));
        let mut sequence = Array::build(&[batch, steps, n], |_| 0.0);
        for step in 0..steps {
            for example in 0..batch {
                let row = example * n..(example + 1) * n;
                let sums = self.reference_sums(x, [example, step], &h.values[row.clone()]);
                let (h, c) = (&mut h.values[row.clone()], &mut c.values[row]);
                for unit in 0..n {
                    [h[unit], c[unit]] = self.reference_unit(&sums, unit, [h[unit], c[unit]]);
                }
                sequence.values[(example * steps + step) * n..][..n].copy_from_slice(h);
            }
        }
        let states = if self.cell == Cell::Lstm { vec![h, c] } else { vec![h] };
        self.sequence.then_some(sequence).into_iter().chain(states).collect()
    }

    /// The sums of inputs and of hidden states of one example and step, gate by gate.
    fn reference_sums(&self, x: &[Array], [example, step]: [usize; 2], hidden: &[f64]) -> [Vec<f64>; 2] {
        let bias = |of: usize, col: usize| match self.biased && of < self.cell.n_biases() {
            true => x[3 + of].at(&[col]),
            false => 0.0,
        };
        let of_input = |col: usize| {
            let term = |k: usize| x[0].at(&[example, step, k]) * x[1].at(&[k, col]);
            (0..x[1].shape[0]).map(term).sum::<f64>() + bias(0, col)
        };
        let of_hidden = |col: usize| {
            let terms = hidden.iter().enumerate().map(|(k, h)| h * x[2].at(&[k, col]));
            terms.sum::<f64>() + bias(1, col)
        };
        let columns = 0..x[1].shape[1];
        [columns.clone().map(of_input).collect(), columns.map(of_hidden).collect()]
    }

    /// The hidden and the cell state of one unit after a step, from those before it.
    fn reference_unit(&self, [a, b]: &[Vec<f64>; 2], unit: usize, [h, c]: [f64; 2]) -> [f64; 2] {
        let n = a.len() / self.cell.n_gates();
        let sum = |gate: usize| a[gate * n + unit] + b[gate * n + unit];
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match self.cell {
            Cell::Lstm => {
                let c = sigmoid(sum(1)) * c + sigmoid(sum(0)) * sum(2).tanh();
                [sigmoid(sum(3)) * c.tanh(), c]
            }
            Cell::Gru => {
                let candidate = (a[2 * n + unit] + sigmoid(sum(0)) * b[2 * n + unit]).tanh();
                let z = sigmoid(sum(1));
                [(1.0 - z) * candidate + z * h, c]
            }
            Cell::Simple(activation) => [activation.reference(sum(0)), c],
        }
    }

    /// PyTorch's function of that name, with weights and states as it wants them.
    fn torch(&self, function: &str) -> String {
        let state = |idx: usize| match self.initial {
            true => format!("x{}[None]", self.first_state() + idx),
            false => format!("torch.zeros(1, {}, {}, dtype=dtype)", self.extents[0], self.extents[3]),
        };
        let states = match self.cell {
            Cell::Lstm => format!("({}, {})", state(0), state(1)),
            _ => state(0),
        };
        let weights = match (self.biased, self.cell) {
            (false, _) => "[x1.T, x2.T]",
            (true, Cell::Gru) => "[x1.T, x2.T, x3, x4]",
            (true, _) => "[x1.T, x2.T, x3, torch.zeros_like(x3)]",
        };
        let biased = if self.biased { "True" } else { "False" };
        let sequence = if self.sequence { "y, " } else { "" };
        format!(
            "(lambda y, *states: [{sequence}*(state[0] for state in states)])(*torch._VF.{function}(x0, {states}, \
             {weights}, {biased}, 1, 0.0, True, False, True))"
        )
    }
}

pub(super) fn lstm() -> Vec<Sample> {
    let full = Call::full(Cell::Lstm, [2, 3, 4, 3]);
    let no_bias = Call { biased: false, initial: false, ..full };
    let state = Call { extents: [3, 2, 2, 4], sequence: false, initial: false, ..full };
    vec![
        full.sample("everything")
            .torch(full.torch("lstm"))
            .refuses(full.with(0, &[2, 3]), "it must be [batch, time, features]")
            .refuses(full.with(1, &[5, 12]), "which is [4, 12] and [3, 12]")
            .refuses(full.with(2, &[3, 9]), "with 4 features and 3 hidden units")
            .refuses(full.with(3, &[3]), "it must be [12]")
            .refuses(full.with(5, &[2, 4]), "it must be [batch, hidden], which is [2, 3]"),
        no_bias.sample("no bias and no state").torch(no_bias.torch("lstm")).example(
            "let weights = RecurrentWeights { kernel: &x1, recurrent: &x2, bias: None }; \
             let (sequence, LstmState { hidden, cell }) = x0.lstm(&weights, None)",
        ),
        state.sample("final state only").torch(state.torch("lstm")).example(
            "let weights = RecurrentWeights { kernel: &x1, recurrent: &x2, bias: Some(&x3) }; \
             let LstmState { hidden, cell } = x0.lstm_state(&weights, None)",
        ),
        Call::full(Cell::Lstm, [1, 1, 2, 3]).sample("one example and one step"),
        Call { biased: false, initial: false, range: 0.3, ..Call::full(Cell::Lstm, [34, 4, 6, 20]) }
            .sample("several tasks"),
    ]
}

pub(super) fn gru() -> Vec<Sample> {
    let full = Call::full(Cell::Gru, [2, 3, 4, 3]);
    let no_bias = Call { biased: false, initial: false, ..full };
    let state = Call { extents: [3, 2, 2, 4], sequence: false, ..full };
    vec![
        full.sample("everything")
            .torch(full.torch("gru"))
            .refuses(full.with(0, &[6]), "it must be [batch, time, features]")
            .refuses(full.with(2, &[3, 12]), "which is [4, 9] and [3, 9]")
            .refuses(full.with(4, &[3]), "it must be [9]"),
        no_bias.sample("no bias and no state").torch(no_bias.torch("gru")).example(
            "let weights = GruWeights { kernel: &x1, recurrent: &x2, biases: None }; \
             let (sequence, hidden) = x0.gru(&weights, None)",
        ),
        state.sample("final state only").torch(state.torch("gru")).example(
            "let weights = GruWeights { kernel: &x1, recurrent: &x2, biases: Some([&x3, &x4]) }; \
             x0.gru_state(&weights, Some(&x5))",
        ),
        Call { biased: false, range: 0.3, ..Call::full(Cell::Gru, [34, 4, 6, 24]) }.sample("several tasks"),
    ]
}

pub(super) fn simple_rnn() -> Vec<Sample> {
    let full = Call::full(Cell::Simple(Activation::Tanh), [2, 3, 4, 3]);
    let relu = Call { cell: Cell::Simple(Activation::Relu), initial: false, ..full };
    let state = Call { extents: [3, 2, 2, 4], sequence: false, biased: false, ..full };
    vec![
        full.sample("tanh")
            .torch(full.torch("rnn_tanh"))
            .refuses(full.with(0, &[2, 3]), "it must be [batch, time, features]")
            .refuses(full.with(2, &[3, 4]), "which is [4, 3] and [3, 3]"),
        relu.sample("relu").torch(relu.torch("rnn_relu")).example(
            "let weights = RecurrentWeights { kernel: &x1, recurrent: &x2, bias: Some(&x3) }; \
             let (sequence, hidden) = x0.simple_rnn(&weights, Activation::Relu, None)",
        ),
        state.sample("final state only").torch(state.torch("rnn_tanh")).example(
            "let weights = RecurrentWeights { kernel: &x1, recurrent: &x2, bias: None }; \
             x0.simple_rnn_state(&weights, Activation::Tanh, Some(&x3))",
        ),
        Call { cell: Cell::Simple(Activation::Sigmoid), ..full }.sample("sigmoid"),
        Call { cell: Cell::Simple(Activation::None), ..full }.sample("linear"),
    ]
}

pub(super) fn lstm_backward() -> Vec<Sample> {
    vec![
        backward("everything", Cell::Lstm, true, [true; 3]),
        backward("sequence only", Cell::Lstm, false, [true, false, false]),
        backward("states only", Cell::Lstm, true, [false, true, true]),
    ]
}

pub(super) fn gru_backward() -> Vec<Sample> {
    vec![
        backward("everything", Cell::Gru, true, [true, true, false]),
        backward("state only", Cell::Gru, false, [false, true, false]),
    ]
}

pub(super) fn simple_rnn_backward() -> Vec<Sample> {
    vec![
        backward("tanh", Cell::Simple(Activation::Tanh), true, [true, true, false]),
        backward("relu", Cell::Simple(Activation::Relu), false, [true, false, false]),
    ]
}

/// A call of a backward op, with the gradients that are given.
fn backward(name: &str, cell: Cell, initial: bool, given: [bool; 3]) -> Sample {
    let (batch, steps, hidden) = (2, 3, 2);
    let mut inputs = vec![
        within(&[batch, steps, cell.n_saved() * hidden], 0.1, 0.9),
        within(&[hidden, cell.n_gates() * hidden], -1.0, 1.0),
    ];
    let state = || within(&[batch, hidden], -1.0, 1.0);
    inputs.extend((0..if initial { cell.n_states() } else { 0 }).map(|_| state()));
    inputs.extend(given[0].then(|| within(&[batch, steps, hidden], -1.0, 1.0)));
    inputs.extend(given[1..].iter().filter(|&&given| given).map(|_| state()));
    Sample::many(name, inputs, move |x| {
        let op = RecurrentBackward { cell, initial, given };
        Ok(apply(OpRef::shipped(op), &x.iter().collect::<Vec<_>>())?.into_iter().collect())
    })
}
