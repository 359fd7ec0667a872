//! Structures of tensors: what functions take and return.
//!
//! A structure is taken apart into its tensors, in order, and built again from others in their places: a tensor, a tuple, a
//! list, and these inside each other. It refuses to be built from fewer tensors than it has places.

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Tensors in a certain arrangement.
pub trait Structure: Sized + Send + 'static {
    /// Adds the tensors to a list, in order.
    fn flatten(&self, into: &mut Vec<Tensor>);

    /// The same arrangement of other tensors, of which it takes as many as it has places.
    ///
    /// # Errors
    /// Too few tensors.
    fn rebuild(&self, from: &mut dyn Iterator<Item = Tensor>) -> Result<Self>;

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
}

impl<S: Structure> Structure for Vec<S> {
    fn flatten(&self, into: &mut Vec<Tensor>) {
        self.iter().for_each(|part| part.flatten(into));
    }

    fn rebuild(&self, from: &mut dyn Iterator<Item = Tensor>) -> Result<Vec<S>> {
        self.iter().map(|part| part.rebuild(from)).collect()
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
}

impl<S: Structure> Structure for Option<S> {
    fn flatten(&self, into: &mut Vec<Tensor>) {
        self.iter().for_each(|part| part.flatten(into));
    }

    fn rebuild(&self, from: &mut dyn Iterator<Item = Tensor>) -> Result<Option<S>> {
        self.as_ref().map(|part| part.rebuild(from)).transpose()
    }
}

macro_rules! tuples {
    ($($name:ident),*) => {
        impl<$($name: Structure),*> Structure for ($($name,)*) {
            #[expect(non_snake_case, reason = "the parts are called as their types")]
            #[allow(unused_variables, reason = "the empty tuple has no tensors")]
            fn flatten(&self, into: &mut Vec<Tensor>) {
                let ($($name,)*) = self;
                $($name.flatten(into);)*
            }

            #[expect(non_snake_case, reason = "the parts are called as their types")]
            #[allow(unused_variables, reason = "the empty tuple has no tensors")]
            fn rebuild(&self, from: &mut dyn Iterator<Item = Tensor>) -> Result<Self> {
                let ($($name,)*) = self;
                Ok(($($name.rebuild(from)?,)*))
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
}
