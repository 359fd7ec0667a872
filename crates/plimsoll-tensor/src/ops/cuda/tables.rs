//! Many tensors in one launch: their addresses travel as a parameter of the kernel, as many at a time as fit.
//!
//! A kernel's parameters may take 4 KiB, which is some fifty tensors. Each entry of a [`Table`] has a number of blocks,
//! and a block finds its entry by its number (`entry_of` in `prelude.cuh`), so a hundred small tensors cost as little as
//! one of their size. A tensor that is not contiguous gets a launch of its own, with its strides beside the table.

use plimsoll_cuda::Param;

use crate::base::error::Result;
use crate::base::shape::MAX_RANK;
use crate::eager::op::Operand;

/// Entries of a launch, and the first block of each.
#[repr(C)]
pub(crate) struct Table<E, const N: usize> {
    n: u64,
    starts: [u32; N],
    entries: [E; N],
}

// SAFETY: `prelude.cuh` has the same struct; the kernel that is given a table has the same entries. There is no padding before
// them: `for_each_table`, which makes every table, checks it.
unsafe impl<E: Copy, const N: usize> Param for Table<E, N> {}

/// Calls `launch` with tables that hold all entries in order, each with how many blocks it wants, and the number of
/// blocks of each table.
pub(crate) fn for_each_table<E: Copy, const N: usize>(
    entries: impl Iterator<Item = (E, usize)>,
    mut launch: impl FnMut(&Table<E, N>, usize) -> Result<()>,
) -> Result<()> {
    const {
        assert!(N.is_multiple_of(2) && align_of::<E>() <= 8, "there is no padding between starts and entries")
    };
    let mut entries = entries.filter(|(_, n_blocks)| *n_blocks > 0).peekable();
    while let Some(&(first, _)) = entries.peek() {
        let mut table = Table { n: 0, starts: [0; N], entries: [first; N] };
        let mut n_blocks = 0;
        for (at, (entry, blocks)) in entries.by_ref().take(N).enumerate() {
            table.n += 1;
            table.starts[at] = n_blocks as u32;
            table.entries[at] = entry;
            n_blocks += blocks;
        }
        launch(&table, n_blocks)?;
    }
    Ok(())
}

/// Where the elements of a tensor lie, as a parameter of a kernel.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Strided {
    rank: u64,
    extents: [u64; MAX_RANK],
    strides: [i64; MAX_RANK],
}

// SAFETY: `prelude.cuh` has the same struct.
unsafe impl Param for Strided {}

impl Strided {
    /// For kernels that are not told where elements lie, because they lie one after the other.
    pub const UNUSED: Strided = Strided { rank: 0, extents: [1; MAX_RANK], strides: [0; MAX_RANK] };

    /// Where the elements of an operand lie.
    pub fn of(operand: &Operand) -> Strided {
        let mut strided = Strided { rank: operand.shape().rank() as u64, ..Strided::UNUSED };
        for (axis, (&extent, &stride)) in
            operand.shape().dims().iter().zip(operand.meta.layout.strides()).enumerate()
        {
            (strided.extents[axis], strided.strides[axis]) = (extent as u64, stride as i64);
        }
        strided
    }
}

/// Whether a thread may move 16 bytes at a time from this address on.
pub(crate) fn is_aligned(ptr: *mut u8) -> bool {
    (ptr as usize).is_multiple_of(16)
}
