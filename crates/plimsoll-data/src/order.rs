//! Nodes that change which elements come, and how often, but no element: take, skip, shard and repeat.

use std::sync::Arc;

use plimsoll_tensor::Result;

use crate::node::{Count, Cursor, Item, Node, NodeRef, Session, open, skip_one_by_one};

/// Which elements are passed on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// The first so many.
    Take(u64),
    /// All but the first so many.
    Skip(u64),
    /// Every `n`-th, beginning with `first`.
    Shard { n: u64, first: u64 },
    /// All, so many times; without a number, for ever.
    Repeat(Option<u64>),
}

/// Passes on the elements that `order` says.
pub(crate) struct Ordered {
    pub upstream: NodeRef,
    pub order: Order,
}

/// A pass over a repeated dataset is several over what it repeats. They are numbered so that no two are alike:
/// those of an endless one within the single pass that can be made over it.
fn inner_pass(pass: u64, n_repeats: Option<u64>, repeat: u64) -> u64 {
    match n_repeats {
        Some(n) => pass.wrapping_mul(n).wrapping_add(repeat),
        None => (pass << 40).wrapping_add(repeat),
    }
}

impl Node for Ordered {
    fn upstream(&self) -> &NodeRef {
        &self.upstream
    }

    fn count(&self) -> Count {
        let count = self.upstream.count();
        match self.order {
            Order::Take(n) => count.min(Count::Exactly(n)),
            Order::Skip(skipped) => count.map(|n| n.saturating_sub(skipped)),
            Order::Shard { n: n_shards, first } => count.map(|n| n.saturating_sub(first).div_ceil(n_shards)),
            Order::Repeat(Some(n_repeats)) => match (count, n_repeats) {
                (Count::Endless, 0) => Count::Exactly(0),
                _ => count.map(|n| n.saturating_mul(n_repeats)),
            },
            Order::Repeat(None) => match count {
                Count::Exactly(0) => count,
                Count::Exactly(_) | Count::Endless => Count::Endless,
                Count::AtMost(_) | Count::Unknown => Count::Unknown,
            },
        }
    }

    fn at(&self, pass: u64, idx: u64) -> Item {
        match self.order {
            Order::Take(_) => self.upstream.at(pass, idx),
            Order::Skip(skipped) => self.upstream.at(pass, idx.saturating_add(skipped)),
            Order::Shard { n, first } => self.upstream.at(pass, idx.saturating_mul(n).saturating_add(first)),
            Order::Repeat(n_repeats) => match self.upstream.count() {
                Count::Exactly(n) => {
                    self.upstream.at(inner_pass(pass, n_repeats, idx.checked_div(n).unwrap_or(0)), idx % n)
                }
                _ => self.upstream.at(inner_pass(pass, n_repeats, 0), idx),
            },
        }
    }

    fn stream(&self, pass: u64, session: &Arc<Session>) -> Box<dyn Cursor> {
        let upstream = self.upstream.clone();
        match self.order {
            Order::Take(n) => Box::new(Taking { cursor: open(&upstream, pass, session), n_left: n }),
            Order::Skip(n) => {
                Box::new(Stepping { cursor: open(&upstream, pass, session), before: n, between: 0 })
            }
            Order::Shard { n, first } => {
                let cursor = open(&upstream, pass, session);
                Box::new(Stepping { cursor, before: first, between: n - 1 })
            }
            Order::Repeat(n_repeats) => Box::new(Repeating {
                upstream,
                session: session.clone(),
                pass,
                n_repeats,
                done: 0,
                now: None,
            }),
        }
    }
}

/// The first items of a stream.
struct Taking {
    cursor: Box<dyn Cursor>,
    n_left: u64,
}

impl Cursor for Taking {
    fn next(&mut self, scratch: &mut [u8]) -> Result<Option<Item>> {
        if self.n_left == 0 {
            return Ok(None);
        }
        self.n_left -= 1;
        self.cursor.next(scratch)
    }

    fn skip(&mut self, n: u64, scratch: &mut [u8]) -> Result<()> {
        let n = n.min(self.n_left);
        self.n_left -= n;
        self.cursor.skip(n, scratch)
    }
}

/// Goes over some items before the first and between any two.
struct Stepping {
    cursor: Box<dyn Cursor>,
    before: u64,
    between: u64,
}

impl Cursor for Stepping {
    fn next(&mut self, scratch: &mut [u8]) -> Result<Option<Item>> {
        self.cursor.skip(self.before, scratch)?;
        self.before = self.between;
        self.cursor.next(scratch)
    }
}

/// One pass after the other.
struct Repeating {
    upstream: NodeRef,
    session: Arc<Session>,
    pass: u64,
    n_repeats: Option<u64>,
    done: u64,
    /// The cursor of the present pass, and how many items it has given or gone over.
    now: Option<(Box<dyn Cursor>, u64)>,
}

impl Repeating {
    fn has_passes(&self) -> bool {
        self.n_repeats.is_none_or(|n| self.done < n)
    }

    /// The cursor of the present pass, which begins if there is none.
    fn now(&mut self) -> &mut (Box<dyn Cursor>, u64) {
        let pass = inner_pass(self.pass, self.n_repeats, self.done);
        self.now.get_or_insert_with(|| (open(&self.upstream, pass, &self.session), 0))
    }
}

impl Cursor for Repeating {
    fn next(&mut self, scratch: &mut [u8]) -> Result<Option<Item>> {
        while self.has_passes() {
            let (cursor, n_given) = self.now();
            if let Some(item) = cursor.next(scratch)? {
                *n_given += 1;
                return Ok(Some(item));
            }
            let is_empty = *n_given == 0;
            // A pass that gives nothing is never followed by one that does, as far as anybody can know.
            self.done = if is_empty { self.n_repeats.unwrap_or(u64::MAX) } else { self.done + 1 };
            if is_empty && self.n_repeats.is_none() {
                return Ok(None);
            }
            self.now = None;
        }
        Ok(None)
    }

    /// Passes whose length is known are gone over as a whole: a run that goes on from far within many of them finds its place
    /// at once.
    fn skip(&mut self, mut n: u64, scratch: &mut [u8]) -> Result<()> {
        let Count::Exactly(len @ 1..) = self.upstream.count() else {
            return skip_one_by_one(self, n, scratch);
        };
        while n > 0 && self.has_passes() {
            let (cursor, n_given) = self.now();
            let n_rest = len.saturating_sub(*n_given);
            if n < n_rest {
                *n_given += n;
                return cursor.skip(n, scratch);
            }
            n -= n_rest;
            let n_whole = self.n_repeats.map_or(n / len, |all| (n / len).min(all - self.done - 1));
            n -= n_whole * len;
            self.done += 1 + n_whole;
            self.now = None;
        }
        Ok(())
    }
}
