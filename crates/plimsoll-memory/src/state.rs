//! Everything behind a pool's lock: the map, the table of live blocks, the counters, the open steps.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::error::{Cause, Shortage};
use crate::limit::Limit;
use crate::map::{Map, Place, Refusal, rounded_size};
use crate::planned::{Next, PlanCursor};
use crate::stats::Ledger;
use crate::sync::ThreadMark;
use crate::trace::{Blocks, Levels, Tracing, Work};
use crate::{
    BlockInfo, Label, LongList, Name, OffsetPlan, OutOfMemory, Owner, Region, Site, Snapshot, Source, Stats,
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
    /// The thread that acquired it.
    issuer: ThreadMark,
}

impl Blocks for LongList<Option<Record>> {
    fn live(&self) -> Vec<BlockInfo> {
        self.iter().flatten().map(|record| record.info).collect()
    }
}

/// What is behind a pool's lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) map: Map,
    pub(crate) ledger: Ledger,
    /// Live blocks by number, and the numbers to use next.
    blocks: LongList<Option<Record>>,
    vacant: Vec<BlockId>,
    /// The open steps, one for each thread that has one.
    steps: Vec<OpenStep>,
    /// A parameter, optimizer state or graph was dropped and nothing was acquired since: freed granules go
    /// back as they become free.
    disposing: bool,
    /// How many scopes keep the pages of an empty pool.
    n_keeping: u32,
    tracing: Tracing,
    /// Which acquisitions a test wants to fail.
    #[cfg(feature = "testing")]
    pub(crate) acquisitions: crate::testing::Series,
    /// Which workspace a test wants a plan to forget.
    #[cfg(feature = "testing")]
    pub(crate) forgotten: crate::testing::Series,
}

/// The open step of one thread; steps that it begins inside belong to it.
#[derive(Clone, Debug)]
struct OpenStep {
    issuer: ThreadMark,
    depth: u32,
    /// Blocks of this thread that others dropped; they join the free list when the step ends.
    pending: Vec<BlockId>,
    /// The position in the plan of the outermost step, for as long as that is followed.
    cursor: Option<PlanCursor>,
}

/// A block as the pool hands it out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) id: BlockId,
    pub(crate) serial: u64,
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
            steps: Vec::new(),
            disposing: false,
            n_keeping: 0,
            tracing: Tracing::default(),
            #[cfg(feature = "testing")]
            acquisitions: Default::default(),
            #[cfg(feature = "testing")]
            forgotten: Default::default(),
        }
    }

    /// The state of a ghost for `thread`: the same map, blocks and counters, with its own step over. What the steps of other
    /// threads hold or have set aside stays held, because no ghost can tell when they end.
    ///
    /// `ghost_pages` is the ghost's own source, with at least as many addresses.
    pub(crate) fn ghost(&self, ghost_pages: &dyn Source, thread: ThreadMark) -> Self {
        let mut ghost = Self {
            map: self.map.clone(),
            ledger: self.ledger.clone(),
            blocks: self.blocks.clone(),
            vacant: self.vacant.clone(),
            steps: self.steps.iter().filter(|step| step.issuer == thread).cloned().collect(),
            disposing: self.disposing,
            n_keeping: self.n_keeping,
            tracing: Tracing::default(),
            #[cfg(feature = "testing")]
            acquisitions: Default::default(),
            #[cfg(feature = "testing")]
            forgotten: self.forgotten,
        };
        ghost.map.extend_addresses(ghost_pages);
        if let Some(step) = ghost.steps.pop() {
            ghost.close(step, ghost_pages);
        }
        ghost
    }

    pub(crate) fn acquire(
        &mut self,
        source: &dyn Source,
        region: Region,
        requested: u64,
        label: Label,
        thread: ThreadMark,
    ) -> Result<Grant, Refusal> {
        #[cfg(feature = "testing")]
        self.acquisitions.next_acquisition()?;
        #[cfg(feature = "testing")]
        let requested = self.forgotten.remembered(requested, label.owner);
        let rounded = rounded_size(requested);
        let is_step = region == Region::Step;
        let step = self.step_of(thread);
        let (region, place, offset) = self.place(source, step, region, requested, rounded)?;
        let serial = self.ledger.n_acquired;
        let Label { owner, site } = label;
        let info = BlockInfo { serial, owner, site, requested, rounded, region, offset };
        self.ledger.acquire(owner, requested, rounded);
        self.disposing = false;
        self.tracing.note(&Levels::new(self.map.committed, &self.ledger, &self.blocks), || {
            TraceEvent::Acquire { serial, region, offset, bytes: requested, label }
        });
        let record = Some(Record { info, place, issuer: thread });
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
        if is_step
            && let Some(step) = step
            && let Some(cursor) = &mut self.steps[step].cursor
        {
            cursor.advance(id, matches!(place, Place::Planned(_)));
        }
        Ok(Grant { id, serial, rounded, region, offset })
    }

    /// The position of a thread's open step.
    fn step_of(&self, thread: ThreadMark) -> Option<usize> {
        self.steps.iter().position(|step| step.issuer == thread)
    }

    /// Where a block goes, and in which region: as planned while the thread's step follows a plan, else by best fit.
    fn place(
        &mut self,
        source: &dyn Source,
        step: Option<usize>,
        mut region: Region,
        requested: u64,
        rounded: u64,
    ) -> Result<(Region, Place, u64), Refusal> {
        if region == Region::Step
            && let Some(step) = step
            && let Some(cursor) = &self.steps[step].cursor
        {
            match cursor.next(requested) {
                Next::At(offset, position) if rounded > 0 => {
                    return Ok((region, Place::Planned(position), offset));
                }
                Next::At(..) | Next::Occupied => {}
                Next::Outlives => region = Region::Persistent,
                Next::Differs => self.leave_plan(step),
            }
        }
        let (place, offset) = match (self.map.take(source, region, rounded), step) {
            // Once more with what is free in the plan's range.
            (Err(_), Some(step)) if self.steps[step].cursor.is_some() => {
                self.leave_plan(step);
                self.map.take(source, region, rounded)?
            }
            (taken, _) => taken?,
        };
        Ok((region, place, offset))
    }

    /// A step goes on by best fit: blocks in the plan's range become blocks like others, the rest is free.
    fn leave_plan(&mut self, step: usize) {
        if let Some(cursor) = self.steps[step].cursor.take() {
            self.dissolve(cursor);
        }
    }

    fn dissolve(&mut self, cursor: PlanCursor) {
        let live = cursor.live_ranges();
        let extents = &mut self.map.extents[Region::Step as usize];
        let used = extents.break_up(cursor.extent, live.iter().map(|(range, _)| range.clone()));
        for ((_, block), extent) in live.into_iter().zip(used) {
            self.blocks[block as usize].as_mut().expect(ALIVE).place = Place::Extent(extent);
        }
    }

    /// A handle was dropped by `thread`: now, or at the end of its issuer's step if that is another thread.
    pub(crate) fn drop_block(&mut self, source: &dyn Source, id: BlockId, thread: impl Fn() -> ThreadMark) {
        let issuer = self.blocks[id as usize].as_ref().expect(ALIVE).issuer;
        match self.step_of(issuer) {
            Some(step) if issuer != thread() => self.steps[step].pending.push(id),
            Some(_) | None => self.release(source, id),
        }
    }

    fn release(&mut self, source: &dyn Source, id: BlockId) {
        let Record { info, place, issuer } = self.blocks[id as usize].take().expect(ALIVE);
        self.vacant.push(id);
        self.ledger.release(info.owner, info.requested, info.rounded);
        self.tracing.note(&Levels::new(self.map.committed, &self.ledger, &self.blocks), || {
            TraceEvent::Release { serial: info.serial }
        });
        if let Place::Planned(position) = place
            && let Some(step) = self.step_of(issuer)
            && let Some(cursor) = &mut self.steps[step].cursor
        {
            cursor.release(position);
        }
        let freed = self.map.free(info.region, place, info.offset, info.rounded);
        if self.is_done() || (info.owner.marks_disposal() && !self.disposing) {
            self.disposing = true;
            self.map.release_free(source);
        } else if let Some(extent) = freed
            && self.disposing
        {
            self.map.release_extent(source, info.region, extent);
        }
    }

    /// Releases a block if it is there and was acquired as the one of that number.
    pub(crate) fn release_copy(&mut self, source: &dyn Source, id: BlockId, serial: u64) {
        let is_there = (id as usize) < self.blocks.len();
        if is_there && self.blocks[id as usize].as_ref().is_some_and(|copy| copy.info.serial == serial) {
            self.release(source, id);
        }
    }

    /// Releases blocks in the order of their acquisition, whatever the order of their drops was.
    fn release_all(&mut self, mut ids: Vec<BlockId>, source: &dyn Source) {
        ids.sort_unstable_by_key(|&id| self.info(id).serial);
        ids.into_iter().for_each(|id| self.release(source, id));
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
        let serial = info.serial;
        self.ledger.relabel(old.owner, label.owner, info.requested);
        self.tracing.note(&Levels::new(self.map.committed, &self.ledger, &self.blocks), || {
            TraceEvent::Relabel { serial, label }
        });
    }

    pub(crate) fn begin_step(&mut self, thread: ThreadMark) {
        match self.step_of(thread) {
            Some(step) => self.steps[step].depth += 1,
            None => {
                self.steps.push(OpenStep { issuer: thread, depth: 1, pending: Vec::new(), cursor: None });
            }
        }
    }

    /// Begins a step that follows a plan, if it is the thread's outermost one and there is room for the plan's range.
    pub(crate) fn begin_planned_step(&mut self, source: &dyn Source, plan: &OffsetPlan, thread: ThreadMark) {
        self.begin_step(thread);
        if let Some(step) = self.steps.last_mut()
            && step.issuer == thread
            && step.depth == 1
            && plan.bytes() > 0
            && let Ok(extent) = self.map.take_range(source, plan.bytes())
        {
            let start = self.map.extents[Region::Step as usize].start(extent);
            step.cursor = Some(PlanCursor::new(plan.clone(), extent, start));
        }
    }

    pub(crate) fn end_step(&mut self, source: &dyn Source, thread: ThreadMark) {
        let Some(step) = self.step_of(thread) else { return };
        self.steps[step].depth -= 1;
        if self.steps[step].depth == 0 {
            let step = self.steps.remove(step);
            self.close(step, source);
            self.tell(TraceEvent::Flush);
        }
    }

    /// Frees what a step that is over has set aside and what others dropped of its blocks.
    fn close(&mut self, step: OpenStep, source: &dyn Source) {
        if let Some(cursor) = step.cursor {
            self.dissolve(cursor);
        }
        self.release_all(step.pending, source);
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

    /// Whether the thread's open step has followed its plan so far.
    pub(crate) fn on_plan(&self, thread: ThreadMark) -> bool {
        self.step_of(thread).is_some_and(|step| self.steps[step].cursor.is_some())
    }

    /// Sets a limit and what of it is set aside, giving free granules back where it asks for that; a refusal changes nothing.
    pub(crate) fn set_limit(&mut self, source: &dyn Source, limit: Limit) -> Result<(), OutOfMemory> {
        let old = std::mem::replace(&mut self.map.limit, limit);
        let mut done = self.map.make_room(source, 0, None);
        if done.is_err() {
            // Once more with what is free in the ranges of plans.
            (0..self.steps.len()).for_each(|step| self.leave_plan(step));
            done = self.map.make_room(source, 0, None);
        }
        done.map_err(|refusal| {
            self.map.limit = old;
            let asked = limit.bytes.unwrap_or(u64::MAX);
            let label = Label::new(Owner::Temporary, Site::intern("", 0, "", "set_limit"));
            let mut shortage = self.shortage(refusal, Region::Step, asked, label);
            if let Cause::Limit { short } = shortage.cause {
                let capacity = limit.capacity().unwrap_or(u64::MAX);
                let least = limit.for_capacity(capacity - capacity % self.map.granule + short);
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

    pub(crate) fn tracing(&mut self) -> &mut Tracing {
        &mut self.tracing
    }

    pub(crate) fn mark(&mut self, name: Name, number: u64) {
        self.tracing.note(&Levels::new(self.map.committed, &self.ledger, &self.blocks), || {
            TraceEvent::Mark { name, number }
        });
    }

    /// Tells the sink, if there is one, of an event that lists do not have.
    pub(crate) fn tell(&mut self, event: TraceEvent) {
        self.tracing.tell(&Levels::new(self.map.committed, &self.ledger, &self.blocks), event);
    }

    pub(crate) fn mark_work(&mut self, work: &Work<'_>, is_listed: bool) {
        let &Work { site, nanoseconds, repeats, reads, writes } = work;
        reads.iter().for_each(|&serial| self.tell(TraceEvent::Read { serial }));
        writes.iter().for_each(|&serial| self.tell(TraceEvent::Write { serial }));
        let committed = self.map.committed;
        let event = TraceEvent::Work { site, nanoseconds, committed, repeats };
        match is_listed {
            true => self.tracing.note(&Levels::new(self.map.committed, &self.ledger, &self.blocks), || event),
            false => self.tell(event),
        }
    }

    /// A number for everything that answers to later requests depend on. Serial numbers, counters, peaks and the
    /// numbers of table entries are left out: they grow or change places, and nothing is decided by them.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.map.hash_state(&mut hasher);
        for step in &self.steps {
            step.depth.hash(&mut hasher);
            if let Some(cursor) = &step.cursor {
                cursor.hash_state(&mut hasher);
            }
        }
        // The table of blocks has no order of its own, so their numbers are added up.
        let blocks = self.blocks.iter().flatten().map(|record| {
            let BlockInfo { owner, requested, region, offset, .. } = record.info;
            let mut hasher = DefaultHasher::new();
            (owner, requested, region, offset).hash(&mut hasher);
            hasher.finish()
        });
        (blocks.fold(0, u64::wrapping_add), self.disposing).hash(&mut hasher);
        hasher.finish()
    }

    pub(crate) fn reset_peaks(&mut self) {
        self.ledger.reset_peaks();
        self.map.peak_committed = self.map.committed;
    }

    /// The bytes in use or set aside.
    pub(crate) fn held(&self) -> u64 {
        let cursors = self.steps.iter().filter_map(|step| step.cursor.as_ref());
        self.ledger.in_use + cursors.map(PlanCursor::vacant_bytes).sum::<u64>()
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            in_use: self.ledger.in_use,
            rounding: self.ledger.rows.rounding(),
            committed: self.map.committed,
            limit: self.map.limit.bytes,
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
        Snapshot::new(self.blocks.live())
    }

    pub(crate) fn each_block(&self, see: impl FnMut(&BlockInfo)) {
        self.blocks.iter().flatten().map(|record| &record.info).for_each(see);
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
            limit: self.map.limit.bytes,
            aside: (self.map.limit.least_aside, self.map.limit.most_aside),
            granule: self.map.granule,
            in_use: self.ledger.in_use,
            committed: self.map.committed,
            largest_free: self.map.largest_free(),
            holders: self.snapshot().holders(N_HOLDERS),
            source,
        }
    }
}
