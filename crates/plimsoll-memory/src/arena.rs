//! Planned steps: a range of addresses inside the step region and an offset in it for every acquisition.
//!
//! A planner that has seen the trace of a step knows the lifetimes of its blocks and can pack them better than
//! any online policy. Its plan says how large the k-th acquisition of the step is and where it goes. The pool
//! follows the plan by position, trusts it in nothing (a place that a live block still holds is never handed
//! out), and leaves it at the first acquisition that differs.

use std::fmt;
use std::sync::Arc;

use crate::extents::{ExtentId, Kind};
use crate::map::{Map, Refusal, UNIT, rounded_size};
use crate::pool::Pool;
use crate::{Bytes, OutOfMemory, Region, Source, SourceError};

/// One acquisition of a planned step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The requested size.
    pub bytes: u64,
    /// Where it goes, counted from the start of the arena; a multiple of 512.
    pub offset: u64,
}

/// A plan and the addresses it is about. Dropping it gives them back.
///
/// The arena is committed when a step first runs in it, and stays so until its pages are given back as those of
/// free memory are: by [`Pool::trim`], by a limit, or when a model is disposed of. The next planned step
/// commits it again.
#[derive(Debug)]
pub struct Arena {
    pub(crate) pool: Pool,
    pub(crate) key: u64,
    bytes: u64,
}

impl Arena {
    pub(crate) fn new(pool: Pool, key: u64, bytes: u64) -> Self {
        Self { pool, key, bytes }
    }

    /// The size of the arena: the plan's, rounded up to whole granules.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.pool.drop_arena(self.key);
    }
}

/// Why a plan cannot be followed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ArenaError {
    /// An offset is not a multiple of 512 or lies beyond any address.
    Offset {
        /// The position in the plan.
        position: usize,
        /// The acquisition planned there.
        planned: Planned,
    },
    /// The step region has no free run of addresses that is long enough.
    Addresses {
        /// The size of the arena.
        bytes: u64,
    },
    /// A step is open already, and a plan is followed from a step's beginning or not at all.
    StepOpen,
    /// The arena belongs to another pool.
    OtherPool,
    /// There was no memory for the arena.
    OutOfMemory(OutOfMemory),
}

impl fmt::Display for ArenaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Offset { position, planned } => write!(
                f,
                "acquisition {position} of the plan has {} bytes at offset {}; an offset must be a multiple of \
                 512 and its block must end below 2^63",
                planned.bytes, planned.offset
            ),
            Self::Addresses { bytes } => write!(
                f,
                "the step region has no free run of addresses for an arena of {}; drop an arena that is no \
                 longer used",
                Bytes::new(*bytes)
            ),
            Self::StepOpen => f.write_str(
                "a step is open already; a planned step must be the outermost one, so end the other first",
            ),
            Self::OtherPool => f.write_str(
                "the arena belongs to another pool; plan one with `plan_arena` on the pool that runs the step",
            ),
            Self::OutOfMemory(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ArenaError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::OutOfMemory(error) => Some(error),
            _ => None,
        }
    }
}

/// The position of an arena in the pool's table.
pub(crate) type ArenaId = u32;

/// All arenas of a pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arenas {
    table: Vec<Option<Entry>>,
}

#[derive(Clone, Debug)]
struct Entry {
    /// Tells this arena from every other of the process.
    key: u64,
    extent: ExtentId,
    start: u64,
    bytes: u64,
    plan: Arc<[Planned]>,
    /// Offsets in the region, (start, end), of the live blocks inside, in address order.
    live: Vec<(u64, u64)>,
    committed: bool,
    /// A step runs in it.
    open: bool,
    /// Its handle is gone: it goes with its last block or step.
    orphaned: bool,
}

impl Entry {
    fn is_idle(&self) -> bool {
        !self.open && self.live.is_empty()
    }
}

impl Arenas {
    pub(crate) fn find(&self, key: u64) -> Option<ArenaId> {
        let position = self.table.iter().position(|entry| entry.as_ref().is_some_and(|e| e.key == key));
        position.map(|i| i as ArenaId)
    }

    pub(crate) fn bytes(&self, id: ArenaId) -> u64 {
        self.entry(id).bytes
    }

    /// Arenas whose pages may be given back.
    pub(crate) fn idle_committed(&self) -> Vec<ArenaId> {
        let idle = |entry: &Option<Entry>| entry.as_ref().is_some_and(|e| e.committed && e.is_idle());
        (0..self.table.len()).filter(|&i| idle(&self.table[i])).map(|i| i as ArenaId).collect()
    }

    /// The bytes of arenas that have no pages.
    #[cfg(feature = "testing")]
    pub(crate) fn bare_bytes(&self) -> u64 {
        self.table.iter().flatten().filter(|entry| !entry.committed).map(|entry| entry.bytes).sum()
    }

    /// The planned offset in the region of the step's `position`-th acquisition, if it is as planned and free.
    pub(crate) fn take(&mut self, id: ArenaId, position: usize, bytes: u64) -> Option<u64> {
        let entry = self.entry_mut(id);
        let planned = entry.plan.get(position).filter(|planned| planned.bytes == bytes)?;
        let start = entry.start + planned.offset;
        let end = start + rounded_size(bytes);
        if start < end {
            let next = entry.live.partition_point(|&(_, live_end)| live_end <= start);
            if entry.live.get(next).is_some_and(|&(live_start, _)| live_start < end) {
                return None;
            }
            entry.live.insert(next, (start, end));
        }
        Some(start)
    }

    /// Frees the block at an offset of the region.
    pub(crate) fn give(&mut self, id: ArenaId, offset: u64) {
        let live = &mut self.entry_mut(id).live;
        if let Ok(i) = live.binary_search_by_key(&offset, |&(start, _)| start) {
            live.remove(i);
        }
    }

    fn entry(&self, id: ArenaId) -> &Entry {
        self.table[id as usize].as_ref().expect("a live arena")
    }

    fn entry_mut(&mut self, id: ArenaId) -> &mut Entry {
        self.table[id as usize].as_mut().expect("a live arena")
    }
}

/// The size of the arena for a plan, in whole granules.
pub(crate) fn arena_bytes(plan: &[Planned], granule: u64) -> Result<u64, ArenaError> {
    let mut bytes = granule;
    for (position, &planned) in plan.iter().enumerate() {
        let end = planned.offset.checked_add(rounded_size(planned.bytes)).filter(|&end| end < 1 << 63);
        match end {
            Some(end) if planned.offset.is_multiple_of(UNIT) => bytes = bytes.max(end),
            _ => return Err(ArenaError::Offset { position, planned }),
        }
    }
    Ok(bytes.next_multiple_of(granule))
}

impl Map {
    /// Sets addresses aside for a plan; pages that are free there go back first.
    pub(crate) fn add_arena(
        &mut self,
        source: &dyn Source,
        key: u64,
        plan: Arc<[Planned]>,
        bytes: u64,
    ) -> Result<(), ArenaError> {
        let region = Region::Step;
        let extents = &self.extents[region as usize];
        let start = extents.lowest_aligned(bytes, self.granule).ok_or(ArenaError::Addresses { bytes })?;
        let range = start..start + bytes;
        for (_, part) in extents.parts(&range, Kind::Ready, self.granule) {
            if self.decommit(source, region, part).is_err() {
                return Err(ArenaError::Addresses { bytes });
            }
        }
        let extents = &mut self.extents[region as usize];
        let bare = extents.find(start);
        let extent = extents.set(bare, start, bytes, Kind::Used);
        let live = Vec::with_capacity(plan.len());
        let entry =
            Entry { key, extent, start, bytes, plan, live, committed: false, open: false, orphaned: false };
        match self.arenas.table.iter().position(Option::is_none) {
            Some(i) => self.arenas.table[i] = Some(entry),
            None => self.arenas.table.push(Some(entry)),
        }
        Ok(())
    }

    /// Commits an arena if it is not, and keeps its pages until `close_arena`.
    pub(crate) fn open_arena(&mut self, source: &dyn Source, id: ArenaId) -> Result<(), Refusal> {
        let Entry { start, bytes, committed, .. } = *self.arenas.entry(id);
        if !committed {
            self.make_room(source, bytes, None)?;
            self.commit_pages(source, Region::Step, start..start + bytes).map_err(Refusal::Source)?;
        }
        let entry = self.arenas.entry_mut(id);
        (entry.committed, entry.open) = (true, true);
        Ok(())
    }

    pub(crate) fn close_arena(&mut self, id: ArenaId) {
        self.arenas.entry_mut(id).open = false;
        self.remove_if_orphaned(id);
    }

    /// The handle of an arena is gone.
    pub(crate) fn orphan_arena(&mut self, id: ArenaId) {
        self.arenas.entry_mut(id).orphaned = true;
        self.remove_if_orphaned(id);
    }

    /// Turns an arena that nothing refers to any more into free memory.
    pub(crate) fn remove_if_orphaned(&mut self, id: ArenaId) -> Option<ExtentId> {
        let entry = self.arenas.entry(id);
        if !entry.orphaned || !entry.is_idle() {
            return None;
        }
        let kind = if entry.committed { Kind::Ready } else { Kind::Bare };
        let freed = self.extents[Region::Step as usize].set_whole(entry.extent, kind);
        self.arenas.table[id as usize] = None;
        Some(freed)
    }

    pub(crate) fn decommit_arena(&mut self, source: &dyn Source, id: ArenaId) -> Result<(), SourceError> {
        let Entry { start, bytes, .. } = *self.arenas.entry(id);
        self.decommit_pages(source, Region::Step, start..start + bytes)?;
        self.arenas.entry_mut(id).committed = false;
        Ok(())
    }
}
