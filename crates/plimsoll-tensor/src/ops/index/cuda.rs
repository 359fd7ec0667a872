//! What the ops of this folder share on a GPU: sums at places that indices name.
//!
//! Sums must have the same bits every time, so nothing is added by atomic operations. The indices are turned into keys
//! (which sum each one names), the keys are sorted with their places by a stable radix sort, and each sum is made by the
//! same threads from beginning to end, in the order of the places, as on the CPU. The number of passes follows from the
//! number of sums, and all memory from the number of indices.
//!
//! Where bits may differ from run to run, f32 and f64 are added by atomic operations, in one launch and without scratch
//! memory. Floats of 16 bits are not: sums would be rounded at each addition, and f32 for all of them, filled before and
//! rounded after, is far more memory to go through than the sort's for tables as large as those of embeddings.

use plimsoll_cuda::{Gpu, Grid, Param, Template};

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::layout::Layout;
use crate::base::shape::MAX_RANK;
use crate::eager::execute::Order;
use crate::eager::op::Operand;
use crate::ops::cuda::{c_name, code};

macro_rules! template {
    ($name:literal, $file:literal) => {
        Template { name: $name, text: concat!(include_str!("places.cuh"), include_str!($file)) }
    };
}

static KEYS: Template = template!("keys", "keys.cu");
static RADIX: Template = Template { name: "radix", text: include_str!("radix.cu") };
static ADD: Template = template!("add", "add.cu");
static ADD_UNORDERED: Template = template!("add_unordered", "add_unordered.cu");

/// The threads of a block.
pub(super) const THREADS: u32 = 256;
/// The most bytes that a thread moves at a time.
const VECTOR_BYTES: usize = 16;
/// The elements that a block sorts, and the bits by which it does.
const TILE: usize = 1024;
const DIGIT_BITS: u32 = 8;

/// How many neighbours of a row can be moved at a time: rows of that length, with these strides between them, at these
/// addresses.
pub(super) fn group_len(size: usize, row_len: usize, strides: &[isize], addresses: &[*mut u8]) -> usize {
    let fits = |len: usize| {
        row_len.is_multiple_of(len)
            && strides.iter().all(|stride| stride % len as isize == 0)
            && addresses.iter().all(|&address| (address as usize).is_multiple_of(len * size))
    };
    let mut len = VECTOR_BYTES / size;
    while len > 1 && !fits(len) {
        len /= 2;
    }
    len
}

/// A layout's extents and strides, as kernels take them.
pub(super) fn axes(layout: &Layout) -> ([u32; MAX_RANK], [i64; MAX_RANK]) {
    let (mut extents, mut strides) = ([1; MAX_RANK], [0; MAX_RANK]);
    for (axis, (&extent, &stride)) in layout.shape().iter().zip(layout.strides()).enumerate() {
        (extents[axis], strides[axis]) = (extent as u32, stride as i64);
    }
    (extents, strides)
}

/// Which sum each index names, as the kernel takes it: the index times `step`, more by `key_strides` along the axes of
/// the indices.
#[repr(C)]
pub(super) struct Keys {
    pub n: u64,
    pub extents: [u32; MAX_RANK],
    pub index_strides: [i64; MAX_RANK],
    pub key_strides: [i64; MAX_RANK],
    pub step: i64,
    /// The indices end before this one.
    pub extent: i64,
    /// The number of sums; the key of an index out of range.
    pub beyond: u64,
}

// SAFETY: `places.cuh` has the same struct.
unsafe impl Param for Keys {}

/// What is added to what, as the kernel takes it.
#[repr(C)]
pub(super) struct Sums {
    /// The number of keys.
    pub n: u64,
    /// The threads for each.
    pub width: u64,
    /// The groups of neighbours of a row.
    pub row_len: u64,
    /// The rows of a set.
    pub n_rows: u64,
    /// From set to set of the source.
    pub outer: i64,
    /// From group to group of the source.
    pub inner: i64,
    /// How the places lie at the source.
    pub extents: [u32; MAX_RANK],
    pub strides: [i64; MAX_RANK],
}

// SAFETY: `places.cuh` has the same struct.
unsafe impl Param for Sums {}

/// The order of sums where any would do: those of floats that the GPU adds atomically, with nothing lost, have none.
pub(super) fn order(dtype: DType) -> Order {
    if matches!(dtype, DType::F32 | DType::F64) { Order::Any } else { Order::Fixed }
}

/// Rows that are added to the sums that indices name.
#[derive(Clone, Copy)]
pub(super) struct Addition<'a> {
    pub op: &'static str,
    /// Where the kernels note indices out of range, and the number of the call.
    pub faults: (*mut u8, u64),
    pub indices: &'a Operand<'a>,
    pub keys: &'a Keys,
    pub source: &'a Operand<'a>,
    /// The sums, row-major.
    pub y: &'a Operand<'a>,
    pub sums: &'a Sums,
    /// How many neighbours of a row are one group; alone if the order does not matter.
    pub v: usize,
}

impl Addition<'_> {
    /// The axes of the indices, which are those of the places at the source.
    fn rank(&self) -> usize {
        self.indices.shape().rank().max(1)
    }

    /// Adds in the order of the places.
    ///
    /// # Safety
    /// `keys` describes elements of `indices`, `sums` elements of `source` and of `y`; groups of `v` neighbours are aligned,
    /// and `workspace` is as long as [`Sort::workspace`] says.
    pub unsafe fn in_order(&self, gpu: &Gpu, sort: Sort, workspace: *mut u8) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            let sorted = sort.run(self, gpu, workspace)?;
            sorted.add(self, gpu)
        }
    }

    /// Adds in any order.
    ///
    /// # Safety
    /// `keys` describes elements of `indices`, `sums` elements of `source` and of `y`, one by one; they are of a type that
    /// can be added so.
    pub unsafe fn in_any_order(&self, gpu: &Gpu) -> Result<()> {
        let (indices, y, rank) = (self.indices, self.y, self.rank());
        let n_threads = (self.sums.n * self.sums.width) as usize;
        let is_wide = n_threads >= 1 << 31;
        let types = code(indices.dtype()) << 8 | code(y.dtype());
        let variant = types << 8 | (rank as u64) << 4 | u64::from(is_wide);
        let kernel = gpu.kernel(&ADD_UNORDERED, self.op, variant, || {
            let (index, element) = (c_name(indices.dtype()), c_name(y.dtype()));
            let number = if is_wide { "u64" } else { "u32" };
            format!("#define I {index}\n#define T {element}\n#define Index {number}\n#define RANK {rank}\n")
        })?;
        let (cell, call) = self.faults;
        let params: [&dyn Param; 7] =
            [&y.ptr(), &self.source.ptr(), &indices.ptr(), self.keys, self.sums, &cell, &call];
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(&kernel, Grid::covering(n_threads, THREADS), &params) }?;
        Ok(())
    }
}

/// The sort of some keys.
#[derive(Clone, Copy)]
pub(super) struct Sort {
    n: usize,
    n_sums: usize,
}

/// Keys in order, and where they stood before.
struct Sorted {
    keys: *mut u8,
    places: *mut u8,
    /// The bytes of a key and of a place.
    width: usize,
}

impl Sort {
    /// Of `n` keys that name `n_sums` sums.
    pub fn new(n: usize, n_sums: usize) -> Sort {
        Sort { n, n_sums }
    }

    /// The bytes of a key, a place and a count.
    fn width(self) -> usize {
        if self.n.max(self.n_sums) < u32::MAX as usize { 4 } else { 8 }
    }

    /// The passes: as many as the largest key, which is the number of sums, has digits.
    fn n_passes(self) -> u32 {
        (usize::BITS - self.n_sums.leading_zeros()).div_ceil(DIGIT_BITS).max(1)
    }

    fn n_tiles(self) -> usize {
        self.n.div_ceil(TILE)
    }

    /// The bytes of one list of keys or places, rounded so that the next begins aligned.
    fn list_bytes(self) -> usize {
        (self.n * self.width()).next_multiple_of(512)
    }

    /// The scratch memory: keys and places before and after a pass, and the table of counts.
    pub fn workspace(self) -> usize {
        match self.n {
            0 => 0,
            _ => 4 * self.list_bytes() + (self.n_tiles() << DIGIT_BITS) * self.width(),
        }
    }

    /// Makes the keys and sorts them.
    ///
    /// # Safety
    /// As for [`Addition::in_order`].
    unsafe fn run(self, of: &Addition<'_>, gpu: &Gpu, workspace: *mut u8) -> Result<Sorted> {
        let Addition { op, indices, keys, .. } = *of;
        let (width, bytes) = (self.width(), self.list_bytes());
        let list = |number: usize| workspace.wrapping_add(number * bytes);
        let (mut from, mut to, table) = ([list(0), list(1)], [list(2), list(3)], list(4));
        let rank = of.rank();
        let variant = code(indices.dtype()) << 8 | (rank as u64) << 4 | width as u64;
        let kernel = gpu.kernel(&KEYS, op, variant, || {
            let index = c_name(indices.dtype());
            format!("#define I {index}\n#define Key {}\n#define RANK {rank}\n", key_name(width))
        })?;
        let (cell, call) = of.faults;
        let grid = Grid::covering(self.n, THREADS);
        // SAFETY: the caller's promise; the list has a key for each index.
        unsafe { gpu.launch(&kernel, grid, &[&from[0], &indices.ptr(), keys, &cell, &call]) }?;
        for pass in 0..self.n_passes() {
            // SAFETY: the lists and the table are parts of the workspace, each as long as the sort needs.
            unsafe { self.pass(op, gpu, pass, from, to, table) }?;
            std::mem::swap(&mut from, &mut to);
        }
        Ok(Sorted { keys: from[0], places: from[1], width })
    }

    /// One pass, from keys and places to keys and places.
    ///
    /// # Safety
    /// The lists have room for `n` keys or places, the table for a count for each digit and tile.
    unsafe fn pass(
        self,
        op: &'static str,
        gpu: &Gpu,
        pass: u32,
        from: [*mut u8; 2],
        to: [*mut u8; 2],
        table: *mut u8,
    ) -> Result<()> {
        let width = self.width();
        let kernel = |step: u64| {
            let is_first = u64::from(pass == 0 && step == 2);
            gpu.kernel(&RADIX, op, (width as u64) << 3 | step << 1 | is_first, || {
                let key = key_name(width);
                format!("#define Key {key}\n#define STEP {step}\n#define IS_FIRST {is_first}\n")
            })
        };
        let (tiles, shift) = (Grid::of(self.n_tiles(), THREADS), pass * DIGIT_BITS);
        let len = self.n_tiles() << DIGIT_BITS;
        // SAFETY: the caller's promise.
        unsafe {
            gpu.launch(&kernel(0)?, tiles, &[&table, &from[0], &self.n, &shift])?;
            gpu.launch(&kernel(1)?, Grid::of(1, THREADS), &[&table, &len])?;
            gpu.launch(&kernel(2)?, tiles, &[&to[0], &to[1], &from[0], &from[1], &table, &self.n, &shift])?;
        }
        Ok(())
    }
}

impl Sorted {
    /// Adds rows of the source to the rows of `y` that the keys name.
    ///
    /// # Safety
    /// As for [`Addition::in_order`].
    unsafe fn add(&self, of: &Addition<'_>, gpu: &Gpu) -> Result<()> {
        let (Addition { op, source, y, sums, v, .. }, rank) = (*of, of.rank());
        let n_threads = (sums.n * sums.width) as usize;
        let is_wide = n_threads >= 1 << 31;
        let variant = code(y.dtype()) << 16 | (v as u64) << 8 | (rank as u64) << 4 | u64::from(is_wide);
        let kernel = gpu.kernel(&ADD, op, variant << 4 | self.width as u64, || {
            let (element, key) = (c_name(y.dtype()), key_name(self.width));
            let index = if is_wide { "u64" } else { "u32" };
            format!(
                "#define T {element}\n#define V {v}\n#define RANK {rank}\n#define Key {key}\n#define Index {index}\n"
            )
        })?;
        let grid = Grid::covering(n_threads, THREADS);
        // SAFETY: the caller's promise; the keys and places are those of the sort.
        unsafe { gpu.launch(&kernel, grid, &[&y.ptr(), &source.ptr(), &self.keys, &self.places, sums]) }?;
        Ok(())
    }
}

/// The type of keys of so many bytes.
fn key_name(width: usize) -> &'static str {
    if width == 4 { "u32" } else { "u64" }
}
