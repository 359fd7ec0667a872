//! Sorting on a GPU: bitonic merges, in shared memory as far as they go. Lines that are longer than a tile are sorted where
//! their indices will lie; only `top_k` of such lines needs scratch memory, a word per element.

use plimsoll_cuda::{Gpu, Grid, Param, Template};

use crate::dtype::DType;
use crate::error::Result;
use crate::op::{Meta, Operand};
use crate::ops::cuda::{c_name, code};
use crate::shape::MAX_RANK;

static TEMPLATE: Template = Template { name: "sort", text: include_str!("sort.cu") };

/// What a block sorts in shared memory; `sort.cu` has the same.
const TILE: usize = 2048;
/// The threads of a block.
const THREADS: usize = 256;

/// Lines, as the kernel takes them.
#[repr(C)]
struct Lines {
    n: u64,
    len: u64,
    n_wanted: u64,
    extents: [u64; MAX_RANK],
    strides: [i64; MAX_RANK],
    step: i64,
}

// SAFETY: `sort.cu` has the same struct.
unsafe impl Param for Lines {}

/// The steps of sorting; `sort.cu` says what each does.
#[derive(Clone, Copy, Debug)]
enum SortKernel {
    Whole,
    Tiles,
    Flip,
    Step,
    Merge,
    Finish,
}

impl SortKernel {
    fn define(self) -> &'static str {
        match self {
            SortKernel::Whole => "#define WHOLE",
            SortKernel::Tiles => "#define TILES",
            SortKernel::Flip => "#define PAIRS\n#define FLIP",
            SortKernel::Step => "#define PAIRS\n#define STEP",
            SortKernel::Merge => "#define MERGE",
            SortKernel::Finish => "#define FINISH",
        }
    }
}

/// The bytes of scratch memory that sorting lines of `x` needs, if so many elements of each are wanted.
pub(super) fn workspace(x: &Meta, n_wanted: usize) -> usize {
    let len = x.shape().last().copied().unwrap_or(0);
    if len > TILE && n_wanted < len { x.n_elems() * size_of::<u64>() } else { 0 }
}

/// The sorting of all lines along the last axis.
pub(super) struct Sorting<'a> {
    /// The op.
    pub op: &'static str,
    /// The elements.
    pub x: &'a Operand<'a>,
    /// Where the first elements of each line go in order, if they are wanted.
    pub values: Option<&'a Operand<'a>>,
    /// Where their indices go.
    pub indices: &'a Operand<'a>,
    /// Whether the greatest comes first.
    pub descending: bool,
    /// Scratch memory of as many bytes as [`workspace`] says.
    pub workspace: *mut u8,
}

impl Sorting<'_> {
    /// Starts the kernels.
    pub fn run(&self, gpu: &Gpu) -> Result<()> {
        let (len, n_wanted) = (self.len(), self.n_wanted());
        if self.indices.n_elems() == 0 {
            return Ok(());
        }
        if len <= TILE {
            return self.launch(gpu, SortKernel::Whole, 1, 0);
        }
        let (n_tiles, n_pair_blocks) = (len.div_ceil(TILE), len.next_power_of_two() / 2 / THREADS);
        self.launch(gpu, SortKernel::Tiles, n_tiles, 0)?;
        let mut size = 2 * TILE;
        while size < 2 * len {
            self.launch(gpu, SortKernel::Flip, n_pair_blocks, size)?;
            let mut distance = size / 4;
            while distance >= TILE {
                self.launch(gpu, SortKernel::Step, n_pair_blocks, distance)?;
                distance /= 2;
            }
            self.launch(gpu, SortKernel::Merge, n_tiles, 0)?;
            size *= 2;
        }
        self.launch(gpu, SortKernel::Finish, n_wanted.div_ceil(THREADS), 0)
    }

    fn len(&self) -> usize {
        self.x.shape().last().copied().unwrap_or(0)
    }

    fn n_wanted(&self) -> usize {
        self.indices.shape().last().copied().unwrap_or(0)
    }

    /// Whether key and index fit into 64 bits.
    fn is_packed(&self) -> bool {
        !matches!(self.x.dtype(), DType::F64 | DType::I64) && u32::try_from(self.len()).is_ok()
    }

    /// Starts a kernel with so many blocks for each line.
    fn launch(&self, gpu: &Gpu, kernel: SortKernel, n_parts: usize, distance: usize) -> Result<()> {
        let (dtype, lines) = (self.x.dtype(), self.lines());
        let rank = self.x.shape().rank() - 1;
        let [descending, packed, has_values] =
            [self.descending, self.is_packed(), self.values.is_some()].map(u64::from);
        let mut variant = (kernel as u64) << 3 | rank as u64;
        variant = variant << 3 | descending << 2 | packed << 1 | has_values;
        variant = variant << 3 | code(dtype);
        let kernel = gpu.kernel(&TEMPLATE, self.op, variant, || {
            format!(
                "{}\ntypedef {} T;\n#define RANK {rank}\n#define DESCENDING {descending}\n#define IS_PACKED {packed}\n\
                 #define HAS_VALUES {has_values}",
                kernel.define(),
                c_name(dtype)
            )
        })?;
        let entries = if self.n_wanted() == self.len() { self.indices.ptr() } else { self.workspace };
        let values = self.values.map_or(std::ptr::null_mut(), Operand::ptr);
        let (n_parts, distance) = (n_parts as u64, distance as u64);
        let grid = Grid::of(lines.n as usize * n_parts as usize, THREADS as u32);
        let params: [&dyn Param; 7] =
            [&self.x.ptr(), &entries, &self.indices.ptr(), &values, &lines, &n_parts, &distance];
        // SAFETY: `execute` hands out operands that are valid for their layouts, the lines are theirs, entries have a word per
        // element (an index is as wide), and the kernel was made for this dtype.
        unsafe { gpu.launch(&kernel, grid, &params) }?;
        Ok(())
    }

    fn lines(&self) -> Lines {
        let (shape, strides) = (self.x.shape(), self.x.meta.layout.strides());
        let last = shape.rank() - 1;
        let mut lines = Lines {
            n: shape[..last].iter().product::<usize>() as u64,
            len: shape[last] as u64,
            n_wanted: self.n_wanted() as u64,
            extents: [1; MAX_RANK],
            strides: [0; MAX_RANK],
            step: strides[last] as i64,
        };
        for axis in 0..last {
            (lines.extents[axis], lines.strides[axis]) = (shape[axis] as u64, strides[axis] as i64);
        }
        lines
    }
}
