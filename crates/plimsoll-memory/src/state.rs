//! Everything behind a pool's lock: the map, the table of live blocks, the counters, the open step.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::error::{Cause, Shortage};
use crate::map::{Map, Place, Refusal, rounded_size};
use crate::planned::{Following, Next};
use crate::stats::Ledger;
use crate::sync::ThreadMark;
use crate::{
    BlockInfo, Label, LongList, OffsetPlan, OutOfMemory, Owner, Region, Site, Snapshot, Source, Stats,
    TraceEvent,
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
    trace: Option<LongList<TraceEvent>>,
    /// Which acquisitions a test wants to fail.
    #[cfg(feature = "testing")]
    pub(crate) acquisitions: crate::testing::Series,
    /// Which workspace a test wants a plan to forget.
    #[cfg(feature = "testing")]
    pub(crate) forgotten: crate::testing::Series,
}

/// The steps that are open; inner ones belong to the outermost.
#[derive(Debug, Default)]
struct OpenStep {
    depth: u32,
    /// The thread that opened the outermost step.
    issuer: Option<ThreadMark>,
    /// Dropped by other threads; they join the free list when the step ends.
    pending: Vec<BlockId>,
    /// The plan of the outermost step, for as long as it is followed.
    plan: Option<Following>,
}

/// A block as the pool hands it out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) id: BlockId,
    pub(crate) rounded: u64,
    pub(crate) region: Region,
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
            #[cfg(feature = "testing")]
            forgotten: Default::default(),
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
            #[cfg(feature = "testing")]
            forgotten: self.forgotten,
        };
        ghost.step.plan = self.step.plan.clone();
        ghost.leave_plan();
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
        #[cfg(feature = "testing")]
        let requested = self.forgotten.remembered(requested, label.owner);
        let rounded = rounded_size(requested);
        let is_step = region == Region::Step;
        let (region, place, offset) = self.place(source, region, requested, rounded)?;
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
        if let Some(plan) = &mut self.step.plan
            && is_step
        {
            plan.advance(id, matches!(place, Place::Planned(_)));
        }
        Ok(Grant { id, rounded, region, offset })
    }

    /// Where a block goes, and in which region: as planned while the step follows a plan, else by best fit.
    fn place(
        &mut self,
        source: &dyn Source,
        mut region: Region,
        requested: u64,
        rounded: u64,
    ) -> Result<(Region, Place, u64), Refusal> {
        if let Some(plan) = &self.step.plan
            && region == Region::Step
        {
            match plan.next(requested) {
                Next::At(offset, position) if rounded > 0 => {
                    return Ok((region, Place::Planned(position), offset));
                }
                Next::At(..) | Next::Held => {}
                Next::Outlives => region = Region::Persistent,
                Next::Differs => self.leave_plan(),
            }
        }
        let (place, offset) = self.or_without_plan(|map| map.take(source, region, rounded))?;
        Ok((region, place, offset))
    }

    /// Tries something, and once more with what is free in the plan's range if it is refused.
    fn or_without_plan<T>(&mut self, attempt: impl Fn(&mut Map) -> Result<T, Refusal>) -> Result<T, Refusal> {
        let result = attempt(&mut self.map);
        if result.is_ok() || self.step.plan.is_none() {
            return result;
        }
        self.leave_plan();
        attempt(&mut self.map)
    }

    /// The step goes on by best fit: blocks in the plan's range become blocks like others, the rest is free.
    fn leave_plan(&mut self) {
        let Some(plan) = self.step.plan.take() else { return };
        let live = plan.live_ranges();
        let extents = &mut self.map.extents[Region::Step as usize];
        let used = extents.break_up(plan.extent, live.iter().map(|(range, _)| range.clone()));
        for ((_, block), extent) in live.into_iter().zip(used) {
            self.blocks[block as usize].as_mut().expect(ALIVE).place = Place::Extent(extent);
        }
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
        if let (Place::Planned(position), Some(plan)) = (place, &mut self.step.plan) {
            plan.release(position);
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

    /// Begins a step that follows a plan, if it is the outermost one and there is room for the plan's range.
    pub(crate) fn begin_planned_step(&mut self, source: &dyn Source, plan: &OffsetPlan, thread: ThreadMark) {
        if self.step.depth == 0
            && plan.bytes() > 0
            && let Ok(extent) = self.map.take_range(source, plan.bytes())
        {
            let start = self.map.extents[Region::Step as usize].start(extent);
            self.step.plan = Some(Following::new(plan.clone(), extent, start));
        }
        self.begin_step(thread);
    }

    pub(crate) fn end_step(&mut self, source: &dyn Source) {
        self.step.depth -= 1;
        if self.step.depth > 0 {
            return;
        }
        self.step.issuer = None;
        self.leave_plan();
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
        self.step.plan.is_some()
    }

    /// Sets a limit, giving free granules back where it asks for that; a refusal changes nothing.
    pub(crate) fn set_limit(&mut self, source: &dyn Source, limit: Option<u64>) -> Result<(), OutOfMemory> {
        let old = std::mem::replace(&mut self.map.limit, limit);
        self.or_without_plan(|map| map.make_room(source, 0, None)).map_err(|refusal| {
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
        let mut bare = 0;
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
        self.trace = Some(LongList::default());
    }

    pub(crate) fn is_traced(&self) -> bool {
        self.trace.is_some()
    }

    pub(crate) fn take_trace(&mut self) -> LongList<TraceEvent> {
        self.trace.take().unwrap_or_default()
    }

    pub(crate) fn mark(&mut self, name: &'static str, number: u64) {
        if let Some(trace) = &mut self.trace {
            trace.push(TraceEvent::Mark { name, number });
        }
    }

    pub(crate) fn mark_work(&mut self, site: Site, nanoseconds: u64) {
        if let Some(trace) = &mut self.trace {
            trace.push(TraceEvent::Work { site, nanoseconds, committed: self.map.committed });
        }
    }

    /// A number for everything that answers to later requests depend on. Serial numbers, counters, peaks and the
    /// numbers of table entries are left out: they grow or change places, and nothing is decided by them.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.map.hash_state(&mut hasher);
        if let Some(plan) = &self.step.plan {
            plan.hash_state(&mut hasher);
        }
        // The table of blocks has no order of its own, so their numbers are added up.
        let blocks = self.blocks.iter().flatten().map(|record| {
            let BlockInfo { owner, requested, region, offset, .. } = record.info;
            let mut hasher = DefaultHasher::new();
            (owner, requested, region, offset).hash(&mut hasher);
            hasher.finish()
        });
        (blocks.fold(0, u64::wrapping_add), self.disposing, self.step.depth).hash(&mut hasher);
        hasher.finish()
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
            granule: self.map.granule,
            in_use: self.ledger.in_use,
            committed: self.map.committed,
            largest_free: self.map.largest_free(),
            holders: self.snapshot().holders(N_HOLDERS),
            source,
        }
    }
}
