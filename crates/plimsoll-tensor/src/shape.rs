//! Shapes and axes: how many elements there are in each direction.
//!
//! A shape is a small value without heap memory, because every op makes one. The rank is therefore bounded by
//! [`MAX_RANK`]; more is a clear error.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, RangeFull};

use crate::error::{Error, Result};

/// The most dimensions that a tensor can have.
pub const MAX_RANK: usize = 8;

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
    pub fn new(dims: &[usize]) -> Result<Shape> {
        if dims.len() > MAX_RANK {
            return Err(Error::argument(
                "shape",
                format!("{dims:?} has {} dimensions; at most {MAX_RANK} are possible", dims.len()),
            ));
        }
        let counted = dims.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim.max(1)));
        if counted.is_none_or(|n| n > isize::MAX as usize / 8) {
            return Err(Error::argument("shape", format!("{dims:?} has more elements than can be counted")));
        }
        Ok(Shape::from_checked(dims.iter().copied()))
    }

    /// A shape from extents that are known to be in bounds, such as a permutation of another shape's.
    pub(crate) fn from_checked(dims: impl IntoIterator<Item = usize>) -> Shape {
        let mut shape = Shape::SCALAR;
        for dim in dims {
            shape.dims[shape.rank as usize] = dim;
            shape.rank += 1;
        }
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

    /// This shape with dimension `axis` of extent `dim`.
    pub fn with_dim(mut self, axis: usize, dim: usize) -> Shape {
        debug_assert!(axis < self.rank());
        self.dims[axis] = dim;
        self
    }

    /// This shape without the dimensions in `axes`, or with extent one there if they are kept.
    pub fn reduced(&self, axes: Axes, keep: bool) -> Shape {
        let kept = self.dims().iter().enumerate().filter_map(|(axis, &dim)| match axes.contains(axis) {
            true => keep.then_some(1),
            false => Some(dim),
        });
        Shape::from_checked(kept)
    }

    /// The shape that numpy's broadcasting gives two operands, if they agree.
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
        Some(shape)
    }

    /// The axis that a possibly negative number names.
    ///
    /// # Errors
    /// There is no such axis.
    pub fn axis(&self, op: &'static str, axis: isize) -> Result<usize> {
        let rank = self.rank() as isize;
        if (-rank..rank).contains(&axis) {
            return Ok(axis.rem_euclid(rank) as usize);
        }
        Err(Error::argument(
            op,
            match rank {
                0 => format!("axis {axis} of a scalar; a scalar has no axes"),
                _ => format!("axis {axis} of shape {self}; axes go from {} to {}", -rank, rank - 1),
            },
        ))
    }
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

/// A set of axes of one shape.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Axes(u8);

impl Axes {
    /// No axis.
    pub const NONE: Axes = Axes(0);

    /// All axes of a shape of that rank.
    pub fn all(rank: usize) -> Axes {
        Axes(((1u16 << rank) - 1) as u8)
    }

    /// A set from axes that are known to be in bounds.
    pub fn of(axes: impl IntoIterator<Item = usize>) -> Axes {
        Axes(axes.into_iter().fold(0, |set, axis| set | 1 << axis))
    }

    /// Whether `axis` is in the set.
    pub fn contains(self, axis: usize) -> bool {
        self.0 >> axis & 1 == 1
    }

    /// The axes in rising order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_RANK).filter(move |&axis| self.contains(axis))
    }

    /// The number of axes.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Debug for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// What can be given as axes: `..` for all, one number, an array or slice of numbers; negative ones count from
/// the end.
pub trait IntoAxes {
    /// The set of axes of `shape`.
    ///
    /// # Errors
    /// An axis that the shape does not have, or one that is named twice.
    fn into_axes(self, op: &'static str, shape: &Shape) -> Result<Axes>;
}

impl IntoAxes for RangeFull {
    fn into_axes(self, _op: &'static str, shape: &Shape) -> Result<Axes> {
        Ok(Axes::all(shape.rank()))
    }
}

impl IntoAxes for isize {
    fn into_axes(self, op: &'static str, shape: &Shape) -> Result<Axes> {
        Ok(Axes::of([shape.axis(op, self)?]))
    }
}

impl IntoAxes for &[isize] {
    fn into_axes(self, op: &'static str, shape: &Shape) -> Result<Axes> {
        let mut set = Axes::NONE;
        for &axis in self {
            let axis = shape.axis(op, axis)?;
            if set.contains(axis) {
                return Err(Error::argument(op, format!("axis {axis} is named twice in {self:?}")));
            }
            set.0 |= 1 << axis;
        }
        Ok(set)
    }
}

impl<const N: usize> IntoAxes for [isize; N] {
    fn into_axes(self, op: &'static str, shape: &Shape) -> Result<Axes> {
        self.as_slice().into_axes(op, shape)
    }
}

impl IntoAxes for Axes {
    fn into_axes(self, _op: &'static str, _shape: &Shape) -> Result<Axes> {
        Ok(self)
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
    }

    #[test]
    fn axes_count_from_both_ends() {
        let shape = shape([2, 3, 4]);
        assert_eq!((-1).into_axes("sum", &shape).unwrap(), Axes::of([2]));
        assert_eq!([0, -1].into_axes("sum", &shape).unwrap(), Axes::of([0, 2]));
        assert_eq!((..).into_axes("sum", &shape).unwrap().len(), 3);
        assert!([1, -2].into_axes("sum", &shape).unwrap_err().to_string().contains("twice"));
        assert!(3.into_axes("sum", &shape).unwrap_err().to_string().contains("-3 to 2"));
    }

    #[test]
    fn reduced_shapes_keep_or_lose_their_axes() {
        let shape = shape([2, 3, 4]);
        assert_eq!(shape.reduced(Axes::of([1]), false).dims(), [2, 4]);
        assert_eq!(shape.reduced(Axes::of([0, 2]), true).dims(), [1, 3, 1]);
    }
}
