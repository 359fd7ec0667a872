//! Reductions whose elements are made where they are read, instead of lying in memory.
//!
//! They are walked as if they lay there row-major, so leaves and tree are the same and so are the bits. A leaf at a time is
//! made in room on the stack. Every element is made exactly once, so what makes them may keep some of them, too.

use std::ops::Range;

use super::{Fold, Plan, Reduction, Traits};
use crate::map::MAX_RANK;
use crate::operand::{Format, Operand};
use crate::tile::Tile;

/// Room for the elements of a leaf, or for a part of its columns.
const MADE_BYTES: usize = 64 * 1024;

/// What makes elements.
pub trait Source: Sync {
    /// Writes elements to `to`, one stretch after the other.
    ///
    /// # Safety
    /// The stretches lie inside the shape that the elements belong to, and `to` is valid for writes of all of them.
    unsafe fn make(&self, stretches: Stretches, to: *mut u8);
}

/// Some stretches of elements, which are numbered in row-major order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretches {
    /// The first element of the first one.
    pub first: usize,
    /// How many there are.
    pub n: usize,
    /// From the first element of one to that of the next.
    pub step: usize,
    /// The elements of each.
    pub len: usize,
}

impl Stretches {
    /// Those that follow each other without a gap as one.
    fn joined(self) -> Stretches {
        match self.step == self.len {
            true => Stretches { n: 1, step: 0, len: self.n * self.len, ..self },
            false => self,
        }
    }
}

/// Reduces like [`reduce`](super::reduce) elements that `source` makes, to the same bits as if they lay row-major in memory.
///
/// # Safety
/// `source` makes elements of that format for every index of `shape`; they and the output compute in the types of the fold.
/// `output` is valid for writes of one element for each index along the axes that are not reduced.
pub unsafe fn reduce_made<F: Fold>(
    fold: &F,
    shape: &[usize],
    is_reduced: impl Fn(usize) -> bool,
    (source, format): (&dyn Source, Format),
    output: Operand<'_>,
) {
    let mut strides = [0; MAX_RANK];
    let mut stride = 1;
    for (axis, &extent) in shape.iter().enumerate().rev() {
        strides[axis] = stride;
        stride *= extent as isize;
    }
    let input = Operand::with_format(std::ptr::null_mut(), &strides[..shape.len()], format);
    let plan = Plan::new(shape, input.strides, &is_reduced, &Traits::of::<F>(&format));
    // SAFETY: the caller's promise.
    unsafe { Reduction { fold, plan: &plan, input, source: Some(source), output }.run() };
}

type Room = Tile<MADE_BYTES>;

impl<F: Fold> Reduction<'_, F> {
    /// Folds a leaf of an output, whose elements follow each other.
    ///
    /// # Safety
    /// The leaf belongs to the plan.
    pub(super) unsafe fn made_leaf(
        &self,
        source: &dyn Source,
        offset: isize,
        len: usize,
        first: usize,
    ) -> F::Acc {
        let mut room = Room::uninit();
        let stretch = Stretches { first: offset as usize, n: 1, step: 0, len };
        // SAFETY: a leaf is no longer than a tile, which the room has space for.
        unsafe {
            source.make(stretch, room.as_mut_ptr());
            self.row_leaf(room.as_mut_ptr(), 1, len, first)
        }
    }

    /// Folds outputs of one leaf each.
    ///
    /// # Safety
    /// The elements of the first output begin at `offset`, and there are as many outputs as accumulators.
    pub(super) unsafe fn made_leaves(&self, source: &dyn Source, offset: isize, accs: &mut [F::Acc]) {
        let (len, step) = (self.plan.inner.extent, self.plan.cols.stride as usize);
        let at_once = (MADE_BYTES / (len * self.input.format.size)).max(1);
        let mut room = Room::uninit();
        for (part, accs) in accs.chunks_mut(at_once).enumerate() {
            let first = offset as usize + part * at_once * step;
            let stretches = Stretches { first, n: accs.len(), step, len };
            // SAFETY: outputs of the plan, and the room has space for as many.
            unsafe { source.make(stretches.joined(), room.as_mut_ptr()) };
            for (col, acc) in accs.iter_mut().enumerate() {
                // SAFETY: the elements that have just been made.
                *acc = unsafe {
                    let values = room.as_mut_ptr().add(col * len * self.input.format.size);
                    self.row_leaf(values, 1, len, 0)
                };
            }
        }
    }

    /// Folds the columns of a leaf of so many rows, a part of them at a time where all are too many.
    ///
    /// # Safety
    /// The leaf belongs to the plan, and there are as many outputs as accumulators.
    pub(super) unsafe fn made_columns(
        &self,
        source: &dyn Source,
        offset: isize,
        n_rows: usize,
        first: usize,
        accs: &mut [F::Acc],
    ) {
        let at_once = (MADE_BYTES / (n_rows * self.input.format.size)).max(1);
        let n_cols = accs.len();
        for start in (0..n_cols).step_by(at_once) {
            let columns = start..n_cols.min(start + at_once);
            // SAFETY: columns of the leaf, and the room has space for as many.
            unsafe { self.made_patch(source, offset, n_rows, columns.clone(), first, &mut accs[columns]) };
        }
    }

    /// # Safety
    /// That of `made_columns`, of which these columns are a part.
    unsafe fn made_patch(
        &self,
        source: &dyn Source,
        offset: isize,
        n_rows: usize,
        columns: Range<usize>,
        first: usize,
        accs: &mut [F::Acc],
    ) {
        let (down, across) = (self.plan.inner.stride as usize, self.plan.cols.stride as usize);
        let mut room = Room::uninit();
        let begin = offset as usize + columns.start * across;
        // Elements follow each other along the columns, or else along the rows.
        let (stretches, row_stride, col_stride) = match across == 1 {
            true => {
                let stretches = Stretches { first: begin, n: n_rows, step: down, len: columns.len() };
                (stretches, columns.len() as isize, 1)
            }
            false => {
                let stretches = Stretches { first: begin, n: columns.len(), step: across, len: n_rows };
                (stretches, 1, n_rows as isize)
            }
        };
        // SAFETY: elements of the plan, for which the room has space.
        unsafe {
            source.make(stretches.joined(), room.as_mut_ptr());
            self.column_patch(room.as_mut_ptr(), n_rows, row_stride, col_stride, first, accs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ArgMax, Max, Mean, Sum, reduce};
    use super::*;
    use crate::element::Element;
    use half::bf16;
    use std::sync::Mutex;

    /// Elements of a slice, and how often each was made.
    struct Copies<'a, T> {
        values: &'a [T],
        made: Mutex<Vec<u32>>,
    }

    impl<T: Element + Sync> Source for Copies<'_, T> {
        unsafe fn make(&self, stretches: Stretches, to: *mut u8) {
            let Stretches { first, n, step, len } = stretches;
            let mut made = self.made.lock().unwrap();
            for row in 0..n {
                for at in 0..len {
                    let number = first + row * step + at;
                    made[number] += 1;
                    // SAFETY: the caller has room for all of them.
                    unsafe { to.cast::<T>().add(row * len + at).write(self.values[number]) };
                }
            }
        }
    }

    fn compare<F: Fold<In: Sync, Out: PartialEq + std::fmt::Debug>>(
        fold: &F,
        values: &[F::In],
        shape: &[usize],
        reduced: &[usize],
    ) {
        let is_reduced = |axis: usize| reduced.contains(&axis);
        let kept = (0..shape.len()).filter(|&axis| !is_reduced(axis)).map(|axis| shape[axis]);
        let n: usize = kept.product();
        let strides: Vec<isize> =
            (0..shape.len()).map(|axis| shape[axis + 1..].iter().product::<usize>() as isize).collect();
        let [mut plain, mut made] = [(); 2].map(|()| Vec::<F::Out>::with_capacity(n));
        let n_elems = shape.iter().product();
        let source = Copies { values, made: Mutex::new(vec![0; n_elems]) };
        // SAFETY: both have room for the outputs, and the strides stay inside the values.
        unsafe {
            let src = Operand::new(values.as_ptr(), &strides);
            reduce(fold, shape, is_reduced, src, Operand::new(plain.as_mut_ptr(), &[]));
            let output = Operand::new(made.as_mut_ptr(), &[]);
            reduce_made(fold, shape, is_reduced, (&source, Format::of::<F::In>()), output);
            plain.set_len(n);
            made.set_len(n);
        }
        assert_eq!(plain, made, "{shape:?} over {reduced:?}");
        assert!(source.made.lock().unwrap().iter().all(|&n| n == 1), "{shape:?} over {reduced:?}");
    }

    #[test]
    fn elements_that_are_made_are_folded_as_those_in_memory_and_made_once() {
        let floats: Vec<f32> = (0..600_000i64).map(|i| ((i * 7919 % 1009) as f32 - 500.0) * 0.37).collect();
        let doubles: Vec<f64> = floats.iter().map(|&x| f64::from(x) * 1.01).collect();
        let narrow: Vec<bf16> = floats.iter().map(|&x| bf16::from_f32(x)).collect();
        let shapes: [(&[usize], &[usize]); 14] = [
            (&[600_000], &[0]),
            (&[1000, 600], &[1]),
            (&[1000, 600], &[0]),
            (&[70, 8000], &[0]),
            (&[3, 150_000], &[1]),
            (&[50_000, 7], &[1]),
            (&[50_000, 7], &[0]),
            (&[300, 10, 9], &[1]),
            (&[300, 9, 10], &[0, 2]),
            (&[40, 9, 11, 13], &[1, 3]),
            (&[40, 9, 11, 13], &[0, 2]),
            (&[5, 3], &[]),
            (&[30, 40, 5], &[0, 1]),
            (&[1, 1], &[0]),
        ];
        for (shape, reduced) in shapes {
            compare(&Sum::<f32, f32>::new(), &floats, shape, reduced);
            compare(&Mean::<f64, f64>::new(), &doubles, shape, reduced);
            compare(&Sum::<bf16, bf16>::new(), &narrow, shape, reduced);
            compare(&Max::<f64>::new(), &doubles, shape, reduced);
            compare(&ArgMax::<f32>::new(), &floats, shape, reduced);
        }
    }
}
