//! Recurrent cells over a whole sequence: LSTM, GRU and the simple cell, batch-major `[batch, time, features]`.
//!
//! What is saved for backward is what the gates gave, and nothing else of the sequence: an LSTM's cell states and all
//! hidden states follow from the gates step by step, without a product, so backward rebuilds them. It writes the
//! gradients of the sums over the gates. The gradients of all weights are then single products over all steps.
//!
//! The states are carried, and all sums formed, in f32 (f64 for f64), whatever the dtype of the tensors. Sequences of
//! different lengths are not masked here.

mod backward;
mod cell;
mod composite;
mod cuda;
mod forward;
mod gradient;
mod gru;
mod kernel;
mod lstm;
mod methods;
mod samples;
mod simple;

use plimsoll_cpu::element::Element as Stored;
use plimsoll_cuda::{Gpu, Profile};
use plimsoll_gemm::{self as gemm, PackedB};
use smallvec::{SmallVec, smallvec};

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::execute::{Arg, Args, execute};
use crate::eager::op::{
    AuxOutput, Cost, Form, Meta, Op, OpRef, Operand, Output, Outputs, Run, SavedRef, SavedRefs, Tensors,
    bytes_moved,
};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::compute::{Compute, pieces_len};
use crate::ops::kernel::for_floats;
use crate::ops::linear::{check_bias, check_dtypes};
use crate::ops::matmul::as_rows;
use crate::ops::registry::OpInfo;
use cell::Cell;
use gradient::RecurrentBackward;
use kernel::{Extents, Rows, bytes_of, cut_slices, matrix_of, pack_parts};

pub use methods::{GruWeights, LstmState, RecurrentWeights};

/// A cell over a sequence. Inputs: x, kernel, recurrent weights, then the biases and the initial states, if there are
/// any. Outputs: the final states and, if it is wanted, the sequence of hidden states.
#[derive(Clone, Copy, Debug)]
struct Recurrent {
    cell: Cell,
    biased: bool,
    initial: bool,
    sequence: bool,
}

impl Recurrent {
    /// The position of the first initial state among the inputs.
    fn first_state(&self) -> usize {
        3 + if self.biased { self.cell.n_biases() } else { 0 }
    }

    /// Where what backward reads of the sequence is kept: the simple cell's output is all it needs.
    fn saved(&self) -> SavedRef {
        match self.cell {
            Cell::Simple(_) if self.sequence => SavedRef::Output(self.cell.n_states()),
            _ => SavedRef::Aux(0),
        }
    }

    /// Refuses inputs that do not belong together.
    fn check(&self, inputs: &[&Meta]) -> Result<Extents> {
        let name = self.cell.name();
        check_dtypes(name, inputs)?;
        let (x, kernel, recurrent) = (inputs[0].shape(), inputs[1].shape(), inputs[2].shape());
        let &[batch, steps, features] = x.dims() else {
            return Err(Error::shape(name, format!("the input is {x}; it must be [batch, time, features]")));
        };
        let hidden = recurrent.first().copied().unwrap_or(0);
        let extents = Extents { cell: self.cell, batch, steps, features, hidden };
        let gates = extents.gates();
        if kernel.dims() != [features, gates] || recurrent.dims() != [hidden, gates] {
            let n = self.cell.n_gates();
            return Err(Error::shape(
                name,
                format!(
                    "the kernel is {kernel}, the recurrent weights are {recurrent}; with {features} features and \
                     {hidden} hidden units they must be [features, {n} hidden] and [hidden, {n} hidden], which is \
                     [{features}, {gates}] and [{hidden}, {gates}]"
                ),
            ));
        }
        for &bias in &inputs[3..self.first_state()] {
            check_bias(name, Some(bias), gates)?;
        }
        check_states(name, &inputs[self.first_state()..], &extents)?;
        extents.saved_shape()?;
        Ok(extents)
    }

    /// The lengths of the pieces of scratch memory: the packed kernel, the packed recurrent weights, both biases, and
    /// that of the tasks.
    fn lens<C: Compute>(&self, extents: &Extents) -> [usize; 6] {
        let kernel = PackedB::<C>::bytes(extents.features, extents.gates()) / size_of::<C>();
        let [first, second] = extents.parts_len::<C>(false);
        let n_biases = self.first_state() - 3;
        let bias = |idx: usize| if idx < n_biases { extents.gates() } else { 0 };
        [kernel, first, second, bias(0), bias(1), forward::scratch_len::<C>(extents)]
    }

    fn run_on<T, C>(&self, run: &mut Run<'_>) -> Result<()>
    where
        T: Stored<Compute = C> + gemm::Element<Real = C>,
        C: Compute,
    {
        let extents =
            self.check(&run.inputs.iter().map(|input| input.meta).collect::<SmallVec<[&Meta; 8]>>())?;
        if extents.batch * extents.hidden == 0 {
            return Ok(());
        }
        let (n_states, gates) = (self.cell.n_states(), extents.gates());
        let rows = |operand: Option<&Operand<'_>>| operand.map(Rows::new::<T>);
        // SAFETY: the scratch memory has these pieces, and is this call's own; the weights are as `check` says.
        let (kernel, recurrent, biases, scratch) = unsafe {
            let [kernel, first, second, bias, recurrent_bias, scratch] =
                cut_slices(run.workspace.cast::<C>(), self.lens::<C>(&extents));
            let columns = matrix_of::<T>(&run.inputs[1]);
            let kernel = PackedB::pack(columns, extents.features, gates, bytes_of(kernel));
            let recurrent = pack_parts::<T>(&extents, &run.inputs[2], false, [first, second]);
            let biases = [bias, recurrent_bias];
            let mut operands = run.inputs[3..self.first_state()].iter();
            let biases = biases.map(|bias| {
                if let Some(operand) = operands.next() {
                    Rows::row::<T>(operand).read(0, 0, bias);
                }
                &*bias
            });
            (kernel, recurrent, biases, scratch)
        };
        let states = &run.inputs[self.first_state()..];
        let saved = match self.saved() {
            SavedRef::Aux(idx) => run.aux_outputs.get(idx),
            _ => None,
        };
        let kernel = forward::Forward {
            extents,
            x: Rows::new::<T>(&run.inputs[0]),
            initial: [rows(states.first()), rows(states.get(1))],
            kernel,
            recurrent,
            biases,
            sequence: rows(run.outputs.get(n_states)),
            finals: [rows(run.outputs.first()), rows(run.outputs.get(1).filter(|_| n_states > 1))],
            saved: rows(saved),
        };
        // SAFETY: `check` has compared the extents of all operands, and the scratch memory is as long as is asked for.
        unsafe { kernel.run(scratch.as_mut_ptr()) };
        Ok(())
    }
}

impl Op for Recurrent {
    fn name(&self) -> &'static str {
        self.cell.name()
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let Extents { batch, steps, hidden, .. } = self.check(inputs)?;
        let output =
            |dims: &[usize]| Shape::new(dims).map(|shape| Output::New { shape, dtype: inputs[0].dtype });
        let states = (0..self.cell.n_states()).map(|_| output(&[batch, hidden]));
        let mut outputs = states.collect::<Result<Outputs>>()?;
        if self.sequence {
            outputs.push(output(&[batch, steps, hidden])?);
        }
        Ok(outputs)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[0].dtype(), T => self.run_on::<T, _>(run))
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        let Ok(extents) = self.check(inputs) else { return 0 };
        match inputs[0].dtype {
            DType::F64 => pieces_len(self.lens::<f64>(&extents)) * size_of::<f64>(),
            _ => pieces_len(self.lens::<f32>(&extents)) * size_of::<f32>(),
        }
    }

    fn workspace_cuda(&self, inputs: &[&Meta], profile: &Profile) -> usize {
        self.bytes_cuda(inputs, profile)
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        self.run_on_gpu(run, gpu)
    }

    fn cost(&self, inputs: &[&Meta], outputs: &[&Meta]) -> Cost {
        let bytes = bytes_moved(inputs, outputs);
        Cost { flops: self.check(inputs).map_or(0, |extents| extents.flops()), bytes }
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        let x = wanted[1].then_some(SavedRef::Input(0));
        let kernel = wanted[0].then_some(SavedRef::Input(1));
        let states = (self.first_state()..wanted.len()).map(SavedRef::Input);
        [x, kernel, Some(SavedRef::Input(2)), Some(self.saved())]
            .into_iter()
            .flatten()
            .chain(states)
            .collect()
    }

    fn aux_outputs(&self, inputs: &[&Meta], _wanted: &[bool]) -> SmallVec<[AuxOutput; 2]> {
        match (self.saved(), self.check(inputs)) {
            (SavedRef::Aux(_), Ok(extents)) => {
                let Ok(shape) = extents.saved_shape() else { return SmallVec::new() };
                smallvec![AuxOutput { form: Form::Gates, meta: Meta::fresh(shape, inputs[0].dtype) }]
            }
            _ => SmallVec::new(),
        }
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let n_states = self.cell.n_states();
        let saved = match self.saved() {
            SavedRef::Output(idx) => backward.output(idx)?,
            _ => backward.take_aux(0)?,
        };
        let mut args: Args<'_> = smallvec![Arg::Given(saved), Arg::Given(backward.input(2)?)];
        for state in self.first_state()..backward.n_inputs() {
            args.push(Arg::Given(backward.input(state)?));
        }
        let positions = [self.sequence.then_some(n_states), Some(0), (n_states > 1).then_some(1)];
        let given = positions.map(|output| match output.and_then(|output| backward.gradient_of(output)) {
            Some(gradient) => {
                args.push(Arg::Given(gradient));
                true
            }
            None => false,
        });
        let op = RecurrentBackward { cell: self.cell, initial: self.initial, given };
        let mut results = execute(OpRef::shipped(op), args)?;
        for state in (0..results.len() - 2).rev() {
            let gradient = results.remove(2 + state);
            if backward.wants(self.first_state() + state) {
                backward.set_grad(self.first_state() + state, gradient)?;
            }
        }
        let previous = results.remove(1);
        self.weight_gradients(backward, &as_rows(&results[0])?, previous)
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        Some(composite::forward(self, inputs))
    }
}

impl Recurrent {
    /// The gradients of weights, biases and input, from those of the sums, `[batch x time, ..]`.
    fn weight_gradients(&self, backward: &mut Backward<'_>, d_sums: &Tensor, previous: Tensor) -> Result<()> {
        let hidden = previous.shape()[2];
        let of_inputs = d_sums.narrow(1, 0, self.cell.n_gates() * hidden)?;
        // The sums of hidden states, gate by gate: an op of each part, side by side.
        let by_parts = |op: &dyn Fn(&Tensor) -> Result<Tensor>| {
            let part = |part: &cell::GateGroup| {
                op(&d_sums.narrow(1, part.column * hidden, part.n_gates * hidden)?)
            };
            let parts: SmallVec<[Tensor; 2]> =
                self.cell.gate_groups().iter().map(part).collect::<Result<_>>()?;
            Tensor::concat(&parts.iter().collect::<SmallVec<[&Tensor; 2]>>(), -1)
        };
        if backward.wants(2) {
            let previous = as_rows(&previous)?.t()?;
            backward.set_grad(2, by_parts(&|d_sums| previous.matmul(d_sums))?)?;
        }
        drop(previous);
        for bias in 3..self.first_state() {
            if backward.wants(bias) {
                let gradient = if bias == 3 { of_inputs.sum(0)? } else { by_parts(&|d_sums| d_sums.sum(0))? };
                backward.set_grad(bias, gradient)?;
            }
        }
        if backward.wants(1) {
            backward.set_grad(1, as_rows(&backward.input(0)?)?.t()?.matmul(&of_inputs)?)?;
        }
        if backward.wants(0) {
            let shape = *backward.input_shape(0);
            backward.set_grad(0, of_inputs.matmul(&backward.input(1)?.t()?)?.reshape(shape)?)?;
        }
        Ok(())
    }
}

/// Refuses states, or gradients of states, that are not `[batch, hidden]`.
fn check_states(op: &'static str, states: &[&Meta], extents: &Extents) -> Result<()> {
    let wanted = [extents.batch, extents.hidden];
    match states.iter().find(|state| state.shape().dims() != wanted) {
        Some(state) => Err(Error::shape(
            op,
            format!(
                "a state is {}; it must be [batch, hidden], which is [{}, {}]",
                state.shape(),
                wanted[0],
                wanted[1]
            ),
        )),
        None => Ok(()),
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &OpInfo { name: "lstm", doc: "An LSTM over a sequence.", samples: samples::lstm },
    &OpInfo {
        name: "lstm_backward",
        doc: "The gradients of the sums and initial states of an LSTM over a sequence.",
        samples: samples::lstm_backward,
    },
    &OpInfo {
        name: "gru",
        doc: "A GRU over a sequence, with reset after the product.",
        samples: samples::gru,
    },
    &OpInfo {
        name: "gru_backward",
        doc: "The gradients of the sums and initial state of a GRU over a sequence.",
        samples: samples::gru_backward,
    },
    &OpInfo {
        name: "simple_rnn",
        doc: "A simple recurrent cell over a sequence.",
        samples: samples::simple_rnn,
    },
    &OpInfo {
        name: "simple_rnn_backward",
        doc: "The gradients of the sums and initial state of a simple cell over a sequence.",
        samples: samples::simple_rnn_backward,
    },
];
