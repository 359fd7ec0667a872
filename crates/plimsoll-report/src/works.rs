//! What ops did up to a moment: which of them made each block, and what having a block again would take.
//!
//! The price is that of `device.why_alive()`: the time, by formula, of the ops that lead from what is alive to the value. It
//! follows from the profile alone, for planned steps as for eager ones, since each op tells what it reads and writes. The page
//! does the same in `works.js`, for any moment.
//!
//! What ops did long ago is forgotten: of blocks that are gone, those of the present step and of the one before it are known.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use plimsoll_memory::{Owner, Price};

use crate::profile::{Profile, Site};
use crate::replay::{Change, Moment};

/// Longer chains of ops are not followed: nobody would run them.
const MOST_OPS: usize = 4096;
/// For all blocks of a moment together no more ops are followed than this: a file may hold more than there is time for.
const MOST_FOLLOWED: u64 = 1 << 22;

/// An op that ran.
struct Work {
    site: u32,
    nanoseconds: u64,
    repeats: bool,
    /// The blocks that it read, and how often each had been written then.
    reads: Vec<(u64, u32)>,
    /// Whether it wrote over what it read.
    overwrote: bool,
}

/// Who wrote a block last, in which step, and how often it was written.
struct Written {
    work: Rc<Work>,
    step: u64,
    n_writes: u32,
}

/// What ops did, as far as it is known at a moment: for whoever goes through a profile with [`Profile::replay`].
#[derive(Default)]
pub struct Works {
    /// What the next work reads and writes.
    reads: Vec<u64>,
    writes: Vec<u64>,
    written: HashMap<u64, Written>,
    /// What was last said of who keeps blocks alive: the number of the text, and how many bytes go with them.
    held: HashMap<u64, (u32, u64)>,
    /// The event at which prices were asked for last, and how many ops were followed since.
    followed: Cell<(u64, u64)>,
}

impl Works {
    /// Takes in what has led to a moment.
    pub fn see(&mut self, moment: &Moment) {
        match moment.change {
            Some(Change::Read(serial)) => self.reads.push(serial),
            Some(Change::Write(serial)) => self.writes.push(serial),
            Some(Change::Work(site, nanoseconds, repeats)) => {
                self.work(site, nanoseconds, repeats, moment.step)
            }
            Some(Change::Held(serial, by, frees)) => _ = self.held.insert(serial, (by, frees)),
            Some(Change::Freed(serial, _)) => _ = self.held.remove(&serial),
            // Nobody knows who wrote what in between.
            Some(Change::LeftOut(_) | Change::Resumed) => self.written.clear(),
            _ => {}
        }
        if moment.begins_step {
            let last = moment.step.saturating_sub(1);
            self.written.retain(|serial, written| written.step >= last || moment.blocks.contains_key(serial));
        }
    }

    fn work(&mut self, site: u32, nanoseconds: u64, repeats: bool, step: u64) {
        let (reads, writes) = (std::mem::take(&mut self.reads), std::mem::take(&mut self.writes));
        let overwrote = writes.iter().any(|serial| reads.contains(serial));
        let read = |serial: u64| (serial, self.n_writes(serial));
        let reads = reads.into_iter().map(read).collect();
        let work = Rc::new(Work { site, nanoseconds, repeats, reads, overwrote });
        for serial in writes {
            let n_writes = self.n_writes(serial).saturating_add(1);
            self.written.insert(serial, Written { work: work.clone(), step, n_writes });
        }
    }

    fn n_writes(&self, serial: u64) -> u32 {
        self.written.get(&serial).map_or(0, |written| written.n_writes)
    }

    /// The op that wrote a block last, by the number of its site.
    pub fn made_by(&self, serial: u64) -> Option<u32> {
        self.written.get(&serial).map(|written| written.work.site)
    }

    /// Who keeps a block alive, if somebody was asked, as [`Profile::text`] has it, and how many bytes go with them.
    pub fn held(&self, serial: u64) -> Option<(u32, u64)> {
        self.held.get(&serial).copied()
    }

    /// Counts an op that is followed at a moment; whether there is time for it.
    fn may_follow(&self, event: u64) -> bool {
        let (at, n) = self.followed.get();
        let n = if at == event { n + 1 } else { 1 };
        self.followed.set((event, n));
        n <= MOST_FOLLOWED
    }

    /// What having the value of a live block again would take.
    pub fn price(&self, profile: &Profile, moment: &Moment, block: u64) -> Price {
        if let Some(price) = moment.blocks.get(&block).and_then(|live| Price::of_owner(live.owner)) {
            return price;
        }
        let (mut nanoseconds, mut n_ops) = (0u64, 0);
        let (mut open, mut seen) = (vec![block], HashSet::new());
        while let Some(serial) = open.pop() {
            if !self.may_follow(moment.event) {
                return Price::never("more ops would have to be followed than there is time for");
            }
            if !seen.insert(serial) {
                continue;
            }
            let Some(Written { work, .. }) = self.written.get(&serial) else {
                return match serial == block {
                    true => Price::never("no op of this recording has made it"),
                    false => Price::never(Price::INPUTS_GONE),
                };
            };
            let at = |why: &str| Price::never(format!("{} {why}", profile.site(work.site)));
            if !work.repeats {
                return at(Price::HAS_EFFECT);
            }
            if work.overwrote {
                return at(Price::OVERWROTE);
            }
            (nanoseconds, n_ops) = (nanoseconds.saturating_add(work.nanoseconds), n_ops + 1);
            if n_ops > MOST_OPS {
                return Price::never(format!("more than {MOST_OPS} ops would have to run again"));
            }
            for &(read, n_writes) in &work.reads {
                let is_same = self.n_writes(read) == n_writes;
                match moment.blocks.contains_key(&read) && read != block {
                    true if !is_same => return at("read what was written again since"),
                    true => {}
                    false if !is_same => return Price::never(Price::INPUTS_GONE),
                    false => open.push(read),
                }
            }
        }
        Price::Recompute { nanoseconds, n_ops }
    }
}

/// The blocks of one owner and line at a moment.
#[derive(Clone, Debug)]
pub struct Holding {
    /// What they are for.
    pub owner: Owner,
    /// The line, layer and op that took them.
    pub site: Site,
    /// How many they are.
    pub blocks: u64,
    /// The bytes they take.
    pub bytes: u64,
    /// What having all of them again would take.
    pub price: Price,
    /// The op that reads one of them next, with step and phase.
    pub read_next: Option<(Site, u64, String)>,
    /// Who keeps the largest of them alive, if somebody was asked, and how many bytes go with them.
    pub held: Option<(String, u64)>,
}
