//! Planned steps: an offset for every acquisition.
//!
//! A planner that has seen the trace of a step knows the lifetimes of its blocks and can pack them better than
//! any policy that decides online. Its plan says how large the k-th acquisition in the step region is and where
//! it goes. When the step begins, the pool takes one range for the whole plan, as it would take a block of that
//! size; so planned steps of all sizes and unplanned work use the same addresses and pages. At the step's end,
//! or when the step leaves its plan, the range becomes what it would be otherwise: live blocks, and free
//! memory.
//!
//! The pool follows the plan by position and never trusts it: memory that a live block occupies is never handed
//! out.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::mem::discriminant;
use std::ops::Range;
use std::sync::Arc;

use crate::extents::{ExtentId, UNIT};
use crate::map::rounded_size;
use crate::state::BlockId;

/// One acquisition of a planned step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Planned {
    /// The requested size.
    pub bytes: u64,
    /// Where it goes, counted from the start of the plan's range; a multiple of 512. A block without an offset
    /// outlives the step and goes to the persistent region, where it is in no later step's way.
    pub offset: Option<u64>,
}

/// Where the acquisitions of a step go. Clones share their contents.
#[derive(Clone, Debug)]
pub struct OffsetPlan {
    contents: Arc<Contents>,
}

#[derive(Debug)]
struct Contents {
    entries: Vec<Planned>,
    bytes: u64,
    /// For each entry the earlier ones that it is laid over, as ranges of `under`. An entry that is hidden by later
    /// ones is not among them: where those could be placed, it was freed.
    under_ranges: Vec<Range<u32>>,
    under: Vec<u32>,
}

/// Why a plan cannot be followed by any pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetError {
    /// The position in the plan.
    pub position: usize,
    /// The acquisition planned there.
    pub planned: Planned,
}

impl fmt::Display for OffsetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { position, planned } = self;
        let offset = planned.offset.unwrap_or(0);
        write!(
            f,
            "acquisition {position} of the plan has {} bytes at offset {offset}; an offset must be a multiple of \
             512 and its block must end below 2^63",
            planned.bytes
        )
    }
}

impl std::error::Error for OffsetError {}

impl OffsetPlan {
    /// A plan of the acquisitions in the step region, in their order.
    ///
    /// # Errors
    ///
    /// When an offset is not a multiple of 512, or a block would end beyond any address.
    pub fn new(entries: Vec<Planned>) -> Result<Self, OffsetError> {
        let mut bytes = 0;
        for (position, &planned) in entries.iter().enumerate() {
            let offset = planned.offset.unwrap_or(0);
            let end = offset.checked_add(rounded_size(planned.bytes)).filter(|&end| end < 1 << 63);
            match end {
                Some(_) if planned.offset.is_none() || planned.bytes == 0 => {}
                Some(end) if offset.is_multiple_of(UNIT) => bytes = bytes.max(end),
                _ => return Err(OffsetError { position, planned }),
            }
        }
        let mut surface = Surface::default();
        let under_ranges = (0..).zip(&entries).map(|(i, entry)| surface.lay(i, entry)).collect();
        let contents = Contents { entries, bytes, under_ranges, under: surface.under };
        Ok(Self { contents: Arc::new(contents) })
    }

    /// The bytes from the lowest offset, zero, to the end of the highest block.
    pub fn bytes(&self) -> u64 {
        self.contents.bytes
    }

    /// The acquisitions, in their order.
    pub fn entries(&self) -> &[Planned] {
        &self.contents.entries
    }

    /// The bytes of the heap that its contents take, which clones share.
    pub fn heap_bytes(&self) -> usize {
        let Contents { entries, under_ranges, under, .. } = &*self.contents;
        size_of::<Contents>()
            + entries.capacity() * size_of::<Planned>()
            + under_ranges.capacity() * size_of::<Range<u32>>()
            + under.capacity() * size_of::<u32>()
    }

    /// The earlier entries that must be freed before one can be placed.
    fn under(&self, position: usize) -> &[u32] {
        let range = self.contents.under_ranges[position].clone();
        &self.contents.under[range.start as usize..range.end as usize]
    }
}

impl Planned {
    /// The range that it takes, counted from the start of the plan's; empty if it takes nothing there.
    fn range(&self) -> Range<u64> {
        self.offset.map_or(0..0, |offset| offset..offset + rounded_size(self.bytes))
    }
}

/// The entries that are seen from above when all so far are laid over each other in their order.
#[derive(Default)]
struct Surface {
    /// By start: the end and the entry of each visible piece.
    pieces: BTreeMap<u64, (u64, u32)>,
    /// What each entry was laid over, one after the other.
    under: Vec<u32>,
}

impl Surface {
    /// Lays an entry over those before it; returns which of `under` are the ones below.
    fn lay(&mut self, entry: u32, planned: &Planned) -> Range<u32> {
        let Range { start, end } = planned.range();
        let first = self.under.len();
        if start < end {
            let before = self.pieces.range(..start).next_back().filter(|(_, piece)| piece.0 > start);
            let from = before.map_or(start, |(&from, _)| from);
            let covered: Vec<_> = self.pieces.range(from..end).map(|(&from, &piece)| (from, piece)).collect();
            for (from, (to, other)) in covered {
                self.under.push(other);
                self.pieces.remove(&from);
                if from < start {
                    self.pieces.insert(from, (start, other));
                }
                if to > end {
                    self.pieces.insert(end, (to, other));
                }
            }
            self.pieces.insert(start, (end, entry));
        }
        first as u32..self.under.len() as u32
    }
}

/// What became of a planned acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// The block is live in its place.
    Live(BlockId),
    /// It was in its place and was freed.
    Freed,
    /// It lies elsewhere or takes no memory.
    Elsewhere,
}

/// How far an open step has followed its plan, and the range of the plan.
#[derive(Clone, Debug)]
pub(crate) struct PlanCursor {
    plan: OffsetPlan,
    /// The range: a used extent of the step region, and its offset there.
    pub(crate) extent: ExtentId,
    start: u64,
    /// What became of the acquisitions so far.
    slots: Vec<SlotState>,
}

/// What a plan says of the next acquisition.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// It goes to this offset of the region; its position in the plan.
    At(u64, u32),
    /// It outlives the step.
    Outlives,
    /// Its place is still occupied.
    Occupied,
    /// It is not the planned one.
    Differs,
}

impl PlanCursor {
    pub(crate) fn new(plan: OffsetPlan, extent: ExtentId, start: u64) -> Self {
        let slots = Vec::with_capacity(plan.entries().len());
        Self { plan, extent, start, slots }
    }

    pub(crate) fn next(&self, requested: u64) -> Next {
        let position = self.slots.len();
        let Some(planned) = self.plan.entries().get(position).filter(|p| p.bytes == requested) else {
            return Next::Differs;
        };
        match planned.offset {
            None => Next::Outlives,
            Some(offset) if self.is_free(position) => Next::At(self.start + offset, position as u32),
            Some(_) => Next::Occupied,
        }
    }

    fn is_free(&self, position: usize) -> bool {
        let slots = || self.plan.under(position).iter().map(|&below| self.slots[below as usize]);
        if slots().all(|slot| slot == SlotState::Freed) {
            return true;
        }
        if slots().any(|slot| matches!(slot, SlotState::Live(_))) {
            return false;
        }
        // What should have been below lies elsewhere, so it says nothing of what is there.
        let place = self.plan.entries()[position].range();
        !self.alive().any(|(range, _)| range.start < place.end && place.start < range.end)
    }

    /// Records that the next acquisition became this block, in its place or not.
    pub(crate) fn advance(&mut self, block: BlockId, in_place: bool) {
        self.slots.push(if in_place { SlotState::Live(block) } else { SlotState::Elsewhere });
    }

    /// Records that a block that was in its place was freed.
    pub(crate) fn release(&mut self, position: u32) {
        self.slots[position as usize] = SlotState::Freed;
    }

    /// Feeds everything that decides about later places to a hasher, except for the live blocks.
    pub(crate) fn hash_state(&self, hasher: &mut impl Hasher) {
        (self.start, self.plan.entries()).hash(hasher);
        self.slots.iter().for_each(|slot| discriminant(slot).hash(hasher));
    }

    /// The live blocks in their places, by address: their ranges in the region.
    pub(crate) fn live_ranges(&self) -> Vec<(Range<u64>, BlockId)> {
        let mut alive: Vec<_> = self
            .alive()
            .map(|(range, block)| (self.start + range.start..self.start + range.end, block))
            .collect();
        alive.sort_unstable_by_key(|(range, _)| range.start);
        alive
    }

    /// The bytes of the range in which no block lies.
    pub(crate) fn vacant_bytes(&self) -> u64 {
        self.plan.bytes() - self.alive().map(|(range, _)| range.end - range.start).sum::<u64>()
    }

    fn alive(&self) -> impl Iterator<Item = (Range<u64>, BlockId)> + '_ {
        self.plan.entries().iter().zip(&self.slots).filter_map(|(planned, &slot)| match slot {
            SlotState::Live(block) => Some((planned.range(), block)),
            SlotState::Freed | SlotState::Elsewhere => None,
        })
    }
}
