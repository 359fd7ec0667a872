//! Shapes: how many elements there are in each direction.
//!
//! A shape is a small value without heap memory, because every op makes one. The rank is therefore bounded by
//! [`MAX_RANK`]; more is a clear error.
//!
//! Kernels trust shapes with memory, so this module owns one promise: the extents of a shape, zeros counted as ones,
//! multiply to at most [`MAX_ELEMS`]. All constructors go through one check, also those for extents that are known to be
//! in bounds: there it is an assertion, and a mistake of ours ends in a panic instead of in somebody's memory.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use crate::base::axes::Axes;
use crate::base::error::{Error, Result};

/// The most dimensions that a tensor can have.
pub const MAX_RANK: usize = 8;

/// The most elements that a tensor can have: no processor of today addresses as many bytes. The bound leaves 15 bits
/// below `isize::MAX`, so that bytes, strides, and formulas that are linear in the elements of a tensor cannot overflow.
pub const MAX_ELEMS: usize = 1 << 48;

/// The extent of each dimension.
#[derive(Clone, Copy, Eq)]
pub struct Shape {
    dims: [usize; MAX_RANK],
    rank: u8,
}

impl Shape {
    /// The shape of a single number.
    pub const SCALAR: Shape = Shape { dims: [0; MAX_RANK], rank: 0 };

    /// A shape from extents.
    ///
    /// # Errors
    /// More than [`MAX_RANK`] dimensions, or more elements than can be counted.
    #[inline]
    pub fn new(dims: &[usize]) -> Result<Shape> {
        match Shape::checked(dims) {
            Some(shape) => Ok(shape),
            None => Err(refused(dims)),
        }
    }

    /// The one constructor: a shape, unless it has too many dimensions or elements.
    #[inline]
    fn checked(dims: &[usize]) -> Option<Shape> {
        let mut shape = Shape { dims: [0; MAX_RANK], rank: dims.len() as u8 };
        shape.dims.get_mut(..dims.len())?.copy_from_slice(dims);
        shape.is_counted().then_some(shape)
    }

    /// Whether the elements can be counted. Zeros count as ones, so that a part of the axes can be counted, too.
    #[inline]
    fn is_counted(&self) -> bool {
        let mut n_elems = 1usize;
        for &dim in self.dims() {
            match n_elems.checked_mul(dim.max(1)) {
                Some(product) if product <= MAX_ELEMS => n_elems = product,
                _ => return false,
            }
        }
        true
    }

    /// A shape from extents that are known to be in bounds, such as a permutation or a part of another shape's.
    ///
    /// # Panics
    /// They are not.
    #[inline]
    pub(crate) fn within_bounds(dims: impl IntoIterator<Item = usize>) -> Shape {
        let mut shape = Shape::SCALAR;
        for dim in dims {
            shape.dims[shape.rank as usize] = dim;
            shape.rank += 1;
        }
        assert!(shape.is_counted(), "{shape} has more elements than can be counted");
        shape
    }

    /// The extents.
    #[inline]
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }

    /// The number of dimensions.
    #[inline]
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// The number of elements.
    #[inline]
    pub fn n_elems(&self) -> usize {
        self.dims().iter().product()
    }

    /// The place of element number `flat` in row-major order.
    pub(crate) fn place(&self, flat: usize) -> Vec<usize> {
        let mut rest = flat;
        let mut place = vec![0; self.rank()];
        for (at, &extent) in place.iter_mut().zip(self.iter()).rev() {
            *at = rest % extent;
            rest /= extent;
        }
        place
    }

    /// This shape with dimension `axis` of extent `dim`.
    ///
    /// # Errors
    /// There is no such dimension, or the shape would have more elements than can be counted.
    #[inline]
    pub fn with_dim(mut self, axis: usize, dim: usize) -> Result<Shape> {
        let rank = self.rank();
        if axis >= rank {
            return Err(Error::argument(
                "shape",
                format!("{self} has {rank} dimensions, and none of number {axis}"),
            ));
        }
        self.dims[axis] = dim;
        if self.is_counted() { Ok(self) } else { Err(refused(&self)) }
    }

    /// This shape, at most `dim` long along `axis`; no check is needed, because it does not grow.
    pub fn at_most(mut self, axis: usize, dim: usize) -> Shape {
        let rank = self.rank();
        if let Some(extent) = self.dims[..rank].get_mut(axis) {
            *extent = dim.min(*extent);
        }
        self
    }

    /// These extents, and `dims` after them.
    ///
    /// # Errors
    /// As for [`Shape::new`].
    #[inline]
    pub(crate) fn followed_by(&self, dims: &[usize]) -> Result<Shape> {
        let mut all = [0; 2 * MAX_RANK];
        let n = self.rank() + dims.len();
        let (own, rest) = all.split_at_mut(self.rank());
        own.copy_from_slice(self);
        match rest.get_mut(..dims.len()) {
            Some(rest) => rest.copy_from_slice(dims),
            None => return Err(refused(dims)),
        }
        Shape::new(&all[..n])
    }

    /// The first `n` extents.
    #[inline]
    pub(crate) fn leading(&self, n: usize) -> Shape {
        Shape::within_bounds(self.iter().copied().take(n))
    }

    /// This shape without the dimensions in `axes`, or with extent one there if they are kept.
    pub fn reduced(&self, axes: Axes, keep: bool) -> Shape {
        let kept = self.dims().iter().enumerate().filter_map(|(axis, &dim)| match axes.contains(axis) {
            true => keep.then_some(1),
            false => Some(dim),
        });
        Shape::within_bounds(kept)
    }

    /// The shape that numpy's broadcasting gives two operands, if they agree and its elements can be counted.
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        if self == other {
            return Some(*self);
        }
        let rank = self.rank().max(other.rank());
        let mut shape = Shape { dims: [1; MAX_RANK], rank: rank as u8 };
        for back in 1..=rank {
            let lhs = if back <= self.rank() { self[self.rank() - back] } else { 1 };
            let rhs = if back <= other.rank() { other[other.rank() - back] } else { 1 };
            shape.dims[rank - back] = match (lhs, rhs) {
                (1, dim) | (dim, 1) => dim,
                (lhs, rhs) if lhs == rhs => lhs,
                _ => return None,
            };
        }
        shape.dims[rank..].fill(0);
        shape.is_counted().then_some(shape)
    }
}

/// What is said of extents that are no shape.
#[cold]
pub(crate) fn refused(dims: &[usize]) -> Error {
    let detail = match dims.len() {
        rank if rank > MAX_RANK => format!("{dims:?} has {rank} dimensions; at most {MAX_RANK} are possible"),
        _ => format!("{dims:?} has more elements than can be counted; at most {MAX_ELEMS} are possible"),
    };
    Error::argument("shape", detail)
}

impl Hash for Shape {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.dims().hash(state);
    }
}

impl PartialEq for Shape {
    // Written out because shapes are short: a loop over a few extents beats a call that compares all eight.
    #[inline]
    fn eq(&self, other: &Shape) -> bool {
        self.rank == other.rank && self.iter().zip(other.iter()).all(|(a, b)| a == b)
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        self.dims()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

/// What can be given as a shape: `[2, 3]`, a slice, a `Vec`, a single extent, `()` for a scalar, a [`Shape`].
pub trait IntoShape {
    /// The shape.
    ///
    /// # Errors
    /// More than [`MAX_RANK`] dimensions, or more elements than can be counted.
    fn into_shape(self) -> Result<Shape>;
}

impl IntoShape for Shape {
    fn into_shape(self) -> Result<Shape> {
        Ok(self)
    }
}

impl IntoShape for &Shape {
    fn into_shape(self) -> Result<Shape> {
        Ok(*self)
    }
}

impl IntoShape for () {
    fn into_shape(self) -> Result<Shape> {
        Ok(Shape::SCALAR)
    }
}

impl IntoShape for usize {
    fn into_shape(self) -> Result<Shape> {
        Shape::new(&[self])
    }
}

impl<const N: usize> IntoShape for [usize; N] {
    fn into_shape(self) -> Result<Shape> {
        Shape::new(&self)
    }
}

impl<const N: usize> IntoShape for &[usize; N] {
    fn into_shape(self) -> Result<Shape> {
        Shape::new(self)
    }
}

impl IntoShape for &[usize] {
    fn into_shape(self) -> Result<Shape> {
        Shape::new(self)
    }
}

impl IntoShape for Vec<usize> {
    fn into_shape(self) -> Result<Shape> {
        Shape::new(&self)
    }
}

impl IntoShape for &Vec<usize> {
    fn into_shape(self) -> Result<Shape> {
        Shape::new(self)
    }
}

/// What can be given for one extent along each of `N` axes, outermost first: `2` for all of them, or `[2, 3]`.
pub trait IntoExtents<const N: usize> {
    /// The extents.
    fn into_extents(self) -> [usize; N];
}

impl<const N: usize> IntoExtents<N> for usize {
    fn into_extents(self) -> [usize; N] {
        [self; N]
    }
}

impl<const N: usize> IntoExtents<N> for [usize; N] {
    fn into_extents(self) -> [usize; N] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape<const N: usize>(dims: [usize; N]) -> Shape {
        dims.into_shape().unwrap()
    }

    #[test]
    fn broadcasting_is_numpys() {
        assert_eq!(shape([3, 1]).broadcast(&shape([4])), Some(shape([3, 4])));
        assert_eq!(shape([2, 1, 5]).broadcast(&shape([3, 1])), Some(shape([2, 3, 5])));
        assert_eq!(Shape::SCALAR.broadcast(&shape([0, 2])), Some(shape([0, 2])));
        assert_eq!(shape([3]).broadcast(&shape([4])), None);
        assert_eq!(shape([0]).broadcast(&shape([1])), Some(shape([0])));
    }

    #[test]
    fn a_rank_or_size_out_of_bounds_is_an_error() {
        assert!([1; 9].into_shape().unwrap_err().to_string().contains("at most 8"));
        assert!([usize::MAX, 2].into_shape().is_err());
        assert!([1 << 40, 1 << 40].into_shape().is_err());
        assert!(([1 << 48].into_shape().is_ok(), [(1 << 48) + 1].into_shape().is_ok()) == (true, false));
        // Their product is 1 modulo 2^64, and that of the others 0.
        assert!([67_280_421_310_721, 274_177].into_shape().unwrap_err().to_string().contains("counted"));
        assert!([1 << 32, 1 << 32, 0].into_shape().is_err());
    }

    #[test]
    fn no_way_to_a_shape_goes_past_the_count() {
        let (tall, wide) = (shape([67_280_421_310_721, 1]), shape([1, 274_177]));
        assert_eq!(tall.broadcast(&wide), None);
        assert!(
            tall.with_dim(1, 274_177).is_err()
                && tall.with_dim(2, 1).is_err()
                && tall.with_dim(9, 1).is_err()
        );
        assert_eq!(tall.with_dim(0, 5).unwrap().dims(), [5, 1]);
        assert_eq!(
            (tall.at_most(0, 5).dims(), tall.at_most(1, 9), tall.at_most(9, 0)),
            (&[5, 1][..], tall, tall)
        );
        assert!(std::panic::catch_unwind(|| Shape::within_bounds([1 << 40, 1 << 40])).is_err());
    }

    #[test]
    fn reduced_shapes_keep_or_lose_their_axes() {
        let shape = shape([2, 3, 4]);
        assert_eq!(shape.reduced(Axes::of([1]), false).dims(), [2, 4]);
        assert_eq!(shape.reduced(Axes::of([0, 2]), true).dims(), [1, 3, 1]);
    }
}
