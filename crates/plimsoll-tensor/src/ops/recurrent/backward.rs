//! The backward kernel: the states are rebuilt from what was saved, then the steps are taken in reverse.
//!
//! Per step there is one product, of the gradients of the sums with the recurrent weights. The weights' own gradients
//! are single products over all steps and examples, and are not this kernel's business: it gives what they are made of,
//! the gradients of the sums and the hidden states before each step.

use std::ops::Range;

use plimsoll_cpu::threads::{self, SharedPtr};
use plimsoll_gemm::{Epilogue, PackedB};

use super::cell::StepBack;
use super::forward::read_states;
use super::kernel::{Extents, PackedGateGroups, Rows, bytes_of, cut_slices, matrix, matrix_mut};
use crate::ops::compute::{Compute, pieces_len};

/// One call of the kernel.
pub(super) struct Backward<'a, C: Compute> {
    pub extents: Extents,
    /// What was saved; the gradients of the sums may be written over it.
    pub saved: Rows<C>,
    /// The recurrent weights with rows and columns exchanged.
    pub recurrent: PackedGateGroups<'a, C>,
    /// The states before the first step; zeros if there are none.
    pub initial: [Option<Rows<C>>; 2],
    /// The gradients of the hidden states and of the final states, as far as there are any.
    pub d_sequence: Option<Rows<C>>,
    pub d_finals: [Option<Rows<C>>; 2],
    /// The gradients of the sums.
    pub d_sums: Rows<C>,
    /// The hidden state before each step. Until the step has been taken in reverse, what the cell carries is there.
    pub previous: Rows<C>,
    /// The gradients of the states before the first step, if they are wanted.
    pub d_initial: [Option<Rows<C>>; 2],
}

/// The scratch memory of one lane.
struct Scratch<'a, C> {
    /// The saved rows of a step, which become gradients.
    sums: &'a mut [C],
    /// What the cells carry, before and after the step.
    before: &'a mut [C],
    after: &'a mut [C],
    d_hidden: &'a mut [C],
    d_cell: &'a mut [C],
    /// One more row.
    row: &'a mut [C],
    products: &'a mut [u8],
}

/// The lengths of a lane's pieces of scratch memory, in the order of [`Scratch`].
fn lens<C: Compute>(extents: &Extents) -> [usize; 7] {
    let (rows, hidden) = (extents.most_rows(), extents.hidden);
    let deepest = extents.cell.gate_groups().iter().map(|part| part.n_gates * hidden).max().unwrap_or(0);
    let products = PackedB::<C>::workspace(rows, deepest);
    [
        rows * extents.saved(),
        rows * hidden,
        rows * hidden,
        rows * hidden,
        rows * extents.cell_state(),
        hidden,
        products.div_ceil(size_of::<C>()),
    ]
}

/// Numbers of scratch memory of all lanes.
pub(super) fn scratch_len<C: Compute>(extents: &Extents) -> usize {
    extents.n_lanes() * pieces_len(lens::<C>(extents))
}

impl<C: Compute> Backward<'_, C> {
    /// Computes all gradients.
    ///
    /// # Safety
    /// The operands must be as the extents say, and `scratch` as long as [`scratch_len`] says.
    pub unsafe fn run(&self, scratch: *mut C) {
        let (n_tasks, n_lanes) = (self.extents.n_tasks(), self.extents.n_lanes());
        let lens = lens::<C>(&self.extents);
        let scratch = SharedPtr::new(scratch);
        threads::parallel(n_lanes, |lane| {
            // SAFETY: every lane has a stretch of the scratch memory to itself.
            let [sums, before, after, d_hidden, d_cell, row, products] =
                unsafe { cut_slices(scratch.get().add(lane * pieces_len(lens)), lens) };
            let products = bytes_of(products);
            let mut scratch = Scratch { sums, before, after, d_hidden, d_cell, row, products };
            for task in (lane..n_tasks).step_by(n_lanes) {
                // SAFETY: nobody else computes these examples.
                unsafe { self.examples(self.extents.rows(task), &mut scratch) };
            }
        });
    }

    /// Takes some examples back through the sequence.
    ///
    /// # Safety
    /// They must be examples of the batch that nobody else computes.
    unsafe fn examples(&self, rows: Range<usize>, scratch: &mut Scratch<'_, C>) {
        let Extents { steps, hidden, .. } = self.extents;
        // SAFETY: all operands have these rows and steps, and only this task touches them.
        unsafe {
            self.rebuild(&rows, scratch);
            let gradients = [&mut *scratch.d_hidden, &mut *scratch.d_cell];
            for (to, from) in gradients.into_iter().zip(&self.d_finals) {
                read_states(from.as_ref(), &rows, hidden, to);
            }
            let wants_initial = self.d_initial[0].is_some();
            for step in (0..steps).rev() {
                self.step(&rows, step, scratch);
                if step > 0 || wants_initial {
                    self.through_weights(rows.len(), scratch);
                }
            }
            if self.extents.cell_state() > 0 && steps > 0 {
                // The first row still holds the cell state before the first step.
                read_states(self.initial[0].as_ref(), &rows, hidden, scratch.before);
                for (row, state) in rows.clone().zip(scratch.before.chunks_exact(hidden)) {
                    self.previous.write(row, 0, state);
                }
            }
            for (to, from) in self.d_initial.iter().zip([&*scratch.d_hidden, &*scratch.d_cell]) {
                let Some(to) = to else { continue };
                for (row, from) in rows.clone().zip(from.chunks_exact(hidden)) {
                    to.write(row, 0, from);
                }
            }
        }
    }

    /// Writes down what the cells carry before each step; what they carry after the last is left in `after`.
    ///
    /// # Safety
    /// See [`Backward::examples`].
    unsafe fn rebuild(&self, rows: &Range<usize>, scratch: &mut Scratch<'_, C>) {
        let Extents { cell, steps, hidden, .. } = self.extents;
        let initial = self.initial[cell.n_states() - 1].as_ref();
        // SAFETY: the caller promises the rows and steps.
        unsafe {
            read_states(initial, rows, hidden, scratch.after);
            let saved = &mut scratch.sums[..self.extents.saved()];
            for (row, carried) in rows.clone().zip(scratch.after.chunks_exact_mut(hidden)) {
                for step in 0..steps {
                    self.previous.write(row, step, carried);
                    self.saved.read(row, step, saved);
                    cell.advance(saved, carried);
                }
            }
        }
    }

    /// The gradients of one step, except what goes through the recurrent weights.
    ///
    /// # Safety
    /// See [`Backward::examples`].
    unsafe fn step(&self, rows: &Range<usize>, step: usize, scratch: &mut Scratch<'_, C>) {
        let Extents { cell, steps, hidden, .. } = self.extents;
        let width = self.extents.saved();
        for (idx, (row, sums)) in rows.clone().zip(scratch.sums.chunks_exact_mut(width)).enumerate() {
            let own = idx * hidden..(idx + 1) * hidden;
            let (before, after) = (&mut scratch.before[own.clone()], &mut scratch.after[own.clone()]);
            let d_hidden = &mut scratch.d_hidden[own.clone()];
            let d_cell = match &mut *scratch.d_cell {
                [] => &mut [][..],
                d_cells => &mut d_cells[own],
            };
            // SAFETY: the caller promises the rows and steps; the saved row is read before gradients are written over
            // it, and what is carried before a step is read before the hidden state is.
            unsafe {
                self.saved.read(row, step, sums);
                self.previous.read(row, step, before);
                if let Some(d_sequence) = &self.d_sequence {
                    d_sequence.read(row, step, scratch.row);
                    d_hidden.iter_mut().zip(&*scratch.row).for_each(|(sum, &d)| *sum += d);
                }
                cell.back(StepBack { row: sums, before, after, d_hidden, d_cell });
                self.d_sums.write(row, step, sums);
                if step + 1 < steps {
                    self.previous.write(row, step + 1, after);
                }
            }
            after.copy_from_slice(before);
        }
    }

    /// Adds to the gradients of the hidden states what goes through the recurrent weights.
    ///
    /// # Safety
    /// The scratch memory must hold the gradients of so many rows.
    unsafe fn through_weights(&self, n_rows: usize, scratch: &mut Scratch<'_, C>) {
        let hidden = self.extents.hidden;
        for (part, weights) in &self.recurrent {
            let sums = matrix(&scratch.sums[part.column * hidden..], self.extents.saved());
            let to = matrix_mut(scratch.d_hidden, hidden);
            let epilogue = Epilogue { accumulate: true, ..Epilogue::NONE };
            // SAFETY: the gradients of all rows are there; a part's columns lie within the row.
            unsafe { weights.multiply(n_rows, sums, to, &epilogue, scratch.products) };
        }
    }
}
