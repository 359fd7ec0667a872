//! Copies between strided operands: the same bits elsewhere, another dtype, or one value everywhere.
//!
//! Contiguous memory is copied as it is; transposed operands are walked in blocks. Copies of one type move bits, so a
//! NaN keeps its payload; there is one compiled copy per element size, not per type.

use std::any::TypeId;

use crate::element::{CastTo, Element};
use crate::map::{Dst, Operand, Src, map1};

/// Copies every element of `shape`.
///
/// # Safety
/// For every index of `shape` the element of `input` is valid for reads and that of `output` for writes, and they do not
/// overlap.
pub unsafe fn copy<T: Element>(shape: &[usize], output: Dst<'_, T>, input: Src<'_, T>) {
    /// # Safety
    /// That of `copy`; both types have the same size, and every bit pattern is a value of `Bits`.
    unsafe fn as_bits<T: Element, Bits: Element<Compute = Bits>>(
        shape: &[usize],
        output: Dst<'_, T>,
        input: Src<'_, T>,
    ) {
        let output = Operand::new(output.ptr.cast::<Bits>(), output.strides);
        let input = Operand::new(input.ptr.cast::<Bits>(), input.strides);
        // SAFETY: the caller's promise.
        unsafe { map1(shape, output, input, |x: &[Bits], y: &mut [Bits]| y.copy_from_slice(x)) };
    }
    // SAFETY: the caller's promise; the size of the bits is that of the element.
    unsafe {
        match size_of::<T>() {
            1 => as_bits::<T, u8>(shape, output, input),
            2 => as_bits::<T, u16>(shape, output, input),
            4 => as_bits::<T, i32>(shape, output, input),
            _ => as_bits::<T, i64>(shape, output, input),
        }
    }
}

/// Copies every element of `shape`, converted as [`CastTo`] says.
///
/// # Safety
/// As for [`copy`].
pub unsafe fn cast<I, O>(shape: &[usize], output: Dst<'_, O>, input: Src<'_, I>)
where
    I: Element<Compute: CastTo<O::Compute>>,
    O: Element,
{
    if TypeId::of::<I>() == TypeId::of::<O>() {
        let input = Src { ptr: input.ptr.cast::<O>(), strides: input.strides };
        // SAFETY: the caller's promise; the two types are one.
        return unsafe { copy(shape, output, input) };
    }
    // SAFETY: the caller's promise.
    unsafe {
        map1(
            shape,
            output.into(),
            input.into(),
            #[inline(always)]
            |x: &[I::Compute], y: &mut [O::Compute]| {
                for (y, x) in y.iter_mut().zip(x) {
                    *y = x.cast();
                }
            },
        );
    }
}

/// Writes one value to every element of `shape`.
///
/// # Safety
/// For every index of `shape` the element of `output` is valid for writes.
pub unsafe fn fill<T: Element>(shape: &[usize], output: Dst<'_, T>, value: T) {
    let strides = [0; crate::map::MAX_RANK];
    // SAFETY: the caller's promise; the value is read at every index.
    unsafe { copy(shape, output, Src { ptr: &value, strides: &strides[..shape.len()] }) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn copies_transpose_and_keep_bits() {
        let input: Vec<f16> = (0..70 * 45u16).map(|i| f16::from_bits(i.wrapping_mul(2521))).collect();
        let mut output = vec![f16::ZERO; input.len()];
        // SAFETY: both strides cover the shape inside their slices.
        unsafe {
            let dst = Dst { ptr: output.as_mut_ptr(), strides: &[70, 1] };
            copy(&[45, 70], dst, Src { ptr: input.as_ptr(), strides: &[1, 45] });
        }
        for (i, y) in output.iter().enumerate() {
            assert_eq!(y.to_bits(), input[i % 70 * 45 + i / 70].to_bits());
        }
    }

    /// Casts three numbers that every dtype but bool can hold, and compares.
    fn check<I: Element<Compute: CastTo<O::Compute>>, O: Element>(input: [I; 3], expected: [O; 3]) {
        let mut output = [O::default(); 3];
        // SAFETY: both arrays have three elements.
        unsafe {
            let dst = Dst { ptr: output.as_mut_ptr(), strides: &[1] };
            cast(&[3], dst, Src { ptr: input.as_ptr(), strides: &[1] });
        }
        assert_eq!(output, expected);
    }

    #[test]
    fn casts_go_between_any_two_types() {
        let halves = [0.0f32, 1.0, 200.0].map(f16::from_f32);
        let brains = [0.0f32, 1.0, 200.0].map(bf16::from_f32);
        let truths = [false, true, true];
        /// Checks a type against each other one, both ways.
        macro_rules! check_all {
            ($($values:expr),*) => {$(
                check($values, [0.0f64, 1.0, 200.0]);
                check($values, [0.0f32, 1.0, 200.0]);
                check($values, halves);
                check($values, brains);
                check($values, [0i64, 1, 200]);
                check($values, [0i32, 1, 200]);
                check($values, [0u8, 1, 200]);
                check($values, truths);
            )*};
        }
        check_all!(
            [0.0f64, 1.0, 200.0],
            [0.0f32, 1.0, 200.0],
            halves,
            brains,
            [0i64, 1, 200],
            [0i32, 1, 200],
            [0u8, 1, 200]
        );
        check(truths, [0.0f64, 1.0, 1.0]);
        check(truths, [0i32, 1, 1]);
        check(truths, [0.0f32, 1.0, 1.0].map(bf16::from_f32));
        check(truths, truths);
    }

    #[test]
    fn fill_follows_strides() {
        let mut memory = vec![0u8; 60];
        // SAFETY: ten rows of three, six apart, inside the vector.
        unsafe { fill(&[10, 3], Dst { ptr: memory.as_mut_ptr(), strides: &[6, 2] }, 7) };
        assert!(memory.iter().enumerate().all(|(i, &x)| x == if i % 2 == 0 { 7 } else { 0 }));
    }
}
