//! The pieces over a driver that is a table: contents, bytes and mappings are compared after every call, and every call of
//! the driver is made to fail once.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::*;

const GRANULE: u64 = 2 << 20;
const DETOUR: u64 = 1 << 40;
const N_GRANULES: u64 = 64;

/// A driver's tables. Memory has one number per granule.
#[derive(Default)]
struct Tables {
    next: u64,
    /// Contents by handle.
    memory: HashMap<u64, Vec<u64>>,
    held: HashMap<u64, bool>,
    /// Start of a mapping: its length, handle, and whether access is allowed.
    mapped: BTreeMap<u64, (u64, u64, bool)>,
    most: u64,
    n_calls: usize,
    /// The number of the call that fails.
    fails_at: Option<usize>,
}

impl Tables {
    fn call(&mut self) -> Result<()> {
        self.n_calls += 1;
        match self.fails_at == Some(self.n_calls) {
            true => Err(Error::new("made to fail")),
            false => Ok(()),
        }
    }

    fn used(&self) -> u64 {
        self.memory.values().map(|contents| contents.len() as u64 * GRANULE).sum()
    }

    fn sweep(&mut self) {
        let mapped: Vec<u64> = self.mapped.values().map(|&(_, handle, _)| handle).collect();
        let held = &self.held;
        self.memory.retain(|handle, _| held[handle] || mapped.contains(handle));
    }

    /// The number at a granule.
    fn at(&mut self, address: u64) -> Option<&mut u64> {
        let (&start, &(n_bytes, handle, allowed)) = self.mapped.range(..=address).next_back()?;
        let idx = ((address - start) / GRANULE) as usize;
        (allowed && address < start + n_bytes).then(|| &mut self.memory.get_mut(&handle).unwrap()[idx])
    }
}

#[derive(Clone, Default)]
struct Table(Rc<RefCell<Tables>>);

impl Physical for Table {
    fn create(&self, n_bytes: u64) -> Result<u64> {
        let mut tables = self.0.borrow_mut();
        tables.call()?;
        tables.next += 1;
        let handle = tables.next;
        tables.memory.insert(handle, vec![u64::MAX; (n_bytes / GRANULE) as usize]);
        tables.held.insert(handle, true);
        tables.most = tables.most.max(tables.used());
        Ok(handle)
    }

    fn map(&self, at: u64, n_bytes: u64, handle: u64) -> Result<()> {
        let mut tables = self.0.borrow_mut();
        tables.call()?;
        assert_eq!(tables.memory[&handle].len() as u64 * GRANULE, n_bytes, "a part of a piece was mapped");
        let clash = tables.mapped.range(..at + n_bytes).next_back();
        assert!(clash.is_none_or(|(&start, &(n_bytes, ..))| start + n_bytes <= at), "mapped twice");
        tables.mapped.insert(at, (n_bytes, handle, false));
        Ok(())
    }

    fn release(&self, handle: u64) -> Result<()> {
        let mut tables = self.0.borrow_mut();
        assert_eq!(tables.held.insert(handle, false), Some(true), "released twice");
        tables.sweep();
        Ok(())
    }

    fn unmap(&self, range: Range<u64>) -> Result<()> {
        let mut tables = self.0.borrow_mut();
        tables.call()?;
        let mut at = range.start;
        while at < range.end {
            let (n_bytes, ..) =
                tables.mapped.remove(&at).expect("the range begins and continues with mappings");
            at += n_bytes;
        }
        assert_eq!(at, range.end, "a part of a piece was unmapped");
        tables.sweep();
        Ok(())
    }

    fn allow(&self, range: Range<u64>) -> Result<()> {
        let mut tables = self.0.borrow_mut();
        tables.call()?;
        tables.mapped.range_mut(range).for_each(|(_, mapping)| mapping.2 = true);
        Ok(())
    }

    fn copy(&self, from: u64, to: u64, n_bytes: u64) -> Result<()> {
        let mut tables = self.0.borrow_mut();
        tables.call()?;
        for offset in (0..n_bytes).step_by(GRANULE as usize) {
            let value = *tables.at(from + offset).expect("readable");
            *tables.at(to + offset).expect("writable") = value;
        }
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        self.0.borrow_mut().call()
    }
}

/// Handles, and what should be committed with which contents.
struct Watched {
    table: Table,
    handles: Handles<Table>,
    contents: BTreeMap<u64, u64>,
}

impl Watched {
    fn new() -> Watched {
        let table = Table::default();
        Watched { handles: Handles::new(table.clone(), GRANULE, DETOUR), table, contents: BTreeMap::new() }
    }

    fn commit(&mut self, granules: Range<u64>) -> Result<()> {
        self.handles.commit(granules.start * GRANULE..granules.end * GRANULE)?;
        for granule in granules {
            *self.table.0.borrow_mut().at(granule * GRANULE).expect("committed memory is writable") = granule;
            self.contents.insert(granule, granule);
        }
        Ok(())
    }

    fn decommit(&mut self, granules: Range<u64>) -> Result<()> {
        self.handles.decommit(granules.start * GRANULE..granules.end * GRANULE)?;
        self.contents.retain(|granule, _| !granules.contains(granule));
        Ok(())
    }

    /// Every granule has its contents or no memory, and the driver has no byte more in use.
    fn verify(&self) {
        let mut tables = self.table.0.borrow_mut();
        assert_eq!(tables.used(), self.contents.len() as u64 * GRANULE);
        for granule in 0..N_GRANULES {
            let found = tables.at(granule * GRANULE).map(|number| *number);
            assert_eq!(found, self.contents.get(&granule).copied(), "granule {granule}");
        }
        assert!(tables.mapped.range(DETOUR..).next().is_none(), "the detour is free");
    }
}

/// A simple generator, the same numbers every time.
fn numbers() -> impl FnMut(u64) -> u64 {
    let mut state = 1u64;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

/// A run of granules that are all committed or all not, from a random start.
fn run(watched: &Watched, next: &mut impl FnMut(u64) -> u64) -> (bool, Range<u64>) {
    let start = next(N_GRANULES);
    let committed = watched.contents.contains_key(&start);
    let most = start + 1 + next(24);
    let same = |granule: &u64| *granule < N_GRANULES && watched.contents.contains_key(granule) == committed;
    let end = (start..most).take_while(same).last().unwrap_or(start) + 1;
    (committed, start..end)
}

#[test]
fn any_range_can_be_given_back_to_the_byte() {
    let (mut watched, mut next) = (Watched::new(), numbers());
    for _ in 0..2000 {
        let (committed, range) = run(&watched, &mut next);
        let before = watched.table.0.borrow().used();
        watched.table.0.borrow_mut().most = 0;
        match committed {
            true => watched.decommit(range).unwrap(),
            false => watched.commit(range).unwrap(),
        }
        watched.verify();
        let most = watched.table.0.borrow().most;
        assert!(!committed || most < before + DETOUR_BYTES, "{most} at a time, {before} before");
    }
    let table = watched.table.clone();
    drop(watched);
    assert_eq!(table.0.borrow().used(), 0, "dropping frees everything");
}

#[test]
fn a_call_that_fails_leaves_everything_as_it_was() {
    let mut n_refused = 0;
    for fails_at in 1..40 {
        let mut watched = Watched::new();
        watched.commit(0..40).unwrap();
        let n_calls = watched.table.0.borrow().n_calls;
        watched.table.0.borrow_mut().fails_at = Some(n_calls + fails_at);
        let (given, taken) = (watched.decommit(3..29), watched.commit(50..60));
        watched.table.0.borrow_mut().fails_at = None;
        n_refused += usize::from(given.is_err()) + usize::from(taken.is_err());
        if watched.handles.lost.is_some() {
            // Between unmapping a piece and mapping its parts again there is no way back; nothing works from then on.
            assert!(watched.commit(40..41).is_err() && watched.decommit(35..36).is_err());
            continue;
        }
        if given.is_err() {
            watched.verify();
            watched.decommit(3..29).unwrap();
        }
        if taken.is_err() {
            watched.commit(50..60).unwrap();
        }
        watched.verify();
    }
    assert!(n_refused > 20, "{n_refused} calls were refused");
}

#[test]
fn pieces_grow_from_the_end() {
    let sizes = |n_granules: u64| -> Vec<u64> {
        cut(0..n_granules * GRANULE, GRANULE)
            .iter()
            .map(|piece| (piece.end - piece.start) / GRANULE)
            .collect()
    };
    assert_eq!(sizes(1), [1]);
    assert_eq!(sizes(5), [1, 2, 2]);
    assert_eq!(sizes(30), [1, 2, 4, 8, 8, 7]);
    let many = sizes(8192);
    assert_eq!(many.iter().sum::<u64>(), 8192);
    assert!(many.len() < 1040, "{} pieces for 16 GiB", many.len());
}
