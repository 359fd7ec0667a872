//! Where blocks lie and which pages are committed: placement, the limit and giving back.
//!
//! A block goes into the smallest ready extent that has room. Only if there is none, new pages are committed,
//! at the place that needs the fewest. When the limit forbids them, free granules elsewhere are given back
//! first, and the place is the one that touches the fewest granules without a live block, because those are
//! what a limit is spent on. The map is a function of the calls made to it and of nothing else: a copy over
//! ghost pages that is asked the same answers the same.

use std::cmp::Reverse;
use std::hash::{Hash, Hasher};
use std::ops::Range;

use crate::extents::{ExtentId, Extents, Kind, NONE, UNIT};
use crate::limit::Limit;
use crate::slab::{SLAB_BYTES, SMALL_BYTES, SlabId, Slabs};
use crate::{Region, Source, SourceCalls, SourceError};

/// How many bytes a request for `bytes` takes: the next multiple of 512, whatever the state of the pool.
///
/// A request for zero bytes takes nothing. The answer saturates at the last multiple that a `u64` holds.
pub fn rounded_size(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(UNIT).unwrap_or(u64::MAX - (UNIT - 1))
}

/// What a block's bytes are part of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// A block of zero bytes has no place.
    Nowhere,
    Extent(ExtentId),
    Slab(SlabId),
    /// Inside the range of the open planned step; the position in its plan.
    Planned(u32),
}

/// Why a block could not be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The limit is short by so many bytes, even with every free granule given back.
    Limit { short: u64 },
    /// No free span of addresses is long enough.
    Addresses,
    /// The source did not do what it was asked for.
    Source(SourceError),
}

/// The map of one pool.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    pub(crate) granule: u64,
    pub(crate) limit: Limit,
    pub(crate) committed: u64,
    pub(crate) peak_committed: u64,
    pub(crate) calls: SourceCalls,
    pub(crate) extents: [Extents; 3],
    slabs: [Slabs; 3],
}

impl Map {
    pub(crate) fn new(source: &dyn Source) -> Self {
        Self {
            granule: source.granule(),
            limit: Limit::default(),
            committed: 0,
            peak_committed: 0,
            calls: SourceCalls::default(),
            extents: Region::ALL.map(|region| Extents::new(source.region_bytes(region))),
            slabs: std::array::from_fn(|_| Slabs::new()),
        }
    }

    /// Adopts the addresses of another source, which has at least as many in each region; the new ones are bare.
    pub(crate) fn extend_addresses(&mut self, source: &dyn Source) {
        for region in Region::ALL {
            self.extents[region as usize].extend_to(source.region_bytes(region));
        }
    }

    /// Places `bytes`, a multiple of the unit, and returns the place and its offset in the region.
    pub(crate) fn take(
        &mut self,
        source: &dyn Source,
        region: Region,
        bytes: u64,
    ) -> Result<(Place, u64), Refusal> {
        if bytes == 0 {
            return Ok((Place::Nowhere, 0));
        }
        if bytes > SMALL_BYTES {
            let id = self.take_extent(source, region, bytes)?;
            return Ok((Place::Extent(id), self.extents[region as usize].start(id)));
        }
        loop {
            if let Some((slab, offset)) = self.slabs[region as usize].take(bytes) {
                return Ok((Place::Slab(slab), offset));
            }
            let id = self.take_extent(source, region, SLAB_BYTES)?;
            let start = self.extents[region as usize].start(id);
            self.slabs[region as usize].add(id, start);
        }
    }

    /// Frees a place. Returns the ready extent that grew by it, if one did.
    pub(crate) fn free(&mut self, region: Region, place: Place, offset: u64, bytes: u64) -> Option<ExtentId> {
        let used = match place {
            // The range of a plan is free as a whole when the step is over.
            Place::Nowhere | Place::Planned(_) => None,
            Place::Extent(id) => Some(id),
            Place::Slab(slab) => self.slabs[region as usize].free(slab, offset, bytes),
        };
        used.map(|id| self.extents[region as usize].set_whole(id, Kind::Ready))
    }

    /// Places `bytes`, a multiple of the unit, as an extent of its own.
    fn take_extent(&mut self, source: &dyn Source, region: Region, bytes: u64) -> Result<ExtentId, Refusal> {
        let (id, at) = match self.extents[region as usize].best_fit(bytes) {
            Some(id) => (id, self.extents[region as usize].start(id)),
            None => self.commit_room(source, region, bytes)?,
        };
        Ok(self.extents[region as usize].set(id, at, bytes, Kind::Used))
    }

    /// Places the range of a planned step as an extent of its own.
    ///
    /// Where it needs new pages, free memory elsewhere in the region gives up as many: a block in the middle of
    /// where the range was makes the pages move and not become more.
    pub(crate) fn take_range(&mut self, source: &dyn Source, bytes: u64) -> Result<ExtentId, Refusal> {
        let region = Region::Step;
        let extents = &self.extents[region as usize];
        if extents.best_fit(bytes).is_none()
            && let Some(placement) = extents.cheapest(bytes, self.granule, |p| (p.bare, p.untouched))
        {
            let range = placement.at..placement.at + bytes;
            let mut runs = self.free_runs(Some((region, &range)));
            runs.retain(|(run_region, _)| *run_region == region);
            let free: u64 = runs.iter().map(|(_, run)| run.end - run.start).sum();
            if !self.exceeds_limit(placement.bare.saturating_sub(free)) {
                // What the source does not take back stays committed and free.
                let _ = self.give_back(source, runs, placement.bare);
            }
        }
        self.take_extent(source, region, bytes)
    }

    /// Commits what a block of `bytes` needs; returns the ready extent and the offset where it is to lie.
    fn commit_room(
        &mut self,
        source: &dyn Source,
        region: Region,
        bytes: u64,
    ) -> Result<(ExtentId, u64), Refusal> {
        let extents = &self.extents[region as usize];
        let fewest_pages = extents.cheapest(bytes, self.granule, |p| (p.bare, p.untouched));
        let mut placement = fewest_pages.ok_or(Refusal::Addresses)?;
        if self.exceeds_limit(placement.bare) {
            let least_touched = extents.cheapest(bytes, self.granule, |p| (p.untouched, p.bare));
            placement = least_touched.ok_or(Refusal::Addresses)?;
        }
        let range = placement.at..placement.at + bytes;
        self.make_room(source, placement.bare, Some((region, &range)))?;
        let id = self.commit_range(source, region, &range)?;
        Ok((id, placement.at))
    }

    /// Commits every bare granule under a free range that has at least one; all of them or none.
    ///
    /// Returns the last ready extent that came of it.
    fn commit_range(
        &mut self,
        source: &dyn Source,
        region: Region,
        range: &Range<u64>,
    ) -> Result<ExtentId, Refusal> {
        let parts = self.extents[region as usize].parts(range, Kind::Bare, self.granule);
        let mut ready = NONE;
        for (done, (id, part)) in parts.iter().enumerate() {
            let bytes = part.end - part.start;
            if let Err(error) = self.commit_pages(source, region, part.clone()) {
                for (_, part) in &parts[..done] {
                    // Should giving back fail here, the granules simply stay committed and free.
                    let _ = self.decommit(source, region, part.clone());
                }
                return Err(Refusal::Source(error));
            }
            ready = self.extents[region as usize].set(*id, part.start, bytes, Kind::Ready);
        }
        Ok(ready)
    }

    /// Commits pages and counts them; the extents are the caller's business.
    fn commit_pages(
        &mut self,
        source: &dyn Source,
        region: Region,
        range: Range<u64>,
    ) -> Result<(), SourceError> {
        let bytes = range.end - range.start;
        source.commit(region, range)?;
        self.calls.n_commits += 1;
        self.calls.committed_bytes += bytes;
        self.committed += bytes;
        self.peak_committed = self.peak_committed.max(self.committed);
        Ok(())
    }

    /// Gives back whole granules that lie inside one ready extent.
    fn decommit(
        &mut self,
        source: &dyn Source,
        region: Region,
        range: Range<u64>,
    ) -> Result<(), SourceError> {
        let id = self.extents[region as usize].find(range.start);
        self.decommit_inside(source, region, id, range)
    }

    /// Gives back whole granules of the ready extent `id`.
    fn decommit_inside(
        &mut self,
        source: &dyn Source,
        region: Region,
        id: ExtentId,
        range: Range<u64>,
    ) -> Result<(), SourceError> {
        let bytes = range.end - range.start;
        source.decommit(region, range.clone())?;
        self.calls.n_decommits += 1;
        self.calls.decommitted_bytes += bytes;
        self.committed -= bytes;
        self.extents[region as usize].set(id, range.start, bytes, Kind::Bare);
        Ok(())
    }

    fn exceeds_limit(&self, new_bytes: u64) -> bool {
        self.limit.capacity().is_some_and(|capacity| self.committed + new_bytes > capacity)
    }

    /// Gives free granules back until `new_bytes` more may be committed, sparing those under `spared`.
    ///
    /// Nothing is given back in vain.
    pub(crate) fn make_room(
        &mut self,
        source: &dyn Source,
        new_bytes: u64,
        spared: Option<(Region, &Range<u64>)>,
    ) -> Result<(), Refusal> {
        let is_over = |&capacity: &u64| self.committed + new_bytes > capacity;
        let Some(capacity) = self.limit.capacity().filter(is_over) else {
            return Ok(());
        };
        let excess = (self.committed + new_bytes - capacity).next_multiple_of(self.granule);
        let runs = self.free_runs(spared);
        let free: u64 = runs.iter().map(|(_, run)| run.end - run.start).sum();
        if free < excess {
            return Err(Refusal::Limit { short: excess - free });
        }
        self.give_back(source, runs, excess).map_err(Refusal::Source)
    }

    /// Gives back `excess` bytes of free runs, or all of them.
    ///
    /// The longest runs go first, because one call gives a run back whatever its length, and each from its end,
    /// because blocks are placed at the front.
    fn give_back(
        &mut self,
        source: &dyn Source,
        mut runs: Vec<(Region, Range<u64>)>,
        mut excess: u64,
    ) -> Result<(), SourceError> {
        runs.sort_by_key(|(region, run)| (Reverse(run.end - run.start), *region, run.start));
        for (region, run) in runs {
            let bytes = excess.min(run.end - run.start);
            if bytes > 0 {
                self.decommit(source, region, run.end - bytes..run.end)?;
                excess -= bytes;
            }
        }
        Ok(())
    }

    /// Every run of whole free committed granules, without those under `spared`.
    fn free_runs(&self, spared: Option<(Region, &Range<u64>)>) -> Vec<(Region, Range<u64>)> {
        let mut runs = Vec::new();
        for region in Region::ALL {
            let extents = &self.extents[region as usize];
            for id in extents.ready_extents() {
                let run = extents.whole_granules(id, self.granule);
                let kept = match spared {
                    Some((spared_region, range)) if spared_region == region => {
                        let start = range.start & !(self.granule - 1);
                        start..range.end.next_multiple_of(self.granule)
                    }
                    _ => run.end..run.end,
                };
                runs.push((region, run.start..run.end.min(kept.start.max(run.start))));
                runs.push((region, run.start.max(kept.end.min(run.end))..run.end));
            }
        }
        runs.retain(|(_, run)| run.start < run.end);
        runs
    }

    /// Gives back every free granule; returns how many bytes that was.
    ///
    /// What a source does not take back stays committed and free.
    pub(crate) fn release_free(&mut self, source: &dyn Source) -> u64 {
        let before = self.committed;
        for region in Region::ALL {
            let ready: Vec<_> = self.extents[region as usize].ready_extents().collect();
            for id in ready {
                self.release_extent(source, region, id);
            }
        }
        before - self.committed
    }

    /// Gives back the whole granules of one ready extent.
    pub(crate) fn release_extent(&mut self, source: &dyn Source, region: Region, id: ExtentId) {
        let run = self.extents[region as usize].whole_granules(id, self.granule);
        if !run.is_empty() {
            let _ = self.decommit_inside(source, region, id, run);
        }
    }

    /// Feeds everything that decides about later places to a hasher.
    pub(crate) fn hash_state(&self, hasher: &mut impl Hasher) {
        (self.limit, self.committed).hash(hasher);
        for region in Region::ALL {
            self.extents[region as usize].hash_state(hasher);
            self.slabs[region as usize].hash_state(hasher);
        }
    }

    /// The largest free committed run of bytes in any region.
    pub(crate) fn largest_free(&self) -> u64 {
        self.extents.iter().map(Extents::largest_ready).max().unwrap_or(0)
    }
}
