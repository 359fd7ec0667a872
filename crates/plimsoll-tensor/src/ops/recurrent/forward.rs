//! The forward kernel: for each step the sums of inputs and hidden states, then the cell's arithmetic.
//!
//! Sums live in a task's scratch memory, one step at a time, and reach the saved gates only when they have become
//! gates. With few examples in a task, the inputs of several steps are multiplied at once.

use std::ops::Range;

use plimsoll_cpu::threads::{self, SharedPtr};
use plimsoll_gemm::{Epilogue, PackedB};

use super::kernel::{Extents, PackedGateGroups, Rows, bytes_of, cut_slices, matrix, matrix_mut};
use crate::ops::compute::{Compute, pieces_len};

/// About the rows whose inputs are multiplied at once.
const STAGED_ROWS: usize = 16;

/// One call of the kernel.
pub(super) struct Forward<'a, C: Compute> {
    pub extents: Extents,
    pub x: Rows<C>,
    /// The states before the first step; zeros if there are none.
    pub initial: [Option<Rows<C>>; 2],
    pub kernel: PackedB<'a, C>,
    pub recurrent: PackedGateGroups<'a, C>,
    /// The biases of the sums of inputs and of hidden states; empty if there are none.
    pub biases: [&'a [C]; 2],
    /// Where the hidden states, the final states and the saved rows go, as far as they are wanted.
    pub sequence: Option<Rows<C>>,
    pub finals: [Option<Rows<C>>; 2],
    pub saved: Option<Rows<C>>,
}

/// The scratch memory of one lane.
struct Scratch<'a, C> {
    /// Inputs of a few steps, and their sums, which become what is saved.
    x: &'a mut [C],
    sums: &'a mut [C],
    hidden: &'a mut [C],
    cell: &'a mut [C],
    products: &'a mut [u8],
}

/// Steps whose inputs are multiplied at once.
fn staged_steps(extents: &Extents) -> usize {
    (STAGED_ROWS / extents.most_rows().max(1)).clamp(1, extents.steps.max(1))
}

/// The lengths of a lane's pieces of scratch memory, in the order of [`Scratch`].
fn lens<C: Compute>(extents: &Extents) -> [usize; 5] {
    let Extents { features, hidden, .. } = *extents;
    let rows = extents.most_rows();
    let staged = rows * staged_steps(extents);
    let products = PackedB::<C>::workspace(staged, features).max(PackedB::<C>::workspace(rows, hidden));
    [
        staged * features,
        staged * extents.saved(),
        rows * hidden,
        rows * extents.cell_state(),
        products.div_ceil(size_of::<C>()),
    ]
}

/// Numbers of scratch memory of all lanes.
pub(super) fn scratch_len<C: Compute>(extents: &Extents) -> usize {
    extents.n_lanes() * pieces_len(lens::<C>(extents))
}

impl<C: Compute> Forward<'_, C> {
    /// Runs the whole sequence.
    ///
    /// # Safety
    /// The operands must be as the extents say, and `scratch` as long as [`scratch_len`] says.
    pub unsafe fn run(&self, scratch: *mut C) {
        let (n_tasks, n_lanes) = (self.extents.n_tasks(), self.extents.n_lanes());
        let lens = lens::<C>(&self.extents);
        let scratch = SharedPtr::new(scratch);
        threads::parallel(n_lanes, |lane| {
            // SAFETY: every lane has a stretch of the scratch memory to itself.
            let [x, sums, hidden, cell, products] =
                unsafe { cut_slices(scratch.get().add(lane * pieces_len(lens)), lens) };
            let mut scratch = Scratch { x, sums, hidden, cell, products: bytes_of(products) };
            for task in (lane..n_tasks).step_by(n_lanes) {
                // SAFETY: nobody else computes these examples.
                unsafe { self.examples(self.extents.rows(task), &mut scratch) };
            }
        });
    }

    /// Takes some examples through the sequence.
    ///
    /// # Safety
    /// They must be examples of the batch that nobody else computes.
    unsafe fn examples(&self, rows: Range<usize>, scratch: &mut Scratch<'_, C>) {
        let steps = self.extents.steps;
        let states = [&mut *scratch.hidden, &mut *scratch.cell];
        for (state, initial) in states.into_iter().zip(&self.initial) {
            // SAFETY: the initial states have these rows.
            unsafe { read_states(initial.as_ref(), &rows, self.extents.hidden, state) };
        }
        let staged = staged_steps(&self.extents);
        for start in (0..steps).step_by(staged) {
            let stretch = start..steps.min(start + staged);
            // SAFETY: the steps are some of the sequence.
            unsafe {
                self.sums_of_inputs(&rows, &stretch, scratch);
                for step in stretch.clone() {
                    self.step(&rows, step, step - start, scratch);
                }
            }
        }
        for (to, state) in self.finals.iter().zip([&*scratch.hidden, &*scratch.cell]) {
            let Some(to) = to else { continue };
            for (row, state) in rows.clone().zip(state.chunks_exact(self.extents.hidden)) {
                // SAFETY: the final states have this row, and nobody else writes it.
                unsafe { to.write(row, 0, state) };
            }
        }
    }

    /// The sums of the inputs of a few steps, one step's rows after the other's.
    ///
    /// # Safety
    /// The input must have these rows and steps.
    unsafe fn sums_of_inputs(&self, rows: &Range<usize>, steps: &Range<usize>, scratch: &mut Scratch<'_, C>) {
        let Extents { features, .. } = self.extents;
        let places = steps.clone().flat_map(|step| rows.clone().map(move |row| (row, step)));
        if features > 0 {
            for ((row, step), to) in places.zip(scratch.x.chunks_exact_mut(features)) {
                // SAFETY: the caller promises the row.
                unsafe { self.x.read(row, step, to) };
            }
        }
        let bias = self.biases[0];
        let epilogue = Epilogue { bias: (!bias.is_empty()).then_some(bias.as_ptr()), ..Epilogue::NONE };
        let sums = matrix_mut(scratch.sums, self.extents.saved());
        let n_rows = rows.len() * steps.len();
        // SAFETY: both pieces have room for this many rows.
        unsafe {
            self.kernel.multiply(n_rows, matrix(scratch.x, features), sums, &epilogue, scratch.products);
        }
    }

    /// One step: step `place` of those whose inputs have been multiplied.
    ///
    /// # Safety
    /// The outputs must have these rows and this step, and nobody else may touch them.
    unsafe fn step(&self, rows: &Range<usize>, step: usize, place: usize, scratch: &mut Scratch<'_, C>) {
        let Extents { cell, hidden, .. } = self.extents;
        let width = self.extents.saved();
        let sums = &mut scratch.sums[place * rows.len() * width..][..rows.len() * width];
        for (part, weights) in &self.recurrent {
            let bias = self.biases[1].get(part.gate * hidden..).filter(|bias| !bias.is_empty());
            let epilogue =
                Epilogue { bias: bias.map(<[C]>::as_ptr), activation: None, accumulate: part.accumulate };
            let states = matrix(scratch.hidden, hidden);
            let to = matrix_mut(&mut sums[part.column * hidden..], width);
            // SAFETY: the states and sums of all rows are there; a part's columns lie within the row.
            unsafe { weights.multiply(rows.len(), states, to, &epilogue, scratch.products) };
        }
        for (idx, (row, sums)) in rows.clone().zip(sums.chunks_exact_mut(width)).enumerate() {
            let hidden_state = &mut scratch.hidden[idx * hidden..][..hidden];
            let cell_state = match &mut *scratch.cell {
                [] => &mut [][..],
                cells => &mut cells[idx * hidden..][..hidden],
            };
            cell.step(sums, hidden_state, cell_state);
            // SAFETY: the caller promises the outputs.
            unsafe {
                if let Some(saved) = &self.saved {
                    saved.write(row, step, sums);
                }
                if let Some(sequence) = &self.sequence {
                    sequence.write(row, step, hidden_state);
                }
            }
        }
    }
}

/// Reads the states of some examples, each of so many numbers, or zeros if there are none.
///
/// # Safety
/// The operand must have these rows.
pub(super) unsafe fn read_states<C: Compute>(
    from: Option<&Rows<C>>,
    rows: &Range<usize>,
    len: usize,
    to: &mut [C],
) {
    let Some(from) = from else { return to.fill(C::ZERO) };
    for (row, to) in rows.clone().zip(to.chunks_exact_mut(len)) {
        // SAFETY: the caller promises the row.
        unsafe { from.read(row, 0, to) };
    }
}
