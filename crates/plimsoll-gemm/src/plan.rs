//! How a product is cut up, and the memory that takes: functions of shape and element alone.
//!
//! Neither the number of threads nor the instruction set enters, so a plan made on one machine is right on
//! another, and the bits of a result depend on no schedule. C is cut into chunks; within a chunk one operand is
//! packed for all tasks (*shared*), the other by each task for itself (*private*), block by block of depth. Private
//! panels live in slots that tasks take turns at.

use std::ops::Range;

use crate::Shape;
use crate::element::{Element, Real};
use crate::tasks::MAX_SLOTS;
use crate::tile::MAX_TILE_ROW_BYTES;

/// Depth of a block: a panel of B over this depth stays in the second-level cache, one of A in the first.
const BLOCK_DEPTH: usize = 256;

/// Bytes of the shared operand that are packed at once.
const SHARED_BYTES: usize = 2 << 20;

/// Bytes of the private panels of all slots.
const PRIVATE_BYTES: usize = 2 << 20;

/// Rows and columns of a chunk whose sums are kept in the workspace because C is too narrow for them.
const SUMS_SIDE: usize = 512;

/// About the least and most rows of C that a task computes, for sums of four bytes: fewer do not pay for reading B,
/// more leave threads idle.
const TASK_ROWS: Range<usize> = 28..112;

/// Four tasks or more are a multiple of this many, so that common numbers of threads share them evenly.
const TASK_MULTIPLE: usize = 4;

/// Multiply-adds below which a product is not worth a second thread.
const SERIAL_WORK: usize = 1 << 19;

/// Numbers below which packing is not worth a second thread.
const SERIAL_PACKING: usize = 1 << 15;

/// Multiply-adds up to which the products of a batch run side by side, each on one thread.
const LANE_WORK: usize = 1 << 23;

/// The most products of a batch, or parts of a depth, that run side by side.
const MAX_LANES: usize = 16;

/// Bytes of workspace of all products that run side by side.
const LANES_BYTES: usize = 4 << 20;

/// Depth of one part when the depth of a product is split among threads.
const PART_DEPTH: usize = 1024;

/// Bytes of the partial sums of all parts, and the most of one part: with more, C alone gives tasks enough.
const PARTS_BYTES: usize = 1 << 20;
const MAX_PART_BYTES: usize = 1 << 16;

/// The side of C that tasks divide among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// Each task has some rows; B is shared.
    Rows,
    /// Each task has some columns; A is shared.
    Columns,
}

/// What runs at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Concurrency {
    /// The tasks of a chunk, one product after the other.
    Tasks,
    /// So many products of the batch, each on one thread.
    Lanes(usize),
    /// So many parts of the depth, each on one thread; their sums are added afterwards.
    Parts(usize),
}

/// How a product is cut up.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub split: Split,
    pub concurrency: Concurrency,
    /// Most rows and columns of a chunk of C.
    pub chunk_rows: usize,
    pub chunk_cols: usize,
    /// Rows or columns (as `split` says) of a task.
    pub task_lanes: usize,
    /// Depth of a block, and of the stretch of blocks for which the shared operand is packed at once.
    pub block_depth: usize,
    pub shared_depth: usize,
    /// Whether the tasks of a chunk run one after the other.
    pub serial: bool,
    /// Slots for private panels.
    pub n_slots: usize,
    /// Numbers of packed shared panels, of the private panels of a slot, and of sums kept for a narrow C.
    pub shared_len: usize,
    pub slot_len: usize,
    pub sums_len: usize,
    /// Bytes of the above for one product; a multiple of 64.
    pub lane_bytes: usize,
    /// Bytes of the partial sums of all parts.
    pub parts_bytes: usize,
}

impl Plan {
    /// The plan for a batch of products of elements `E`.
    pub fn new<E: Element>(shape: &Shape) -> Self {
        let (size, narrow) = (size_of::<E::Real>(), E::NARROW);
        let work = shape.m.saturating_mul(shape.n).saturating_mul(shape.k);
        let one = |k, narrow, serial| Self::of_product([shape.m, shape.n, k], size, narrow, serial);
        let total_work = work.saturating_mul(shape.batch);
        if total_work <= SERIAL_WORK || (shape.batch > 1 && work <= LANE_WORK) {
            let plan = one(shape.k, narrow, true);
            let most = if total_work > SERIAL_WORK { MAX_LANES } else { 1 };
            let lanes = most.min(shape.batch).min(LANES_BYTES / plan.lane_bytes.max(1)).max(1);
            return Self { concurrency: Concurrency::Lanes(lanes), ..plan };
        }
        let part_bytes = shape.m.saturating_mul(shape.n).saturating_mul(size).max(1);
        let parts = (shape.k / PART_DEPTH).min(MAX_LANES).min(PARTS_BYTES / part_bytes);
        if shape.batch == 1 && parts > 1 && part_bytes <= MAX_PART_BYTES {
            let plan = one(shape.k.div_ceil(parts), false, true);
            let parts_bytes = (part_bytes * parts).next_multiple_of(64);
            return Self { concurrency: Concurrency::Parts(parts), parts_bytes, ..plan };
        }
        one(shape.k, narrow, false)
    }

    /// The plan for one product, on one thread or on all, with sums of `size` bytes; `narrow` says that C cannot hold them.
    fn of_product([m, n, k]: [usize; 3], size: usize, narrow: bool, serial: bool) -> Self {
        let pad = MAX_TILE_ROW_BYTES / size;
        let n_blocks = k.div_ceil(BLOCK_DEPTH).max(1);
        let block_depth = k.div_ceil(n_blocks).max(1);
        let split = if m >= n || m >= 8 * TASK_ROWS.start { Split::Rows } else { Split::Columns };
        let most_shared = SHARED_BYTES / (block_depth * size);
        let (mut most_rows, mut most_cols) = match split {
            Split::Rows => (usize::MAX, most_shared),
            Split::Columns => (most_shared, usize::MAX),
        };
        let stores_sums = narrow && n_blocks > 1;
        if stores_sums {
            most_rows = most_rows.min(SUMS_SIDE);
            most_cols = most_cols.min(SUMS_SIDE);
        }
        let chunk_rows = even_share(m, most_rows);
        let chunk_cols = even_share(n, most_cols).next_multiple_of(pad);
        let (shared_lanes, task_lanes) = match split {
            Split::Rows => (chunk_cols, task_rows(chunk_rows, size, serial)),
            Split::Columns => (chunk_rows, if chunk_cols >= 16 * pad { 2 * pad } else { pad }),
        };
        // Threads meet before and after the shared operand is packed, so they pack much of it at once; one thread
        // packs what it needs next.
        let shared_blocks = match serial {
            true => 1,
            false => (most_shared / shared_lanes.max(1)).clamp(1, n_blocks),
        };
        let shared_depth = even_share(n_blocks, shared_blocks) * block_depth;
        let slot_len = task_lanes * block_depth;
        let mut plan = Self {
            split,
            concurrency: Concurrency::Tasks,
            chunk_rows,
            chunk_cols,
            task_lanes,
            block_depth,
            shared_depth,
            serial,
            shared_len: shared_lanes * shared_depth,
            slot_len,
            n_slots: 1,
            sums_len: if stores_sums { chunk_rows * chunk_cols } else { 0 },
            lane_bytes: 0,
            parts_bytes: 0,
        };
        if !serial {
            let most_slots = (PRIVATE_BYTES / (slot_len * size)).clamp(1, MAX_SLOTS);
            plan.n_slots = plan.n_tasks(chunk_rows, chunk_cols).clamp(1, most_slots);
        }
        let len = plan.shared_len + plan.n_slots * plan.slot_len + plan.sums_len;
        plan.lane_bytes = (len * size).next_multiple_of(64);
        plan
    }

    /// The plan for a product on one thread whose B is packed beforehand, for all columns and all depths.
    pub fn of_packed<T: Real>(shape: &Shape) -> Self {
        let size = size_of::<T>();
        let n_blocks = shape.k.div_ceil(BLOCK_DEPTH).max(1);
        let block_depth = shape.k.div_ceil(n_blocks).max(1);
        let slot_len = shape.m * block_depth;
        Self {
            split: Split::Rows,
            concurrency: Concurrency::Tasks,
            chunk_rows: shape.m,
            chunk_cols: shape.n.next_multiple_of(MAX_TILE_ROW_BYTES / size),
            task_lanes: shape.m,
            block_depth,
            shared_depth: shape.k,
            serial: shape.n.saturating_mul(shape.k) <= SERIAL_PACKING,
            n_slots: 1,
            shared_len: 0,
            slot_len,
            sums_len: 0,
            lane_bytes: (slot_len * size).next_multiple_of(64),
            parts_bytes: 0,
        }
    }

    /// Numbers of the panels of a whole B `[k, n]`.
    pub fn packed_len(&self, k: usize) -> usize {
        self.chunk_cols * k
    }

    /// Bytes of workspace.
    pub fn workspace(&self) -> usize {
        let lanes = match self.concurrency {
            Concurrency::Tasks => 1,
            Concurrency::Lanes(n) | Concurrency::Parts(n) => n,
        };
        lanes * self.lane_bytes + self.parts_bytes
    }

    /// Tasks of a chunk of that size.
    pub fn n_tasks(&self, rows: usize, cols: usize) -> usize {
        match self.split {
            Split::Rows => rows.min(self.chunk_rows).div_ceil(self.task_lanes),
            Split::Columns => cols.min(self.chunk_cols).div_ceil(self.task_lanes),
        }
    }
}

/// Rows of a task of a chunk with so many rows.
fn task_rows(rows: usize, size: usize, serial: bool) -> usize {
    let most = TASK_ROWS.end * 4 / size;
    if serial {
        return even_share(rows, most);
    }
    let n_tasks = rows.div_ceil((rows / 8).clamp(TASK_ROWS.start, most)).max(1);
    let n_tasks = if n_tasks < TASK_MULTIPLE { n_tasks } else { n_tasks - n_tasks % TASK_MULTIPLE };
    rows.div_ceil(n_tasks).max(1)
}

/// The size of equal shares of `len`, each at most `most`.
fn even_share(len: usize, most: usize) -> usize {
    let len = len.max(1);
    len.div_ceil(len.div_ceil(most.max(1)))
}

/// Part `idx` of `n` nearly equal parts of `range`.
pub(crate) fn part(range: Range<usize>, n: usize, idx: usize) -> Range<usize> {
    let len = range.len();
    range.start + len * idx / n..range.start + len * (idx + 1) / n
}
