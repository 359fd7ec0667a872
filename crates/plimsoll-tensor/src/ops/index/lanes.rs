//! Walking operands lane by lane: the lanes of one axis are independent of each other, which is where threads may cut.

use plimsoll_cpu::threads;

use crate::base::shape::Shape;
use crate::ops::kernel::{offset_of, units_per_task};

/// The most lanes of a block.
const BLOCK_LANES: usize = 1024;

/// Lanes that lie side by side: one axis long, some lanes wide. Offsets and strides count elements, one for each of `N`
/// operands.
pub(super) struct Block<const N: usize> {
    /// Where the first lane begins.
    first: [isize; N],
    /// From one lane to the next.
    lane_strides: [isize; N],
    n_lanes: usize,
    /// From one element of a lane to the next.
    strides: [isize; N],
    len: usize,
    /// Whether neighbours in memory belong to different lanes.
    lanes_inside: bool,
}

impl<const N: usize> Block<N> {
    /// Calls `f` with the operands' offsets for every element. In each lane the order is that of the axis.
    #[inline(always)]
    pub fn for_each(&self, mut f: impl FnMut([isize; N])) {
        let at = |idx: usize, lane: usize| -> [isize; N] {
            std::array::from_fn(|k| {
                self.first[k] + idx as isize * self.strides[k] + lane as isize * self.lane_strides[k]
            })
        };
        if self.lanes_inside {
            (0..self.len).for_each(|idx| (0..self.n_lanes).for_each(|lane| f(at(idx, lane))));
        } else {
            (0..self.n_lanes).for_each(|lane| (0..self.len).for_each(|idx| f(at(idx, lane))));
        }
    }
}

/// Cuts the lanes of `shape` along `axis` into blocks, and calls `f` for each, on several threads where it pays.
/// `strides` has one stride for each operand and axis.
pub(super) fn for_each_block<const N: usize>(
    shape: &Shape,
    axis: usize,
    strides: [&[isize]; N],
    f: impl Fn(&Block<N>) + Sync,
) {
    if shape.n_elems() == 0 {
        return;
    }
    let inner = (0..shape.rank()).rev().find(|&other| other != axis);
    let is_outer = |other: &usize| *other != axis && Some(*other) != inner;
    let outer: Vec<usize> = (0..shape.rank()).filter(is_outer).collect();
    let extents: Vec<usize> = outer.iter().map(|&axis| shape[axis]).collect();
    let outer_strides =
        strides.map(|strides| outer.iter().map(|&axis| strides[axis]).collect::<Vec<isize>>());
    let n_lanes = inner.map_or(1, |inner| shape[inner]);
    let lane_strides = strides.map(|strides| inner.map_or(0, |inner| strides[inner]));
    let n_cuts = n_lanes.div_ceil(BLOCK_LANES);
    let n_blocks = extents.iter().product::<usize>() * n_cuts;
    let per_task = units_per_task(shape[axis] * n_lanes.min(BLOCK_LANES));
    threads::parallel(n_blocks.div_ceil(per_task), |task| {
        for block in task * per_task..n_blocks.min((task + 1) * per_task) {
            let lane = block % n_cuts * BLOCK_LANES;
            f(&Block {
                first: std::array::from_fn(|k| {
                    offset_of(&extents, &outer_strides[k], block / n_cuts) + lane as isize * lane_strides[k]
                }),
                lane_strides,
                n_lanes: BLOCK_LANES.min(n_lanes - lane),
                strides: strides.map(|strides| strides[axis]),
                len: shape[axis],
                lanes_inside: inner.is_some_and(|inner| inner > axis),
            });
        }
    });
}

/// The strides of an operand whose place along the axis the indices give: none there.
pub(super) fn without_axis(strides: &[isize], axis: usize) -> Vec<isize> {
    let mut strides = strides.to_vec();
    strides[axis] = 0;
    strides
}
