//! Bit masks: one bit per element, eight elements to a byte, the first in the least significant bit.
//!
//! What a backward pass must know of an element is often only whether something held for it; a bit mask keeps that in
//! a thirty-second of an f32. Both loops walk the elements in memory's order, because a bit has no stride: callers
//! bring them into order first. The bits behind the last element of a mask are zero.

use crate::element::Element;
use crate::map::{Src, generate};
use crate::simd;
use crate::threads::{self, SharedPtr};

/// The number of whole bytes of a mask that one task of [`keep`] reads.
const TASK_BYTES: usize = 4 * 1024;

/// The bytes of a mask of that many elements.
pub const fn mask_len(n_elems: usize) -> usize {
    n_elems.div_ceil(8)
}

/// Sets the bit of each element for which `holds`.
///
/// # Safety
/// `input` is valid for reads of `len` elements and `mask` for writes of [`mask_len`] bytes.
pub unsafe fn pack<T: Element>(
    len: usize,
    input: *const T,
    mask: *mut u8,
    holds: impl Fn(T::Compute) -> bool + Sync,
) {
    let input = SharedPtr::new(input.cast_mut());
    let byte = |values: &[T]| {
        let bit = |(idx, &value): (usize, &T)| u8::from(holds(value.widen())) << idx;
        values.iter().enumerate().map(bit).fold(0, |byte, bit| byte | bit)
    };
    let bytes = |first: usize, mask: &mut [u8]| {
        let n = (mask.len() * 8).min(len - first * 8);
        // SAFETY: `n` elements from the one of the first bit on belong to the input.
        let values = unsafe { std::slice::from_raw_parts(input.get().add(first * 8).cast_const(), n) };
        let (whole, rest) = values.as_chunks::<8>();
        for (mask, values) in mask.iter_mut().zip(whole) {
            *mask = byte(values);
        }
        if let (Some(last), false) = (mask.last_mut(), rest.is_empty()) {
            *last = byte(rest);
        }
    };
    // SAFETY: the caller's promise.
    unsafe { generate(mask_len(len), mask, bytes) }
}

/// Copies each element whose bit is set, and writes zero for the others. The bytes of the mask have one stride.
///
/// # Safety
/// `mask` is valid for reads of [`mask_len`] bytes, `input` for reads and `output` for writes of `len` elements.
/// `output` overlaps `mask` nowhere, and is `input` or overlaps it nowhere.
///
/// # Panics
/// The mask has not one stride.
pub unsafe fn keep<T: Element>(len: usize, mask: Src<'_, u8>, input: *const T, output: *mut T) {
    let &[stride] = mask.strides else { panic!("a mask has one dimension") };
    let (mask, input) = (SharedPtr::new(mask.ptr.cast_mut()), SharedPtr::new(input.cast_mut()));
    let output = SharedPtr::new(output);
    // Eight values as an array, so that a byte becomes a vector of masks.
    let eight = |at: usize| {
        // SAFETY: the caller of this closure has eight elements from `at` on to itself, and a byte for them.
        unsafe {
            let byte = *mask.get().offset((at / 8) as isize * stride);
            let values = input.get().add(at).cast::<[T; 8]>().read();
            let kept =
                std::array::from_fn(|bit| if byte & (1 << bit) != 0 { values[bit] } else { T::default() });
            output.get().add(at).cast::<[T; 8]>().write(kept);
        }
    };
    threads::parallel(len / 8 / TASK_BYTES + 1, |task| {
        let end = (len / 8).min((task + 1) * TASK_BYTES);
        simd::vectorize(
            #[inline(always)]
            || (task * TASK_BYTES..end).for_each(|byte| eight(byte * 8)),
        );
    });
    for at in len / 8 * 8..len {
        // SAFETY: the elements behind the last whole byte, for which the mask has one more.
        unsafe {
            let byte = *mask.get().offset((at / 8) as isize * stride);
            let value = input.get().add(at).read();
            output.get().add(at).write(if byte & (1 << (at % 8)) != 0 { value } else { T::default() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::with_threads;

    #[test]
    fn what_is_packed_is_kept() {
        for len in [0, 1, 7, 8, 9, 1000, 300_001] {
            let values: Vec<f32> = (0..len).map(|i| ((i * 7919) % 1013) as f32 - 500.0).collect();
            let expected: Vec<f32> = values.iter().map(|&x| if x > 0.0 { x } else { 0.0 }).collect();
            for n_threads in [1, 2, 7] {
                with_threads(n_threads, || {
                    let mut mask = vec![0xff; mask_len(len)];
                    let mut kept = values.clone();
                    // SAFETY: the vectors have these lengths, and the output is the input.
                    unsafe {
                        pack(len, values.as_ptr(), mask.as_mut_ptr(), |x| x > 0.0);
                        let mask = Src { ptr: mask.as_ptr(), strides: &[1] };
                        keep(len, mask, kept.as_ptr(), kept.as_mut_ptr());
                    }
                    assert_eq!(kept, expected);
                    let ones: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
                    assert_eq!(ones as usize, expected.iter().filter(|&&x| x > 0.0).count());
                });
            }
        }
    }
}
