//! Operands without their types: where elements lie, and how they enter a tile and leave it.
//!
//! Loops are compiled once per compute type. This is all that they know of what is stored, so that dtypes that compute alike
//! share one loop.

use crate::element::Element;
use crate::tile::{self, Patch};

/// How elements of some type are stored.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Bytes of an element.
    pub(crate) size: usize,
    /// Bytes of an element in its compute type.
    pub(crate) compute_size: usize,
    /// Whether both are the same type, so that memory can be read in place.
    pub(crate) is_compute: bool,
    /// Brings a patch of elements into a tile, widened.
    pub(crate) gather: unsafe fn(*const u8, Patch, *mut u8),
    /// Takes a tile to a patch of elements, narrowed.
    pub(crate) scatter: unsafe fn(*const u8, *mut u8, Patch),
}

impl Format {
    /// That of a type.
    #[inline(always)]
    pub fn of<T: Element>() -> Format {
        Format {
            size: size_of::<T>(),
            compute_size: size_of::<T::Compute>(),
            is_compute: T::IS_COMPUTE,
            gather: tile::gather::<T>,
            scatter: tile::scatter::<T>,
        }
    }
}

/// An operand that is read: the address of its first element, and a stride in elements for each dimension.
///
/// A stride of zero repeats elements along a dimension.
#[derive(Clone, Copy, Debug)]
pub struct Src<'a, T> {
    /// The address of the element at index zero of every dimension.
    pub ptr: *const T,
    /// One stride for each dimension of the walk's shape.
    pub strides: &'a [isize],
}

/// An operand that is written: the address of its first element, and a stride in elements for each dimension.
#[derive(Clone, Copy, Debug)]
pub struct Dst<'a, T> {
    /// The address of the element at index zero of every dimension.
    pub ptr: *mut T,
    /// One stride for each dimension of the walk's shape. No two indices may name the same element.
    pub strides: &'a [isize],
}

/// Either of them, without its type: the address of a first element, and a stride in elements for each dimension.
///
/// A stride of zero repeats elements along a dimension. An operand that is written repeats none.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// The address of the element at index zero of every dimension.
    pub(crate) ptr: *mut u8,
    /// One stride for each dimension of the walk's shape.
    pub(crate) strides: &'a [isize],
    /// How its elements are stored.
    pub(crate) format: Format,
}

// SAFETY: an operand is an address with a description; whoever starts a walk promises that it may be used.
unsafe impl Sync for Operand<'_> {}

impl<'a> Operand<'a> {
    /// An operand of elements of a known type.
    #[inline(always)]
    pub fn new<T: Element>(ptr: *const T, strides: &'a [isize]) -> Operand<'a> {
        Operand::with_format(ptr.cast_mut().cast(), strides, Format::of::<T>())
    }

    /// An operand of elements that are stored so.
    #[inline(always)]
    pub fn with_format(ptr: *mut u8, strides: &'a [isize], format: Format) -> Operand<'a> {
        Operand { ptr, strides, format }
    }

    /// The address `offset` elements from the first one.
    ///
    /// # Safety
    /// That element belongs to the operand.
    #[inline(always)]
    pub(crate) unsafe fn at(&self, offset: isize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.ptr.offset(offset * self.format.size as isize) }
    }

    /// Whether the elements lie one after the other in the order of their indices.
    #[inline]
    pub(crate) fn is_contiguous(&self, shape: &[usize]) -> bool {
        let mut expected = 1;
        for (&extent, &stride) in shape.iter().zip(self.strides).rev() {
            if extent != 1 && stride != expected {
                return false;
            }
            expected *= extent as isize;
        }
        true
    }
}

impl<'a, T: Element> From<Src<'a, T>> for Operand<'a> {
    #[inline(always)]
    fn from(src: Src<'a, T>) -> Operand<'a> {
        Operand::new(src.ptr, src.strides)
    }
}

impl<'a, T: Element> From<Dst<'a, T>> for Operand<'a> {
    #[inline(always)]
    fn from(dst: Dst<'a, T>) -> Operand<'a> {
        Operand::new(dst.ptr, dst.strides)
    }
}
