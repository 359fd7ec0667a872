//! What grows from step to step: blocks that one step after the other takes and none gives back.
//!
//! A leak is told by where its blocks were born, not by how many bytes are in use: at the same mark of steps k and k + 10, a line
//! leaks if blocks that it took in nearly each of the steps between are still alive, and it has more of them than before.
//! Sizes play no part, so batches of varying length are no leak; a line that replaces its block at each step has one, of the
//! last step; and a window that keeps the last few values grows until it is full, and then no more.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::Hash;

use plimsoll_memory::{Bytes, Owner, Pool};

use crate::profile::Site;

/// Over how many steps something must grow to be called a leak.
pub(crate) const GROWING_STEPS: usize = 10;
/// In how many of them a block must have been taken that is still there.
const LEAST_STEPS: usize = 8;
/// A watch looks at all blocks once in so many steps.
const LOOKS_EVERY: usize = 5;

/// Bytes of one line that become more from step to step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Whose they are.
    pub owner: Owner,
    /// Who took them.
    pub site: Site,
    /// The bytes that there are.
    pub bytes: u64,
    /// By how many they grow at each step, on average over the last ones.
    pub per_step: u64,
    /// The blocks that there are.
    pub blocks: u64,
    /// How many blocks were added in the last ten steps.
    pub added_blocks: u64,
}

impl fmt::Display for Growth {
    /// `1 block a step (512 B) of temporary from encoder mean (src/main.rs:41)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = self.added_blocks as f64 / GROWING_STEPS as f64;
        let count = match self.added_blocks as usize {
            GROWING_STEPS => "1 block".to_owned(),
            n if n.is_multiple_of(GROWING_STEPS) => format!("{} blocks", n / GROWING_STEPS),
            _ => format!("{blocks:.1} blocks"),
        };
        let Growth { owner, site, per_step, .. } = self;
        write!(f, "{count} a step ({} B) of {owner} from {site}", Bytes::new(*per_step).grouped())
    }
}

/// A live block, as a watch sees it.
pub(crate) struct Held<S> {
    pub serial: u64,
    pub owner: Owner,
    pub site: S,
    pub bytes: u64,
}

/// What is held by one line: blocks and bytes.
type Counts<S> = HashMap<(Owner, S), (u64, u64)>;

/// Looks at the same mark of each step.
#[derive(Debug)]
pub(crate) struct Watch<S> {
    n_marks: usize,
    /// The numbers of the next acquisitions at the last marks.
    serials: VecDeque<u64>,
    /// What was held at earlier looks.
    looks: VecDeque<Counts<S>>,
    found: Vec<Found<S>>,
}

/// A line that grows: owner, site, blocks and bytes that there are, and that were added.
#[derive(Clone, Debug)]
pub(crate) struct Found<S> {
    key: (Owner, S),
    now: (u64, u64),
    added: (u64, u64),
}

impl<S> Default for Watch<S> {
    fn default() -> Watch<S> {
        Watch { n_marks: 0, serials: VecDeque::new(), looks: VecDeque::new(), found: Vec::new() }
    }
}

impl<S: Copy + Eq + Hash> Watch<S> {
    /// The next step's mark; now and then `show` is asked to show all live blocks. No list of them is made: a model of many
    /// variables has thousands.
    pub fn mark(&mut self, next_serial: u64, show: impl FnOnce(&mut dyn FnMut(Held<S>))) {
        self.serials.push_back(next_serial);
        if self.serials.len() > GROWING_STEPS + 1 {
            self.serials.pop_front();
        }
        self.n_marks += 1;
        if !(self.n_marks - 1).is_multiple_of(LOOKS_EVERY) {
            return;
        }
        let mut counts: Counts<S> = HashMap::new();
        let mut born: HashMap<(Owner, S), u32> = HashMap::new();
        show(&mut |block| {
            let key = (block.owner, block.site);
            let (blocks, bytes) = counts.entry(key).or_default();
            (*blocks, *bytes) = (*blocks + 1, *bytes + block.bytes);
            let step = self.serials.partition_point(|&begins| begins <= block.serial);
            if step > 0 {
                *born.entry(key).or_default() |= 1 << step;
            }
        });
        if self.looks.len() == GROWING_STEPS / LOOKS_EVERY
            && let Some(before) = self.looks.pop_front()
        {
            self.found = growing(&before, &counts, born);
        }
        self.looks.push_back(counts);
    }

    /// What grows, the most bytes a step first.
    pub fn growth(&self, site: impl Fn(S) -> Site) -> Vec<Growth> {
        let row = |found: &Found<S>| Growth {
            owner: found.key.0,
            site: site(found.key.1),
            bytes: found.now.1,
            per_step: found.added.1 / GROWING_STEPS as u64,
            blocks: found.now.0,
            added_blocks: found.added.0,
        };
        let mut growth: Vec<Growth> = self.found.iter().map(row).collect();
        growth.sort_by(|a, b| {
            let order = |growth: &Growth| (growth.owner, growth.site.line, growth.site.to_string());
            b.per_step.cmp(&a.per_step).then_with(|| order(a).cmp(&order(b)))
        });
        growth
    }
}

/// What was born in nearly each of the last steps, of which a bit each says so, and has become more.
fn growing<S: Copy + Eq + Hash>(
    before: &Counts<S>,
    now: &Counts<S>,
    born: HashMap<(Owner, S), u32>,
) -> Vec<Found<S>> {
    let grown = |(key, steps): ((Owner, S), u32)| {
        let (was, is) = (before.get(&key).copied().unwrap_or_default(), now[&key]);
        let added = (is.0.saturating_sub(was.0), is.1.saturating_sub(was.1));
        let is_leak = steps.count_ones() as usize >= LEAST_STEPS && added.0 >= LEAST_STEPS as u64;
        is_leak.then_some(Found { key, now: is, added })
    };
    born.into_iter().filter_map(grown).collect()
}

/// Watches a pool for blocks that one step after the other leaves behind. Whoever trains marks each step:
///
/// ```
/// use plimsoll_memory::{HostPages, Label, Owner, Pool, Site};
/// use plimsoll_report::GrowthWatch;
///
/// let pool = Pool::new(HostPages::new()?);
/// let mut watch = GrowthWatch::default();
/// let mut losses = Vec::new();
/// for step in 0..12 {
///     losses.push(pool.acquire(4, Label::new(Owner::Temporary, Site::intern("src/main.rs", 41, "", "mean")))?);
///     watch.mark(&pool);
/// }
/// assert_eq!(watch.growth()[0].to_string(), "1 block a step (512 B) of temporary from mean (src/main.rs:41)");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct GrowthWatch {
    watch: Watch<plimsoll_memory::Site>,
}

impl GrowthWatch {
    /// The same moment of the next step, such as its end.
    pub fn mark(&mut self, pool: &Pool) {
        self.watch.mark(pool.stats().n_acquired, |see| {
            pool.each_block(|block| {
                see(Held {
                    serial: block.serial,
                    owner: block.owner,
                    site: block.site,
                    bytes: block.rounded,
                });
            });
        });
    }

    /// What had grown over ten steps when all blocks were last looked at, which is at most five steps ago.
    pub fn growth(&self) -> Vec<Growth> {
        self.watch.growth(Site::from)
    }
}

impl From<plimsoll_memory::Site> for Site {
    fn from(site: plimsoll_memory::Site) -> Site {
        Site {
            file: site.file().to_owned(),
            line: site.line().into(),
            scope: site.scope().to_owned(),
            op: site.op().to_owned(),
            described: site.described().map(|(file, line)| (file.to_owned(), line.into())),
        }
    }
}
