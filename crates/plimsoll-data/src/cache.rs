//! Elements kept in memory after they are made for the first time.
//!
//! What comes before a cache is made once, as in the first pass: a cache after `shuffle` repeats its first order. The
//! memory is one block of the pool, counted as data, taken when the first iteration begins and held as long as the
//! dataset; an element is written there when a worker makes it, and copied from there ever after. It needs to know
//! how many elements there can be.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use plimsoll_tensor::{Device, Error, Piece, Result, Shape};

use crate::example::ExampleMut;
use crate::limits;
use crate::node::{Cursor, Item, Node, NodeRef, Plan, Session, Work, lock, open, write_whole};
use crate::spec::{Shapes, Spec};

/// Elements share a lock in runs of so many: few locks, and workers rarely meet at one.
const RUN: u64 = 64;

/// Keeps elements.
pub(crate) struct Cache {
    upstream: NodeRef,
    /// The most elements that there can be.
    n_most: u64,
    /// What is kept on a real device and, for plans, on a ghost.
    stores: [Mutex<Option<Arc<Store>>>; 2],
}

/// The kept elements on one device.
struct Store {
    device: Device,
    runs: Vec<Mutex<RunOfCells>>,
    /// The number of elements, once a stream has ended.
    n: Mutex<Option<u64>>,
}

struct RunOfCells {
    piece: Piece,
    is_full: u64,
}

/// The bytes of a cell: its fields and the extents that vary.
fn cell_bytes(spec: &Spec) -> usize {
    spec.fields().iter().map(|field| field.n_bytes() + 8 * field.n_varying()).sum()
}

impl Cache {
    pub fn new(upstream: &NodeRef) -> Result<Cache> {
        let Some(n_most) = upstream.count().bound() else {
            return Err(Error::argument(
                "cache",
                "nobody can say how many elements there are at most; put `take` before it, or `assume_len`",
            ));
        };
        Ok(Cache { upstream: upstream.clone(), n_most, stores: Default::default() })
    }

    fn store(&self, is_ghost: bool) -> Option<Arc<Store>> {
        lock(&self.stores[usize::from(is_ghost)]).clone()
    }

    /// The bytes of an element, or nothing if it is not there yet.
    fn read(&self, idx: u64, to: &mut ExampleMut<'_>) -> bool {
        let Some(store) = self.store(false) else { return false };
        let run = lock(&store.runs[(idx / RUN) as usize]);
        if run.is_full >> (idx % RUN) & 1 == 0 {
            return false;
        }
        let n_bytes = cell_bytes(self.spec());
        let mut rest = &run.piece.bytes()[(idx % RUN) as usize * n_bytes..][..n_bytes];
        for (field_idx, field) in self.spec().fields().iter().enumerate() {
            let mut shape = *field.shape();
            for axis in 0..field.n_varying() {
                let (extent, after) = rest.split_at(8);
                rest = after;
                shape =
                    shape.at_most(axis, u64::from_le_bytes(extent.try_into().unwrap_or_default()) as usize);
            }
            let (bytes, after) = rest.split_at(field.n_bytes());
            rest = after;
            to.write(field_idx, &bytes[..shape.n_elems() * field.dtype().size()], shape);
        }
        true
    }

    /// Keeps an element.
    fn keep(&self, idx: u64, from: &mut ExampleMut<'_>) {
        let Some(store) = self.store(false) else { return };
        let mut run = lock(&store.runs[(idx / RUN) as usize]);
        let n_bytes = cell_bytes(self.spec());
        let mut rest = &mut run.piece.bytes_mut()[(idx % RUN) as usize * n_bytes..][..n_bytes];
        for (field_idx, field) in self.spec().fields().iter().enumerate() {
            let (bytes, shape) = from.part_mut(field_idx);
            let shape: Shape = *shape;
            for axis in 0..field.n_varying() {
                let (extent, after) = rest.split_at_mut(8);
                extent.copy_from_slice(&(shape[axis] as u64).to_le_bytes());
                rest = after;
            }
            let (cell, after) = rest.split_at_mut(field.n_bytes());
            let n_present = shape.n_elems() * field.dtype().size();
            cell[..n_present].copy_from_slice(&bytes[..n_present]);
            rest = after;
        }
        run.is_full |= 1 << (idx % RUN);
    }
}

impl Store {
    /// Room for `n` elements, in one block.
    fn new(device: &Device, n: u64, cell_bytes: usize) -> Result<Store> {
        let too_many =
            || Error::argument("cache", format!("{n} elements of {cell_bytes} bytes cannot be counted"));
        limits::check("cache", "elements", usize::try_from(n).unwrap_or(usize::MAX), limits::CACHED)?;
        let n_bytes = usize::try_from(n).ok().and_then(|n| n.checked_mul(cell_bytes)).ok_or_else(too_many)?;
        let mut rest = Piece::acquire(device, n_bytes, "cache")?;
        let mut runs = Vec::new();
        while (runs.len() as u64) * RUN < n {
            let n_cells = RUN.min(n - runs.len() as u64 * RUN) as usize;
            let piece = rest.take_front(n_cells * cell_bytes);
            runs.push(Mutex::new(RunOfCells { piece, is_full: 0 }));
        }
        Ok(Store { device: device.clone(), runs, n: Mutex::new(None) })
    }

    fn has(&self, idx: u64) -> bool {
        self.runs.get((idx / RUN) as usize).is_some_and(|run| lock(run).is_full >> (idx % RUN) & 1 == 1)
    }
}

impl Node for Cache {
    fn upstream(&self) -> &NodeRef {
        &self.upstream
    }

    fn at(&self, _pass: u64, idx: u64) -> Item {
        Item::Numbered(idx, Box::new(self.upstream.at(0, idx)))
    }

    fn stream(&self, _pass: u64, session: &Arc<Session>) -> Box<dyn Cursor> {
        let store = self.store(session.is_ghost);
        let (upstream, session) = (self.upstream.clone(), session.clone());
        Box::new(Caching { upstream, session, store, next: 0, cursor: None })
    }

    fn makes_elements(&self) -> bool {
        true
    }

    fn outline(&self, item: &Item) -> Shapes {
        match item {
            Item::Numbered(_, item) => self.upstream.outline(item),
            _ => self.spec().shapes(),
        }
    }

    fn write(
        &self,
        item: &Item,
        _rows: Range<usize>,
        to: &mut ExampleMut<'_>,
        work: &mut Work<'_>,
    ) -> Result<()> {
        match item {
            Item::Numbered(idx, item) => {
                if !self.read(*idx, to) {
                    write_whole(&*self.upstream, item, to, work.scratch)?;
                    self.keep(*idx, to);
                }
            }
            item => {
                let found = self.read(item.position().1, to);
                debug_assert!(found, "the cursor saw it, and nothing is ever taken out");
            }
        }
        Ok(())
    }

    fn reserve(&self, n_items: usize, plan: &mut Plan<'_>) -> Result<()> {
        self.upstream.reserve(n_items, plan)?;
        let mut store = lock(&self.stores[usize::from(plan.device.is_ghost())]);
        if store.as_ref().is_none_or(|store| store.device != *plan.device) {
            *store = None;
            *store = Some(Arc::new(Store::new(plan.device, self.n_most, cell_bytes(self.spec()))?));
        }
        Ok(())
    }
}

/// Goes through what is kept, and through the upstream for what is not.
struct Caching {
    upstream: NodeRef,
    session: Arc<Session>,
    store: Option<Arc<Store>>,
    next: u64,
    /// The upstream's cursor, and where it is.
    cursor: Option<(Box<dyn Cursor>, u64)>,
}

impl Cursor for Caching {
    fn next(&mut self, scratch: &mut [u8]) -> Result<Option<Item>> {
        let idx = self.next;
        let Some(store) = &self.store else { unreachable!("`reserve` made it") };
        if lock(&store.n).is_some_and(|n| idx >= n) {
            return Ok(None);
        }
        self.next += 1;
        if store.has(idx) {
            return Ok(Some(Item::At { pass: 0, idx }));
        }
        let begin = || (open(&self.upstream, 0, &self.session), 0);
        let (cursor, at) = self.cursor.get_or_insert_with(begin);
        cursor.skip(idx - *at, scratch)?;
        *at = idx + 1;
        let item = cursor.next(scratch)?;
        if item.is_none() {
            *lock(&store.n) = Some(idx);
        }
        Ok(item.map(|item| Item::Numbered(idx, Box::new(item))))
    }

    fn skip(&mut self, n: u64, _scratch: &mut [u8]) -> Result<()> {
        self.next = self.next.saturating_add(n);
        Ok(())
    }
}
