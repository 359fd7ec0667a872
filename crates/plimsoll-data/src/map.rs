//! Functions over elements: map, filter and the check for numbers that are none.

use std::ops::Range;
use std::sync::Arc;

use plimsoll_tensor::{DType, Element, Error, Result, elements};

use half::{bf16, f16};

use crate::example::{Example, ExampleMut};
use crate::node::{
    Count, Cursor, Item, Node, NodeRef, Plan, Session, Work, example_scratch, open, with_example,
};
use crate::spec::{Shapes, Spec};

/// What `map` applies.
pub(crate) type MapFn = dyn Fn(&Example<'_>, &mut ExampleMut<'_>) -> Result<()> + Send + Sync;

/// Makes each element from one of the upstream's, when it is written.
pub(crate) struct Map {
    pub upstream: NodeRef,
    pub spec: Spec,
    pub f: Box<MapFn>,
}

impl Node for Map {
    fn upstream(&self) -> &NodeRef {
        &self.upstream
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn makes_elements(&self) -> bool {
        true
    }

    fn outline(&self, _item: &Item) -> Shapes {
        self.spec.shapes()
    }

    fn write(
        &self,
        item: &Item,
        _rows: Range<usize>,
        to: &mut ExampleMut<'_>,
        work: &mut Work<'_>,
    ) -> Result<()> {
        with_example(&*self.upstream, item, work.scratch, |example, _| (self.f)(example, to))
    }

    fn scratch(&self) -> usize {
        example_scratch(&*self.upstream, 0)
    }
}

/// What `filter` asks.
pub(crate) type FilterFn = dyn Fn(&Example<'_>) -> Result<bool> + Send + Sync;

/// Passes on the elements that a function likes.
pub(crate) struct Filter {
    pub upstream: NodeRef,
    pub f: Arc<FilterFn>,
}

impl Node for Filter {
    fn upstream(&self) -> &NodeRef {
        &self.upstream
    }

    fn count(&self) -> Count {
        self.upstream.count().or_less()
    }

    fn is_indexed(&self) -> bool {
        false
    }

    fn stream(&self, pass: u64, session: &Arc<Session>) -> Box<dyn Cursor> {
        let cursor = open(&self.upstream, pass, session);
        match session.is_ghost {
            // A ghost has no values to ask about; it sees the most that can come.
            true => cursor,
            false => Box::new(Filtering { upstream: self.upstream.clone(), f: self.f.clone(), cursor }),
        }
    }

    fn scratch(&self) -> usize {
        example_scratch(&*self.upstream, 0).max(self.upstream.scratch())
    }

    fn reserve(&self, n_items: usize, plan: &mut Plan<'_>) -> Result<()> {
        self.upstream.reserve(n_items.saturating_add(1), plan)
    }
}

struct Filtering {
    upstream: NodeRef,
    f: Arc<FilterFn>,
    cursor: Box<dyn Cursor>,
}

impl Cursor for Filtering {
    fn next(&mut self, scratch: &mut [u8]) -> Result<Option<Item>> {
        while let Some(item) = self.cursor.next(scratch)? {
            if with_example(&*self.upstream, &item, scratch, |example, _| (self.f)(example))? {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }
}

/// Passes on elements of which every number is finite.
pub(crate) struct CheckFinite {
    pub upstream: NodeRef,
}

impl Node for CheckFinite {
    fn upstream(&self) -> &NodeRef {
        &self.upstream
    }

    /// Views would go past the check.
    fn has_views(&self) -> bool {
        false
    }

    fn finish(&self, item: &Item, to: &mut ExampleMut<'_>, lengths: &[usize]) -> Result<()> {
        self.upstream.finish(item, to, lengths)?;
        for (idx, field) in self.spec().fields().iter().enumerate() {
            let (bytes, shape) = to.part_mut(idx);
            let bytes = &bytes[..shape.n_elems() * field.dtype().size()];
            let Some((mut place, number)) = first_not_finite(bytes, field.dtype()) else { continue };
            let mut position = vec![0; shape.rank()];
            for (at, &dim) in position.iter_mut().zip(shape.iter()).rev() {
                *at = place % dim;
                place /= dim;
            }
            return Err(Error::argument(
                "check_finite",
                format!("field {:?} has {number} at {position:?} of shape {shape}", field.name()),
            ));
        }
        Ok(())
    }
}

/// Where the first number is that is not finite, and which it is.
fn first_not_finite(bytes: &[u8], dtype: DType) -> Option<(usize, f64)> {
    fn find<T: Element>(bytes: &[u8], is_finite: impl Fn(T) -> bool) -> Option<(usize, f64)> {
        let values = elements::<T>(bytes)?;
        let idx = values.iter().position(|&value| !is_finite(value))?;
        Some((idx, values[idx].to_f64()))
    }
    match dtype {
        DType::F64 => find(bytes, f64::is_finite),
        DType::F32 => find(bytes, f32::is_finite),
        DType::F16 => find(bytes, f16::is_finite),
        DType::BF16 => find(bytes, bf16::is_finite),
        DType::I64 | DType::I32 | DType::U8 | DType::Bool => None,
    }
}
