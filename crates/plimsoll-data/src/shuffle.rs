//! Shuffling, in an order that is a function of (seed, pass, position) alone.
//!
//! What is indexed is shuffled whole, and without a buffer: position `i` is sent through a keyed permutation of all
//! positions (a Feistel network over Philox; whoever lands beyond the end goes through it again). So a shuffle of a
//! million elements takes no memory, and going on in the middle of an epoch costs nothing. A stream is shuffled in a
//! buffer, as in `tf.data`: each element is drawn from the buffer, and the next one takes its place.

use std::sync::Arc;

use plimsoll_cpu::random::{Draw, philox};
use plimsoll_tensor::{Bytes, Result};

use crate::node::{Count, Cursor, Item, Node, NodeRef, Plan, Session, open};

/// How much of a stream is held to draw from. What is indexed needs no buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// So many elements.
    Elements(usize),
    /// As many elements as fit in so many bytes, but at least one.
    Bytes(Bytes),
}

impl From<usize> for Buffer {
    fn from(n: usize) -> Buffer {
        Buffer::Elements(n)
    }
}

impl From<Bytes> for Buffer {
    fn from(bytes: Bytes) -> Buffer {
        Buffer::Bytes(bytes)
    }
}

/// Passes elements on in a random order.
pub(crate) struct Shuffle {
    pub upstream: NodeRef,
    pub buffer: Buffer,
    pub seed: u64,
    /// Whether every pass has an order of its own.
    pub anew: bool,
}

impl Shuffle {
    fn draw(&self, pass: u64) -> Draw {
        Draw { seed: self.seed, number: if self.anew { pass } else { 0 } }
    }

    /// The number of elements in the buffer.
    fn n_buffered(&self) -> usize {
        let n = match self.buffer {
            Buffer::Elements(n) => n,
            Buffer::Bytes(bytes) => bytes.get() as usize / self.upstream.spec().n_bytes().max(1),
        };
        let most = self.upstream.count().bound().unwrap_or(u64::MAX);
        n.max(1).min(usize::try_from(most).unwrap_or(usize::MAX).max(1))
    }
}

impl Node for Shuffle {
    fn upstream(&self) -> &NodeRef {
        &self.upstream
    }

    fn is_indexed(&self) -> bool {
        self.upstream.is_indexed() && self.upstream.count() != Count::Endless
    }

    fn at(&self, pass: u64, idx: u64) -> Item {
        let n = self.upstream.count().bound().unwrap_or(0);
        self.upstream.at(pass, Permutation::new(n, self.draw(pass)).at(idx))
    }

    fn stream(&self, pass: u64, session: &Arc<Session>) -> Box<dyn Cursor> {
        let cursor = open(&self.upstream, pass, session);
        if session.is_ghost {
            // Elements without values have no order, and going over many of them takes no time so.
            return cursor;
        }
        Box::new(Drawing {
            cursor,
            buffer: Vec::new(),
            n_buffered: self.n_buffered(),
            draw: self.draw(pass),
            n_drawn: 0,
        })
    }

    fn reserve(&self, n_items: usize, plan: &mut Plan<'_>) -> Result<()> {
        let n_buffered = if self.is_indexed() { 0 } else { self.n_buffered() };
        self.upstream.reserve(n_items.saturating_add(n_buffered), plan)
    }
}

/// Draws from a buffer that the upstream fills.
struct Drawing {
    cursor: Box<dyn Cursor>,
    buffer: Vec<Item>,
    n_buffered: usize,
    draw: Draw,
    n_drawn: u64,
}

impl Cursor for Drawing {
    fn next(&mut self, scratch: &mut [u8]) -> Result<Option<Item>> {
        while self.buffer.len() < self.n_buffered {
            match self.cursor.next(scratch)? {
                Some(item) => self.buffer.push(item),
                None => break,
            }
        }
        if self.buffer.is_empty() {
            return Ok(None);
        }
        let [low, high, ..] = self.draw.block(self.n_drawn);
        self.n_drawn += 1;
        let bits = u64::from(high) << 32 | u64::from(low);
        let chosen = (u128::from(bits) * self.buffer.len() as u128) >> 64;
        Ok(Some(self.buffer.swap_remove(chosen as usize)))
    }
}

/// A permutation of the numbers below `n`, different for each draw.
struct Permutation {
    n: u64,
    /// Numbers are two halves of so many bits.
    half: u32,
    draw: Draw,
}

impl Permutation {
    /// Four rounds make a Feistel network hard to tell from chance where the halves are wide; these make up for narrow
    /// ones.
    const N_ROUNDS: u32 = 6;
    /// Halves of at least four bits, so that short datasets are mixed well, too.
    const MIN_HALF: u32 = 4;

    fn new(n: u64, draw: Draw) -> Permutation {
        let n_bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        Permutation { n, half: n_bits.div_ceil(2).max(Self::MIN_HALF), draw }
    }

    fn at(&self, idx: u64) -> u64 {
        debug_assert!(idx < self.n);
        let mut place = idx;
        loop {
            place = self.mix(place);
            if place < self.n {
                return place;
            }
        }
    }

    fn mix(&self, x: u64) -> u64 {
        let mask = (1u64 << self.half) - 1;
        let (mut left, mut right) = (x >> self.half, x & mask);
        let (key, number) = (self.draw.seed, self.draw.number);
        for round in 0..Self::N_ROUNDS {
            let [word, ..] = philox(
                [right as u32, round, number as u32, (number >> 32) as u32],
                [key as u32, (key >> 32) as u32],
            );
            (left, right) = (right, left ^ (u64::from(word) & mask));
        }
        left << self.half | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_once() {
        for n in [1, 2, 3, 10, 255, 256, 257, 1797, 60_000] {
            let permutation = Permutation::new(n, Draw { seed: 7, number: 3 });
            let mut seen = vec![false; n as usize];
            for idx in 0..n {
                assert!(!std::mem::replace(&mut seen[permutation.at(idx) as usize], true));
            }
        }
    }

    #[test]
    fn every_order_of_four_is_about_as_likely() {
        let n_draws = 24_000;
        let mut counts = std::collections::BTreeMap::new();
        for number in 0..n_draws {
            let permutation = Permutation::new(4, Draw { seed: 1, number });
            *counts.entry([0, 1, 2, 3].map(|idx| permutation.at(idx))).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 24);
        // Each count is 1000 give or take 31; five times that is never passed by chance in practice.
        assert!(counts.values().all(|&n| (845..1155).contains(&n)), "{counts:?}");
    }

    #[test]
    fn an_element_goes_anywhere_with_the_same_chance() {
        let (n, n_draws) = (100, 20_000);
        let mut counts = vec![0; n as usize];
        for number in 0..n_draws {
            counts[Permutation::new(n, Draw { seed: 5, number }).at(17) as usize] += 1;
        }
        // 200 each, give or take 14; five times that.
        assert!(counts.iter().all(|&n| (130..270).contains(&n)), "{counts:?}");
    }
}
