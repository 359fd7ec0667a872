//! Nodes that put fields together: zip, enumerate and arrange.

use std::ops::Range;
use std::sync::Arc;

use plimsoll_tensor::{DType, Error, Nested, Result};

use crate::example::ExampleMut;
use crate::node::{Count, Cursor, Item, Node, NodeRef, Plan, Session, Work, open, write_whole};
use crate::spec::{Field, Shapes, Spec};

/// What comes first, and beside it another element, whose fields come after all of the first one's.
fn side_by_side((first, n_first): (Nested<usize>, usize), second: &Spec) -> Nested<usize> {
    let second = second.structure().map(|position| n_first + position);
    Nested::Tuple(vec![first, second])
}

/// One element of each of two datasets, side by side.
pub(crate) struct Zip {
    nodes: [NodeRef; 2],
    spec: Spec,
}

impl Zip {
    pub fn new(first: &NodeRef, second: &NodeRef) -> Result<Zip> {
        let fields = first.spec().fields().iter().chain(second.spec().fields()).cloned();
        let spec = Spec::new(fields).map_err(|error| Error::within("zip", error))?;
        let structure =
            side_by_side((first.spec().structure().clone(), first.spec().fields().len()), second.spec());
        let spec = spec.arranged(structure);
        Ok(Zip { nodes: [first.clone(), second.clone()], spec })
    }

    /// Calls `f` with each node and its part of an item.
    fn each(&self, item: &Item, mut f: impl FnMut(&NodeRef, &Item) -> Result<()>) -> Result<()> {
        let [first, second] = &self.nodes;
        match item {
            Item::Pair(pair) => {
                f(first, &pair.0)?;
                f(second, &pair.1)
            }
            item => {
                let (pass, idx) = item.position();
                f(first, &first.at(pass, idx))?;
                f(second, &second.at(pass, idx))
            }
        }
    }
}

impl Node for Zip {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn count(&self) -> Count {
        self.nodes[0].count().min(self.nodes[1].count())
    }

    fn is_indexed(&self) -> bool {
        self.nodes.iter().all(|node| node.is_indexed())
    }

    fn at(&self, pass: u64, idx: u64) -> Item {
        Item::At { pass, idx }
    }

    fn stream(&self, pass: u64, session: &Arc<Session>) -> Box<dyn Cursor> {
        Box::new(Pairing([0, 1].map(|idx| open(&self.nodes[idx], pass, session))))
    }

    fn makes_elements(&self) -> bool {
        true
    }

    fn outline(&self, item: &Item) -> Shapes {
        let mut shapes = Shapes::new();
        let added = self.each(item, |node, item| {
            shapes.extend(node.outline(item));
            Ok(())
        });
        debug_assert!(added.is_ok());
        shapes
    }

    fn write(
        &self,
        item: &Item,
        _rows: Range<usize>,
        to: &mut ExampleMut<'_>,
        work: &mut Work<'_>,
    ) -> Result<()> {
        let mut first = 0;
        self.each(item, |node, item| {
            to.with_fields(node.spec(), first, |part| write_whole(&**node, item, part, work.scratch))?;
            first += node.spec().fields().len();
            Ok(())
        })
    }

    fn scratch(&self) -> usize {
        self.nodes.iter().map(|node| node.scratch()).max().unwrap_or(0)
    }

    fn reserve(&self, n_items: usize, plan: &mut Plan<'_>) -> Result<()> {
        self.nodes.iter().try_for_each(|node| node.reserve(n_items, plan))
    }
}

struct Pairing([Box<dyn Cursor>; 2]);

impl Cursor for Pairing {
    fn next(&mut self, scratch: &mut [u8]) -> Result<Option<Item>> {
        let Some(first) = self.0[0].next(scratch)? else { return Ok(None) };
        let second = self.0[1].next(scratch)?;
        Ok(second.map(|second| Item::Pair(Box::new((first, second)))))
    }

    fn skip(&mut self, n: u64, scratch: &mut [u8]) -> Result<()> {
        self.0.iter_mut().try_for_each(|cursor| cursor.skip(n, scratch))
    }
}

/// Elements with their number in the pass as a first field.
pub(crate) struct Enumerate {
    upstream: NodeRef,
    spec: Spec,
}

impl Enumerate {
    pub fn new(upstream: &NodeRef) -> Result<Enumerate> {
        let number = Field::new("index", DType::I64, ())?;
        let spec = Spec::new([number].into_iter().chain(upstream.spec().fields().iter().cloned()))
            .map_err(|error| Error::within("enumerate", error))?;
        let spec = spec.arranged(side_by_side((Nested::One(0), 1), upstream.spec()));
        Ok(Enumerate { upstream: upstream.clone(), spec })
    }
}

impl Node for Enumerate {
    fn upstream(&self) -> &NodeRef {
        &self.upstream
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn at(&self, pass: u64, idx: u64) -> Item {
        Item::Numbered(idx, Box::new(self.upstream.at(pass, idx)))
    }

    fn stream(&self, pass: u64, session: &Arc<Session>) -> Box<dyn Cursor> {
        Box::new(Numbering { cursor: open(&self.upstream, pass, session), next: 0 })
    }

    fn makes_elements(&self) -> bool {
        true
    }

    fn outline(&self, item: &Item) -> Shapes {
        let Item::Numbered(_, item) = item else { unreachable!("{item:?} has no number") };
        [*self.spec.fields()[0].shape()].into_iter().chain(self.upstream.outline(item)).collect()
    }

    fn write(
        &self,
        item: &Item,
        _rows: Range<usize>,
        to: &mut ExampleMut<'_>,
        work: &mut Work<'_>,
    ) -> Result<()> {
        let Item::Numbered(number, item) = item else { unreachable!("{item:?} has no number") };
        to.set(0, &[*number as i64])?;
        to.with_fields(self.upstream.spec(), 1, |part| write_whole(&*self.upstream, item, part, work.scratch))
    }
}

struct Numbering {
    cursor: Box<dyn Cursor>,
    next: u64,
}

impl Cursor for Numbering {
    fn next(&mut self, scratch: &mut [u8]) -> Result<Option<Item>> {
        let item = self.cursor.next(scratch)?;
        self.next += 1;
        Ok(item.map(|item| Item::Numbered(self.next - 1, Box::new(item))))
    }

    fn skip(&mut self, n: u64, scratch: &mut [u8]) -> Result<()> {
        self.next = self.next.saturating_add(n);
        self.cursor.skip(n, scratch)
    }
}

/// The same elements with their fields in another arrangement.
pub(crate) struct Arranged {
    pub upstream: NodeRef,
    pub spec: Spec,
}

impl Node for Arranged {
    fn upstream(&self) -> &NodeRef {
        &self.upstream
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn n_alike(&self) -> u64 {
        self.upstream.n_alike()
    }
}
