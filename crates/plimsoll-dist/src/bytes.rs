//! Numbers as the bytes that they are, to be sent and received.

use std::ops::AddAssign;

use plimsoll_tensor::Element;

/// A type of numbers that collectives add up. Every pattern of bits is one, and none has padding.
pub(crate) trait Number: Element + Copy + AddAssign {}

impl Number for f32 {}
impl Number for f64 {}

/// The bytes of numbers.
pub(crate) fn bytes_of<T: Number>(numbers: &[T]) -> &[u8] {
    // SAFETY: floats have no padding, bytes need no alignment, and the length is that of the same memory.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// The bytes of numbers, to be written.
pub(crate) fn bytes_of_mut<T: Number>(numbers: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and whatever is written there is a float.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), size_of_val(numbers)) }
}
