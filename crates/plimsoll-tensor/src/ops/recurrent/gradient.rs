//! The op that takes a sequence back; [`super::Recurrent`] makes the gradients of its inputs from what it gives.

use plimsoll_cpu::element::Element as Stored;
use plimsoll_cuda::{Gpu, Profile};
use plimsoll_gemm as gemm;
use smallvec::{SmallVec, smallvec};

use super::backward::{self, Backward};
use super::cell::Cell;
use super::kernel::{Extents, Rows, cut_slices, pack_parts};
use super::{check_states, composite};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::op::{Cost, Gradient, Meta, Op, Output, Outputs, Run, Tensors, bytes_moved};
use crate::eager::tensor::Tensor;
use crate::ops::compute::{Compute, pieces_len};
use crate::ops::kernel::for_floats;
use crate::ops::linear::check_dtypes;

/// The gradients of the sums, the hidden states before each step, and the gradients of the initial states if there are
/// any. Inputs: what was saved, the recurrent weights, the initial states, and the gradients that there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecurrentBackward {
    pub cell: Cell,
    pub initial: bool,
    /// Whether the sequence, the hidden state and the cell state have gradients.
    pub given: [bool; 3],
}

impl RecurrentBackward {
    /// The positions of the gradients of the sequence, the hidden state and the cell state among the inputs.
    pub fn gradients(&self) -> [Option<usize>; 3] {
        let mut next = 2 + if self.initial { self.cell.n_states() } else { 0 };
        self.given.map(|given| {
            given.then(|| {
                next += 1;
                next - 1
            })
        })
    }

    /// Refuses inputs that do not belong together.
    pub fn check(&self, inputs: &[&Meta]) -> Result<Extents> {
        let name = self.cell.backward_name();
        check_dtypes(name, inputs)?;
        let (saved, recurrent) = (inputs[0].shape(), inputs[1].shape());
        let (&[batch, steps, width], &[hidden, gates]) = (saved.dims(), recurrent.dims()) else {
            return Err(Error::shape(
                name,
                format!("{saved} and {recurrent}; it takes [batch, time, saved] and [hidden, gates]"),
            ));
        };
        let extents = Extents { cell: self.cell, batch, steps, features: 0, hidden };
        let [d_sequence, d_states @ ..] = self.gradients();
        let n_states = if self.initial { self.cell.n_states() } else { 0 };
        check_states(name, &inputs[2..2 + n_states], &extents)?;
        for gradient in d_states.into_iter().flatten() {
            check_states(name, &inputs[gradient..=gradient], &extents)?;
        }
        let sequence_fits = d_sequence.is_none_or(|idx| inputs[idx].shape().dims() == [batch, steps, hidden]);
        if width != extents.saved() || gates != extents.gates() || !sequence_fits {
            return Err(Error::shape(
                name,
                format!("what was saved is {saved}, the recurrent weights are {recurrent}; they do not fit"),
            ));
        }
        Ok(extents)
    }

    /// The lengths of the pieces of scratch memory: the packed recurrent weights, and that of the tasks.
    fn lens<C: Compute>(extents: &Extents) -> [usize; 3] {
        let [first, second] = extents.parts_len::<C>(true);
        [first, second, backward::scratch_len::<C>(extents)]
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
        let has_cell = self.cell.n_states() > 1;
        let input = |idx: Option<usize>| idx.map(|idx| Rows::new::<T>(&run.inputs[idx]));
        let output = |idx: usize| run.outputs.get(idx).map(Rows::new::<T>);
        let [d_sequence, d_hidden, d_cell] = self.gradients();
        // SAFETY: the scratch memory has these pieces, and is this call's own; the weights are as `check` says.
        let (recurrent, scratch) = unsafe {
            let [first, second, scratch] = cut_slices(run.workspace.cast::<C>(), Self::lens::<C>(&extents));
            (pack_parts::<T>(&extents, &run.inputs[1], true, [first, second]), scratch)
        };
        let kernel = Backward {
            extents,
            saved: Rows::new::<T>(&run.inputs[0]),
            recurrent,
            initial: [input(self.initial.then_some(2)), input((self.initial && has_cell).then_some(3))],
            d_sequence: input(d_sequence),
            d_finals: [input(d_hidden), input(d_cell)],
            d_sums: Rows::new::<T>(&run.outputs[0]),
            previous: Rows::new::<T>(&run.outputs[1]),
            d_initial: [output(2), output(3)],
        };
        // SAFETY: `check` has compared the extents of all operands, and the scratch memory is as long as is asked for.
        unsafe { kernel.run(scratch.as_mut_ptr()) };
        Ok(())
    }
}

impl Op for RecurrentBackward {
    fn name(&self) -> &'static str {
        self.cell.backward_name()
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let Extents { batch, steps, hidden, .. } = self.check(inputs)?;
        let output =
            |dims: &[usize]| Shape::new(dims).map(|shape| Output::New { shape, dtype: inputs[0].dtype });
        let mut outputs: Outputs = smallvec![output(inputs[0].shape())?, output(&[batch, steps, hidden])?];
        for _ in 0..if self.initial { self.cell.n_states() } else { 0 } {
            outputs.push(output(&[batch, hidden])?);
        }
        Ok(outputs)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[0].dtype(), T => self.run_on::<T, _>(run))
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        let Ok(extents) = self.check(inputs) else { return 0 };
        match inputs[0].dtype {
            DType::F64 => pieces_len(Self::lens::<f64>(&extents)) * size_of::<f64>(),
            _ => pieces_len(Self::lens::<f32>(&extents)) * size_of::<f32>(),
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

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }

    fn gradient(&self) -> Gradient {
        Gradient::Composite
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        Some(composite::backward(self, inputs))
    }
}
