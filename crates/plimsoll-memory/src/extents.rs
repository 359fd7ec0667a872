//! A region as a list of extents in address order.
//!
//! Every byte of a region belongs to exactly one extent, which is *used*, *ready* (free, with pages behind it)
//! or *bare* (free, without). Neighbours of the same free kind are always merged, and a border between ready
//! and bare lies on a granule. It follows that a committed granule without a used byte lies inside one ready
//! extent, so that what can be given back is read off the list and no second map of pages exists.
//!
//! This module moves borders; it calls no source and knows no limit.

use std::hash::{Hash, Hasher};
use std::ops::Range;

use crate::size_tree::SizeTree;
pub(crate) use crate::size_tree::{ExtentId, NONE};

/// Blocks are multiples of this size and aligned to it.
pub(crate) const UNIT: u64 = 512;

/// What an extent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A block, a slab or the range of a planned step.
    Used,
    /// Free and committed.
    Ready,
    /// Free and not committed.
    Bare,
}

#[derive(Clone, Copy, Debug)]
struct Extent {
    start: u64,
    bytes: u64,
    kind: Kind,
    /// Neighbours in address order.
    before: ExtentId,
    after: ExtentId,
}

impl Extent {
    fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// The extents of one region.
#[derive(Clone, Debug)]
pub(crate) struct Extents {
    table: Vec<Extent>,
    /// Numbers in `table` that are not in use.
    vacant: Vec<ExtentId>,
    last: ExtentId,
    n_bare: usize,
    /// All ready extents.
    ready: SizeTree,
}

/// A place for a block that needs new pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub(crate) at: u64,
    /// Granules that have no pages yet, in bytes.
    pub(crate) bare: u64,
    /// Granules that hold nothing yet, with or without pages, in bytes.
    pub(crate) untouched: u64,
    /// The length of the free span around it.
    span: u64,
}

impl Extents {
    /// A region of `bytes`, all bare.
    pub(crate) fn new(bytes: u64) -> Self {
        let all = Extent { start: 0, bytes, kind: Kind::Bare, before: NONE, after: NONE };
        Self { table: vec![all], vacant: Vec::new(), last: 0, n_bare: 1, ready: SizeTree::new() }
    }

    /// Makes the region end at `end`, which is not before its present end; the new addresses are bare.
    pub(crate) fn extend_to(&mut self, end: u64) {
        let last = *self.get(self.last);
        let more = end - last.end();
        match last.kind {
            Kind::Bare => self.get_mut(self.last).bytes += more,
            Kind::Used | Kind::Ready if more > 0 => {
                let new = self.table.len() as ExtentId;
                let (start, before) = (last.end(), self.last);
                self.table.push(Extent { start, bytes: more, kind: Kind::Bare, before, after: NONE });
                self.get_mut(before).after = new;
                self.last = new;
                self.index(new);
            }
            Kind::Used | Kind::Ready => {}
        }
    }

    /// The smallest sufficient ready extent, the one at the lowest address among equals.
    pub(crate) fn best_fit(&self, bytes: u64) -> Option<ExtentId> {
        self.ready.best_fit(bytes)
    }

    /// The size of the largest ready extent, or zero.
    pub(crate) fn largest_ready(&self) -> u64 {
        self.ready.largest()
    }

    /// The offset of an extent in the region.
    pub(crate) fn start(&self, id: ExtentId) -> u64 {
        self.get(id).start
    }

    /// Turns `bytes` at `at`, which lie inside the extent `id`, into an extent of the given kind.
    ///
    /// Returns that extent, which is larger than asked for where it merged with free neighbours of its kind.
    pub(crate) fn set(&mut self, id: ExtentId, at: u64, bytes: u64, kind: Kind) -> ExtentId {
        let old = *self.get(id);
        debug_assert!(old.kind != kind && at >= old.start && at + bytes <= old.end());
        self.unindex(id);
        if at > old.start {
            let before = self.cut_front(id, at - old.start);
            self.index(before);
        }
        if at + bytes < old.end() {
            let middle = self.cut_front(id, bytes);
            self.index(id);
            self.merge(middle, kind)
        } else {
            self.merge(id, kind)
        }
    }

    /// Turns a whole extent into another kind and merges it with its neighbours.
    pub(crate) fn set_whole(&mut self, id: ExtentId, kind: Kind) -> ExtentId {
        let Extent { start, bytes, .. } = *self.get(id);
        self.set(id, start, bytes, kind)
    }

    /// Breaks a used extent up into one for each of `live`, ranges inside it in address order, and free memory
    /// between them; returns the former.
    pub(crate) fn break_up(&mut self, id: ExtentId, live: impl Iterator<Item = Range<u64>>) -> Vec<ExtentId> {
        let Extent { start: mut at, .. } = *self.get(id);
        let end = self.get(id).end();
        let mut used = Vec::new();
        for range in live {
            if at < range.start {
                self.set(id, at, range.start - at, Kind::Ready);
            }
            let is_last = range.end == end;
            used.push(if is_last { id } else { self.cut_front(id, range.end - range.start) });
            at = range.end;
        }
        if at < end {
            self.set_whole(id, Kind::Ready);
        }
        used
    }

    /// The part of a ready extent that is whole granules; empty where there is none or the extent is not ready.
    pub(crate) fn whole_granules(&self, id: ExtentId, granule: u64) -> Range<u64> {
        let extent = self.get(id);
        if extent.kind != Kind::Ready {
            return 0..0;
        }
        whole_granules(extent.start..extent.end(), granule)
    }

    /// All ready extents, from high addresses to low.
    pub(crate) fn ready_extents(&self) -> impl Iterator<Item = ExtentId> + '_ {
        self.ids().filter(|&id| self.get(id).kind == Kind::Ready)
    }

    /// The parts of `range`, which is free throughout, of one kind, from low addresses to high, each with its
    /// extent. Whole granules are returned even where `range` covers them in part.
    pub(crate) fn parts(&self, range: &Range<u64>, kind: Kind, granule: u64) -> Vec<(ExtentId, Range<u64>)> {
        let wanted = floor(range.start, granule)..range.end.next_multiple_of(granule);
        let mut parts: Vec<_> = self
            .ids()
            .skip_while(|&id| self.get(id).start >= wanted.end)
            .take_while(|&id| self.get(id).end() > wanted.start)
            .filter(|&id| self.get(id).kind == kind)
            .map(|id| {
                let extent = self.get(id);
                (id, extent.start.max(wanted.start)..extent.end().min(wanted.end))
            })
            .collect();
        parts.reverse();
        parts
    }

    /// The extent that contains the byte at `at`, an offset inside the region.
    pub(crate) fn find(&self, at: u64) -> ExtentId {
        self.ids().find(|&id| self.get(id).start <= at).unwrap_or(NONE)
    }

    /// The place for `bytes` that is cheapest by `cost`, among those that need new pages.
    ///
    /// Tried are both ends of every free span and of every ready extent inside it. Among equally cheap places
    /// the one in the smallest span wins, then the lowest address.
    pub(crate) fn cheapest(
        &self,
        bytes: u64,
        granule: u64,
        cost: impl Fn(&Placement) -> (u64, u64),
    ) -> Option<Placement> {
        let mut best: Option<Placement> = None;
        let rank = |p: &Placement| (cost(p), p.span, p.at);
        self.for_each_bare_span(|span, members| {
            if span.end - span.start < bytes {
                return;
            }
            let ready = members.iter().filter(|member| member.kind == Kind::Ready);
            let edges = ready.flat_map(|member| [member.start, member.end().saturating_sub(bytes)]);
            for at in edges.chain([span.start, span.end - bytes]) {
                if at < span.start || at + bytes > span.end {
                    continue;
                }
                let placement = price(at..at + bytes, span, members, granule);
                if best.is_none_or(|best| rank(&placement) < rank(&best)) {
                    best = Some(placement);
                }
            }
        });
        best
    }

    /// Visits every maximal run of free extents that has a bare one, from high addresses to low.
    fn for_each_bare_span(&self, mut visit: impl FnMut(&Range<u64>, &[Extent])) {
        let mut n_bare_left = self.n_bare;
        let mut members = Vec::new();
        let mut id = self.last;
        while id != NONE && n_bare_left > 0 {
            members.clear();
            let mut n_bare = 0;
            while id != NONE && self.get(id).kind != Kind::Used {
                members.push(*self.get(id));
                n_bare += usize::from(self.get(id).kind == Kind::Bare);
                id = self.get(id).before;
            }
            if let (Some(highest), Some(lowest)) = (members.first(), members.last())
                && n_bare > 0
            {
                n_bare_left -= n_bare;
                visit(&(lowest.start..highest.end()), &members);
            }
            if id != NONE {
                id = self.get(id).before;
            }
        }
    }

    /// Feeds the extents in address order to a hasher; their numbers do not matter.
    pub(crate) fn hash_state(&self, hasher: &mut impl Hasher) {
        for id in self.ids() {
            let extent = self.get(id);
            (extent.start, extent.kind as u8).hash(hasher);
        }
    }

    /// All extents, from high addresses to low.
    fn ids(&self) -> impl Iterator<Item = ExtentId> + '_ {
        let some = |id: ExtentId| (id != NONE).then_some(id);
        std::iter::successors(some(self.last), move |&id| some(self.get(id).before))
    }

    fn get(&self, id: ExtentId) -> &Extent {
        &self.table[id as usize]
    }

    fn get_mut(&mut self, id: ExtentId) -> &mut Extent {
        &mut self.table[id as usize]
    }

    /// Cuts the first `bytes` off an unindexed extent into a new one of the same kind. The rest keeps its
    /// number; neither is indexed here.
    fn cut_front(&mut self, id: ExtentId, bytes: u64) -> ExtentId {
        let old = *self.get(id);
        let front = Extent { bytes, after: id, ..old };
        let new = match self.vacant.pop() {
            Some(new) => {
                self.table[new as usize] = front;
                new
            }
            None => {
                self.table.push(front);
                (self.table.len() - 1) as ExtentId
            }
        };
        if old.before != NONE {
            self.get_mut(old.before).after = new;
        }
        *self.get_mut(id) = Extent { start: old.start + bytes, bytes: old.bytes - bytes, before: new, ..old };
        new
    }

    /// Gives an unindexed extent its new kind, joins it with free neighbours of that kind and indexes it.
    fn merge(&mut self, id: ExtentId, kind: Kind) -> ExtentId {
        self.get_mut(id).kind = kind;
        if kind != Kind::Used {
            for neighbour in [self.get(id).before, self.get(id).after] {
                if neighbour != NONE && self.get(neighbour).kind == kind {
                    self.absorb(id, neighbour);
                }
            }
        }
        self.index(id);
        id
    }

    /// Removes the extent `other` and gives its bytes to its neighbour `id`.
    fn absorb(&mut self, id: ExtentId, other: ExtentId) {
        self.unindex(other);
        let gone = *self.get(other);
        let kept = self.get_mut(id);
        kept.bytes += gone.bytes;
        if gone.after == id {
            kept.start = gone.start;
            kept.before = gone.before;
            if gone.before != NONE {
                self.get_mut(gone.before).after = id;
            }
        } else {
            kept.after = gone.after;
            match gone.after {
                NONE => self.last = id,
                after => self.get_mut(after).before = id,
            }
        }
        self.vacant.push(other);
    }

    fn index(&mut self, id: ExtentId) {
        let Extent { start, bytes, kind, .. } = *self.get(id);
        match kind {
            Kind::Ready => self.ready.insert(id, bytes, start),
            Kind::Bare => self.n_bare += 1,
            Kind::Used => {}
        }
    }

    fn unindex(&mut self, id: ExtentId) {
        match self.get(id).kind {
            Kind::Ready => self.ready.remove(id),
            Kind::Bare => self.n_bare -= 1,
            Kind::Used => {}
        }
    }
}

#[cfg(feature = "testing")]
impl Extents {
    /// Whether a range lies inside one used extent.
    pub(crate) fn is_used(&self, range: Range<u64>) -> bool {
        let extent = self.get(self.find(range.start));
        extent.kind == Kind::Used && extent.start <= range.start && range.end <= extent.end()
    }

    /// Checks what the head of this module claims and returns the bare bytes.
    pub(crate) fn verify(&self, region_bytes: u64, granule: u64) -> Result<u64, String> {
        let (mut end, mut n_bare, mut bare, mut largest) = (region_bytes, 0, 0, 0);
        for id in self.ids() {
            let extent = *self.get(id);
            if extent.end() != end || extent.bytes == 0 {
                return Err(format!("{extent:?} should end at {end}"));
            }
            end = extent.start;
            if extent.before != NONE {
                let before = self.get(extent.before);
                if before.after != id {
                    return Err(format!("{before:?} does not lead to {extent:?}"));
                }
                if before.kind == extent.kind && extent.kind != Kind::Used {
                    return Err(format!("{before:?} and {extent:?} are not merged"));
                }
            }
            match extent.kind {
                Kind::Bare if !(extent.start | extent.bytes).is_multiple_of(granule) => {
                    return Err(format!("{extent:?} is not whole granules"));
                }
                Kind::Bare => (n_bare, bare) = (n_bare + 1, bare + extent.bytes),
                Kind::Ready => {
                    largest = largest.max(extent.bytes);
                    let found = self.ready.best_fit(extent.bytes).map(|id| self.get(id).bytes);
                    if found != Some(extent.bytes) {
                        return Err(format!("{extent:?} is not indexed: best fit finds {found:?}"));
                    }
                }
                Kind::Used => {}
            }
        }
        if end != 0 || n_bare != self.n_bare || largest != self.ready.largest() {
            return Err(format!("the list ends at {end} with {n_bare} bare and {largest} the largest ready"));
        }
        Ok(bare)
    }
}

/// What placing a block at `range` inside the free `span` with these `members` costs.
fn price(range: Range<u64>, span: &Range<u64>, members: &[Extent], granule: u64) -> Placement {
    let pages = floor(range.start, granule)..range.end.next_multiple_of(granule);
    let bare = members.iter().filter(|member| member.kind == Kind::Bare);
    let bare = bare.map(|member| overlap(&pages, &(member.start..member.end()))).sum();
    let untouched = overlap(&pages, &whole_granules(span.clone(), granule));
    Placement { at: range.start, bare, untouched, span: span.end - span.start }
}

fn floor(n: u64, granule: u64) -> u64 {
    n & !(granule - 1)
}

fn whole_granules(range: Range<u64>, granule: u64) -> Range<u64> {
    let start = range.start.next_multiple_of(granule);
    start..floor(range.end, granule).max(start)
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> u64 {
    a.end.min(b.end).saturating_sub(a.start.max(b.start))
}
