//! Elements of an update's operands: parts to write, gradients widened and gathered, compute copies narrowed.

use std::ops::Range;

use half::{bf16, f16};
use plimsoll_cpu::element::Element;
use plimsoll_cpu::math::Real;
use plimsoll_cpu::simd;

use crate::base::dtype::DType;
use crate::eager::op::Operand;
use crate::ops::kernel::offset_of;

/// Elements that a kernel sees at a time; a multiple of [`BLOCK_LEN`].
pub(super) const TILE_LEN: usize = 1024;

/// Elements of a quantised state that share one scale.
pub(super) const BLOCK_LEN: usize = 256;

/// Copies a part of an operand to the same place of another.
///
/// # Safety
/// Both operands are valid for elements of `T`'s size in that range, `to` is contiguous, and nobody else uses the range.
pub(super) unsafe fn carry_elements<T: Copy>(from: &Operand, to: &Operand, range: Range<usize>) {
    let first = to.ptr().cast::<T>();
    // SAFETY: the caller's promise.
    unsafe {
        for_each_element::<T>(from, range.clone(), |at, value| first.add(range.start + at).write(value))
    };
}

/// Calls `visit` with each element of a range, in row-major order, and its place in the range.
///
/// # Safety
/// The operand is valid for reads of `T` in that range.
unsafe fn for_each_element<T: Copy>(from: &Operand, range: Range<usize>, mut visit: impl FnMut(usize, T)) {
    let (shape, strides) = (from.shape().dims(), from.meta.layout.strides());
    let first = from.ptr().cast::<T>();
    let (row_len, step) = match (shape.last(), strides.last()) {
        (Some(&len), Some(&step)) => (len, step),
        _ => (1, 1),
    };
    let mut at = range.start;
    while at < range.end {
        let n = (row_len - at % row_len).min(range.end - at);
        let offset = offset_of(shape, strides, at);
        for idx in 0..n {
            // SAFETY: an element of a row of the operand.
            visit(at - range.start + idx, unsafe { *first.offset(offset + idx as isize * step) });
        }
        at += n;
    }
}

/// A part of an output to write.
///
/// # Safety
/// The output is of type `T`, and nobody else uses that part while the slice lives.
pub(super) unsafe fn part<'a, T>(output: &Operand, range: Range<usize>) -> &'a mut [T] {
    // SAFETY: outputs are contiguous, and the rest is the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(output.ptr().cast::<T>().add(range.start), range.len()) }
}

/// Room for a tile of a gradient in the type that is computed with.
pub(super) struct Room<T>([T; TILE_LEN]);

impl<T: Real> Room<T> {
    pub fn new() -> Room<T> {
        Room([T::ZERO; TILE_LEN])
    }
}

/// At most a tile of a gradient: where it lies if it is contiguous and of the type that is computed with, else a copy.
///
/// # Safety
/// The gradient is valid for its layout, of a dtype that `UpdatedParameters::infer` allows for a parameter of `T`, and nobody
/// writes it.
pub(super) unsafe fn gradient<'a, T: Real>(
    gradient: &Operand<'a>,
    range: Range<usize>,
    room: &'a mut Room<T>,
) -> &'a [T] {
    let in_place = gradient.is_contiguous() && gradient.dtype().size() == size_of::<T>();
    if in_place {
        // SAFETY: contiguous elements of `T`: the only dtype of that size that is allowed.
        return unsafe {
            std::slice::from_raw_parts(gradient.ptr().cast::<T>().add(range.start), range.len())
        };
    }
    let room = &mut room.0[..range.len()];
    // SAFETY: the caller's promise.
    unsafe {
        match gradient.dtype() {
            DType::F16 => widen::<T, f16>(gradient, range, room),
            DType::BF16 => widen::<T, bf16>(gradient, range, room),
            _ => for_each_element::<T>(gradient, range, |at, value| room[at] = value),
        }
    }
    room
}

/// # Safety
/// As [`for_each_element`].
unsafe fn widen<T: Real, S: Element<Compute = f32>>(from: &Operand, range: Range<usize>, room: &mut [T]) {
    if !from.is_contiguous() {
        // SAFETY: the caller's promise.
        return unsafe { for_each_element::<S>(from, range, |at, value| room[at] = T::from(value.widen())) };
    }
    // SAFETY: contiguous elements of the operand.
    let stored = unsafe { std::slice::from_raw_parts(from.ptr().cast::<S>().add(range.start), range.len()) };
    simd::vectorize(
        #[inline(always)]
        || {
            for (wide, &stored) in room.iter_mut().zip(stored) {
                *wide = T::from(stored.widen());
            }
        },
    );
}

/// Writes the new values of a part of a parameter to its 16-bit copy.
///
/// # Safety
/// The copy is f16 or bf16, and nobody else uses that part of it.
pub(super) unsafe fn write_copy<T: Real>(values: &[T], copy: &Operand, range: Range<usize>) {
    // SAFETY: the caller's promise.
    unsafe {
        match copy.dtype() {
            DType::F16 => narrow(values, part::<f16>(copy, range)),
            _ => narrow(values, part::<bf16>(copy, range)),
        }
    }
}

fn narrow<T: Real, S: Element<Compute = f32>>(values: &[T], copy: &mut [S]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (stored, &value) in copy.iter_mut().zip(values) {
                *stored = S::narrow(value.to_f64() as f32);
            }
        },
    );
}
