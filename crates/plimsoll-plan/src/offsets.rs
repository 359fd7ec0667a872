//! Offsets of a step's blocks: known sizes and lifetimes, in as few bytes as can be found.
//!
//! Finding the fewest is NP-complete, but training steps are tame: values are saved in one order and used in the reverse
//! one. Blocks are placed one after the other, each into the smallest gap that is free for the whole of its lifetime, else
//! on top of those that it overlaps in time; all depends on the order. A few natural orders come first, and where none of
//! them comes close to the lower bound, a local search improves on each in turn: a block that ends above the goal, or one
//! that overlaps it in time, is moved elsewhere in the order, and the change is kept if it is no worse. Only the larger
//! blocks take part; the others follow by size and fill gaps.
//!
//! The search ends when it is within a thousandth of the bound, which is less than one granule in most steps. The work is
//! counted, never timed, and random numbers are a fixed sequence: the same lifetimes get the same offsets on every machine.

use std::cmp::Reverse;

use plimsoll_memory::rounded_size;

/// How many blocks, the largest ones, are placed in many orders.
const N_SEARCHED: usize = 2_000;

/// How many pairs of blocks are looked at before the search ends.
const WORK: u64 = 24_000_000;

/// What sizes and offsets are multiples of: 512, or so much more that all blocks together can be counted in units.
fn unit_of(lifetimes: &[Lifetime]) -> u64 {
    let together =
        lifetimes.iter().fold(0, |sum: u64, lifetime| sum.saturating_add(rounded_size(lifetime.bytes)));
    (together >> 31).next_power_of_two().max(512)
}

/// One block of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The requested size.
    pub bytes: u64,
    /// The moment of its acquisition.
    pub allocated: u32,
    /// The first moment at which its place is free again.
    pub freed: u32,
}

impl Lifetime {
    /// Whether there is a moment at which both are alive.
    pub fn overlaps(&self, other: &Lifetime) -> bool {
        self.allocated < other.freed && other.allocated < self.freed
    }

    fn moments(&self) -> u32 {
        self.freed.saturating_sub(self.allocated)
    }
}

/// Where blocks lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// The offset of each block, in the order of the lifetimes; a multiple of 512.
    pub offsets: Vec<u64>,
    /// The end of the highest block.
    pub bytes: u64,
    /// The most bytes that are alive at one moment: nothing smaller is possible.
    pub lower_bound: u64,
}

/// The most bytes, each block rounded as the pool does, that are alive at one moment.
pub fn lower_bound(lifetimes: &[Lifetime]) -> u64 {
    live_at_allocations(lifetimes).iter().map(|&(_, alive)| alive).max().unwrap_or(0)
}

/// The bytes alive after each allocation, in the order of time; in between they only fall.
fn live_at_allocations(lifetimes: &[Lifetime]) -> Vec<(u32, u64)> {
    let moments = |of: fn(&Lifetime) -> u32| {
        let nonempty = lifetimes.iter().filter(|lifetime| lifetime.allocated < lifetime.freed);
        let mut moments: Vec<(u32, u64)> =
            nonempty.map(|lifetime| (of(lifetime), rounded_size(lifetime.bytes))).collect();
        moments.sort_unstable();
        moments
    };
    let (mut allocations, frees) =
        (moments(|lifetime| lifetime.allocated), moments(|lifetime| lifetime.freed));
    let (mut alive, mut n_freed) = (0, 0);
    for (moment, bytes) in &mut allocations {
        // A lifetime does not contain its end, so what is freed at a moment makes room for what is allocated then.
        while let Some((_, freed)) = frees.get(n_freed).filter(|(at, _)| at <= moment) {
            alive -= freed;
            n_freed += 1;
        }
        alive += *bytes;
        *bytes = alive;
    }
    allocations
}

/// For each block the most bytes that are alive at one moment of its lifetime, itself included.
fn pressures(lifetimes: &[Lifetime]) -> Vec<u64> {
    let at_allocations = live_at_allocations(lifetimes);
    // Level k has the most of each 2^k allocations in a row; two of its entries cover any stretch between 2^k and
    // 2^(k+1) long.
    let mut levels: Vec<Vec<u64>> = vec![at_allocations.iter().map(|&(_, alive)| alive).collect()];
    for k in 0..at_allocations.len().checked_ilog2().unwrap_or(0) {
        let below = &levels[k as usize];
        let pairs = below.iter().zip(&below[1 << k..]);
        levels.push(pairs.map(|(a, b)| *a.max(b)).collect());
    }
    let pressure = |lifetime: &Lifetime| {
        let first = at_allocations.partition_point(|&(moment, _)| moment < lifetime.allocated);
        let end = at_allocations.partition_point(|&(moment, _)| moment < lifetime.freed);
        let Some(k) = (end - first).checked_ilog2() else { return 0 };
        let level = &levels[k as usize];
        level[first].max(level[end - (1 << k)])
    };
    lifetimes.iter().map(pressure).collect()
}

/// Gives every block an offset such that no two that overlap in time overlap in memory.
pub fn assign(lifetimes: &[Lifetime]) -> Offsets {
    let lower_bound = lower_bound(lifetimes);
    let mut by_size: Vec<usize> = (0..lifetimes.len()).collect();
    by_size.sort_by_key(|&i| (Reverse(lifetimes[i].bytes), lifetimes[i].allocated, lifetimes[i].freed));
    let (large, small) = by_size.split_at(by_size.len().min(N_SEARCHED));
    let mut packing = best_packing(lifetimes, large, lower_bound + lower_bound / 1024);
    for &index in small {
        packing.place(index, &lifetimes[index]);
    }
    let mut offsets = vec![0; lifetimes.len()];
    for placed in &packing.placed {
        offsets[placed.index as usize] = u64::from(placed.start) * packing.unit;
    }
    Offsets { offsets, bytes: packing.bytes(), lower_bound }
}

/// The first packing of the blocks `by_size`, which are sorted by size, of at most `goal` bytes, or the smallest.
fn best_packing(lifetimes: &[Lifetime], by_size: &[usize], goal: u64) -> Packing {
    let mut work = WORK;
    let mut found = Vec::new();
    for order in natural_orders(lifetimes, by_size) {
        let packing = Packing::of(lifetimes, &order, u32::MAX, &mut work).unwrap_or_default();
        if packing.bytes() <= goal {
            return packing;
        }
        found.push((packing, order));
    }
    let mut chance = Chance::default();
    for turn in 0.. {
        let turn = turn % found.len();
        let (packing, order) = &mut found[turn];
        let next_order = changed(lifetimes, packing, order, goal, &mut chance);
        if let Some(next) = Packing::of(lifetimes, &next_order, packing.end, &mut work) {
            (*packing, *order) = (next, next_order);
        }
        if packing.bytes() <= goal || work == 0 {
            break;
        }
    }
    found.into_iter().map(|(packing, _)| packing).min_by_key(|packing| packing.end).unwrap_or_default()
}

/// Orders that suit one step or another, the most successful ones first.
fn natural_orders(lifetimes: &[Lifetime], by_size: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    let pressures = pressures(lifetimes);
    let area = |lifetime: &Lifetime| u128::from(lifetime.bytes) * u128::from(lifetime.moments());
    let sorted = move |n: usize| {
        let mut order = by_size.to_vec();
        match n {
            0 => {}
            1 => order.sort_by_key(|&i| Reverse((lifetimes[i].bytes, lifetimes[i].moments()))),
            2 => order.sort_by_key(|&i| Reverse(area(&lifetimes[i]))),
            3 => order.sort_by_key(|&i| Reverse(lifetimes[i].freed)),
            4 => order.sort_by_key(|&i| Reverse(lifetimes[i].moments())),
            5 => order.sort_by_key(|&i| Reverse((pressures[i], lifetimes[i].moments()))),
            _ => order.sort_by_key(|&i| lifetimes[i].allocated),
        }
        order
    };
    (0..7).map(sorted)
}

/// The order with one block elsewhere in it: one that ends above the goal, or one that overlaps such a block in time.
fn changed(
    lifetimes: &[Lifetime],
    packing: &Packing,
    order: &[usize],
    goal: u64,
    chance: &mut Chance,
) -> Vec<usize> {
    let above: Vec<usize> = packing
        .placed
        .iter()
        .filter(|p| u64::from(p.end) * packing.unit > goal)
        .map(|p| p.index as usize)
        .collect();
    let highest = above[chance.below(above.len())];
    let others_too = chance.below(2) == 0;
    let may_move = |&i: &usize| i == highest || (others_too && lifetimes[i].overlaps(&lifetimes[highest]));
    let candidates: Vec<usize> = order.iter().copied().filter(may_move).collect();
    let block = candidates[chance.below(candidates.len())];
    let mut order: Vec<usize> = order.iter().copied().filter(|&i| i != block).collect();
    order.insert(chance.below(order.len() + 1), block);
    order
}

/// A block that has its place; many are looked at in a row, so it is small: addresses are counted in units.
#[derive(Clone, Copy, Debug)]
struct Placed {
    start: u32,
    end: u32,
    allocated: u32,
    freed: u32,
    index: u32,
}

/// Blocks that have their places, in the order of their addresses.
#[derive(Clone, Debug, Default)]
struct Packing {
    placed: Vec<Placed>,
    /// The end of the highest block.
    end: u32,
    unit: u64,
}

impl Packing {
    /// The end of the highest block in bytes.
    fn bytes(&self) -> u64 {
        u64::from(self.end) * self.unit
    }

    /// Places blocks in an order, unless that takes more than `most` units; the work is taken off what is left.
    fn of(lifetimes: &[Lifetime], order: &[usize], most: u32, work: &mut u64) -> Option<Self> {
        let mut packing =
            Self { placed: Vec::with_capacity(lifetimes.len()), end: 0, unit: unit_of(lifetimes) };
        for &index in order {
            *work = work.saturating_sub(packing.placed.len() as u64 + 1);
            packing.place(index, &lifetimes[index]);
            if packing.end > most {
                return None;
            }
        }
        Some(packing)
    }

    /// Places a block into the smallest gap that is free for its whole lifetime, else on top of those it overlaps in time.
    fn place(&mut self, index: usize, lifetime: &Lifetime) {
        let Lifetime { allocated, freed, .. } = *lifetime;
        // All blocks together have fewer units than half of what fits here.
        let units = rounded_size(lifetime.bytes).div_ceil(self.unit) as u32;
        let (mut gap, mut smallest) = (None, u32::MAX);
        let mut top = 0;
        for placed in &self.placed {
            if placed.allocated < freed && allocated < placed.freed {
                let room = placed.start.saturating_sub(top);
                if room >= units && room < smallest {
                    (gap, smallest) = (Some(top), room);
                }
                top = top.max(placed.end);
            }
        }
        let start = gap.unwrap_or(top);
        let end = start + units;
        let position = self.placed.partition_point(|placed| placed.start < start);
        self.placed.insert(position, Placed { start, end, allocated, freed, index: index as u32 });
        self.end = self.end.max(end);
    }
}

/// A fixed sequence of numbers that look like chance.
#[derive(Debug, Default)]
struct Chance {
    state: u64,
}

impl Chance {
    /// The next number, from 0 to `n - 1`.
    fn below(&mut self, n: usize) -> usize {
        self.state = self.state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((self.state >> 33) as usize) % n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_finds_what_no_natural_order_does() {
        let lifetime = |units: u64, allocated, freed| Lifetime { bytes: 512 * units, allocated, freed };
        let lifetimes = [lifetime(3, 1, 3), lifetime(2, 2, 5), lifetime(2, 3, 5), lifetime(2, 3, 7)];
        let by_size = [0, 1, 2, 3];
        let bound = lower_bound(&lifetimes);
        assert_eq!(bound, 6 * 512);
        for order in natural_orders(&lifetimes, &by_size) {
            let packing = Packing::of(&lifetimes, &order, u32::MAX, &mut 0).unwrap();
            assert!(packing.bytes() > bound, "{order:?}");
        }
        assert_eq!(best_packing(&lifetimes, &by_size, bound).bytes(), bound);
    }

    #[test]
    fn the_pressure_of_a_block_is_the_most_alive_in_its_life() {
        let lifetime = |bytes, allocated, freed| Lifetime { bytes, allocated, freed };
        let lifetimes = [
            lifetime(512, 0, 9),
            lifetime(1024, 1, 3),
            lifetime(512, 3, 5),
            lifetime(2048, 7, 8),
            lifetime(512, 5, 5),
        ];
        assert_eq!(pressures(&lifetimes), [2560, 1536, 1024, 2560, 0]);
        assert_eq!(pressures(&[]), []);
    }
}
