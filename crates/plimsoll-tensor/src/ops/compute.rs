//! Kernels that are compiled per compute type: how they read and write whatever lies in memory, and how they cut up
//! their scratch memory.
//!
//! A kernel of many lines would be compiled four times if it knew the stored element. It knows the compute type (f32 or
//! f64) instead, and [`Access`] alone knows what lies in memory.

use plimsoll_cpu::element::Element;
use plimsoll_cpu::math::Real;
use plimsoll_cpu::simd;
use plimsoll_gemm as gemm;

/// Numbers from one piece of scratch memory to the next are a multiple of this, so that each begins at a cache line.
const PIECE: usize = 16;

/// A type that such kernels compute in: f32 or f64.
pub(crate) trait Compute: Real + gemm::Element + gemm::Real {}

impl Compute for f32 {}
impl Compute for f64 {}

/// How elements of some dtype are read and written as numbers of the compute type.
pub(crate) struct Access<C> {
    /// Bytes of an element.
    pub size: usize,
    /// Whether elements are numbers of the compute type.
    pub is_same: bool,
    /// Reads elements that lie so many elements apart.
    pub read: unsafe fn(*const u8, isize, &mut [C]),
    /// Writes neighbouring elements.
    pub write: unsafe fn(&[C], *mut u8),
}

impl<C: Compute> Access<C> {
    /// The access to elements of a float dtype.
    pub fn floats<T: Element<Compute = C>>() -> Access<C> {
        Access { size: size_of::<T>(), is_same: T::IS_COMPUTE, read: read::<T>, write: write::<T> }
    }
}

/// # Safety
/// Every element that the stride leads to must be readable.
unsafe fn read<T: Element>(from: *const u8, stride: isize, to: &mut [T::Compute]) {
    let from = from.cast::<T>();
    if stride == 1 {
        // SAFETY: the caller promises that the elements are readable.
        let from = unsafe { std::slice::from_raw_parts(from, to.len()) };
        simd::vectorize(
            #[inline(always)]
            || to.iter_mut().zip(from).for_each(|(to, from)| *to = from.widen()),
        );
        return;
    }
    for (idx, to) in to.iter_mut().enumerate() {
        // SAFETY: the caller promises that the elements are readable.
        *to = unsafe { *from.offset(idx as isize * stride) }.widen();
    }
}

/// # Safety
/// As many elements must be writable as there are numbers.
unsafe fn write<T: Element>(from: &[T::Compute], to: *mut u8) {
    // SAFETY: the caller promises that the elements are writable.
    let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<T>(), from.len()) };
    simd::vectorize(
        #[inline(always)]
        || to.iter_mut().zip(from).for_each(|(to, &from)| *to = T::narrow(from)),
    );
}

/// Cuts scratch memory into pieces of so many numbers.
///
/// # Safety
/// There must be [`pieces_len`] numbers.
pub(crate) unsafe fn cut<C, const N: usize>(mut at: *mut C, lens: [usize; N]) -> [*mut C; N] {
    lens.map(|len| {
        let piece = at;
        // SAFETY: the caller promises room for all pieces.
        at = unsafe { at.add(len.next_multiple_of(PIECE)) };
        piece
    })
}

/// The numbers that [`cut`] needs for pieces of these lengths.
pub(crate) fn pieces_len<const N: usize>(lens: [usize; N]) -> usize {
    lens.iter().map(|len| len.next_multiple_of(PIECE)).sum()
}
