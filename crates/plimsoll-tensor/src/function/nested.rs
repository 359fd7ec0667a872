//! `Nested`: values in an arrangement that is known when the program runs, as jax's pytrees and `tf.nest`.
//!
//! One value, a tuple, named fields, and these inside each other. What a model takes and gives, and what a batch of data
//! holds, is of this type: of tensors while it runs, of shapes while it is built. It knows nothing of its values but their
//! places; what is done to all of them is a function that [`Nested::map`] is given.

use std::convert::Infallible;
use std::fmt;

use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::tensor::Tensor;
use crate::eager::variable::Variable;
use crate::function::structure::Structure;

/// One value, a tuple of such, or named fields, nested as one likes.
///
/// ```
/// use plimsoll_tensor::{Nested, Tensor};
///
/// let (image, text) = (Tensor::zeros([2, 8, 8])?, Tensor::zeros([2, 5])?);
/// let inputs = Nested::named([("image", image), ("text", text)]);
/// assert_eq!(inputs.map(|tensor| *tensor.shape()).to_string(), "{image: [2, 8, 8], text: [2, 5]}");
/// let [image, text] = inputs.try_into()?;
/// # let _: (Tensor, Tensor) = (image, text);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nested<T> {
    /// A single value.
    One(T),
    /// Values that are known by their place.
    Tuple(Vec<Nested<T>>),
    /// Values that are known by name, in this order.
    Named(Vec<(String, Nested<T>)>),
}

impl<T> Nested<T> {
    /// Named fields: a list of names and what is called so.
    pub fn named<N: Into<String>, V: Into<Nested<T>>>(fields: impl IntoIterator<Item = (N, V)>) -> Nested<T> {
        Nested::Named(fields.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }

    /// The value, if it is a single one.
    pub fn one(&self) -> Option<&T> {
        match self {
            Nested::One(value) => Some(value),
            _ => None,
        }
    }

    /// The values in order.
    pub fn leaves(&self) -> Vec<&T> {
        let mut leaves = Vec::new();
        self.visit(&mut |leaf| leaves.push(leaf));
        leaves
    }

    /// How many values there are.
    pub fn n_leaves(&self) -> usize {
        let mut n = 0;
        self.visit(&mut |_| n += 1);
        n
    }

    /// The first value, if there is one.
    pub fn first(&self) -> Option<&T> {
        match self {
            Nested::One(value) => Some(value),
            Nested::Tuple(parts) => parts.iter().find_map(Nested::first),
            Nested::Named(fields) => fields.iter().find_map(|(_, part)| part.first()),
        }
    }

    fn visit<'a>(&'a self, f: &mut impl FnMut(&'a T)) {
        match self {
            Nested::One(value) => f(value),
            Nested::Tuple(parts) => parts.iter().for_each(|part| part.visit(f)),
            Nested::Named(fields) => fields.iter().for_each(|(_, part)| part.visit(f)),
        }
    }

    /// The parts of a tuple or of named fields; a single value is its only part.
    pub fn parts(&self) -> Vec<&Nested<T>> {
        match self {
            Nested::One(_) => vec![self],
            Nested::Tuple(parts) => parts.iter().collect(),
            Nested::Named(fields) => fields.iter().map(|(_, part)| part).collect(),
        }
    }

    /// The part of that name, or of that place if it is a number, counted from 0.
    ///
    /// # Errors
    /// There is none; the error lists those that are there.
    pub fn get(&self, key: &str) -> Result<&Nested<T>> {
        let found = match self {
            Nested::One(_) => None,
            Nested::Tuple(parts) => key.parse::<usize>().ok().and_then(|place| parts.get(place)),
            Nested::Named(fields) => fields.iter().find(|(name, _)| name == key).map(|(_, part)| part),
        };
        found.ok_or_else(|| {
            let known = match self {
                Nested::One(_) => "it is a single value".to_owned(),
                Nested::Tuple(parts) => format!("there are 0 to {}", parts.len().saturating_sub(1)),
                Nested::Named(fields) => {
                    let names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
                    format!("there are {}", names.join(", "))
                }
            };
            Error::argument("structure", format!("there is no {key:?}; {known}"))
        })
    }

    /// The same arrangement of what `f` makes of each value.
    pub fn map<'a, U>(&'a self, mut f: impl FnMut(&'a T) -> U) -> Nested<U> {
        match self.try_map(&mut |value| Ok(f(value))) {
            Ok(mapped) => mapped,
            Err(_) => unreachable!("the function does not fail"),
        }
    }

    /// The same arrangement of what `f` makes of each value, or its first error.
    ///
    /// # Errors
    /// Those of the function.
    pub fn try_map<'a, U>(&'a self, f: &mut impl FnMut(&'a T) -> Result<U>) -> Result<Nested<U>> {
        Ok(match self {
            Nested::One(value) => Nested::One(f(value)?),
            Nested::Tuple(parts) => {
                Nested::Tuple(parts.iter().map(|part| part.try_map(f)).collect::<Result<_>>()?)
            }
            Nested::Named(fields) => {
                let field = |(name, part): &'a (String, Nested<T>)| Ok((name.clone(), part.try_map(f)?));
                Nested::Named(fields.iter().map(field).collect::<Result<_>>()?)
            }
        })
    }

    /// The path of each value, in order: `image` or `0`, with a dot where they nest; empty for a single value.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.add_paths("", &mut paths);
        paths
    }

    fn add_paths(&self, prefix: &str, paths: &mut Vec<String>) {
        let join = |name: &str| if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
        match self {
            Nested::One(_) => paths.push(prefix.to_owned()),
            Nested::Tuple(parts) => {
                let places = parts.iter().enumerate();
                places.for_each(|(place, part)| part.add_paths(&join(&place.to_string()), paths));
            }
            Nested::Named(fields) => {
                fields.iter().for_each(|(name, part)| part.add_paths(&join(name), paths));
            }
        }
    }

    /// Whether both have the same arrangement and names, whatever their values are.
    pub fn is_like<U>(&self, other: &Nested<U>) -> bool {
        match (self, other) {
            (Nested::One(_), Nested::One(_)) => true,
            (Nested::Tuple(these), Nested::Tuple(those)) => {
                these.len() == those.len() && these.iter().zip(those).all(|(this, that)| this.is_like(that))
            }
            (Nested::Named(these), Nested::Named(those)) => {
                let mut pairs = these.iter().zip(those);
                these.len() == those.len() && pairs.all(|((a, this), (b, that))| a == b && this.is_like(that))
            }
            _ => false,
        }
    }

    /// The values in order, taken out.
    pub fn into_leaves(self) -> Vec<T> {
        match self {
            Nested::One(value) => vec![value],
            Nested::Tuple(parts) => parts.into_iter().flat_map(Nested::into_leaves).collect(),
            Nested::Named(fields) => fields.into_iter().flat_map(|(_, part)| part.into_leaves()).collect(),
        }
    }

    /// The single values of which a tuple or named fields consist, taken out; nothing if some part is nested itself.
    fn into_flat(self) -> std::result::Result<Vec<T>, Nested<T>> {
        let is_flat = self.parts().iter().all(|part| part.one().is_some());
        if is_flat { Ok(self.into_leaves()) } else { Err(self) }
    }
}

/// In brackets, as one would write it: `([2, 3], [4])`, `{image: [8, 8], text: [5]}`.
impl<T: fmt::Display> fmt::Display for Nested<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let comma = |place: usize| if place > 0 { ", " } else { "" };
        match self {
            Nested::One(value) => value.fmt(f),
            Nested::Tuple(parts) => {
                f.write_str("(")?;
                for (place, part) in parts.iter().enumerate() {
                    write!(f, "{}{part}", comma(place))?;
                }
                f.write_str(")")
            }
            Nested::Named(fields) => {
                f.write_str("{")?;
                for (place, (name, part)) in fields.iter().enumerate() {
                    write!(f, "{}{name}: {part}", comma(place))?;
                }
                f.write_str("}")
            }
        }
    }
}

impl Structure for Nested<Tensor> {
    fn flatten(&self, into: &mut Vec<Tensor>) {
        self.visit(&mut |tensor| into.push(tensor.clone()));
    }

    fn rebuild(&self, from: &mut dyn Iterator<Item = Tensor>) -> Result<Nested<Tensor>> {
        self.try_map(&mut |tensor| tensor.rebuild(from))
    }

    fn arrangement(&self, into: &mut String) {
        match self {
            Nested::One(tensor) => tensor.arrangement(into),
            Nested::Tuple(parts) => {
                into.push('(');
                parts.iter().for_each(|part| part.arrangement(into));
                into.push(')');
            }
            Nested::Named(fields) => {
                into.push('{');
                for (name, part) in fields {
                    name.arrangement(into);
                    part.arrangement(into);
                }
                into.push('}');
            }
        }
    }
}

impl<T: Clone> From<&Nested<T>> for Nested<T> {
    fn from(nested: &Nested<T>) -> Nested<T> {
        nested.clone()
    }
}

impl From<Tensor> for Nested<Tensor> {
    fn from(tensor: Tensor) -> Nested<Tensor> {
        Nested::One(tensor)
    }
}

impl From<&Tensor> for Nested<Tensor> {
    fn from(tensor: &Tensor) -> Nested<Tensor> {
        Nested::One(tensor.clone())
    }
}

impl From<&Variable> for Nested<Tensor> {
    fn from(variable: &Variable) -> Nested<Tensor> {
        Nested::One((**variable).clone())
    }
}

impl From<Shape> for Nested<Shape> {
    fn from(shape: Shape) -> Nested<Shape> {
        Nested::One(shape)
    }
}

impl From<&Shape> for Nested<Shape> {
    fn from(shape: &Shape) -> Nested<Shape> {
        Nested::One(*shape)
    }
}

impl From<&'static str> for Nested<String> {
    fn from(name: &'static str) -> Nested<String> {
        Nested::One(name.to_owned())
    }
}

impl<T, V: Into<Nested<T>>, const N: usize> From<[V; N]> for Nested<T> {
    fn from(values: [V; N]) -> Nested<T> {
        Nested::Tuple(values.into_iter().map(Into::into).collect())
    }
}

impl<T, V: Into<Nested<T>>> From<Vec<V>> for Nested<T> {
    fn from(values: Vec<V>) -> Nested<T> {
        Nested::Tuple(values.into_iter().map(Into::into).collect())
    }
}

macro_rules! tuples {
    ($($name:ident),*) => {
        impl<T, $($name: Into<Nested<T>>),*> From<($($name,)*)> for Nested<T> {
            #[expect(non_snake_case, reason = "the parts are called as their types")]
            fn from(($($name,)*): ($($name,)*)) -> Nested<T> {
                Nested::Tuple(vec![$($name.into()),*])
            }
        }
    };
}

tuples!(A, B);
tuples!(A, B, C);
tuples!(A, B, C, D);
tuples!(A, B, C, D, E);

/// Structures are taken as they come without an error.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Error {
        match never {}
    }
}

/// The error of a structure that is not what somebody takes.
fn not_what_is_taken<T>(wanted: impl fmt::Display, given: &Nested<T>) -> Error {
    let given = match given {
        Nested::One(_) => "one".to_owned(),
        several => several.map(|_| "one").to_string(),
    };
    Error::argument("structure", format!("{wanted} wanted, and {given} given"))
}

impl<T, const N: usize> TryFrom<Nested<T>> for [T; N] {
    type Error = Error;

    fn try_from(nested: Nested<T>) -> Result<[T; N]> {
        let wanted = || format!("{N} single values are");
        let flat = nested.into_flat().map_err(|nested| not_what_is_taken(wanted(), &nested))?;
        let n = flat.len();
        flat.try_into()
            .map_err(|_| Error::argument("structure", format!("{} wanted, and {n} given", wanted())))
    }
}

macro_rules! into_tuples {
    ($($type:ty, $n:literal);*) => {$(
        impl<T> TryFrom<Nested<T>> for $type {
            type Error = Error;

            fn try_from(nested: Nested<T>) -> Result<$type> {
                <[T; $n]>::try_from(nested).map(Into::into)
            }
        }
    )*};
}

into_tuples!((T, T), 2; (T, T, T), 3; (T, T, T, T), 4);

impl TryFrom<Nested<Tensor>> for Tensor {
    type Error = Error;

    fn try_from(nested: Nested<Tensor>) -> Result<Tensor> {
        match nested {
            Nested::One(tensor) => Ok(tensor),
            several => {
                let shapes = several.map(|tensor| *tensor.shape());
                Err(Error::argument("structure", format!("one tensor is wanted, and {shapes} given")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> Nested<Shape> {
        let shape = |n: usize| Shape::new(&[n]).unwrap();
        Nested::from((Nested::named([("a", shape(1)), ("b", shape(2))]), shape(3)))
    }

    #[test]
    fn values_are_found_by_place_and_name() {
        let nested = numbers();
        assert_eq!(nested.to_string(), "({a: [1], b: [2]}, [3])");
        assert_eq!(nested.paths(), ["0.a", "0.b", "1"]);
        assert_eq!((nested.n_leaves(), nested.first().unwrap().dims()), (3, &[1][..]));
        assert_eq!(nested.get("0").unwrap().get("b").unwrap().to_string(), "[2]");
        let error = nested.get("0").unwrap().get("c").unwrap_err().to_string();
        assert!(error.contains("\"c\"") && error.contains("a, b"), "{error}");
        assert!(nested.get("2").is_err() && nested.get("1").unwrap().get("0").is_err());
    }

    #[test]
    fn arrangements_are_compared_without_values() {
        let nested = numbers();
        assert!(nested.is_like(&nested.map(|_| 7)));
        assert!(!nested.is_like(&Nested::from((Nested::One(1), Nested::One(2)))));
        let renamed = Nested::from((Nested::Named(vec![("a".into(), Nested::One(1))]), Nested::One(2)));
        assert!(!nested.is_like(&renamed));
    }

    #[test]
    fn parts_are_taken_out_or_refused_with_what_was_given() {
        let tensor = || Tensor::zeros([2]).unwrap();
        let two = Nested::from((tensor(), tensor()));
        assert!(<(Tensor, Tensor)>::try_from(two.clone()).is_ok());
        let error = <[Tensor; 3]>::try_from(two.clone()).unwrap_err().to_string();
        assert!(error.contains('3') && error.contains('2'), "{error}");
        let error = Tensor::try_from(two.clone()).unwrap_err().to_string();
        assert!(error.contains("([2], [2])"), "{error}");
        let deep = Nested::from((two, tensor()));
        assert!(<[Tensor; 2]>::try_from(deep).unwrap_err().to_string().contains("((one, one), one)"));
    }
}
