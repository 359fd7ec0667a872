//! The gradient of a convolution's weights in strips: over all points, the output's gradient times the patch.
//!
//! The points are cut into parts, whose sums are added at the end, and the weights into slices; each task has a part and
//! a slice. Neither operand is packed. Which of the two is walked by vectors, the patches or the gradients, is decided
//! by which fills the vectors better: pictures of one or three channels are no wider than a part of a vector, but their
//! gradients are.

use std::ops::Range;

use crate::check_workspace;
use crate::count::{padded, product};
use crate::element::{Access, Element, Real};
use crate::isa::Kernels;
use crate::output::{Output, Place, Rows};
use crate::patches::Patches;
use crate::plan::part;
use crate::strip::{Cut, Strip};
use crate::tasks::{MAX_SLOTS, Shared, Slots, each};
use crate::tile::{InPlace, MAX_TILE_ROW_BYTES};

/// Bytes of the sums of all parts, and the most parts.
const PARTS_BYTES: usize = 5 << 18;
const MAX_PARTS: usize = 16;

/// Tasks that there should be at least.
const LEAST_TASKS: usize = 8;

/// The least outputs of a slice: each slice copies the strips for itself.
const LEAST_OUTPUTS: usize = 28;

/// About the bytes of a strip: its points are what a tile is summed over before it is written.
const STRIP_BYTES: usize = 256 << 10;

/// Bytes of the strips of all slots, and the least number of slots.
const SLOTS_BYTES: usize = 1 << 20;
const LEAST_SLOTS: usize = 2;

/// Multiply-adds below which a second thread does not pay.
const SERIAL_WORK: usize = 1 << 19;

/// Which operand is walked by vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Across {
    /// Numbers of a patch that lie side by side; sums are laid out as the weights.
    Patches,
    /// Channels of the output; sums are transposed.
    Gradients,
}

/// How the gradient is cut up; by shape and element alone.
#[derive(Clone, Debug)]
pub(crate) struct WeightsPlan {
    cut: Cut,
    across: Across,
    groups: usize,
    /// Outputs of a group.
    outputs: usize,
    /// Numbers of a patch, and of a run of them that lie side by side.
    depth: usize,
    run: usize,
    n_parts: usize,
    /// Outputs whose sums are formed before those of the next, fewer than all where their sums would take much memory.
    chunk: usize,
    /// Slices of each group's outputs of a chunk.
    n_slices: usize,
    /// Numbers of one part's sums; none if sums are formed in the result.
    sums_len: usize,
    /// Numbers from one point's gradients to the next where they are copied; none if they are used in place.
    copied_width: usize,
    slot_len: usize,
    n_slots: usize,
    serial: bool,
    bytes: usize,
}

impl WeightsPlan {
    /// The plan for patches of so many pictures, with so many outputs in each group.
    pub fn new<E: Element>(patches: &Patches<E::Real>, batch: usize, outputs: usize, groups: usize) -> Self {
        let size = size_of::<E::Real>();
        let vector = MAX_TILE_ROW_BYTES / size / 2;
        let cut = Cut::new(patches, batch, STRIP_BYTES);
        let run = product([if patches.tap_step[1] == 1 { patches.taps[1] } else { 1 }, patches.channels]);
        let depth = product([patches.taps[0], patches.taps[1], patches.channels]);
        let all = product([depth, outputs, groups]);
        // Numbers that vectors hold for one that is wanted, in parts per thousand.
        let waste = |len: usize| product([padded(len, vector), 1000]) / len.max(1);
        let fits = product([all, size]) <= PARTS_BYTES / 2;
        let across = if fits && waste(outputs) < waste(run) { Across::Gradients } else { Across::Patches };
        let serial = product([batch, patches.grid[0], patches.grid[1], all]) <= SERIAL_WORK;
        let most_parts = (PARTS_BYTES / product([all, size]).max(1)).clamp(1, MAX_PARTS);
        let n_parts = if serial { 1 } else { most_parts.min(cut.n_strips().max(1)) };
        let own_sums = n_parts > 1 || E::NARROW || across == Across::Gradients;
        let chunk = match own_sums && n_parts == 1 && groups == 1 && across == Across::Patches {
            true => {
                (PARTS_BYTES / product([depth, size]).max(1)).clamp(LEAST_OUTPUTS, outputs.max(LEAST_OUTPUTS))
            }
            false => outputs.max(1),
        };
        let slices =
            LEAST_TASKS.div_ceil(product([n_parts, groups.max(1)])).min(chunk.div_ceil(LEAST_OUTPUTS)).max(1);
        let n_slices = if serial || across == Across::Gradients { 1 } else { slices };
        let slice = chunk.div_ceil(n_slices);
        let copied_width = match across {
            Across::Patches if E::NARROW => slice,
            Across::Gradients if E::NARROW || !outputs.is_multiple_of(vector) => {
                outputs.next_multiple_of(vector)
            }
            _ => 0,
        };
        let copied = padded(product([cut.lines, cut.points, copied_width]), 2 * vector);
        let slot_len = cut.len().saturating_add(copied);
        let n_tasks = product([n_parts, n_slices, groups]);
        let most_slots = (SLOTS_BYTES / product([slot_len, size])).clamp(LEAST_SLOTS, MAX_SLOTS);
        let n_slots = if serial { 1 } else { n_tasks.clamp(1, most_slots) };
        let sums_len = if own_sums { padded(product([depth, chunk, groups]), 2 * vector) } else { 0 };
        let len = product([n_parts, sums_len]).saturating_add(product([n_slots, slot_len]));
        let bytes = padded(product([len, size]), 64);
        Self {
            cut,
            across,
            groups,
            outputs,
            depth,
            run,
            n_parts,
            chunk,
            n_slices,
            sums_len,
            copied_width,
            slot_len,
            n_slots,
            serial,
            bytes,
        }
    }

    /// Bytes of workspace.
    pub fn workspace(&self) -> usize {
        self.bytes
    }
}

/// The gradient of a convolution's weights, ready to be run.
pub(crate) struct StripWeights<'a, T: 'static> {
    pub patches: &'a Patches<T>,
    /// The output's gradient, which lies in memory without gaps.
    pub grad_output: *const u8,
    /// The gradient of the weights: a row for each output.
    pub output: Output<'a, T>,
}

// SAFETY: the gradient is only read, and tasks write different parts of the result.
unsafe impl<T> Sync for StripWeights<'_, T> {}

/// The part of the work of one task.
struct Task<'a, T> {
    plan: &'a WeightsPlan,
    group: usize,
    /// Outputs of the group.
    outputs: Range<usize>,
    /// Where sums go: a row for each output of all groups, from `first_row` on, or for each number of a patch.
    sums: Output<'a, T>,
    first_row: usize,
    /// The slot's memory: a strip, then gradients if they are copied.
    strip: *mut T,
    copied: *mut T,
}

/// The output's gradient at the points of a strip: the first channel of the task's first output, and numbers from one line
/// of points, and one point, to the next.
struct Gradients<T> {
    first: *const T,
    steps: [isize; 2],
}

impl<T: Real> StripWeights<'_, T> {
    /// Forms the gradient.
    ///
    /// # Safety
    /// Image and gradient must be readable, and the result nobody else's.
    pub unsafe fn run<E: Element<Real = T>>(&self, plan: WeightsPlan, workspace: &mut [u8]) {
        check_workspace(&plan, plan.bytes, workspace);
        let sums = workspace.as_mut_ptr().cast::<T>();
        for start in (0..plan.outputs).step_by(plan.chunk) {
            let chunk = start..plan.outputs.min(start + plan.chunk);
            // SAFETY: the workspace has the plan's bytes; the caller promises the rest.
            unsafe { self.chunk::<E>(&plan, chunk, sums) };
        }
    }

    /// Forms the gradient of the weights of some outputs of each group.
    ///
    /// # Safety
    /// `sums` must be the plan's workspace; see also [`Self::run`].
    unsafe fn chunk<E: Element<Real = T>>(&self, plan: &WeightsPlan, chunk: Range<usize>, sums: *mut T) {
        let sums = Shared(sums);
        let slots = Slots::new(plan.n_slots);
        let n_tasks = plan.n_parts * plan.groups * plan.n_slices;
        let width = match plan.across {
            Across::Patches => plan.depth,
            Across::Gradients => plan.groups * plan.outputs,
        };
        each(plan.serial, n_tasks, |idx| {
            let (idx, slice) = (idx / plan.n_slices, idx % plan.n_slices);
            let (part_idx, group) = (idx / plan.groups, idx % plan.groups);
            let slot = slots.claim();
            // SAFETY: each part has its own sums, and the slot is this task's own until it returns.
            unsafe {
                let own = sums.get().add(part_idx * plan.sums_len);
                let strip = sums.get().add(plan.n_parts * plan.sums_len + slot.idx * plan.slot_len);
                let to = match plan.sums_len {
                    0 => self.output,
                    _ => Output::new::<T>(own, Rows::Even(width as isize), 0),
                };
                let task = Task {
                    plan,
                    group,
                    outputs: part(chunk.clone(), plan.n_slices, slice),
                    first_row: if plan.sums_len == 0 { 0 } else { chunk.start },
                    sums: to,
                    strip,
                    copied: strip.add(plan.cut.len()),
                };
                self.task::<E>(&task, part(0..plan.cut.n_strips(), plan.n_parts, part_idx));
            }
        });
        if plan.sums_len > 0 {
            // SAFETY: all parts are complete.
            unsafe { self.add_parts(plan, chunk, sums.get()) };
        }
    }

    /// Sums over some strips.
    ///
    /// # Safety
    /// The task's memory must be its own.
    unsafe fn task<E: Element<Real = T>>(&self, task: &Task<'_, T>, strips: Range<usize>) {
        let plan = task.plan;
        if strips.is_empty() {
            // SAFETY: the sums are the task's own.
            return unsafe { self.write_zeros(task) };
        }
        for (idx, strip) in strips.map(|idx| plan.cut.strip(idx)).enumerate() {
            // SAFETY: image and gradient are readable, and the memory is the task's own.
            unsafe {
                plan.cut.fill(self.patches, &strip, task.group, task.strip);
                let gradients = self.gradients::<E>(task, &strip);
                match plan.across {
                    Across::Patches => self.add_by_output(task, &strip, &gradients, idx == 0),
                    Across::Gradients => self.add_by_tap(task, &strip, &gradients, idx == 0),
                }
            }
        }
    }

    /// Writes the sums over no point at all.
    ///
    /// # Safety
    /// The sums must be the task's own.
    unsafe fn write_zeros(&self, task: &Task<'_, T>) {
        let outputs = self.rows_of(task);
        let (rows, cols) = match task.plan.across {
            Across::Patches => {
                (outputs.start - task.first_row..outputs.end - task.first_row, 0..task.plan.depth)
            }
            Across::Gradients => (0..task.plan.depth, outputs),
        };
        for row in rows {
            for col in cols.clone() {
                // SAFETY: the sums have this one.
                unsafe { task.sums.write_row(0, row, col, &mut [T::default()]) };
            }
        }
    }

    /// The task's outputs among those of all groups.
    fn rows_of(&self, task: &Task<'_, T>) -> Range<usize> {
        let first = task.group * task.plan.outputs;
        first + task.outputs.start..first + task.outputs.end
    }

    /// The gradients at a strip's points, copied if they cannot be used in place.
    ///
    /// # Safety
    /// The task's memory must be its own.
    unsafe fn gradients<E: Element<Real = T>>(&self, task: &Task<'_, T>, strip: &Strip) -> Gradients<T> {
        let plan = task.plan;
        let outputs = self.rows_of(task);
        let channels = plan.groups * plan.outputs;
        let [_, points] = strip.size();
        let first = self.grad_output.cast::<E>();
        if plan.copied_width == 0 {
            // SAFETY: the strip's first point has this output. A picture's lines follow one another without gaps, and a
            // strip of several lines has all points of each.
            let first = unsafe { first.add(strip.first * channels + outputs.start) };
            return Gradients {
                first: first.cast(),
                steps: [points * channels, channels].map(|n| n as isize),
            };
        }
        let access = Access::<T>::of::<E>();
        for point in 0..strip.n_points() {
            // SAFETY: the gradient has these points and outputs, and the slot has room for them.
            unsafe {
                let from = first.add((strip.first + point) * channels + outputs.start);
                let to = task.copied.add(point * plan.copied_width);
                let to = std::slice::from_raw_parts_mut(to, plan.copied_width);
                let (used, unused) = to.split_at_mut(outputs.len());
                (access.read)(from.cast(), 1, used);
                unused.fill(T::default());
            }
        }
        let steps = [points * plan.copied_width, plan.copied_width].map(|n| n as isize);
        Gradients { first: task.copied, steps }
    }

    /// Adds a strip to sums that have a row for each output.
    ///
    /// # Safety
    /// The strip must be filled, and the sums the task's own.
    unsafe fn add_by_output(&self, task: &Task<'_, T>, strip: &Strip, gradients: &Gradients<T>, first: bool) {
        let (plan, kernels) = (task.plan, self.patches.kernels);
        let [lines, points] = strip.size();
        let [line_step, point_step] = plan.cut.steps();
        let outputs = self.rows_of(task);
        let n_tiles = outputs.len().div_ceil(kernels.max_rows());
        let rows: [isize; 32] = std::array::from_fn(|row| row as isize);
        for run in 0..plan.depth / plan.run.max(1) {
            for start in (0..plan.run).step_by(kernels.max_cols()) {
                let cols = start..plan.run.min(start + kernels.max_cols());
                let width = kernels.width(cols.len());
                for tile in 0..n_tiles {
                    let own = part(outputs.clone(), n_tiles, tile);
                    // SAFETY: the strip has these taps at all its points and room beyond them; the gradient has these
                    // outputs; the sums have this tile.
                    unsafe {
                        let operands = InPlace {
                            a: gradients.first.add(own.start - outputs.start),
                            rows: rows.as_ptr(),
                            b: task.strip.add(self.run_offset(plan, run) + start),
                            turns: [1, lines, points],
                            a_steps: [0, gradients.steps[0], gradients.steps[1]],
                            b_steps: [0, line_step, point_step],
                        };
                        let cols = run * plan.run + cols.start..run * plan.run + cols.end;
                        let own = own.start - task.first_row..own.end - task.first_row;
                        add(task, kernels, own, cols, width, first, &operands);
                    }
                }
            }
        }
    }

    /// Adds a strip to sums that have a row for each number of a patch.
    ///
    /// # Safety
    /// See [`Self::add_by_output`].
    unsafe fn add_by_tap(&self, task: &Task<'_, T>, strip: &Strip, gradients: &Gradients<T>, first: bool) {
        let (plan, kernels) = (task.plan, self.patches.kernels);
        let [lines, points] = strip.size();
        let [line_step, point_step] = plan.cut.steps();
        let outputs = self.rows_of(task);
        let n_tiles = plan.depth.div_ceil(kernels.max_rows());
        for tile in 0..n_tiles {
            let own = part(0..plan.depth, n_tiles, tile);
            let mut rows = [0; 32];
            for (idx, row) in own.clone().zip(&mut rows) {
                *row = (self.run_offset(plan, idx / plan.run) + idx % plan.run) as isize;
            }
            for start in outputs.clone().step_by(kernels.max_cols()) {
                let cols = start..outputs.end.min(start + kernels.max_cols());
                let width = kernels.width(cols.len());
                // SAFETY: as in `add_by_output`; gradients that do not fill their vectors are copied.
                unsafe {
                    let operands = InPlace {
                        a: task.strip,
                        rows: rows.as_ptr(),
                        b: gradients.first.add(start - outputs.start),
                        turns: [1, lines, points],
                        a_steps: [0, line_step, point_step],
                        b_steps: [0, gradients.steps[0], gradients.steps[1]],
                    };
                    add(task, kernels, own.clone(), cols, width, first, &operands);
                }
            }
        }
    }

    /// Numbers from a strip's first to those of a run of taps.
    fn run_offset(&self, plan: &WeightsPlan, run: usize) -> usize {
        let line = self.patches.tap_step[0] as usize * plan.cut.line_len();
        match self.patches.tap_step[1] {
            1 => run * line,
            step => {
                let [_, taps] = self.patches.taps;
                run / taps * line + run % taps * step as usize * self.patches.channels
            }
        }
    }

    /// Adds the sums of all parts in order, and writes them to the result: those of a chunk of outputs.
    ///
    /// # Safety
    /// The sums must be complete.
    unsafe fn add_parts(&self, plan: &WeightsPlan, chunk: Range<usize>, sums: *mut T) {
        const STRETCH: usize = 128;
        let sums = Shared(sums);
        // Only a single group is cut into chunks.
        let n_outputs = if plan.groups == 1 { chunk.len() } else { plan.groups * plan.outputs };
        let n_tasks = if plan.serial { 1 } else { n_outputs.clamp(1, MAX_PARTS) };
        let [by_output, by_number] = match plan.across {
            Across::Patches => [plan.depth, 1],
            Across::Gradients => [1, n_outputs],
        };
        each(plan.serial, n_tasks, |task| {
            for output in part(0..n_outputs, n_tasks, task) {
                for first in (0..plan.depth).step_by(STRETCH) {
                    let mut total = [T::default(); STRETCH];
                    let total = &mut total[..STRETCH.min(plan.depth - first)];
                    for part in 0..plan.n_parts {
                        let at = part * plan.sums_len + output * by_output + first * by_number;
                        for (idx, total) in total.iter_mut().enumerate() {
                            // SAFETY: every part has this sum.
                            *total += unsafe { *sums.get().add(at + idx * by_number) };
                        }
                    }
                    // SAFETY: each task writes the rows of its outputs.
                    unsafe { self.output.write_row(0, chunk.start + output, first, total) };
                }
            }
        });
    }
}

/// Adds the product of operands to a tile of a task's sums.
///
/// # Safety
/// The operands must be what the kernel asks for, and the tile the task's own.
unsafe fn add<T: Real>(
    task: &Task<'_, T>,
    kernels: &Kernels<T>,
    rows: Range<usize>,
    cols: Range<usize>,
    width: usize,
    first: bool,
    operands: &InPlace<T>,
) {
    let kernel = kernels.in_place[rows.len() - 1][width / kernels.lanes - 1];
    let place = Place { batch: 0, rows, cols: cols.clone(), first, last: true };
    // SAFETY: the caller promises what is asked for.
    unsafe {
        let bias = task.sums.panel_bias(0, cols, false);
        task.sums.add_tile(&place, width, |target| kernel(operands, target), &bias, None);
    }
}
