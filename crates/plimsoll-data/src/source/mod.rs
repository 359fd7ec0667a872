//! Where elements come from: tensors, iterators and files.
//!
//! Files are opened and checked when the dataset is made, so a bad one is refused before anything runs.

use std::ops::Range;

use plimsoll_tensor::Result;

use crate::example::ExampleMut;
use crate::node::{Count, Item, Node, Plan, Work};
use crate::spec::{Shapes, Spec};

pub(crate) mod csv;
pub(crate) mod generator;
pub(crate) mod idx;
pub(crate) mod lines;
pub(crate) mod rows;
pub(crate) mod slices;
pub(crate) mod tokens;

/// A source of which any element can be read at any time.
pub(crate) trait Source: Send + Sync {
    /// What the elements look like.
    fn spec(&self) -> &Spec;
    /// How many there are.
    fn n(&self) -> u64;
    /// Writes element `idx`.
    fn write(&self, idx: u64, to: &mut ExampleMut<'_>) -> Result<()>;
}

/// The node of such a source.
pub(crate) struct Indexed<S>(pub S);

impl<S: Source> Node for Indexed<S> {
    fn makes_elements(&self) -> bool {
        true
    }

    fn spec(&self) -> &Spec {
        self.0.spec()
    }

    fn count(&self) -> Count {
        Count::Exactly(self.0.n())
    }

    fn is_indexed(&self) -> bool {
        true
    }

    fn at(&self, pass: u64, idx: u64) -> Item {
        Item::At { pass, idx }
    }

    fn outline(&self, _item: &Item) -> Shapes {
        self.0.spec().shapes()
    }

    fn write(
        &self,
        item: &Item,
        _rows: Range<usize>,
        to: &mut ExampleMut<'_>,
        _work: &mut Work<'_>,
    ) -> Result<()> {
        self.0.write(item.position().1, to)
    }

    fn scratch(&self) -> usize {
        0
    }

    fn reserve(&self, _n_items: usize, _plan: &mut Plan<'_>) -> Result<()> {
        Ok(())
    }
}
