//! Elementwise kernels: a function over one tile, applied to whole strided operands.
//!
//! A tile function sees slices of equal length, at most [`TILE_LEN`] elements and [`TILE_BYTES`] bytes each, in the
//! compute types, and writes every element of the output, whose old values mean nothing. Where an operand lies contiguously in memory and computes as itself, the slice is that memory; else
//! it is a copy on the stack. The function is compiled for several instruction sets, provided that it is inlined: mark
//! closures `#[inline(always)]`. Only the tile function is compiled per op and dtype; the walk around it exists once.
//!
//! The output may be the same memory as one input, element for element; that input is then read through a copied
//! tile. Any other overlap is refused by contract. Tasks for threads are cut by shape alone, and since each element is
//! computed by itself the bits depend on nothing else.

use crate::element::Element;
use crate::threads::SharedPtr;
use crate::tile::{self, Patch, Tile};
use crate::tiling::{Cursor, MAX_OPERANDS, Tiling};
use crate::{simd, threads};

pub use crate::operand::{Dst, Operand, Src};
pub use crate::tile::{TILE_BYTES, TILE_LEN};
pub use crate::tiling::MAX_RANK;

/// The number of elements that one task computes. Fewer are not worth waking a thread for.
const TASK_LEN: usize = 32 * 1024;

/// The number of elements of one task, out of that many: large operands are read in long stretches, because memory is
/// fastest that way.
fn task_len(n_elems: usize) -> usize {
    const MANY: usize = 64;
    (n_elems / MANY).next_multiple_of(TASK_LEN).max(TASK_LEN)
}

/// Computes `output` from nothing but the index: `f(first, tile)` writes the elements from index `first` on.
///
/// # Safety
/// `output` is valid for writes of `len` elements.
pub unsafe fn generate<O: Element>(len: usize, output: *mut O, f: impl Fn(usize, &mut [O::Compute]) + Sync) {
    let tile_len = tile::tile_len(size_of::<O::Compute>());
    let output = SharedPtr::new(output);
    threads::parallel(len.div_ceil(TASK_LEN), |task| {
        let mut tile = <Tile>::uninit();
        let end = len.min((task + 1) * TASK_LEN);
        for first in (task * TASK_LEN..end).step_by(tile_len) {
            let n = tile_len.min(end - first);
            // SAFETY: `first + n` is at most `len`.
            let place = unsafe { output.get().add(first) };
            let values = if O::IS_COMPUTE { place.cast::<O::Compute>() } else { tile.as_mut_ptr().cast() };
            // SAFETY: room for `n` values, in memory or in the tile; zero is a value of every element type.
            let values = unsafe {
                values.write_bytes(0, n);
                std::slice::from_raw_parts_mut(values, n)
            };
            simd::vectorize(
                #[inline(always)]
                || f(first, values),
            );
            if !O::IS_COMPUTE {
                let patch = Patch { n_rows: 1, n_cols: n, row_stride: 0, col_stride: 1 };
                // SAFETY: `n` values from the tile to `n` elements of the output.
                unsafe { tile::scatter::<O>(tile.as_mut_ptr(), place.cast(), patch) };
            }
        }
    });
}

/// Computes `output = f(input)` over every index of `shape`.
///
/// # Safety
/// Elements of `input` compute as `I`, and those of `output` as `O`. For every index of `shape` the element of `input` is valid
/// for reads and that of `output` for writes. `output` overlaps `input` nowhere, or is the same memory with the same strides and
/// element type.
pub unsafe fn map1<I, O>(
    shape: &[usize],
    output: Operand<'_>,
    input: Operand<'_>,
    f: impl Fn(&[I], &mut [O]) + Sync,
) {
    let tile = |inputs: &Pointers, output: *mut u8, n: usize| {
        // SAFETY: the walk hands out `n` values of each operand's compute type, the output apart from the inputs.
        let (x, y) = unsafe { (values::<I>(inputs[0], n), values_mut::<O>(output, n)) };
        simd::vectorize(
            #[inline(always)]
            || f(x, y),
        );
    };
    // SAFETY: the caller's promise.
    unsafe { run(shape, &[output, input], &tile) }
}

/// Computes `output = f(lhs, rhs)` over every index of `shape`.
///
/// A row added to each row of a matrix:
///
/// ```
/// use plimsoll_cpu::map::{Operand, map2};
///
/// let (matrix, row) = ([1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [10.0f32, 20.0, 30.0]);
/// let mut sum = [0.0f32; 6];
/// // SAFETY: the strides stay inside the arrays, and the output is an array of its own.
/// unsafe {
///     map2(
///         &[2, 3],
///         Operand::new(sum.as_mut_ptr(), &[3, 1]),
///         Operand::new(matrix.as_ptr(), &[3, 1]),
///         Operand::new(row.as_ptr(), &[0, 1]),
///         #[inline(always)]
///         |a: &[f32], b: &[f32], y: &mut [f32]| {
///             for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
///                 *y = a + b;
///             }
///         },
///     );
/// }
/// assert_eq!(sum, [11.0, 22.0, 33.0, 14.0, 25.0, 36.0]);
/// ```
///
/// # Safety
/// As for [`map1`], for each input.
pub unsafe fn map2<A, B, O>(
    shape: &[usize],
    output: Operand<'_>,
    lhs: Operand<'_>,
    rhs: Operand<'_>,
    f: impl Fn(&[A], &[B], &mut [O]) + Sync,
) {
    let tile = |inputs: &Pointers, output: *mut u8, n: usize| {
        // SAFETY: the walk hands out `n` values of each operand's compute type, the output apart from the inputs.
        let (a, b, y) =
            unsafe { (values::<A>(inputs[0], n), values::<B>(inputs[1], n), values_mut::<O>(output, n)) };
        simd::vectorize(
            #[inline(always)]
            || f(a, b, y),
        );
    };
    // SAFETY: the caller's promise.
    unsafe { run(shape, &[output, lhs, rhs], &tile) }
}

/// Computes `output = f(a, b, c)` over every index of `shape`.
///
/// # Safety
/// As for [`map1`], for each input.
pub unsafe fn map3<A, B, C, O>(
    shape: &[usize],
    output: Operand<'_>,
    inputs: [Operand<'_>; 3],
    f: impl Fn(&[A], &[B], &[C], &mut [O]) + Sync,
) {
    let tile = |inputs: &Pointers, output: *mut u8, n: usize| {
        let [a, b, c] = *inputs;
        // SAFETY: the walk hands out `n` values of each operand's compute type, the output apart from the inputs.
        let (a, b, c, y) =
            unsafe { (values::<A>(a, n), values::<B>(b, n), values::<C>(c, n), values_mut::<O>(output, n)) };
        simd::vectorize(
            #[inline(always)]
            || f(a, b, c, y),
        );
    };
    let [a, b, c] = inputs;
    // SAFETY: the caller's promise.
    unsafe { run(shape, &[output, a, b, c], &tile) }
}

/// Where the inputs of one tile lie.
type Pointers = [*const u8; MAX_OPERANDS - 1];

/// A tile function without its types: inputs, output, number of elements.
type TileFn<'a> = dyn Fn(&Pointers, *mut u8, usize) + Sync + 'a;

/// # Safety
/// `ptr` is valid for reads of `n` values for as long as the slice is used.
#[inline(always)]
unsafe fn values<'a, T>(ptr: *const u8, n: usize) -> &'a [T] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(ptr.cast(), n) }
}

/// # Safety
/// `ptr` is valid for reads and writes of `n` values for as long as the slice is used, and nothing else refers to them.
#[inline(always)]
unsafe fn values_mut<'a, T>(ptr: *mut u8, n: usize) -> &'a mut [T] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(ptr.cast(), n) }
}

/// Applies a tile function over every index of `shape`; operand 0 is the output.
///
/// # Safety
/// The promise of [`map1`] for these operands; `tile` may be called with as many values of each operand's compute type
/// as it is told.
unsafe fn run(shape: &[usize], operands: &[Operand], tile: &TileFn) {
    debug_assert!(
        operands.iter().all(|operand| operand.strides.len() == shape.len()),
        "one stride per dimension"
    );
    let n_elems: usize = shape.iter().product();
    let tile_len =
        tile::tile_len(operands.iter().map(|operand| operand.format.compute_size).max().unwrap_or(1));
    let output = operands[0].ptr;
    let is_plain = |operand: &Operand| operand.format.is_compute && operand.is_contiguous(shape);
    if operands.iter().all(is_plain) && operands[1..].iter().all(|input| input.ptr != output) {
        // SAFETY: contiguous operands that are read and written in place, none of them the output.
        return unsafe { run_contiguous(n_elems, tile_len, operands, tile) };
    }
    if n_elems != 0 {
        // SAFETY: the caller's promise, and there is at least one element.
        unsafe { run_strided(shape, tile_len, operands, tile) }
    }
}

/// # Safety
/// That of [`run`]; all operands are contiguous and compute as themselves, and the output is none of the inputs.
unsafe fn run_contiguous(n_elems: usize, tile_len: usize, operands: &[Operand], tile: &TileFn) {
    let task_len = task_len(n_elems);
    threads::parallel(n_elems.div_ceil(task_len), |task| {
        let end = n_elems.min((task + 1) * task_len);
        for first in (task * task_len..end).step_by(tile_len) {
            let mut inputs: Pointers = [std::ptr::null(); MAX_OPERANDS - 1];
            for (input, operand) in inputs.iter_mut().zip(&operands[1..]) {
                // SAFETY: `first` is an element of every operand.
                *input = unsafe { operand.at(first as isize) };
            }
            // SAFETY: `first` is an element of every operand.
            tile(&inputs, unsafe { operands[0].at(first as isize) }, tile_len.min(end - first));
        }
    });
}

/// # Safety
/// That of [`run`]; there is at least one element.
unsafe fn run_strided(shape: &[usize], tile_len: usize, operands: &[Operand], tile: &TileFn) {
    let mut strides: [&[isize]; MAX_OPERANDS] = [&[]; MAX_OPERANDS];
    for (strides, operand) in strides.iter_mut().zip(operands) {
        *strides = operand.strides;
    }
    let tiling = Tiling::new(shape, &strides[..operands.len()], tile_len);
    let tiles_per_task = (task_len(tiling.n_tiles * tiling.tile_len()) / tiling.tile_len()).max(1);
    threads::parallel(tiling.n_tiles.div_ceil(tiles_per_task), |task| {
        let first = task * tiles_per_task;
        let n_tiles = tiles_per_task.min(tiling.n_tiles - first);
        // SAFETY: these tiles belong to the walk, and each is visited by one task.
        unsafe { run_tiles(tiling.seek(first), n_tiles, operands, tile) };
    });
}

/// # Safety
/// That of [`run`], for a walk over these operands with that many tiles from the cursor on.
unsafe fn run_tiles(mut cursor: Cursor, n_tiles: usize, operands: &[Operand], tile: &TileFn) {
    let mut copies = [const { <Tile>::uninit() }; MAX_OPERANDS];
    let mut copied: [Option<(isize, Patch)>; MAX_OPERANDS] = [None; MAX_OPERANDS];
    let [output_copy, input_copies @ ..] = &mut copies;
    let (output, inputs) = (&operands[0], &operands[1..]);
    for _ in 0..n_tiles {
        let extents = cursor.extents();
        let mut pointers: Pointers = [std::ptr::null(); MAX_OPERANDS - 1];
        for (idx, input) in inputs.iter().enumerate() {
            let (offset, patch) = cursor.patch(idx + 1, extents);
            // SAFETY: the cursor names elements of the operand.
            let place = unsafe { input.at(offset) };
            if input.format.is_compute && patch.is_contiguous() && input.ptr != output.ptr {
                pointers[idx] = place;
                continue;
            }
            let copy = input_copies[idx].as_mut_ptr();
            // A broadcast operand often stands still from tile to tile, and its copy is still good. (One that is also
            // the output moves with it.)
            if copied[idx] != Some((offset, patch)) {
                // SAFETY: elements of the operand, and no more of them than a tile holds.
                unsafe { (input.format.gather)(place, patch, copy) };
                copied[idx] = Some((offset, patch));
            }
            pointers[idx] = copy;
        }
        let (offset, patch) = cursor.patch(0, extents);
        let n_elems = patch.n_elems();
        // SAFETY: the cursor names elements of the operand.
        let place = unsafe { output.at(offset) };
        if output.format.is_compute && patch.is_contiguous() {
            tile(&pointers, place, n_elems);
        } else {
            let copy = output_copy.as_mut_ptr();
            // SAFETY: a tile has room for these values, and zero is a value of every element type; then each of
            // them goes to its element of the output.
            unsafe {
                copy.write_bytes(0, n_elems * output.format.compute_size);
                tile(&pointers, copy, n_elems);
                (output.format.scatter)(copy, place, patch);
            }
        }
        cursor.advance();
    }
}

#[cfg(test)]
mod tests;
