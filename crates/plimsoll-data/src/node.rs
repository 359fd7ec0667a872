//! The plan of a dataset: a chain of nodes, each about the elements of the one before it.
//!
//! A node gives *items*, which say how to make an element, and *writes* an item where it is told. The two are apart so
//! that nothing is copied on the way: shuffling, taking and batching move items of a few bytes, and an element is
//! first made when its row of the batch buffer is written, by whichever worker gets to it.
//!
//! Most nodes are *indexed*: they can name item `i` of a pass without those before it, so skipping costs nothing and
//! there is nothing to keep. The others (what comes from an iterator, passes a filter or is sorted into buckets) are
//! *streams* with a [`Cursor`] that goes forward. Whatever passes items on unchanged only overrides their order; all
//! other methods are by default those of the node before.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_tensor::{Device, Piece, Result};

use crate::example::{Example, ExampleMut, Origin};
use crate::spec::{Shapes, Spec};

/// A node that others build on.
pub(crate) type NodeRef = Arc<dyn Node>;

/// How many elements there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Exactly(u64),
    AtMost(u64),
    Unknown,
    Endless,
}

impl Count {
    /// The count after a step that changes a known number by `f`; the endless stays so.
    pub fn map(self, f: impl Fn(u64) -> u64) -> Count {
        match self {
            Count::Exactly(n) => Count::Exactly(f(n)),
            Count::AtMost(n) => Count::AtMost(f(n)),
            other => other,
        }
    }

    /// The most that there can be, if that is known.
    pub fn bound(self) -> Option<u64> {
        match self {
            Count::Exactly(n) | Count::AtMost(n) => Some(n),
            Count::Unknown | Count::Endless => None,
        }
    }

    /// The same number, but perhaps less.
    pub fn or_less(self) -> Count {
        match self {
            Count::Exactly(n) | Count::AtMost(n) => Count::AtMost(n),
            Count::Unknown | Count::Endless => Count::Unknown,
        }
    }

    /// The smaller of two.
    pub fn min(self, other: Count) -> Count {
        match (self, other) {
            (Count::Endless, count) | (count, Count::Endless) => count,
            (Count::Exactly(a), Count::Exactly(b)) => Count::Exactly(a.min(b)),
            (a, b) => match (a.bound(), b.bound()) {
                (Some(a), Some(b)) => Count::AtMost(a.min(b)),
                (Some(n), None) | (None, Some(n)) => Count::AtMost(n),
                (None, None) => Count::Unknown,
            },
        }
    }
}

/// How to make an element: a few bytes that the node which gave them understands.
#[derive(Debug)]
pub(crate) enum Item {
    /// Element `idx` of a pass.
    At { pass: u64, idx: u64 },
    /// An element that lies in a cell of the allowance already.
    Held(Box<Held>),
    /// Several items, to be stacked.
    Group(Box<[Item]>),
    /// One item of each of two datasets.
    Pair(Box<(Item, Item)>),
    /// An item and its number.
    Numbered(u64, Box<Item>),
    /// Element `idx` of a pass, of which a ghost knows by somebody's word alone; only the node that gave it understands it.
    Assumed { pass: u64, idx: u64 },
}

impl Item {
    /// Where the element came from.
    pub fn origin(&self) -> Origin {
        match self {
            Item::At { pass, idx } | Item::Assumed { pass, idx } => Origin { pass: *pass, idx: *idx },
            Item::Held(held) => held.origin,
            Item::Group(items) => items.first().map_or(Origin { pass: 0, idx: 0 }, Item::origin),
            Item::Pair(pair) => pair.0.origin(),
            Item::Numbered(_, item) => item.origin(),
        }
    }

    /// Pass and index of an item that has nothing else.
    pub fn position(&self) -> (u64, u64) {
        match self {
            Item::At { pass, idx } => (*pass, *idx),
            other => unreachable!("{other:?} came from a stream"),
        }
    }
}

/// What a worker works with.
pub(crate) struct Work<'a> {
    /// Memory for elements on the way, as much as [`Node::scratch`] says.
    pub scratch: &'a mut [u8],
    /// The lengths of rows that are padded later, row by row and field by field.
    pub lengths: &'a mut Vec<usize>,
}

/// One step of a dataset's plan. See the module for which methods a node overrides.
pub(crate) trait Node: Send + Sync {
    /// The node whose items this one passes on.
    fn upstream(&self) -> &NodeRef {
        unreachable!("a node without an upstream overrides every method that asks for it")
    }

    /// Whether elements are made here, each as a whole, rather than passed on.
    fn makes_elements(&self) -> bool {
        false
    }

    /// What the elements look like.
    fn spec(&self) -> &Spec {
        self.upstream().spec()
    }

    /// How many there are in one pass.
    fn count(&self) -> Count {
        self.upstream().count()
    }

    /// How many elements at the beginning of a pass are sure to have the shapes of the spec.
    fn n_alike(&self) -> u64 {
        let varies = self.spec().fields().iter().any(|field| field.n_varying() > 0);
        match self.count() {
            Count::Exactly(n) if !varies => n,
            Count::Endless if !varies => u64::MAX,
            _ => 0,
        }
    }

    /// Whether [`Node::at`] works. The count of such a node is exact or endless.
    fn is_indexed(&self) -> bool {
        self.upstream().is_indexed()
    }

    /// Item `idx` of a pass; `idx` is less than the count. Only called if indexed.
    fn at(&self, pass: u64, idx: u64) -> Item {
        self.upstream().at(pass, idx)
    }

    /// A cursor at the first item of a pass. Only called if not indexed.
    fn stream(&self, pass: u64, session: &Arc<Session>) -> Box<dyn Cursor> {
        open(self.upstream(), pass, session)
    }

    /// The number of rows that can be written apart from each other; none if the item is written as a whole.
    fn n_rows(&self, item: &Item) -> Option<usize> {
        if self.makes_elements() { None } else { self.upstream().n_rows(item) }
    }

    /// The bytes of one row of a field, where rows are written apart from each other.
    fn row_bytes(&self, item: &Item, field: usize) -> usize {
        self.upstream().row_bytes(item, field)
    }

    /// The shapes of an item as far as they are known without its values: the largest possible.
    fn outline(&self, item: &Item) -> Shapes {
        self.upstream().outline(item)
    }

    /// Whether [`Node::view`] gives elements that lie in memory already.
    fn has_views(&self) -> bool {
        !self.makes_elements() && self.upstream().has_views()
    }

    /// The element of an item, without a copy. Only called if there are views.
    fn view<'a>(&'a self, item: &'a Item) -> Example<'a> {
        self.upstream().view(item)
    }

    /// Writes the element of an item, or some rows of it, to `to`, which has room for just those.
    fn write(
        &self,
        item: &Item,
        rows: Range<usize>,
        to: &mut ExampleMut<'_>,
        work: &mut Work<'_>,
    ) -> Result<()> {
        self.upstream().write(item, rows, to, work)
    }

    /// Called once after all rows of an item are written, with the whole of it.
    fn finish(&self, item: &Item, to: &mut ExampleMut<'_>, lengths: &[usize]) -> Result<()> {
        if self.makes_elements() { Ok(()) } else { self.upstream().finish(item, to, lengths) }
    }

    /// The bytes of scratch memory that a worker needs.
    fn scratch(&self) -> usize {
        self.upstream().scratch()
    }

    /// Asks for the memory that lasts as long as the iteration, when at most `n_items` items are alive at once.
    fn reserve(&self, n_items: usize, plan: &mut Plan<'_>) -> Result<()> {
        self.upstream().reserve(n_items, plan)
    }
}

/// Writes the whole element of an item.
pub(crate) fn write_whole(
    node: &dyn Node,
    item: &Item,
    to: &mut ExampleMut<'_>,
    scratch: &mut [u8],
) -> Result<()> {
    // What is made as a whole sets its shapes itself; the rest is as large as its rows say.
    if !node.makes_elements() {
        for (idx, shape) in node.outline(item).into_iter().enumerate() {
            *to.part_mut(idx).1 = shape;
        }
    }
    let mut lengths = Vec::new();
    let rows = 0..node.n_rows(item).unwrap_or(1);
    node.write(item, rows, to, &mut Work { scratch, lengths: &mut lengths })?;
    node.finish(item, to, &lengths)
}

/// Calls `f` with the element of an item: where it lies, if it lies in memory, else made in scratch memory.
pub(crate) fn with_example<R>(
    node: &dyn Node,
    item: &Item,
    scratch: &mut [u8],
    f: impl FnOnce(&Example<'_>, &mut [u8]) -> Result<R>,
) -> Result<R> {
    if node.has_views() {
        return f(&node.view(item), scratch);
    }
    let (mine, rest) = scratch.split_at_mut(node.spec().aligned_bytes());
    let mut made = ExampleMut::aligned(node.spec(), mine);
    write_whole(node, item, &mut made, rest)?;
    f(&made.into_example(item.origin()), rest)
}

/// The scratch memory that [`with_example`] needs, with `after` bytes for `f`.
pub(crate) fn example_scratch(node: &dyn Node, after: usize) -> usize {
    match node.has_views() {
        true => node.scratch().max(after),
        false => node.spec().aligned_bytes() + node.scratch().max(after),
    }
}

/// Goes through the items of one pass.
pub(crate) trait Cursor: Send {
    /// The next item, if there is one.
    fn next(&mut self, scratch: &mut [u8]) -> Result<Option<Item>>;

    /// Goes over `n` items without making their elements, or to the end if there are fewer.
    fn skip(&mut self, n: u64, scratch: &mut [u8]) -> Result<()> {
        skip_one_by_one(self, n, scratch)
    }
}

/// Goes over `n` items of a cursor that knows no shorter way.
pub(crate) fn skip_one_by_one(cursor: &mut (impl Cursor + ?Sized), n: u64, scratch: &mut [u8]) -> Result<()> {
    for _ in 0..n {
        if cursor.next(scratch)?.is_none() {
            break;
        }
    }
    Ok(())
}

/// A cursor over a node.
pub(crate) fn open(node: &NodeRef, pass: u64, session: &Arc<Session>) -> Box<dyn Cursor> {
    match node.is_indexed() {
        true => Box::new(Counting { node: node.clone(), pass, next: 0 }),
        false => node.stream(pass, session),
    }
}

/// The cursor of a node that is indexed: a number.
struct Counting {
    node: NodeRef,
    pass: u64,
    next: u64,
}

impl Cursor for Counting {
    fn next(&mut self, _scratch: &mut [u8]) -> Result<Option<Item>> {
        // What is endless has no element beyond the last number either.
        if self.next >= self.node.count().bound().unwrap_or(u64::MAX) {
            return Ok(None);
        }
        self.next += 1;
        Ok(Some(self.node.at(self.pass, self.next - 1)))
    }

    fn skip(&mut self, n: u64, _scratch: &mut [u8]) -> Result<()> {
        self.next = self.next.saturating_add(n);
        Ok(())
    }
}

/// What the nodes ask of the allowance before iteration begins.
pub(crate) struct Plan<'a> {
    pub device: &'a Device,
    /// Number of cells and bytes of one, for each node that asks.
    pub cells: BTreeMap<u64, (usize, usize)>,
}

/// What lasts as long as an iteration.
pub(crate) struct Session {
    /// Whether there are shapes only.
    pub is_ghost: bool,
    /// The cells of the nodes that asked for them.
    pub cells: BTreeMap<u64, Arc<CellPool>>,
}

/// Memory for elements that have to wait somewhere, each in a cell of its own.
pub(crate) struct CellPool(pub Mutex<Vec<Piece>>);

/// An element in a cell; the cell is free again when this is dropped.
pub(crate) struct Held {
    cell: Option<Piece>,
    shapes: Shapes,
    pool: Arc<CellPool>,
    origin: Origin,
}

impl Held {
    /// Fills a free cell, if `f` finds something to fill it with.
    pub fn fill(
        pool: &Arc<CellPool>,
        spec: &Spec,
        origin: Origin,
        f: impl FnOnce(&mut ExampleMut<'_>) -> Result<bool>,
    ) -> Result<Option<Held>> {
        let cell = lock(&pool.0).pop();
        let mut held = Held { cell, shapes: Shapes::new(), pool: pool.clone(), origin };
        let Some(cell) = &mut held.cell else { unreachable!("`reserve` counted the cells") };
        let mut to = ExampleMut::aligned(spec, cell.bytes_mut());
        let found = f(&mut to)?;
        let shapes = to.shapes();
        drop(to);
        held.shapes = shapes;
        Ok(found.then_some(held))
    }

    /// The element.
    pub fn example<'a>(&'a self, spec: &'a Spec) -> Example<'a> {
        let mut start = 0;
        let bytes = self.cell.as_ref().map_or(&[][..], Piece::bytes);
        let parts = spec.fields().iter().zip(&self.shapes).map(|(field, shape)| {
            let part = &bytes[start..start + field.n_bytes()];
            start += field.n_bytes().next_multiple_of(8);
            (part, *shape)
        });
        Example::new(spec, parts, self.origin)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        lock(&self.pool.0).extend(self.cell.take());
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Held({:?})", self.origin)
    }
}

/// Copies an element that lies in memory.
pub(crate) fn copy_example(from: &Example<'_>, to: &mut ExampleMut<'_>) {
    for (idx, field) in from.spec().fields().iter().enumerate() {
        let (bytes, shape) = from.part(idx);
        to.write(idx, &bytes[..shape.n_elems() * field.dtype().size()], shape);
    }
}

/// Takes a lock. A thread that panicked while it held one has left nothing half done: user code never runs under it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
