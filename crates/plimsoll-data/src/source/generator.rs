//! Elements that a function makes one after the other, from the beginning in every pass.
//!
//! Such an element is written to a cell of the pipeline's allowance and copied from there to its batch; there are as
//! many cells as elements that can be on their way at once (a batch, the buffer of a shuffle).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_tensor::{Error, Result};

use crate::example::{Example, ExampleMut, Origin};
use crate::node::{
    CellPool, Count, Cursor, Held, Item, Node, NodeRef, Plan, Session, Work, copy_example, open,
};
use crate::spec::{Shapes, Spec};

/// Writes the next element, or says that there is none.
pub(crate) type NextFn = dyn FnMut(&mut ExampleMut<'_>) -> Result<bool> + Send;
/// Begins a pass.
pub(crate) type BeginFn = dyn Fn(u64) -> Box<NextFn> + Send + Sync;

/// A source that starts anew in every pass.
pub(crate) struct Generator {
    spec: Spec,
    count: Count,
    begin: Arc<BeginFn>,
    /// Under which its cells are found.
    key: u64,
}

impl Generator {
    pub fn new(spec: Spec, begin: Arc<BeginFn>) -> Generator {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Generator { spec, count: Count::Unknown, begin, key: NEXT.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Node for Generator {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn count(&self) -> Count {
        self.count
    }

    fn is_indexed(&self) -> bool {
        false
    }

    fn stream(&self, pass: u64, session: &Arc<Session>) -> Box<dyn Cursor> {
        match session.cells.get(&self.key) {
            Some(cells) if !session.is_ghost => {
                let (spec, cells, next) = (self.spec.clone(), cells.clone(), (self.begin)(pass));
                Box::new(Generating { spec, cells, next: Some(next), pass, n: 0 })
            }
            _ => Box::new(Unknowable),
        }
    }

    fn makes_elements(&self) -> bool {
        true
    }

    fn outline(&self, _item: &Item) -> Shapes {
        self.spec.shapes()
    }

    fn has_views(&self) -> bool {
        true
    }

    fn view<'a>(&'a self, item: &'a Item) -> Example<'a> {
        match item {
            Item::Held(held) => held.example(&self.spec),
            _ => unreachable!("{item:?} is no element of an iterator"),
        }
    }

    fn write(
        &self,
        item: &Item,
        _rows: Range<usize>,
        to: &mut ExampleMut<'_>,
        _work: &mut Work<'_>,
    ) -> Result<()> {
        copy_example(&self.view(item), to);
        Ok(())
    }

    fn scratch(&self) -> usize {
        0
    }

    fn reserve(&self, n_items: usize, plan: &mut Plan<'_>) -> Result<()> {
        let cells = plan.cells.entry(self.key).or_insert((0, self.spec.aligned_bytes()));
        cells.0 = cells.0.saturating_add(n_items);
        Ok(())
    }
}

struct Generating {
    spec: Spec,
    cells: Arc<CellPool>,
    next: Option<Box<NextFn>>,
    pass: u64,
    n: u64,
}

impl Cursor for Generating {
    fn next(&mut self, _scratch: &mut [u8]) -> Result<Option<Item>> {
        let Some(next) = &mut self.next else { return Ok(None) };
        let origin = Origin { pass: self.pass, idx: self.n };
        let held = Held::fill(&self.cells, &self.spec, origin, next)
            .map_err(|error| Error::within(format!("element {} of the iterator", self.n), error))?;
        self.n += 1;
        if held.is_none() {
            self.next = None;
        }
        Ok(held.map(|held| Item::Held(Box::new(held))))
    }
}

/// What a ghost sees of an iterator: nothing, because it cannot call it.
struct Unknowable;

impl Cursor for Unknowable {
    fn next(&mut self, _scratch: &mut [u8]) -> Result<Option<Item>> {
        let detail = "a ghost cannot know how many elements an iterator gives; say so with `assume_len`";
        Err(Error::argument("dataset", detail))
    }
}

/// A dataset of which somebody else knows how many elements it has.
pub(crate) struct AssumeLen {
    pub upstream: NodeRef,
    pub n: u64,
}

impl Node for AssumeLen {
    fn upstream(&self) -> &NodeRef {
        &self.upstream
    }

    fn count(&self) -> Count {
        Count::Exactly(self.n)
    }

    fn is_indexed(&self) -> bool {
        false
    }

    fn stream(&self, pass: u64, session: &Arc<Session>) -> Box<dyn Cursor> {
        match session.is_ghost {
            true => Box::new(Believing { upstream: self.upstream.clone(), pass, next: 0, n: self.n }),
            false => Box::new(Assuming { cursor: open(&self.upstream, pass, session), next: 0, n: self.n }),
        }
    }

    fn n_rows(&self, item: &Item) -> Option<usize> {
        if matches!(item, Item::Assumed { .. }) { None } else { self.upstream.n_rows(item) }
    }

    fn outline(&self, item: &Item) -> Shapes {
        if matches!(item, Item::Assumed { .. }) { self.spec().shapes() } else { self.upstream.outline(item) }
    }
}

/// What a ghost sees: as many elements as were said to come. Those that are there for certain look like themselves, the others
/// like the largest of them.
struct Believing {
    upstream: NodeRef,
    pass: u64,
    next: u64,
    n: u64,
}

impl Cursor for Believing {
    fn next(&mut self, _scratch: &mut [u8]) -> Result<Option<Item>> {
        let (pass, idx) = (self.pass, self.next);
        if idx >= self.n {
            return Ok(None);
        }
        self.next += 1;
        let is_there = self.upstream.is_indexed() && self.upstream.count().bound().is_none_or(|n| idx < n);
        Ok(Some(if is_there { self.upstream.at(pass, idx) } else { Item::Assumed { pass, idx } }))
    }

    fn skip(&mut self, n: u64, _scratch: &mut [u8]) -> Result<()> {
        self.next = self.next.saturating_add(n);
        Ok(())
    }
}

/// Sees to it that there are as many elements as was said.
struct Assuming {
    cursor: Box<dyn Cursor>,
    next: u64,
    n: u64,
}

impl Cursor for Assuming {
    fn next(&mut self, scratch: &mut [u8]) -> Result<Option<Item>> {
        let item = self.cursor.next(scratch)?;
        if item.is_some() != (self.next < self.n) {
            let than =
                if item.is_some() { "more than that".to_owned() } else { format!("only {}", self.next) };
            let detail = format!("{} elements were said to come, and {than} came", self.n);
            return Err(Error::argument("assume_len", detail));
        }
        self.next += 1;
        Ok(item)
    }
}
