//! Structures of tensors: what functions take and return.
//!
//! A structure is taken apart into its tensors, in order, and built again from others in their places: a tensor, a tuple, a
//! list, and these inside each other. It refuses to be built from fewer tensors than it has places.
//!
//! Truth values, whole numbers and texts may stand in it, too. They are no inputs of a function but decide what it does, as
//! static arguments of `jax.jit` do: it is recorded once for each. A number with a fraction is not among them, because it
//! would be recorded for every new one; it is passed as a tensor without axes.

use std::fmt::Write;

use crate::base::error::{Error, Result};
use crate::eager::tensor::Tensor;

/// Tensors in a certain arrangement.
///
/// ```
/// use plimsoll_tensor::{Function, Tensor};
///
/// let scaled = Function::new(|(x, factor, twice): (Tensor, Tensor, bool)| match twice {
///     true => x.mul(&factor)?.mul(&factor),
///     false => x.mul(&factor),
/// });
/// let (x, factor) = (Tensor::ones([2])?, Tensor::full((), 3.0)?);
/// assert_eq!(scaled.call((x.clone(), factor.clone(), false))?.to_vec::<f32>()?, [3.0, 3.0]);
/// assert_eq!(scaled.call((x, factor, true))?.to_vec::<f32>()?, [9.0, 9.0]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a structure of tensors",
    note = "pass a number with a fraction as a tensor without axes, `Tensor::full((), 0.5)`: one program serves all of them"
)]
pub trait Structure: Sized + Send + 'static {
    /// Adds the tensors to a list, in order.
    fn flatten(&self, into: &mut Vec<Tensor>);

    /// The same arrangement of other tensors, of which it takes as many as it has places.
    ///
    /// # Errors
    /// Too few tensors.
    fn rebuild(&self, from: &mut dyn Iterator<Item = Tensor>) -> Result<Self>;

    /// Adds what distinguishes this arrangement from others of its type: lengths, names, which optional parts are there, plain
    /// values. A function has a program for each.
    fn arrangement(&self, into: &mut String);

    /// The tensors, in order.
    fn tensors(&self) -> Vec<Tensor> {
        let mut tensors = Vec::new();
        self.flatten(&mut tensors);
        tensors
    }
}

impl Structure for Tensor {
    fn flatten(&self, into: &mut Vec<Tensor>) {
        into.push(self.clone());
    }

    fn rebuild(&self, from: &mut dyn Iterator<Item = Tensor>) -> Result<Tensor> {
        from.next()
            .ok_or_else(|| Error::argument("structure", "there are fewer tensors than places for them"))
    }

    fn arrangement(&self, into: &mut String) {
        into.push('*');
    }
}

impl<S: Structure> Structure for Vec<S> {
    fn flatten(&self, into: &mut Vec<Tensor>) {
        self.iter().for_each(|part| part.flatten(into));
    }

    fn rebuild(&self, from: &mut dyn Iterator<Item = Tensor>) -> Result<Vec<S>> {
        self.iter().map(|part| part.rebuild(from)).collect()
    }

    fn arrangement(&self, into: &mut String) {
        into.push('[');
        self.iter().for_each(|part| part.arrangement(into));
        into.push(']');
    }
}

impl<S: Structure, const N: usize> Structure for [S; N] {
    fn flatten(&self, into: &mut Vec<Tensor>) {
        self.iter().for_each(|part| part.flatten(into));
    }

    fn rebuild(&self, from: &mut dyn Iterator<Item = Tensor>) -> Result<[S; N]> {
        let parts: Vec<S> = self.iter().map(|part| part.rebuild(from)).collect::<Result<_>>()?;
        Ok(parts.try_into().unwrap_or_else(|_| unreachable!("as many parts as before")))
    }

    fn arrangement(&self, into: &mut String) {
        self.iter().for_each(|part| part.arrangement(into));
    }
}

impl<S: Structure> Structure for Option<S> {
    fn flatten(&self, into: &mut Vec<Tensor>) {
        self.iter().for_each(|part| part.flatten(into));
    }

    fn rebuild(&self, from: &mut dyn Iterator<Item = Tensor>) -> Result<Option<S>> {
        self.as_ref().map(|part| part.rebuild(from)).transpose()
    }

    fn arrangement(&self, into: &mut String) {
        match self {
            Some(part) => {
                into.push('+');
                part.arrangement(into);
            }
            None => into.push('-'),
        }
    }
}

macro_rules! tuples {
    ($($name:ident),*) => {
        impl<$($name: Structure),*> Structure for ($($name,)*) {
            #[expect(non_snake_case, reason = "the parts are called as their types")]
            fn flatten(&self, into: &mut Vec<Tensor>) {
                let ($($name,)*) = self;
                $($name.flatten(into);)*
            }

            #[expect(non_snake_case, reason = "the parts are called as their types")]
            fn rebuild(&self, from: &mut dyn Iterator<Item = Tensor>) -> Result<Self> {
                let ($($name,)*) = self;
                Ok(($($name.rebuild(from)?,)*))
            }

            #[expect(non_snake_case, reason = "the parts are called as their types")]
            fn arrangement(&self, into: &mut String) {
                let ($($name,)*) = self;
                $($name.arrangement(into);)*
            }
        }
    };
}

tuples!(A);
tuples!(A, B);
tuples!(A, B, C);
tuples!(A, B, C, D);
tuples!(A, B, C, D, E);
tuples!(A, B, C, D, E, F);

/// Nothing at all.
impl Structure for () {
    fn flatten(&self, _into: &mut Vec<Tensor>) {}

    fn rebuild(&self, _from: &mut dyn Iterator<Item = Tensor>) -> Result<()> {
        Ok(())
    }

    fn arrangement(&self, _into: &mut String) {}
}

macro_rules! plain_values {
    ($($name:ty),*) => {$(
        /// A plain value: it decides what a function does.
        impl Structure for $name {
            fn flatten(&self, _into: &mut Vec<Tensor>) {}

            fn rebuild(&self, _from: &mut dyn Iterator<Item = Tensor>) -> Result<$name> {
                Ok(self.clone())
            }

            fn arrangement(&self, into: &mut String) {
                let written = write!(into, "{self:?},");
                debug_assert!(written.is_ok(), "a string takes any text");
            }
        }
    )*};
}

plain_values!(bool, i32, i64, u32, u64, usize, String, &'static str);
