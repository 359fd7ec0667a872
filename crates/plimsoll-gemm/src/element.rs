//! Numbers: what matrices hold, and what arithmetic is done in.
//!
//! A matrix holds an [`Element`] (f32, f64, f16 or bf16); sums are formed in its [`Real`] (f32 or f64). Only
//! [`Access`] knows the stored type, so the loops, kernels and epilogues are built twice, not four times.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::isa::HasKernels;

/// A type that arithmetic is done in: f32 or f64.
pub trait Real:
    Element<Real = Self> + HasKernels + Default + std::ops::AddAssign + std::ops::Mul<Output = Self>
{
}

impl Real for f32 {}
impl Real for f64 {}

/// A type that a matrix may hold.
pub trait Element: Copy + Send + Sync + 'static {
    /// The type that products and sums of this element are formed in.
    type Real: Real;

    /// Whether the element is stored in fewer bits than its sums have, so that sums must not be kept in it.
    const NARROW: bool;

    /// The element as a number to calculate with.
    fn widen(self) -> Self::Real;

    /// The number rounded to the nearest element.
    fn narrow(value: Self::Real) -> Self;

    /// Widens neighbouring elements; overridden where the processor converts many at once.
    fn widen_all(from: &[Self], to: &mut [Self::Real]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.widen();
        }
    }

    /// Rounds neighbouring elements; overridden where the processor converts many at once.
    fn narrow_all(from: &[Self::Real], to: &mut [Self]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = Self::narrow(*from);
        }
    }
}

impl Element for f32 {
    type Real = f32;
    const NARROW: bool = false;

    fn widen(self) -> f32 {
        self
    }

    fn narrow(value: f32) -> f32 {
        value
    }

    fn widen_all(from: &[f32], to: &mut [f32]) {
        to[..from.len()].copy_from_slice(from);
    }

    fn narrow_all(from: &[f32], to: &mut [f32]) {
        to[..from.len()].copy_from_slice(from);
    }
}

impl Element for f64 {
    type Real = f64;
    const NARROW: bool = false;

    fn widen(self) -> f64 {
        self
    }

    fn narrow(value: f64) -> f64 {
        value
    }

    fn widen_all(from: &[f64], to: &mut [f64]) {
        to[..from.len()].copy_from_slice(from);
    }

    fn narrow_all(from: &[f64], to: &mut [f64]) {
        to[..from.len()].copy_from_slice(from);
    }
}

impl Element for f16 {
    type Real = f32;
    const NARROW: bool = true;

    fn widen(self) -> f32 {
        self.to_f32()
    }

    fn narrow(value: f32) -> f16 {
        f16::from_f32(value)
    }

    fn widen_all(from: &[f16], to: &mut [f32]) {
        from.convert_to_f32_slice(&mut to[..from.len()]);
    }

    fn narrow_all(from: &[f32], to: &mut [f16]) {
        to[..from.len()].convert_from_f32_slice(from);
    }
}

impl Element for bf16 {
    type Real = f32;
    const NARROW: bool = true;

    fn widen(self) -> f32 {
        self.to_f32()
    }

    fn narrow(value: f32) -> bf16 {
        bf16::from_f32(value)
    }

    fn widen_all(from: &[bf16], to: &mut [f32]) {
        // A bfloat16 is the upper half of an f32; the library's own loop also quiets signalling NaNs, which
        // keeps it from being vectorised, and arithmetic quiets them anyway.
        for (to, from) in to.iter_mut().zip(from) {
            *to = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
    }
}

/// How elements of a type known only at run time are read and written as numbers `T`.
#[derive(Clone, Copy)]
pub(crate) struct Access<T> {
    /// Bytes of one element.
    pub size: usize,
    /// Whether the stored element is `T` itself.
    pub same: bool,
    /// Fills the slice from elements that lie `stride` elements apart.
    pub read: unsafe fn(from: *const u8, stride: isize, to: &mut [T]),
    /// Writes the slice to elements that lie `stride` elements apart.
    pub write: unsafe fn(from: &[T], to: *mut u8, stride: isize),
}

impl<T: Real> Access<T> {
    /// The access to elements of type `E`.
    pub fn of<E: Element<Real = T>>() -> Self {
        let same = size_of::<E>() == size_of::<T>();
        Self { size: size_of::<E>(), same, read: read::<E>, write: write::<E> }
    }
}

/// # Safety
/// `from` must point to `to.len()` readable elements, `stride` elements apart.
unsafe fn read<E: Element>(from: *const u8, stride: isize, to: &mut [E::Real]) {
    let from = from.cast::<E>();
    if stride == 1 {
        // SAFETY: the caller promises that many neighbouring elements.
        let from = unsafe { std::slice::from_raw_parts(from, to.len()) };
        return E::widen_all(from, to);
    }
    for (idx, to) in to.iter_mut().enumerate() {
        // SAFETY: the caller promises an element at each of these places.
        *to = unsafe { *from.offset(idx as isize * stride) }.widen();
    }
}

/// # Safety
/// `to` must point to `from.len()` writable elements, `stride` elements apart.
unsafe fn write<E: Element>(from: &[E::Real], to: *mut u8, stride: isize) {
    let to = to.cast::<E>();
    if stride == 1 {
        // SAFETY: the caller promises that many neighbouring elements, and nobody else's borrow of them.
        let to = unsafe { std::slice::from_raw_parts_mut(to, from.len()) };
        return E::narrow_all(from, to);
    }
    for (idx, from) in from.iter().enumerate() {
        // SAFETY: the caller promises a place for each of these elements.
        unsafe { *to.offset(idx as isize * stride) = E::narrow(*from) };
    }
}
