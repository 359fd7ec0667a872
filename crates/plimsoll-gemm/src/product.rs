//! The loops of a product: chunks of C, stretches of depth, tasks, panels, tiles.
//!
//! Where each of them begins and ends is the plan's business and that of the tile's size; here they are only walked.
//! For every stretch of depth the threads meet twice: after the shared operand is packed, and after all tasks are done.

use std::ops::Range;

use plimsoll_cpu::threads;

use crate::Shape;
use crate::element::Real;
use crate::isa::Kernels;
use crate::operand::Operand;
use crate::output::{Output, Place, Rows, Sums};
use crate::plan::{Concurrency, Plan, Split, part};
use crate::tasks::{Shared, Slots, each};

/// A batch of products, ready to be run.
pub(crate) struct Product<'a, T: 'static> {
    pub shape: Shape,
    pub plan: Plan,
    pub kernels: &'static Kernels<T>,
    pub a: &'a dyn Operand<T>,
    pub b: &'a dyn Operand<T>,
    pub output: Output<'a, T>,
}

/// Memory of one product: panels and sums. Tasks take disjoint pieces of it.
#[derive(Clone, Copy)]
struct Memory<T> {
    shared: *mut T,
    private: *mut T,
    sums: *mut T,
}

// SAFETY: tasks take disjoint pieces, and pack before they read with a join between.
unsafe impl<T> Sync for Memory<T> {}

/// A part of C that is finished before the next is begun.
struct Chunk<'a, T> {
    batch: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    /// The depths of the whole sum.
    depth: Range<usize>,
    output: &'a Output<'a, T>,
    memory: Memory<T>,
}

impl<T: Real> Product<'_, T> {
    /// Runs all products of the batch.
    ///
    /// # Safety
    /// `workspace` must have the bytes that the plan asks for, aligned to 64, and C must be nobody else's.
    pub unsafe fn run(&self, workspace: *mut u8) {
        let Shape { batch, k, .. } = self.shape;
        let workspace = Shared(workspace);
        // SAFETY: the plan's workspace has room for this many lanes.
        let memory = |lane: usize| unsafe { self.memory(workspace.get().add(lane * self.plan.lane_bytes)) };
        match self.plan.concurrency {
            Concurrency::Tasks => {
                for idx in 0..batch {
                    self.one(idx, 0..k, &self.output, memory(0));
                }
            }
            Concurrency::Lanes(lanes) => threads::parallel(lanes, |lane| {
                for idx in part(0..batch, lanes, lane) {
                    self.one(idx, 0..k, &self.output, memory(lane));
                }
            }),
            Concurrency::Parts(parts) => {
                // SAFETY: the partial sums come after the parts' own memory.
                let sums = unsafe { workspace.get().add(parts * self.plan.lane_bytes) };
                self.in_parts(parts, sums.cast(), memory);
            }
        }
    }

    /// Packs B over all columns and depths into `panels`, for [`Product::run_packed`].
    ///
    /// # Safety
    /// `panels` must have room for what the plan says, and be nobody else's.
    pub unsafe fn pack_all_of_b(&self, panels: *mut T) {
        self.pack_shared(&self.whole(panels, std::ptr::null_mut()), &(0..self.shape.k));
    }

    /// Runs a single product on this thread, with a B that was packed beforehand.
    ///
    /// # Safety
    /// `panels` must be what [`Product::pack_all_of_b`] wrote for these columns and depths, `workspace` as for
    /// [`Product::run`].
    pub unsafe fn run_packed(&self, panels: *const T, workspace: *mut u8) {
        let chunk = self.whole(panels.cast_mut(), workspace.cast());
        self.task(&chunk, &(0..self.shape.k), 1, 0, &Slots::new(1));
    }

    /// All of C as one chunk, for a B that is packed as a whole.
    fn whole(&self, shared: *mut T, private: *mut T) -> Chunk<'_, T> {
        let Shape { m, n, k, .. } = self.shape;
        let memory = Memory { shared, private, sums: std::ptr::null_mut() };
        Chunk { batch: 0, rows: 0..m, cols: 0..n, depth: 0..k, output: &self.output, memory }
    }

    /// Runs one product whose depth is split into parts, then adds the parts' sums in a fixed order.
    fn in_parts(&self, parts: usize, sums: *mut T, memory: impl Fn(usize) -> Memory<T> + Sync) {
        let Shape { m, n, k, .. } = self.shape;
        let sums = Shared(sums);
        threads::parallel(parts, |idx| {
            // SAFETY: the workspace has room for the sums of every part.
            let own = unsafe { sums.get().add(idx * m * n) };
            let output = Output::new::<T>(own, Rows::Even(n as isize), 0);
            self.one(0, part(0..k, parts, idx), &output, memory(idx));
        });
        let n_tasks = m.min(16);
        threads::parallel(n_tasks, |task| {
            for row in part(0..m, n_tasks, task) {
                // SAFETY: every task adds up and writes its own rows.
                unsafe {
                    let total = std::slice::from_raw_parts_mut(sums.get().add(row * n), n);
                    for idx in 1..parts {
                        let part = std::slice::from_raw_parts(sums.get().add((idx * m + row) * n), n);
                        for (total, part) in total.iter_mut().zip(part) {
                            *total += *part;
                        }
                    }
                    self.output.write_row(0, row, 0, total);
                }
            }
        });
    }

    /// The memory of one lane, cut up.
    ///
    /// # Safety
    /// `lane` must have `lane_bytes` bytes.
    unsafe fn memory(&self, lane: *mut u8) -> Memory<T> {
        let shared = lane.cast::<T>();
        // SAFETY: the lane's bytes are those of these three pieces.
        unsafe {
            let private = shared.add(self.plan.shared_len);
            Memory { shared, private, sums: private.add(self.plan.n_slots * self.plan.slot_len) }
        }
    }

    /// Runs one product over the depths `depth`.
    fn one(&self, batch: usize, depth: Range<usize>, output: &Output<'_, T>, memory: Memory<T>) {
        let plan = &self.plan;
        for row in (0..self.shape.m).step_by(plan.chunk_rows) {
            for col in (0..self.shape.n).step_by(plan.chunk_cols) {
                let rows = row..self.shape.m.min(row + plan.chunk_rows);
                let cols = col..self.shape.n.min(col + plan.chunk_cols);
                let depth = depth.clone();
                self.chunk(&Chunk { batch, rows, cols, depth, output, memory });
            }
        }
    }

    /// Computes a chunk of C.
    fn chunk(&self, chunk: &Chunk<'_, T>) {
        let n_tasks = self.plan.n_tasks(chunk.rows.len(), chunk.cols.len());
        let slots = Slots::new(self.plan.n_slots);
        let mut start = chunk.depth.start;
        // A product over no depth at all still writes C.
        loop {
            let stretch = start..chunk.depth.end.min(start + self.plan.shared_depth);
            self.pack_shared(chunk, &stretch);
            each(self.plan.serial, n_tasks, |task| self.task(chunk, &stretch, n_tasks, task, &slots));
            start = stretch.end;
            if start >= chunk.depth.end {
                return;
            }
        }
    }

    /// Packs the shared operand over a stretch of depth.
    fn pack_shared(&self, chunk: &Chunk<'_, T>, stretch: &Range<usize>) {
        let n_blocks = stretch.len().div_ceil(self.plan.block_depth);
        let (lanes, padded) = match self.plan.split {
            Split::Rows => (&chunk.cols, chunk.cols.len().next_multiple_of(self.kernels.lanes)),
            Split::Columns => (&chunk.rows, chunk.rows.len()),
        };
        let n_panels = self.n_panels(lanes.len(), self.plan.split == Split::Columns);
        each(self.plan.serial, n_blocks * n_panels, |idx| {
            let start = stretch.start + idx / n_panels * self.plan.block_depth;
            let block = start..stretch.end.min(start + self.plan.block_depth);
            // SAFETY: blocks of one stretch lie one after the other, panels of one block likewise.
            unsafe {
                let to = chunk.memory.shared.add((start - stretch.start) * padded);
                let panel = idx % n_panels;
                match self.plan.split {
                    Split::Rows => self.pack_b(chunk.batch, lanes, panel, &block, to),
                    Split::Columns => self.pack_a(chunk.batch, lanes, n_panels, panel, &block, to),
                }
            }
        });
    }

    /// Panels that so many rows (or columns) are packed into.
    fn n_panels(&self, n_lanes: usize, rows: bool) -> usize {
        n_lanes.div_ceil(if rows { self.kernels.max_rows() } else { self.kernels.max_cols() })
    }

    /// Packs one of `n_panels` panels of `rows` of A into its place in `to`.
    ///
    /// # Safety
    /// `to` must have room for all panels, and nobody else may touch this one's.
    unsafe fn pack_a(
        &self,
        batch: usize,
        rows: &Range<usize>,
        n_panels: usize,
        panel: usize,
        block: &Range<usize>,
        to: *mut T,
    ) {
        let own = part(rows.clone(), n_panels, panel);
        let (offset, len) = ((own.start - rows.start) * block.len(), own.len() * block.len());
        // SAFETY: the caller promises room.
        let to = unsafe { std::slice::from_raw_parts_mut(to.add(offset), len) };
        self.a.pack(batch, own.clone(), block.clone(), own.len(), to);
    }

    /// Packs one panel of `cols` of B into its place in `to`.
    ///
    /// # Safety
    /// See [`Product::pack_a`].
    unsafe fn pack_b(
        &self,
        batch: usize,
        cols: &Range<usize>,
        panel: usize,
        block: &Range<usize>,
        to: *mut T,
    ) {
        let start = cols.start + panel * self.kernels.max_cols();
        let own = start..cols.end.min(start + self.kernels.max_cols());
        let width = self.kernels.width(own.len());
        let (offset, len) = ((start - cols.start) * block.len(), width * block.len());
        // SAFETY: the caller promises room.
        let to = unsafe { std::slice::from_raw_parts_mut(to.add(offset), len) };
        self.b.pack(batch, own, block.clone(), width, to);
    }

    /// Adds a stretch of depth to the rows or columns of one task.
    fn task(&self, chunk: &Chunk<'_, T>, stretch: &Range<usize>, n_tasks: usize, task: usize, slots: &Slots) {
        let (rows, cols) = match self.plan.split {
            Split::Rows => (part(chunk.rows.clone(), n_tasks, task), chunk.cols.clone()),
            Split::Columns => {
                let start = chunk.cols.start + task * self.plan.task_lanes;
                (chunk.rows.clone(), start..chunk.cols.end.min(start + self.plan.task_lanes))
            }
        };
        let n_row_panels = self.n_panels(rows.len(), true);
        let n_col_panels = self.n_panels(cols.len(), false);
        let slot = slots.claim();
        // SAFETY: the private memory has this many slots, and this one is the task's own until it returns.
        let own = unsafe { chunk.memory.private.add(slot.idx * self.plan.slot_len) };
        let mut start = stretch.start;
        loop {
            let block = start..stretch.end.min(start + self.plan.block_depth);
            let done = start - stretch.start;
            // SAFETY: the shared panels of this block are complete, the private ones are this task's own.
            unsafe {
                let (a, b) = match self.plan.split {
                    Split::Rows => {
                        for panel in 0..n_row_panels {
                            self.pack_a(chunk.batch, &rows, n_row_panels, panel, &block, own);
                        }
                        let padded = cols.len().next_multiple_of(self.kernels.lanes);
                        (own, chunk.memory.shared.add(done * padded))
                    }
                    Split::Columns => {
                        for panel in 0..n_col_panels {
                            self.pack_b(chunk.batch, &cols, panel, &block, own);
                        }
                        (chunk.memory.shared.add(done * rows.len()), own)
                    }
                };
                self.tiles(chunk, &rows, &cols, &block, a, b);
            }
            start = block.end;
            if start >= stretch.end {
                return;
            }
        }
    }

    /// Adds a block of depth to all tiles of some rows and columns.
    ///
    /// # Safety
    /// `a` and `b` must hold the packed panels of these rows and columns over this block.
    unsafe fn tiles(
        &self,
        chunk: &Chunk<'_, T>,
        rows: &Range<usize>,
        cols: &Range<usize>,
        block: &Range<usize>,
        a: *const T,
        b: *const T,
    ) {
        let sums = (self.plan.sums_len > 0).then_some(Sums {
            first: chunk.memory.sums,
            row_stride: self.plan.chunk_cols,
            row: chunk.rows.start,
            col: chunk.cols.start,
        });
        let n_row_panels = self.n_panels(rows.len(), true);
        let (first, last) = (block.start == chunk.depth.start, block.end == chunk.depth.end);
        for col in cols.clone().step_by(self.kernels.max_cols()) {
            let cols_of_tile = col..cols.end.min(col + self.kernels.max_cols());
            let width = self.kernels.width(cols_of_tile.len());
            // SAFETY: the columns lie within C, and panels within what the caller promises.
            unsafe {
                let bias = chunk.output.panel_bias(chunk.batch, cols_of_tile.clone(), last);
                let b = b.add((col - cols.start) * block.len());
                for panel in 0..n_row_panels {
                    let rows_of_tile = part(rows.clone(), n_row_panels, panel);
                    let a = a.add((rows_of_tile.start - rows.start) * block.len());
                    let kernel = self.kernels.tiles[rows_of_tile.len() - 1][width / self.kernels.lanes - 1];
                    let cols = cols_of_tile.clone();
                    let place = Place { batch: chunk.batch, rows: rows_of_tile, cols, first, last };
                    let multiply = |target| kernel(block.len(), a, b, target);
                    chunk.output.add_tile(&place, width, multiply, &bias, sums);
                }
            }
        }
    }
}
