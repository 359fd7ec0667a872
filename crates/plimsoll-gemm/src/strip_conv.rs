//! Convolution in strips: every point's patch times the weights, which are packed once for all strips.

use crate::check_workspace;
use crate::count::{padded, product};
use crate::element::{Element, Real};
use crate::isa::Kernels;
use crate::operand::Operand;
use crate::output::{Output, Place};
use crate::patches::Patches;
use crate::plan::part;
use crate::strip::{Cut, Strip};
use crate::tasks::{MAX_SLOTS, Slots, each};
use crate::tile::{InPlace, MAX_TILE_ROW_BYTES};

/// Bytes of weights that are packed at once.
const SHARED_BYTES: usize = 2 << 20;

/// About the bytes of a strip: it is read many times, and stays in the second-level cache beside a panel of weights.
const STRIP_BYTES: usize = 128 << 10;

/// Bytes of the strips of all slots, and the least number of slots.
const SLOTS_BYTES: usize = 1 << 20;
const LEAST_SLOTS: usize = 2;

/// Multiply-adds below which a convolution is not worth a second thread.
const SERIAL_WORK: usize = 1 << 19;

/// Points that are multiplied by one panel of weights before the next panel is taken.
const BLOCK_POINTS: usize = 224;

/// How a convolution is cut up; by shape and element alone.
#[derive(Clone, Debug)]
pub(crate) struct StripPlan {
    cut: Cut,
    groups: usize,
    /// Outputs of a group.
    outputs: usize,
    /// Numbers of a patch.
    depth: usize,
    /// Groups whose weights are packed at once, and outputs of each; several groups only with all outputs of each.
    chunk_groups: usize,
    chunk_outputs: usize,
    serial: bool,
    n_slots: usize,
    /// Numbers of packed weights.
    shared_len: usize,
    bytes: usize,
}

impl StripPlan {
    /// The plan for patches of so many pictures, with so many outputs in each group.
    pub fn new<E: Element>(patches: &Patches<E::Real>, batch: usize, outputs: usize, groups: usize) -> Self {
        let size = size_of::<E::Real>();
        let pad = MAX_TILE_ROW_BYTES / size;
        let cut = Cut::new(patches, batch, STRIP_BYTES);
        let depth = product([patches.taps[0], patches.taps[1], patches.channels]);
        let most = (SHARED_BYTES / product([depth, size]).max(1)).max(pad);
        let most_lanes = outputs.next_multiple_of(pad).max(pad);
        let (chunk_groups, chunk_outputs) = match most_lanes <= most {
            true => ((most / most_lanes).clamp(1, groups.max(1)), most_lanes),
            false => (1, outputs.div_ceil(outputs.div_ceil(most - most % pad)).next_multiple_of(pad)),
        };
        let work = product([batch, patches.grid[0], patches.grid[1], outputs, groups, depth]);
        let serial = work <= SERIAL_WORK;
        let most_slots = (SLOTS_BYTES / product([cut.len(), size])).clamp(LEAST_SLOTS, MAX_SLOTS);
        let n_slots = if serial { 1 } else { cut.n_strips().clamp(1, most_slots) };
        let shared_len = product([chunk_groups, chunk_outputs, depth]);
        let len = shared_len.saturating_add(product([n_slots, cut.len()]));
        let bytes = padded(product([len, size]), 64);
        Self { cut, groups, outputs, depth, chunk_groups, chunk_outputs, serial, n_slots, shared_len, bytes }
    }

    /// Bytes of workspace.
    pub fn workspace(&self) -> usize {
        self.bytes
    }
}

/// A convolution, ready to be run.
pub(crate) struct StripConv<'a, T: 'static> {
    pub patches: &'a Patches<T>,
    /// The weights, with outputs for lanes.
    pub weights: &'a dyn Operand<T>,
    pub output: Output<'a, T>,
}

/// Groups and outputs whose weights are packed at once, and the memory of all tasks.
struct Chunk<'a, T> {
    plan: &'a StripPlan,
    groups: std::ops::Range<usize>,
    outputs: std::ops::Range<usize>,
    packed: *mut T,
    strips: *mut T,
    output: Output<'a, T>,
    /// Whether the activation is applied to whole rows once they are complete, and not by the output.
    by_rows: bool,
}

// SAFETY: tasks take disjoint pieces of the memory, and weights are packed before they are read with a join between.
unsafe impl<T> Sync for Chunk<'_, T> {}

impl<T: Real> StripConv<'_, T> {
    /// Convolves.
    ///
    /// # Safety
    /// The image must be readable, and the output nobody else's.
    pub unsafe fn run(&self, plan: StripPlan, workspace: &mut [u8]) {
        check_workspace(&plan, plan.bytes, workspace);
        let packed = workspace.as_mut_ptr().cast::<T>();
        // SAFETY: the workspace has the strips after the weights.
        let strips = unsafe { packed.add(plan.shared_len) };
        // One call for many rows costs less than one for each row of each tile.
        let by_rows = plan.chunk_groups == plan.groups
            && plan.chunk_outputs >= plan.outputs
            && self.output.is_dense(plan.groups * plan.outputs);
        let output = match by_rows {
            true => Output { activation: None, ..self.output },
            false => self.output,
        };
        for group in (0..plan.groups).step_by(plan.chunk_groups) {
            for first in (0..plan.outputs).step_by(plan.chunk_outputs) {
                let groups = group..plan.groups.min(group + plan.chunk_groups);
                let outputs = first..plan.outputs.min(first + plan.chunk_outputs);
                self.chunk(&Chunk { plan: &plan, groups, outputs, packed, strips, output, by_rows });
            }
        }
    }

    fn chunk(&self, chunk: &Chunk<'_, T>) {
        let (plan, kernels) = (chunk.plan, self.patches.kernels);
        let n_panels = chunk.outputs.len().div_ceil(kernels.max_cols());
        each(plan.serial, chunk.groups.len() * n_panels, |idx| {
            let (group, panel) = (idx / n_panels, idx % n_panels);
            let lanes = panel_of(&chunk.outputs, panel, kernels);
            let width = kernels.width(lanes.len());
            // SAFETY: each panel has its own place in the packed weights.
            let to = unsafe {
                let first = chunk.packed.add(offset_of(plan, group, panel, kernels));
                std::slice::from_raw_parts_mut(first, width * plan.depth)
            };
            self.weights.pack(chunk.groups.start + group, lanes, 0..plan.depth, width, to);
        });
        let slots = Slots::new(plan.n_slots);
        each(plan.serial, plan.cut.n_strips(), |idx| {
            let (strip, slot) = (plan.cut.strip(idx), slots.claim());
            for group in 0..chunk.groups.len() {
                // SAFETY: the slot's memory is this task's own until it returns; all weights are packed.
                unsafe {
                    let own = chunk.strips.add(slot.idx * plan.cut.len());
                    plan.cut.fill(self.patches, &strip, chunk.groups.start + group, own);
                    self.strip(chunk, &strip, group, own);
                }
            }
        });
    }

    /// Multiplies the patches of a strip by the weights of a group of the chunk.
    ///
    /// # Safety
    /// `own` must hold the strip, and the chunk's weights must be packed.
    unsafe fn strip(&self, chunk: &Chunk<'_, T>, strip: &Strip, group: usize, own: *const T) {
        let (plan, kernels) = (chunk.plan, self.patches.kernels);
        let taps = Taps::new(self.patches, &plan.cut);
        let [_, line_points] = strip.size();
        let [line_step, point_step] = plan.cut.steps();
        for start in (0..strip.n_points()).step_by(BLOCK_POINTS) {
            let block = start..strip.n_points().min(start + BLOCK_POINTS);
            let mut rows = [0; BLOCK_POINTS];
            for (point, row) in block.clone().zip(&mut rows) {
                *row =
                    (point / line_points) as isize * line_step + (point % line_points) as isize * point_step;
            }
            let n_tiles = block.len().div_ceil(kernels.max_rows());
            for panel in 0..chunk.outputs.len().div_ceil(kernels.max_cols()) {
                let cols = panel_of(&chunk.outputs, panel, kernels);
                let width = kernels.width(cols.len());
                let batch = chunk.groups.start + group;
                // SAFETY: the outputs exist, and so do the strip's points; panel and strip hold what the kernel reads.
                unsafe {
                    let bias = chunk.output.panel_bias(batch, cols.clone(), true);
                    let b = chunk.packed.add(offset_of(plan, group, panel, kernels));
                    for tile in 0..n_tiles {
                        let points = part(block.clone(), n_tiles, tile);
                        let rows = rows.as_ptr().add(points.start - block.start);
                        let operands = taps.operands(own, rows, b, width);
                        let kernel = kernels.in_place[points.len() - 1][width / kernels.lanes - 1];
                        let place = Place {
                            batch,
                            rows: strip.first + points.start..strip.first + points.end,
                            cols: cols.clone(),
                            first: true,
                            last: true,
                        };
                        let multiply = |target| kernel(&operands, target);
                        chunk.output.add_tile(&place, width, multiply, &bias, None);
                    }
                }
            }
            if chunk.by_rows && group + 1 == plan.groups {
                // SAFETY: these rows are complete and this task's own.
                unsafe { self.output.activate(strip.first + block.start..strip.first + block.end) };
            }
        }
    }
}

/// The outputs of one panel.
fn panel_of<T>(
    outputs: &std::ops::Range<usize>,
    panel: usize,
    kernels: &Kernels<T>,
) -> std::ops::Range<usize> {
    let start = outputs.start + panel * kernels.max_cols();
    start..outputs.end.min(start + kernels.max_cols())
}

/// Where a panel of packed weights begins.
fn offset_of<T>(plan: &StripPlan, group: usize, panel: usize, kernels: &Kernels<T>) -> usize {
    (group * plan.chunk_outputs + panel * kernels.max_cols()) * plan.depth
}

/// How the taps of a patch are walked within a strip.
struct Taps {
    turns: [usize; 3],
    steps: [isize; 3],
}

impl Taps {
    fn new<T: Real>(patches: &Patches<T>, cut: &Cut) -> Self {
        let channels = patches.channels;
        let [line, point] =
            [patches.tap_step[0] * cut.line_len() as isize, patches.tap_step[1] * channels as isize];
        match patches.tap_step[1] {
            // Nothing is summed, however many taps there are: a kernel without channels has no bytes that bound it.
            _ if channels == 0 => Self { turns: [0; 3], steps: [0; 3] },
            // The taps of a line lie side by side.
            1 => Self { turns: [1, patches.taps[0], patches.taps[1] * channels], steps: [0, line, 1] },
            _ => Self { turns: [patches.taps[0], patches.taps[1], channels], steps: [line, point, 1] },
        }
    }

    /// Patches at `rows` of a strip, and packed weights.
    fn operands<T>(&self, strip: *const T, rows: *const isize, b: *const T, width: usize) -> InPlace<T> {
        let [_, middle, inner] = self.turns;
        let b_steps = [middle * inner * width, inner * width, width].map(|step| step as isize);
        InPlace { a: strip, rows, b, turns: self.turns, a_steps: self.steps, b_steps }
    }
}
