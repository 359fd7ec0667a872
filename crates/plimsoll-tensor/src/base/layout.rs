//! Layouts: which element of the storage an index means.
//!
//! A view is a new layout over the same storage; transposing, slicing and broadcasting copy nothing. Strides
//! count elements, may be zero (broadcast) or negative (flipped).
//!
//! A layout knows nothing of the storage that it will be used with: `execute` asks [`Layout::lies_within`] before a view
//! exists. What derives one layout from another is for this crate alone, whose ops have checked axes and places; an op of
//! one's own states a view by [`Layout::new`].

use crate::base::axes::{Axes, Integer};
use crate::base::error::{Error, Result};
use crate::base::shape::{MAX_ELEMS, MAX_RANK, Shape};

/// Shape, strides and offset of a view, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    shape: Shape,
    strides: [isize; MAX_RANK],
    offset: usize,
}

impl Layout {
    /// The row-major layout of a fresh block.
    #[inline]
    pub fn contiguous(shape: Shape) -> Layout {
        Layout { shape, strides: row_major(&shape), offset: 0 }
    }

    /// A layout from its parts.
    ///
    /// # Errors
    /// Another number of strides than dimensions.
    pub fn new(shape: Shape, strides: &[isize], offset: usize) -> Result<Layout> {
        if strides.len() != shape.rank() {
            let detail =
                format!("{} strides for shape {shape}; there must be one per dimension", strides.len());
            return Err(Error::argument("layout", detail));
        }
        Ok(Layout::from_parts(shape, strides, offset))
    }

    /// A layout from its parts; `strides` has one entry per dimension.
    pub(crate) fn from_parts(shape: Shape, strides: &[isize], offset: usize) -> Layout {
        let mut all = [0; MAX_RANK];
        all[..strides.len()].copy_from_slice(strides);
        Layout { shape, strides: all, offset }
    }

    /// The shape.
    #[inline]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The strides, one per dimension.
    #[inline]
    pub fn strides(&self) -> &[isize] {
        &self.strides[..self.shape.rank()]
    }

    /// The element of the storage where the view begins.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The number of elements of the view.
    #[inline]
    pub fn n_elems(&self) -> usize {
        self.shape.n_elems()
    }

    /// Whether the elements lie one after the other in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&dim, &stride) in self.shape.iter().zip(self.strides()).rev() {
            if dim != 1 && stride != expected {
                return self.n_elems() == 0;
            }
            expected *= dim as isize;
        }
        true
    }

    /// Whether every element of the view is one of a storage's `n_elems`. A view without elements begins in it or at its
    /// end, and no stride is longer than a storage can be, so that whoever computes with them need not check.
    pub(crate) fn lies_within(&self, n_elems: usize) -> bool {
        let (mut first, mut last) = (self.offset as i128, self.offset as i128);
        for (&dim, &stride) in self.shape.iter().zip(self.strides()) {
            if stride.unsigned_abs() > MAX_ELEMS {
                return false;
            }
            // Extents and strides are below 2^49, so that the products fit; those of eight axes do, too.
            let reach = (dim as i128 - 1).max(0) * stride as i128;
            if reach < 0 { first += reach } else { last += reach }
        }
        match self.n_elems() {
            0 => self.offset <= n_elems,
            _ => first >= 0 && last < n_elems as i128,
        }
    }

    /// Whether the view is the whole of a storage of `n_elems` elements, in order.
    pub fn covers(&self, n_elems: usize) -> bool {
        self.offset == 0 && self.n_elems() == n_elems && self.is_contiguous()
    }

    /// The view with its dimensions in the order of `axes`, a permutation.
    pub(crate) fn permuted(&self, axes: &[usize]) -> Layout {
        let shape = Shape::within_bounds(axes.iter().map(|&axis| self.shape[axis]));
        let mut strides = [0; MAX_RANK];
        for (stride, &axis) in strides.iter_mut().zip(axes) {
            *stride = self.strides[axis];
        }
        Layout { shape, strides, offset: self.offset }
    }

    /// Every `step`-th element of `axis` from `start` on, `len` of them.
    pub(crate) fn narrowed(&self, axis: usize, start: usize, step: isize, len: usize) -> Layout {
        let mut view = *self;
        let others = self.shape.iter().enumerate().map(|(other, &dim)| if other == axis { len } else { dim });
        view.shape = Shape::within_bounds(others);
        // A view without elements stays where it is, so that it never points beyond its storage.
        if view.n_elems() > 0 {
            view.offset = (self.offset as isize + start as isize * self.strides[axis]) as usize;
        }
        // A step that is never made may be of any length.
        if len > 1 {
            view.strides[axis] *= step;
        }
        view
    }

    /// The elements whose places along two dimensions are equal; they become the last dimension.
    pub(crate) fn diagonal(&self, first: usize, second: usize) -> Layout {
        let others: smallvec::SmallVec<[usize; MAX_RANK]> =
            (0..self.shape.rank()).filter(|&axis| axis != first && axis != second).collect();
        let mut view = self.permuted(&others);
        let len = self.shape[first].min(self.shape[second]);
        view.strides[others.len()] = self.strides[first] + self.strides[second];
        view.shape = Shape::within_bounds(view.shape.iter().copied().chain([len]));
        view
    }

    /// The view with a dimension of extent one put in before `axis`.
    pub(crate) fn unsqueezed(&self, axis: usize) -> Layout {
        let mut dims: smallvec::SmallVec<[usize; MAX_RANK]> = self.shape.iter().copied().collect();
        let mut strides: smallvec::SmallVec<[isize; MAX_RANK]> = self.strides().into();
        dims.insert(axis, 1);
        strides.insert(axis, 0);
        Layout::from_parts(Shape::within_bounds(dims), &strides, self.offset)
    }

    /// The view repeated to `shape` by strides of zero, if the shapes agree.
    pub fn broadcast_to(&self, shape: &Shape) -> Option<Layout> {
        let extra = shape.rank().checked_sub(self.shape.rank())?;
        let mut strides = [0; MAX_RANK];
        for (axis, (&dim, &stride)) in self.shape.iter().zip(self.strides()).enumerate() {
            let wanted = shape[extra + axis];
            if dim == wanted {
                strides[extra + axis] = stride;
            } else if dim != 1 {
                return None;
            }
        }
        Some(Layout { shape: *shape, strides, offset: self.offset })
    }

    /// The same elements in the same order under another shape, if that needs no copy.
    pub(crate) fn reshaped(&self, shape: Shape) -> Option<Layout> {
        if self.n_elems() != shape.n_elems() {
            return None;
        }
        if self.is_contiguous() {
            return Some(Layout { shape, strides: row_major(&shape), offset: self.offset });
        }
        let mut strides = [0isize; MAX_RANK];
        let (old, new) = (self.shape.dims(), shape.dims());
        let (mut at_old, mut at_new) = (0, 0);
        while at_old < old.len() && at_new < new.len() {
            let (from_old, from_new) = (at_old, at_new);
            let (mut n_old, mut n_new) = (old[at_old], new[at_new]);
            while n_old != n_new {
                if n_old < n_new {
                    at_old += 1;
                    n_old *= old[at_old];
                } else {
                    at_new += 1;
                    n_new *= new[at_new];
                }
            }
            let mut stride = self.group_stride(from_old, at_old)?;
            for axis in (from_new..=at_new).rev() {
                strides[axis] = stride;
                stride *= new[axis] as isize;
            }
            at_old += 1;
            at_new += 1;
        }
        Some(Layout { shape, strides, offset: self.offset })
    }

    /// The stride of the innermost of the dimensions `from..=to`, if they lie one after the other.
    fn group_stride(&self, from: usize, to: usize) -> Option<isize> {
        let mut stride = None;
        let mut expected = 0;
        for axis in (from..=to).rev().filter(|&axis| self.shape[axis] != 1) {
            match stride {
                None => stride = Some(self.strides[axis]),
                Some(_) if self.strides[axis] != expected => return None,
                Some(_) => {}
            }
            expected = self.strides[axis] * self.shape[axis] as isize;
        }
        Some(stride.unwrap_or(0))
    }
}

/// The strides of a row-major block.
#[inline]
fn row_major(shape: &Shape) -> [isize; MAX_RANK] {
    let mut strides = [0; MAX_RANK];
    let mut stride = 1;
    for axis in (0..shape.rank()).rev() {
        strides[axis] = stride;
        stride *= shape[axis].max(1) as isize;
    }
    strides
}

/// The permutation that a user's possibly negative axes name.
///
/// # Errors
/// The axes are not a permutation of the shape's.
pub(crate) fn permutation(
    op: &'static str,
    shape: &Shape,
    axes: impl IntoIterator<Item = impl Integer>,
) -> Result<Vec<usize>> {
    let axes: Vec<i128> = axes.into_iter().map(Integer::to_i128).collect();
    let named: Vec<usize> = axes.iter().map(|axis| shape.axis(op, axis)).collect::<Result<_>>()?;
    let distinct = Axes::of(named.iter().copied());
    if named.len() != shape.rank() || distinct.len() != named.len() {
        return Err(Error::argument(op, format!("{axes:?} is not an order of the axes of shape {shape}")));
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::shape::IntoShape;

    fn layout<const N: usize>(dims: [usize; N]) -> Layout {
        Layout::contiguous(dims.into_shape().unwrap())
    }

    fn shape<const N: usize>(dims: [usize; N]) -> Shape {
        dims.into_shape().unwrap()
    }

    #[test]
    fn views_share_their_elements() {
        let base = layout([2, 3, 4]);
        assert_eq!(base.strides(), [12, 4, 1]);
        let turned = base.permuted(&[2, 0, 1]);
        assert_eq!((turned.shape().dims(), turned.strides()), ([4, 2, 3].as_slice(), [1, 12, 4].as_slice()));
        assert!(!turned.is_contiguous());
        let part = base.narrowed(1, 1, 1, 2);
        assert_eq!((part.offset(), part.shape().dims()), (4, [2, 2, 4].as_slice()));
        let flipped = base.narrowed(2, 3, -1, 4);
        assert_eq!((flipped.offset(), flipped.strides()), (3, [12, 4, -1].as_slice()));
    }

    #[test]
    fn a_view_is_held_against_its_storage() {
        let within = |dims: &[usize], strides: &[isize], offset, n_elems| {
            Layout::new(Shape::new(dims).unwrap(), strides, offset).unwrap().lies_within(n_elems)
        };
        assert!(layout([2, 3]).lies_within(6) && !layout([2, 3]).lies_within(5));
        assert!(within(&[3], &[-2], 4, 5) && !within(&[3], &[-2], 3, 5) && !within(&[3], &[2], 1, 5));
        assert!(within(&[1 << 40], &[0], 0, 1) && !within(&[1 << 40], &[0], 1, 1));
        // 2^32 steps of 2^32 elements come back to the beginning modulo 2^64.
        assert!(!within(&[(1 << 32) + 1], &[1 << 32], 0, 5) && !within(&[2], &[isize::MIN], 0, 5));
        assert!(!within(&[1], &[isize::MAX], 0, 5) && !within(&[1], &[1], usize::MAX, 5));
        assert!(within(&[0, 9], &[7, 7], 5, 5) && !within(&[0], &[1], 6, 5) && within(&[0], &[1], 0, 0));
        assert!(Layout::new(Shape::SCALAR, &[1], 0).is_err());
    }

    #[test]
    fn reshaping_copies_nothing_where_it_can() {
        let base = layout([2, 3, 4]);
        assert_eq!(base.reshaped(shape([6, 4])).unwrap().strides(), [4, 1]);
        let turned = base.permuted(&[1, 0, 2]);
        assert!(turned.reshaped(shape([6, 4])).is_none());
        assert_eq!(turned.reshaped(shape([3, 2, 2, 2])).unwrap().strides(), [4, 12, 2, 1]);
        let row = layout([1, 4]).broadcast_to(&shape([3, 4])).unwrap();
        assert!(row.reshaped(shape([12])).is_none());
        assert_eq!(row.reshaped(shape([3, 2, 2])).unwrap().strides(), [0, 2, 1]);
    }

    #[test]
    fn ones_and_zeros_do_not_spoil_contiguity() {
        let column = layout([5, 1]).permuted(&[1, 0]);
        assert!(column.is_contiguous());
        assert!(layout([0, 3]).permuted(&[1, 0]).is_contiguous());
        assert!(layout([4]).covers(4) && !layout([4]).narrowed(0, 1, 1, 3).covers(4));
        assert!(layout([2, 0]).reshaped(shape([0, 7])).is_some());
        assert!(layout([0, 3, 4]).permuted(&[2, 1, 0]).reshaped(shape([6, 0])).is_some());
    }
}
