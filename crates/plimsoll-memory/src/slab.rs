//! Small blocks: all sizes together in slabs of 64 KiB.
//!
//! A slab is 128 units of 512 bytes and one bit per unit. A block of `k` units takes the first run of `k` free
//! bits. Slabs are listed by their longest free run, and a block goes into a slab whose longest run is the
//! smallest that suffices, so that full slabs fill up before fresh ones are broken into.

use std::hash::{Hash, Hasher};

use crate::extents::{ExtentId, NONE};
use crate::map::UNIT;

/// The size of a slab.
pub(crate) const SLAB_BYTES: u64 = 128 * UNIT;

/// The largest block that is placed in a slab.
pub(crate) const SMALL_BYTES: u64 = LONGEST as u64 * UNIT;

/// Runs longer than this are not told apart: no small block needs more.
const LONGEST: usize = 32;

/// The number of a slab; numbers of vanished slabs are used again.
pub(crate) type SlabId = u32;

#[derive(Clone, Copy, Debug)]
struct Slab {
    extent: ExtentId,
    start: u64,
    /// One bit per free unit.
    free: u128,
    /// The length of the longest free run, at most `LONGEST`; also the list the slab is in.
    run: usize,
    before: SlabId,
    after: SlabId,
}

/// The slabs of one region.
#[derive(Clone, Debug)]
pub(crate) struct Slabs {
    table: Vec<Slab>,
    vacant: Vec<SlabId>,
    /// The first slab of each list; `heads[0]` lists the full ones.
    heads: [SlabId; LONGEST + 1],
    /// One bit per list that has a slab.
    listed: u64,
}

impl Slabs {
    pub(crate) fn new() -> Self {
        Self { table: Vec::new(), vacant: Vec::new(), heads: [NONE; LONGEST + 1], listed: 0 }
    }

    /// Makes a slab of a used extent.
    pub(crate) fn add(&mut self, extent: ExtentId, start: u64) {
        let slab = Slab { extent, start, free: u128::MAX, run: LONGEST, before: NONE, after: NONE };
        let id = match self.vacant.pop() {
            Some(id) => {
                self.table[id as usize] = slab;
                id
            }
            None => {
                self.table.push(slab);
                (self.table.len() - 1) as SlabId
            }
        };
        self.link(id);
    }

    /// Places a block of `bytes`, a multiple of the unit, and returns its slab and offset in the region.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<(SlabId, u64)> {
        let n_units = (bytes / UNIT) as u32;
        let sufficient = self.listed >> n_units << n_units;
        if sufficient == 0 {
            return None;
        }
        let id = self.heads[sufficient.trailing_zeros() as usize];
        let slab = &mut self.table[id as usize];
        let unit = run_starts(slab.free, n_units).trailing_zeros();
        slab.free &= !(ones(n_units) << unit);
        let offset = slab.start + u64::from(unit) * UNIT;
        self.relink(id);
        Some((id, offset))
    }

    /// Frees a block; when its slab is empty then, the slab is gone and its extent is returned.
    pub(crate) fn free(&mut self, id: SlabId, offset: u64, bytes: u64) -> Option<ExtentId> {
        let slab = &mut self.table[id as usize];
        let unit = (offset - slab.start) / UNIT;
        slab.free |= ones((bytes / UNIT) as u32) << unit;
        if slab.free != u128::MAX {
            self.relink(id);
            return None;
        }
        let extent = slab.extent;
        self.unlink(id);
        self.vacant.push(id);
        Some(extent)
    }

    /// Feeds the slabs to a hasher, list by list in the order in which they are chosen; their numbers do not matter.
    pub(crate) fn hash_state(&self, hasher: &mut impl Hasher) {
        for (run, &head) in self.heads.iter().enumerate() {
            let some = |id: SlabId| (id != NONE).then_some(id);
            for id in std::iter::successors(some(head), |&id| some(self.table[id as usize].after)) {
                (run, self.table[id as usize].start, self.table[id as usize].free).hash(hasher);
            }
        }
    }

    fn relink(&mut self, id: SlabId) {
        let run = longest_run(self.table[id as usize].free);
        if run != self.table[id as usize].run {
            self.unlink(id);
            self.table[id as usize].run = run;
            self.link(id);
        }
    }

    fn link(&mut self, id: SlabId) {
        let run = self.table[id as usize].run;
        let head = self.heads[run];
        self.table[id as usize].before = NONE;
        self.table[id as usize].after = head;
        if head != NONE {
            self.table[head as usize].before = id;
        }
        self.heads[run] = id;
        self.listed |= 1 << run;
    }

    fn unlink(&mut self, id: SlabId) {
        let Slab { run, before, after, .. } = self.table[id as usize];
        if before != NONE {
            self.table[before as usize].after = after;
        } else {
            self.heads[run] = after;
            if after == NONE {
                self.listed &= !(1 << run);
            }
        }
        if after != NONE {
            self.table[after as usize].before = before;
        }
    }
}

/// `n` ones, for `n` from 1 to 128.
fn ones(n: u32) -> u128 {
    u128::MAX >> (128 - n)
}

/// The positions at which at least `n` ones begin: each round doubles the length that is known.
fn run_starts(bits: u128, n: u32) -> u128 {
    let (mut starts, mut known) = (bits, 1);
    while known < n {
        let step = known.min(n - known);
        starts &= starts >> step;
        known += step;
    }
    starts
}

/// The length of the longest run of ones, at most `LONGEST`, which is a power of two.
fn longest_run(bits: u128) -> usize {
    let mut by_power = [bits; LONGEST.ilog2() as usize + 1];
    for i in 1..by_power.len() {
        by_power[i] = by_power[i - 1] & (by_power[i - 1] >> (1 << (i - 1)));
    }
    let (mut starts, mut length) = (u128::MAX, 0);
    for i in (0..by_power.len()).rev() {
        let longer = starts & (by_power[i] >> length);
        if longer != 0 {
            (starts, length) = (longer, length + (1 << i));
        }
        if length == LONGEST {
            break;
        }
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naive_longest(bits: u128) -> usize {
        let (mut longest, mut run) = (0, 0);
        for i in 0..128 {
            run = if bits >> i & 1 == 1 { run + 1 } else { 0 };
            longest = longest.max(run);
        }
        longest.min(LONGEST)
    }

    #[test]
    fn runs_are_found_as_by_counting() {
        let mut bits: u128 = 1;
        for round in 0..3000u32 {
            bits =
                bits.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).wrapping_add(u128::from(round));
            // Thick runs are rare in random bits, so some rounds join neighbours.
            let thick = (0..round % 5).fold(bits, |bits, i| bits | bits << (1 << i));
            assert_eq!(longest_run(thick), naive_longest(thick), "{thick:#b}");
            for n in [1, 2, 3, 7, 16, 31, 32] {
                let naive = (0..=128 - n).find(|&i| thick >> i & ones(n) == ones(n));
                let found = run_starts(thick, n);
                assert_eq!((found != 0).then(|| found.trailing_zeros()), naive, "{n} in {thick:#b}");
            }
        }
        assert_eq!(longest_run(0), 0);
        assert_eq!(longest_run(u128::MAX), LONGEST);
    }

    #[test]
    fn a_block_goes_where_the_run_fits_best() {
        let mut slabs = Slabs::new();
        slabs.add(0, 0);
        let first: Vec<_> = (0..8).map(|_| slabs.take(16 * UNIT).unwrap()).collect();
        assert!(slabs.take(UNIT).is_none());
        slabs.add(1, 1 << 20);
        assert_eq!(slabs.free(first[3].0, first[3].1, 16 * UNIT), None);
        // The hole of 16 units is preferred to the empty slab.
        assert_eq!(slabs.take(10 * UNIT), Some(first[3]));
        assert_eq!(slabs.take(7 * UNIT), Some((1, 1 << 20)));
        assert_eq!(slabs.free(1, 1 << 20, 7 * UNIT), Some(1));
    }
}
