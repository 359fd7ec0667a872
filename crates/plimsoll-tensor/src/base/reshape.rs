//! The shape that a tensor is given anew: extents as people write them, one of which may be left to be inferred.
//!
//! As for axes, the type of an integer does not matter, and a tuple holds integers of different types, so that
//! `x.reshape((batch, -1))` works with a `usize`. What the extents mean depends on the elements that are there; this module
//! says it, or which shapes do not fit each other.

use crate::base::axes::Integer;
use crate::base::error::{Error, Result};
use crate::base::shape::{MAX_RANK, Shape, refused};

/// What can be given as the shape of elements that exist: a [`Shape`], or extents in any integer type, as an array, a slice,
/// a `Vec`, a tuple or a single number. One of them may be `-1`: it is what the others leave.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no shape",
    label = "extents were expected, such as `[2, 3]`, `(batch, -1)`, one integer or a `Shape`"
)]
pub trait IntoReshape {
    /// The shape for the elements of a tensor of shape `from`.
    ///
    /// # Errors
    /// Another number of elements, an extent that cannot be inferred, a negative one other than `-1`; a shape out of bounds.
    fn into_reshape(self, from: &Shape) -> Result<Shape>;
}

/// The shape that extents mean for the elements of `from`.
fn reshaped<I: Integer>(dims: &[I], from: &Shape) -> Result<Shape> {
    let mut wanted = [0i128; MAX_RANK];
    let Some(wanted) = wanted.get_mut(..dims.len()) else {
        let dims: Vec<usize> = dims.iter().map(|dim| dim.to_isize().max(0) as usize).collect();
        return Err(refused(&dims));
    };
    for (to, dim) in wanted.iter_mut().zip(dims) {
        *to = dim.to_i128();
    }
    let refuse = |why: String| Err(Error::shape("reshape", format!("shape {from} to {wanted:?}: {why}")));
    let mut extents = [0usize; MAX_RANK];
    let mut inferred = None;
    for (axis, &dim) in wanted.iter().enumerate() {
        match usize::try_from(dim) {
            Ok(dim) => extents[axis] = dim,
            Err(_) if dim == -1 && inferred.is_none() => (extents[axis], inferred) = (1, Some(axis)),
            Err(_) if dim == -1 => return refuse("at most one extent can be inferred".to_owned()),
            Err(_) => return refuse(format!("{dim} is no extent; -1 stands for what the others leave")),
        }
    }
    let shape = Shape::new(&extents[..dims.len()])?;
    let (n_elems, known) = (from.n_elems(), shape.n_elems());
    match inferred {
        Some(_) if known == 0 => {
            refuse("an extent of 0 leaves every number for the one to be inferred".to_owned())
        }
        Some(axis) if n_elems % known == 0 => shape.with_dim(axis, n_elems / known),
        Some(_) => refuse(format!("{n_elems} elements are no multiple of {known}")),
        None if known == n_elems => Ok(shape),
        None => Err(unfilled(from, &shape)),
    }
}

fn unfilled(from: &Shape, shape: &Shape) -> Error {
    let (n_elems, wanted) = (from.n_elems(), shape.n_elems());
    let detail = format!("{n_elems} elements of shape {from} do not fill shape {shape}, which has {wanted}");
    Error::shape("reshape", detail)
}

impl IntoReshape for Shape {
    fn into_reshape(self, from: &Shape) -> Result<Shape> {
        if self.n_elems() == from.n_elems() { Ok(self) } else { Err(unfilled(from, &self)) }
    }
}

impl IntoReshape for &Shape {
    fn into_reshape(self, from: &Shape) -> Result<Shape> {
        (*self).into_reshape(from)
    }
}

impl IntoReshape for () {
    fn into_reshape(self, from: &Shape) -> Result<Shape> {
        Shape::SCALAR.into_reshape(from)
    }
}

impl<I: Integer> IntoReshape for &[I] {
    fn into_reshape(self, from: &Shape) -> Result<Shape> {
        reshaped(self, from)
    }
}

impl<I: Integer, const N: usize> IntoReshape for [I; N] {
    fn into_reshape(self, from: &Shape) -> Result<Shape> {
        reshaped(&self, from)
    }
}

impl<I: Integer, const N: usize> IntoReshape for &[I; N] {
    fn into_reshape(self, from: &Shape) -> Result<Shape> {
        reshaped(self, from)
    }
}

impl<I: Integer> IntoReshape for Vec<I> {
    fn into_reshape(self, from: &Shape) -> Result<Shape> {
        reshaped(&self, from)
    }
}

impl<I: Integer> IntoReshape for &Vec<I> {
    fn into_reshape(self, from: &Shape) -> Result<Shape> {
        reshaped(self, from)
    }
}

macro_rules! single_extents {
    ($($type:ty),*) => {$(
        impl IntoReshape for $type {
            fn into_reshape(self, from: &Shape) -> Result<Shape> {
                reshaped(&[self], from)
            }
        }
    )*};
}

single_extents!(i8, i16, i32, i64, isize, u8, u16, u32, u64, usize);

macro_rules! tuples_of_extents {
    ($(($($name:ident),*);)*) => {$(
        impl<$($name: Integer),*> IntoReshape for ($($name,)*) {
            #[allow(non_snake_case, reason = "each element is bound to the name of its type")]
            fn into_reshape(self, from: &Shape) -> Result<Shape> {
                let ($($name,)*) = self;
                reshaped(&[$($name.to_i128()),*], from)
            }
        }
    )*};
}

tuples_of_extents! {
    (A);
    (A, B);
    (A, B, C);
    (A, B, C, D);
    (A, B, C, D, E);
    (A, B, C, D, E, F);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(shape: impl IntoReshape) -> Result<Vec<usize>> {
        Ok(shape.into_reshape(&Shape::new(&[4, 6])?)?.to_vec())
    }

    fn refused(shape: impl IntoReshape) -> String {
        to(shape).unwrap_err().to_string()
    }

    #[test]
    fn one_extent_is_what_the_others_leave() {
        assert_eq!(to([-1, 3]).unwrap(), [8, 3]);
        assert_eq!(to(-1).unwrap(), [24]);
        assert_eq!(to((2usize, -1, 3u8)).unwrap(), [2, 4, 3]);
        assert_eq!(to(&[2i64, -1][..]).unwrap(), to(vec![2, -1]).unwrap());
        let nothing = Shape::new(&[0, 3]).unwrap();
        assert_eq!([-1, 3].into_reshape(&nothing).unwrap(), nothing);
    }

    #[test]
    fn a_refusal_names_both_shapes() {
        assert!(refused([-1, 5]).contains("shape [4, 6] to [-1, 5]: 24 elements are no multiple of 5"));
        assert!(refused([-1, -1]).contains("shape [4, 6] to [-1, -1]: at most one extent can be inferred"));
        assert!(refused([-2, 12]).contains("[-2, 12]: -2 is no extent"));
        assert!(refused([0, -1]).contains("[0, -1]: an extent of 0"));
        assert!(
            refused([5, 5]).contains("24 elements of shape [4, 6] do not fill shape [5, 5], which has 25")
        );
        assert!(refused(()).contains("do not fill shape [], which has 1"));
        assert!(refused([1; 9]).contains("at most 8") && refused((u64::MAX, -1)).contains("counted"));
    }
}
