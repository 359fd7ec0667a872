//! Everything behind a pool's lock: the map, the table of live blocks, the counters, the open step.

use std::sync::Arc as StdArc;

use crate::arena::{ArenaError, ArenaId, Planned, arena_bytes};
use crate::error::{Cause, Shortage};
use crate::map::{Map, Place, Refusal, rounded_size};
use crate::stats::Ledger;
use crate::sync::ThreadMark;
use crate::{
    BlockInfo, Label, LongList, OutOfMemory, Owner, Region, Site, Snapshot, Source, Stats, TraceEvent,
};

/// How many holders an error lists.
const N_HOLDERS: usize = 8;

/// Why a block that has a handle has a record: only the handle's drop takes it away.
const ALIVE: &str = "a block's record lives as long as its handle";

/// The position of a block in the table of live blocks.
pub(crate) type BlockId = u32;

#[derive(Clone, Copy, Debug)]
struct Record {
    info: BlockInfo,
    place: Place,
}

/// What is behind a pool's lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) map: Map,
    pub(crate) ledger: Ledger,
    /// Live blocks by number, and the numbers to use next.
    blocks: LongList<Option<Record>>,
    vacant: Vec<BlockId>,
    step: OpenStep,
    /// A parameter, optimizer state or graph was dropped and nothing was acquired since: freed granules go
    /// back as they become free.
    disposing: bool,
    /// How many scopes keep the pages of an empty pool.
    n_keeping: u32,
    trace: Option<Vec<TraceEvent>>,
    /// Which acquisitions a test wants to fail.
    #[cfg(feature = "testing")]
    pub(crate) acquisitions: crate::testing::Series,
}

/// The steps that are open; inner ones belong to the outermost.
#[derive(Debug, Default)]
struct OpenStep {
    depth: u32,
    /// The thread that opened the outermost step.
    issuer: Option<ThreadMark>,
    /// Dropped by other threads; they join the free list when the step ends.
    pending: Vec<BlockId>,
    /// The arena of a planned step and the position in its plan.
    arena: Option<(ArenaId, usize)>,
    /// Whether every acquisition so far was as planned.
    on_plan: bool,
}

/// A block as the pool hands it out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) id: BlockId,
    pub(crate) rounded: u64,
    pub(crate) offset: u64,
}

impl State {
    pub(crate) fn new(source: &dyn Source) -> Self {
        Self {
            map: Map::new(source),
            ledger: Ledger::default(),
            blocks: LongList::default(),
            vacant: Vec::new(),
            step: OpenStep::default(),
            disposing: false,
            n_keeping: 0,
            trace: None,
            #[cfg(feature = "testing")]
            acquisitions: Default::default(),
        }
    }

    /// The state of a ghost: the same map, blocks and counters, with nothing open and nothing pending.
    ///
    /// `ghost_pages` is the ghost's own source.
    pub(crate) fn ghost(&self, ghost_pages: &dyn Source) -> Self {
        let mut ghost = Self {
            map: self.map.clone(),
            ledger: self.ledger.clone(),
            blocks: self.blocks.clone(),
            vacant: self.vacant.clone(),
            step: OpenStep::default(),
            disposing: self.disposing,
            n_keeping: self.n_keeping,
            trace: None,
            #[cfg(feature = "testing")]
            acquisitions: Default::default(),
        };
        if let Some((arena, _)) = self.step.arena {
            ghost.map.close_arena(arena);
        }
        ghost.release_all(self.step.pending.clone(), ghost_pages);
        ghost
    }

    pub(crate) fn acquire(
        &mut self,
        source: &dyn Source,
        region: Region,
        requested: u64,
        label: Label,
    ) -> Result<Grant, Refusal> {
        #[cfg(feature = "testing")]
        self.acquisitions.next_acquisition()?;
        let rounded = rounded_size(requested);
        let (place, offset) = match self.planned_place(region, requested, rounded) {
            Some(planned) => planned,
            None => self.map.take(source, region, rounded)?,
        };
        let serial = self.ledger.n_acquired;
        let Label { owner, site } = label;
        let info = BlockInfo { serial, owner, site, requested, rounded, region, offset };
        self.ledger.acquire(owner, requested, rounded);
        self.disposing = false;
        if let Some(trace) = &mut self.trace {
            trace.push(TraceEvent::Acquire { serial, region, offset, bytes: requested, label });
        }
        let record = Some(Record { info, place });
        let id = match self.vacant.pop() {
            Some(id) => {
                self.blocks[id as usize] = record;
                id
            }
            None => {
                self.blocks.push(record);
                (self.blocks.len() - 1) as BlockId
            }
        };
        Ok(Grant { id, rounded, offset })
    }

    /// The place the plan has for the next acquisition; from the first one that differs on there is none.
    fn planned_place(&mut self, region: Region, requested: u64, rounded: u64) -> Option<(Place, u64)> {
        if region != Region::Step || !self.step.on_plan {
            return None;
        }
        let (arena, position) = self.step.arena?;
        self.step.arena = Some((arena, position + 1));
        let offset = self.map.arenas.take(arena, position, requested);
        self.step.on_plan = offset.is_some();
        let place = if rounded == 0 { Place::Nowhere } else { Place::Arena(arena) };
        offset.map(|offset| (place, offset))
    }

    /// A handle was dropped by `thread`: now, or at the end of the step if that is another thread's.
    pub(crate) fn drop_block(&mut self, source: &dyn Source, id: BlockId, thread: impl Fn() -> ThreadMark) {
        if self.step.depth > 0 && self.step.issuer != Some(thread()) {
            self.step.pending.push(id);
        } else {
            self.release(source, id);
        }
    }

    fn release(&mut self, source: &dyn Source, id: BlockId) {
        let Record { info, place } = self.blocks[id as usize].take().expect(ALIVE);
        self.vacant.push(id);
        self.ledger.release(info.owner, info.requested, info.rounded);
        if let Some(trace) = &mut self.trace {
            trace.push(TraceEvent::Release { serial: info.serial });
        }
        let freed = self.map.give(info.region, place, info.offset, info.rounded);
        if self.is_done() || (info.owner.marks_disposal() && !self.disposing) {
            self.disposing = true;
            self.map.release_free(source);
        } else if let Some(extent) = freed
            && self.disposing
        {
            self.map.release_extent(source, info.region, extent);
        }
    }

    /// Releases blocks in the order of their acquisition, whatever the order of their drops was.
    fn release_all(&mut self, mut ids: Vec<BlockId>, source: &dyn Source) -> Vec<BlockId> {
        ids.sort_unstable_by_key(|&id| self.info(id).serial);
        for id in ids.drain(..) {
            self.release(source, id);
        }
        ids
    }

    pub(crate) fn info(&self, id: BlockId) -> &BlockInfo {
        &self.blocks[id as usize].as_ref().expect(ALIVE).info
    }

    /// Changes a label; the rows follow, the place stays.
    pub(crate) fn relabel(&mut self, id: BlockId, change: impl FnOnce(&mut Label)) {
        let info = &mut self.blocks[id as usize].as_mut().expect(ALIVE).info;
        let old = Label::new(info.owner, info.site);
        let mut label = old;
        change(&mut label);
        if label == old {
            return;
        }
        (info.owner, info.site) = (label.owner, label.site);
        self.ledger.relabel(old.owner, label.owner, info.requested);
        if let Some(trace) = &mut self.trace {
            trace.push(TraceEvent::Relabel { serial: info.serial, label });
        }
    }

    pub(crate) fn begin_step(&mut self, thread: ThreadMark) {
        if self.step.depth == 0 {
            self.step.issuer = Some(thread);
        }
        self.step.depth += 1;
    }

    pub(crate) fn begin_planned_step(
        &mut self,
        source: &dyn Source,
        key: u64,
        thread: ThreadMark,
    ) -> Result<(), ArenaError> {
        if self.step.depth > 0 {
            return Err(ArenaError::StepOpen);
        }
        let arena = self.map.arenas.find(key).ok_or(ArenaError::OtherPool)?;
        if let Err(refusal) = self.map.open_arena(source, arena) {
            let label = Label::new(Owner::Temporary, Site::intern("", 0, "", "planned step"));
            let bytes = self.map.arenas.bytes(arena);
            let shortage = self.shortage(refusal, Region::Step, bytes, label);
            return Err(ArenaError::OutOfMemory(OutOfMemory::new(shortage)));
        }
        self.step.arena = Some((arena, 0));
        self.step.on_plan = true;
        self.begin_step(thread);
        Ok(())
    }

    pub(crate) fn end_step(&mut self, source: &dyn Source) {
        self.step.depth -= 1;
        if self.step.depth > 0 {
            return;
        }
        self.step.issuer = None;
        self.step.on_plan = false;
        if let Some((arena, _)) = self.step.arena.take() {
            self.map.close_arena(arena);
        }
        let pending = std::mem::take(&mut self.step.pending);
        self.step.pending = self.release_all(pending, source);
        if self.disposing || self.is_done() {
            self.map.release_free(source);
        }
    }

    /// Whether the pool is empty and nobody wants its pages to stay.
    fn is_done(&self) -> bool {
        self.n_keeping == 0 && self.ledger.n_live() == 0
    }

    pub(crate) fn keep_pages(&mut self) {
        self.n_keeping += 1;
    }

    pub(crate) fn stop_keeping(&mut self, source: &dyn Source) {
        self.n_keeping -= 1;
        if self.is_done() {
            self.map.release_free(source);
        }
    }

    /// Whether the open step has followed its plan so far.
    pub(crate) fn on_plan(&self) -> bool {
        self.step.on_plan
    }

    pub(crate) fn add_arena(
        &mut self,
        source: &dyn Source,
        key: u64,
        plan: Vec<Planned>,
    ) -> Result<u64, ArenaError> {
        let bytes = arena_bytes(&plan, self.map.granule)?;
        self.map.add_arena(source, key, StdArc::from(plan), bytes)?;
        Ok(bytes)
    }

    /// The handle of an arena is gone. Its pages become free memory; if a model is being disposed of, they
    /// have gone back before, because the arena was idle.
    pub(crate) fn drop_arena(&mut self, key: u64) {
        if let Some(arena) = self.map.arenas.find(key) {
            self.map.orphan_arena(arena);
        }
    }

    /// Sets a limit, giving free granules back where it asks for that; a refusal changes nothing.
    pub(crate) fn set_limit(&mut self, source: &dyn Source, limit: Option<u64>) -> Result<(), OutOfMemory> {
        let old = std::mem::replace(&mut self.map.limit, limit);
        self.map.make_room(source, 0, None).map_err(|refusal| {
            self.map.limit = old;
            let asked = limit.unwrap_or(u64::MAX);
            let label = Label::new(Owner::Temporary, Site::intern("", 0, "", "set_limit"));
            let mut shortage = self.shortage(refusal, Region::Step, asked, label);
            if let Cause::Limit { short } = shortage.cause {
                let least = asked - asked % self.map.granule + short;
                shortage.cause = Cause::LimitTooLow { least };
            }
            OutOfMemory::new(shortage)
        })
    }

    /// Whether map, blocks and counters agree; the answer names the first contradiction.
    #[cfg(feature = "testing")]
    pub(crate) fn verify(&self, source: &dyn Source) -> Result<(), String> {
        self.stats().check()?;
        let snapshot = self.snapshot();
        if snapshot.by_owner() != self.ledger.rows || snapshot.in_use() != self.ledger.in_use {
            return Err("the live blocks do not add up to the rows".to_owned());
        }
        let mut bare = self.map.arenas.bare_bytes();
        for region in Region::ALL {
            let extents = &self.map.extents[region as usize];
            bare += extents.verify(source.region_bytes(region), self.map.granule)?;
            let mut blocks: Vec<_> = snapshot.blocks().iter().filter(|b| b.region == region).collect();
            blocks.retain(|block| block.rounded > 0);
            blocks.sort_unstable_by_key(|block| block.offset);
            for pair in blocks.windows(2) {
                if pair[0].offset + pair[0].rounded > pair[1].offset {
                    return Err(format!("{:?} overlaps {:?}", pair[0], pair[1]));
                }
            }
            for block in blocks {
                if !extents.is_used(block.offset..block.offset + block.rounded) {
                    return Err(format!("{block:?} is not inside one used extent"));
                }
            }
        }
        let addresses: u64 = Region::ALL.iter().map(|&region| source.region_bytes(region)).sum();
        if addresses - bare != self.map.committed {
            let counted = self.map.committed;
            return Err(format!("committed is {counted}, the map has {}", addresses - bare));
        }
        Ok(())
    }

    pub(crate) fn start_trace(&mut self) {
        self.trace = Some(Vec::new());
    }

    pub(crate) fn take_trace(&mut self) -> Vec<TraceEvent> {
        self.trace.take().unwrap_or_default()
    }

    pub(crate) fn reset_peaks(&mut self) {
        self.ledger.reset_peaks();
        self.map.peak_committed = self.map.committed;
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            in_use: self.ledger.in_use,
            rounding: self.ledger.rows.rounding(),
            committed: self.map.committed,
            limit: self.map.limit,
            peak_in_use: self.ledger.peak_in_use,
            peak_rows: self.ledger.peak_rows,
            peak_committed: self.map.peak_committed,
            n_acquired: self.ledger.n_acquired,
            n_released: self.ledger.n_released,
            n_live: self.ledger.n_live(),
            source: self.map.calls,
            rows: self.ledger.rows,
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot::new(self.blocks.iter().flatten().map(|record| record.info).collect())
    }

    /// The report on a block that could not be had.
    pub(crate) fn shortage(
        &self,
        refusal: Refusal,
        region: Region,
        requested: u64,
        label: Label,
    ) -> Shortage {
        let (cause, source) = match refusal {
            Refusal::Limit { short } => (Cause::Limit { short }, None),
            Refusal::Addresses => (Cause::Addresses, None),
            Refusal::Source(error) => (Cause::Source, Some(error)),
        };
        Shortage {
            requested,
            label,
            region,
            cause,
            limit: self.map.limit,
            in_use: self.ledger.in_use,
            committed: self.map.committed,
            largest_free: self.map.largest_free(),
            holders: self.snapshot().holders(N_HOLDERS),
            source,
        }
    }
}
