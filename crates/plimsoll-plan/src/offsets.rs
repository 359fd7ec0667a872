//! Where the blocks of a step lie: offsets for known sizes and lives, in as few bytes as can be found.
//!
//! To find the fewest is NP-complete, but training steps are tame: values are saved in one order and used in
//! the reverse one. Blocks are placed one after the other, each into the smallest gap that is free for the whole
//! of its life, else on top of those that it meets; all depends on the order. A few natural orders come first,
//! and where none of them comes close to the lower bound, a search improves on each in turn: a block that sticks
//! out above the goal, or one that it meets, goes elsewhere in the order, which is kept if it is no worse. Only the larger blocks take part;
//! the others follow by size and find gaps.
//!
//! The search ends when it is within a thousandth of the bound, which is less than one granule is to most
//! steps. The work is counted, never timed, and chance is a fixed sequence: the same lives get the same offsets on
//! every machine.

use std::cmp::Reverse;

use plimsoll_memory::rounded_size;

/// How many blocks, the largest ones, are placed in many orders.
const N_SEARCHED: usize = 2_000;

/// How many pairs of blocks are looked at before the search ends.
const WORK: u64 = 24_000_000;

/// What sizes and offsets are multiples of: 512, or so much more that all blocks together can be counted in units.
fn unit_of(lives: &[Life]) -> u64 {
    let together = lives.iter().fold(0, |sum: u64, life| sum.saturating_add(rounded_size(life.bytes)));
    (together >> 31).next_power_of_two().max(512)
}

/// One block of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The requested size.
    pub bytes: u64,
    /// The moment of its acquisition.
    pub born: u32,
    /// The first moment at which its place is free again.
    pub dies: u32,
}

impl Life {
    /// Whether there is a moment at which both are alive.
    pub fn meets(&self, other: &Life) -> bool {
        self.born < other.dies && other.born < self.dies
    }

    fn moments(&self) -> u32 {
        self.dies.saturating_sub(self.born)
    }
}

/// Where blocks lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// The offset of each block, in the order of the lives; a multiple of 512.
    pub offsets: Vec<u64>,
    /// The end of the highest block.
    pub bytes: u64,
    /// The most bytes that are alive at one moment: nothing smaller is possible.
    pub lower_bound: u64,
}

/// The most bytes, each block rounded as the pool does, that are alive at one moment.
pub fn lower_bound(lives: &[Life]) -> u64 {
    alive_at_births(lives).iter().map(|&(_, alive)| alive).max().unwrap_or(0)
}

/// The bytes alive after each birth, in the order of time; in between they only fall.
fn alive_at_births(lives: &[Life]) -> Vec<(u32, u64)> {
    let moments = |of: fn(&Life) -> u32| {
        let living = lives.iter().filter(|life| life.born < life.dies);
        let mut moments: Vec<(u32, u64)> = living.map(|life| (of(life), rounded_size(life.bytes))).collect();
        moments.sort_unstable();
        moments
    };
    let (mut births, deaths) = (moments(|life| life.born), moments(|life| life.dies));
    let (mut alive, mut n_dead) = (0, 0);
    for (moment, bytes) in &mut births {
        // A life does not contain its end, so who dies at a moment makes room for who is born then.
        while let Some((_, freed)) = deaths.get(n_dead).filter(|(death, _)| death <= moment) {
            alive -= freed;
            n_dead += 1;
        }
        alive += *bytes;
        *bytes = alive;
    }
    births
}

/// For each block the most bytes that are alive at one moment of its life, itself included.
fn pressures(lives: &[Life]) -> Vec<u64> {
    let at_births = alive_at_births(lives);
    // Level k has the most of each 2^k births in a row; two of its entries cover any stretch between 2^k and
    // 2^(k+1) long.
    let mut levels: Vec<Vec<u64>> = vec![at_births.iter().map(|&(_, alive)| alive).collect()];
    for k in 0..at_births.len().checked_ilog2().unwrap_or(0) {
        let below = &levels[k as usize];
        let pairs = below.iter().zip(&below[1 << k..]);
        levels.push(pairs.map(|(a, b)| *a.max(b)).collect());
    }
    let pressure = |life: &Life| {
        let first = at_births.partition_point(|&(moment, _)| moment < life.born);
        let end = at_births.partition_point(|&(moment, _)| moment < life.dies);
        let Some(k) = (end - first).checked_ilog2() else { return 0 };
        let level = &levels[k as usize];
        level[first].max(level[end - (1 << k)])
    };
    lives.iter().map(pressure).collect()
}

/// Gives every block an offset such that no two that meet overlap.
pub fn assign(lives: &[Life]) -> Offsets {
    let lower_bound = lower_bound(lives);
    let mut by_size: Vec<usize> = (0..lives.len()).collect();
    by_size.sort_by_key(|&i| (Reverse(lives[i].bytes), lives[i].born, lives[i].dies));
    let (large, small) = by_size.split_at(by_size.len().min(N_SEARCHED));
    let mut packing = best_packing(lives, large, lower_bound + lower_bound / 1024);
    for &index in small {
        packing.place(index, &lives[index]);
    }
    let mut offsets = vec![0; lives.len()];
    for placed in &packing.placed {
        offsets[placed.index as usize] = u64::from(placed.start) * packing.unit;
    }
    Offsets { offsets, bytes: packing.bytes(), lower_bound }
}

/// The first packing of the blocks `by_size`, which are sorted by size, of at most `goal` bytes, or the smallest.
fn best_packing(lives: &[Life], by_size: &[usize], goal: u64) -> Packing {
    let mut work = WORK;
    let mut found = Vec::new();
    for order in natural_orders(lives, by_size) {
        let packing = Packing::of(lives, &order, u32::MAX, &mut work).unwrap_or_default();
        if packing.bytes() <= goal {
            return packing;
        }
        found.push((packing, order));
    }
    let mut chance = Chance::default();
    for turn in 0.. {
        let turn = turn % found.len();
        let (packing, order) = &mut found[turn];
        let next_order = changed(lives, packing, order, goal, &mut chance);
        if let Some(next) = Packing::of(lives, &next_order, packing.end, &mut work) {
            (*packing, *order) = (next, next_order);
        }
        if packing.bytes() <= goal || work == 0 {
            break;
        }
    }
    found.into_iter().map(|(packing, _)| packing).min_by_key(|packing| packing.end).unwrap_or_default()
}

/// Orders that suit one step or another, the most successful ones first.
fn natural_orders(lives: &[Life], by_size: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    let pressures = pressures(lives);
    let area = |life: &Life| u128::from(life.bytes) * u128::from(life.moments());
    let sorted = move |n: usize| {
        let mut order = by_size.to_vec();
        match n {
            0 => {}
            1 => order.sort_by_key(|&i| Reverse((lives[i].bytes, lives[i].moments()))),
            2 => order.sort_by_key(|&i| Reverse(area(&lives[i]))),
            3 => order.sort_by_key(|&i| Reverse(lives[i].dies)),
            4 => order.sort_by_key(|&i| Reverse(lives[i].moments())),
            5 => order.sort_by_key(|&i| Reverse((pressures[i], lives[i].moments()))),
            _ => order.sort_by_key(|&i| lives[i].born),
        }
        order
    };
    (0..7).map(sorted)
}

/// The order with one block elsewhere in it: one that sticks out above the goal, or one that such a block meets.
fn changed(lives: &[Life], packing: &Packing, order: &[usize], goal: u64, chance: &mut Chance) -> Vec<usize> {
    let above: Vec<usize> = packing
        .placed
        .iter()
        .filter(|p| u64::from(p.end) * packing.unit > goal)
        .map(|p| p.index as usize)
        .collect();
    let highest = above[chance.below(above.len())];
    let others_too = chance.below(2) == 0;
    let may_move = |&i: &usize| i == highest || (others_too && lives[i].meets(&lives[highest]));
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
    born: u32,
    dies: u32,
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
    fn of(lives: &[Life], order: &[usize], most: u32, work: &mut u64) -> Option<Self> {
        let mut packing = Self { placed: Vec::with_capacity(lives.len()), end: 0, unit: unit_of(lives) };
        for &index in order {
            *work = work.saturating_sub(packing.placed.len() as u64 + 1);
            packing.place(index, &lives[index]);
            if packing.end > most {
                return None;
            }
        }
        Some(packing)
    }

    /// Places a block into the smallest gap that is free for its whole life, else on top of those it meets.
    fn place(&mut self, index: usize, life: &Life) {
        let Life { born, dies, .. } = *life;
        // All blocks together have fewer units than half of what fits here.
        let units = rounded_size(life.bytes).div_ceil(self.unit) as u32;
        let (mut gap, mut smallest) = (None, u32::MAX);
        let mut top = 0;
        for placed in &self.placed {
            if placed.born < dies && born < placed.dies {
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
        self.placed.insert(position, Placed { start, end, born, dies, index: index as u32 });
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
        let life = |units: u64, born, dies| Life { bytes: 512 * units, born, dies };
        let lives = [life(3, 1, 3), life(2, 2, 5), life(2, 3, 5), life(2, 3, 7)];
        let by_size = [0, 1, 2, 3];
        let bound = lower_bound(&lives);
        assert_eq!(bound, 6 * 512);
        for order in natural_orders(&lives, &by_size) {
            let packing = Packing::of(&lives, &order, u32::MAX, &mut 0).unwrap();
            assert!(packing.bytes() > bound, "{order:?}");
        }
        assert_eq!(best_packing(&lives, &by_size, bound).bytes(), bound);
    }

    #[test]
    fn the_pressure_of_a_block_is_the_most_alive_in_its_life() {
        let life = |bytes, born, dies| Life { bytes, born, dies };
        let lives = [life(512, 0, 9), life(1024, 1, 3), life(512, 3, 5), life(2048, 7, 8), life(512, 5, 5)];
        assert_eq!(pressures(&lives), [2560, 1536, 1024, 2560, 0]);
        assert_eq!(pressures(&[]), []);
    }
}
