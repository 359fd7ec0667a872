//! What a page shows of a profile's moments: the lives of blocks, marks, and buckets of moments with their extremes.
//!
//! A page counts what the program did (blocks taken, freed and relabelled, marks) and not what only one kind of recording
//! has, so that the moments of a run and of its dry run have the same numbers. Moment zero is the beginning of the
//! recording; moment n is that after the nth event.
//!
//! A bucket is not an average: it is the moment at which most was in use, with the rows of that very moment, so that
//! whatever is drawn adds up and no peak is lost between two pixels.
//!
//! Pages are bounded. Of a profile with more than [`MOST_EVENTS`] the blocks of some segments are kept in full (the first,
//! the last, the one with the peak, and others in between) and the rest is there as buckets.

use std::collections::HashMap;
use std::io;

use plimsoll_memory::STEP;
use serde_json::Value;

use crate::code::N_ROWS;
use crate::profile::Profile;
use crate::replay::{Block, Change, Moment};
use crate::stretch::Stretch;

/// How many events a page has in full.
pub(crate) const MOST_EVENTS: u64 = 1 << 20;
/// How many buckets a page has.
const MOST_BUCKETS: u64 = 1 << 14;
/// How many answers about who holds what a page has.
const MOST_HELD: usize = 1 << 16;
/// Segments at the beginning and at the end of a long recording that are kept in full, if there is room.
const FIRST_SEGMENTS: usize = 8;
const LAST_SEGMENTS: usize = 16;

/// A block between two changes of its label.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub serial: u64,
    /// The moment from which on it is so,
    pub born: u64,
    /// and the first at which it is not; nothing if it is so at the end.
    pub until: Option<u64>,
    pub block: Block,
}

/// A mark and its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub moment: u64,
    pub name: u32,
    pub number: u64,
    pub nanoseconds: u64,
}

/// An op, with the blocks that it reads and writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// The moment at which it runs.
    pub moment: u64,
    pub site: u32,
    pub nanoseconds: u64,
    pub repeats: bool,
    /// How many of the operands are its: first what it reads, then what it writes.
    pub n_reads: u32,
    pub n_writes: u32,
}

/// Who keeps a block alive, as somebody was told at a moment, and how many bytes go with them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldBy {
    pub moment: u64,
    pub serial: u64,
    pub by: u32,
    pub frees: u64,
}

/// The extremes of some moments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    /// The moment at which most was in use,
    pub at: u64,
    /// with its rows,
    pub rows: [u64; N_ROWS],
    /// and how much that was.
    pub most: u64,
    /// The least in use.
    pub least: u64,
    /// The most committed.
    pub committed: u64,
}

/// The moment of the most bytes in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peak {
    pub moment: u64,
    pub in_use: u64,
    pub rows: [u64; N_ROWS],
    pub step: u64,
    pub phase: String,
    pub site: Option<u32>,
}

/// All of that.
#[derive(Debug)]
pub(crate) struct Timeline {
    /// The number of the last moment.
    pub last: u64,
    /// By birth.
    pub lives: Vec<Life>,
    pub marks: Vec<Mark>,
    /// Which of them stand for how many steps that the profile has left out.
    pub left_out: Vec<(usize, u64)>,
    /// What ran at the moments whose blocks are known,
    pub works: Vec<Work>,
    /// and the blocks that these read and write, by the numbers of their acquisitions, in order.
    pub operands: Vec<u64>,
    pub held: Vec<HeldBy>,
    /// From which moments on how many bytes are committed.
    pub commits: Vec<(u64, u64)>,
    pub buckets: Vec<Bucket>,
    /// How many moments a bucket has.
    pub bucket_size: u64,
    /// The moments whose blocks are known: from, and to inclusive.
    pub kept: Vec<(u64, u64)>,
    pub peak: Peak,
    pub peak_committed: u64,
}

impl Timeline {
    /// Goes through a profile once, or twice if it is long.
    pub fn of(profile: &Profile) -> io::Result<Timeline> {
        let last = profile.n_events();
        let is_plan = profile.about().get("is_plan").and_then(Value::as_bool) == Some(true);
        let mut builder = Builder {
            is_plan,
            rows: [0; N_ROWS],
            live: HashMap::new(),
            timeline: Timeline {
                last,
                lives: Vec::new(),
                marks: Vec::new(),
                left_out: Vec::new(),
                works: Vec::new(),
                operands: Vec::new(),
                held: Vec::new(),
                commits: Vec::new(),
                buckets: Vec::new(),
                bucket_size: (last + 1).div_ceil(MOST_BUCKETS).next_power_of_two(),
                kept: kept(profile)?,
                peak: Peak::default(),
                peak_committed: 0,
            },
            moment: 0,
            reads: Vec::new(),
            writes: Vec::new(),
        };
        builder.begin(&Moment::begin(profile)?);
        let step = profile.texts.iter().position(|text| text == STEP.as_str()).map(|name| name as u32);
        profile.replay(|moment| {
            match moment.change {
                Some(Change::LeftOut(stretch)) => builder.leave_out(profile.stretch(stretch), step),
                _ => builder.see(moment),
            }
            true
        })?;
        Ok(builder.end())
    }
}

/// The moments whose blocks a page knows: those of some segments, joined where they follow each other.
fn kept(profile: &Profile) -> io::Result<Vec<(u64, u64)>> {
    let segments = &profile.segments;
    let chosen = chosen(profile)?;
    let mut kept: Vec<(u64, u64)> = vec![(0, 0)];
    for segment in segments.iter().zip(chosen).filter(|(_, is_chosen)| *is_chosen).map(|(segment, _)| segment)
    {
        let (from, to) = (segment.begins, segment.begins + profile.n_counted(segment));
        match kept.last_mut() {
            Some(before) if before.1 >= from => before.1 = to,
            _ => kept.push((from, to)),
        }
    }
    Ok(kept)
}

/// Which segments those are.
fn chosen(profile: &Profile) -> io::Result<Vec<bool>> {
    let segments = &profile.segments;
    let n = segments.len();
    let lengths: Vec<u64> = segments.iter().map(|segment| profile.n_counted(segment)).collect();
    if lengths.iter().sum::<u64>() <= MOST_EVENTS {
        return Ok(vec![true; n]);
    }
    let (mut peak, mut peak_at) = (0, 0);
    profile.replay(|moment| {
        if moment.in_use > peak {
            (peak, peak_at) = (moment.in_use, moment.number);
        }
        true
    })?;
    let of_peak = segments.partition_point(|segment| segment.begins < peak_at).saturating_sub(1);
    let spread = (0..n).step_by((n / 64).max(1));
    let order = [of_peak, of_peak.saturating_sub(1)].into_iter();
    let order =
        order.chain((0..n).rev().take(LAST_SEGMENTS)).chain((0..n).take(FIRST_SEGMENTS)).chain(spread);
    let (mut chosen, mut room) = (vec![false; n], MOST_EVENTS);
    for segment in order {
        if !chosen[segment] && lengths[segment] <= room {
            (chosen[segment], room) = (true, room - lengths[segment]);
        }
    }
    Ok(chosen)
}

struct Builder {
    is_plan: bool,
    rows: [u64; N_ROWS],
    live: HashMap<u64, Life>,
    timeline: Timeline,
    moment: u64,
    /// What the next work reads and writes.
    reads: Vec<u64>,
    writes: Vec<u64>,
}

impl Builder {
    fn begin(&mut self, moment: &Moment) {
        for (&serial, &block) in &moment.blocks {
            self.count(block, u64::wrapping_add);
            self.live.insert(serial, Life { serial, born: 0, until: None, block });
        }
        self.timeline.commits.push((0, moment.committed));
        self.look(moment);
    }

    fn see(&mut self, moment: &Moment) {
        let Some(change) = moment.change else { return };
        self.moment = moment.number;
        match change {
            Change::Taken(serial) => self.start(serial, moment),
            Change::Freed(serial, block) => self.stop(serial, block),
            Change::Relabelled(serial, before) => {
                self.stop(serial, before);
                self.start(serial, moment);
            }
            Change::Mark(name, number) => {
                let nanoseconds = if self.is_plan { moment.worked } else { moment.nanoseconds };
                self.timeline.marks.push(Mark { moment: self.moment, name, number, nanoseconds });
            }
            // It comes before what made it necessary.
            Change::Committed => self.timeline.commits.push((self.moment + 1, moment.committed)),
            Change::Read(serial) => return self.reads.push(serial),
            Change::Write(serial) => return self.writes.push(serial),
            Change::Work(site, nanoseconds, repeats) => return self.work(site, nanoseconds, repeats),
            Change::Held(serial, by, frees) => return self.hold(serial, by, frees),
            Change::Checked => return,
            Change::Resumed => self.timeline.commits.push((self.moment, moment.committed)),
            Change::LeftOut(_) => return,
        }
        if !moment.is_left_out {
            self.look(moment);
        }
    }

    /// What is known of steps that the profile has left out: a mark where they begin, and their extremes.
    fn leave_out(&mut self, stretch: &Stretch, step: Option<u32>) {
        let Stretch { moments, n_steps, most_at: at, rows, most, least, committed, .. } = stretch;
        if let Some(name) = step.filter(|_| *n_steps > 0) {
            let time = if self.is_plan { &stretch.worked } else { &stretch.nanoseconds };
            let (number, nanoseconds) = (stretch.step, time.start);
            self.timeline.left_out.push((self.timeline.marks.len(), *n_steps));
            self.timeline.marks.push(Mark { moment: moments.start, name, number, nanoseconds });
        }
        let (rows, committed) = (*rows, *committed);
        let whole = Bucket { at: *at, rows, most: *most, least: *least, committed };
        self.fill(moments.end, &whole);
        self.widen(*at, whole);
        self.timeline.peak_committed = self.timeline.peak_committed.max(committed);
    }

    /// Of moments of which nothing else is known, buckets say what is known of all of them together.
    fn fill(&mut self, until: u64, whole: &Bucket) {
        let size = self.timeline.bucket_size;
        while (self.timeline.buckets.len() as u64) <= until / size {
            let at = self.timeline.buckets.len() as u64 * size;
            self.timeline.buckets.push(Bucket { at, ..*whole });
        }
    }

    /// Takes the extremes of some moments into the bucket of one of them.
    fn widen(&mut self, at: u64, other: Bucket) {
        self.fill(at, &other);
        let bucket = &mut self.timeline.buckets[(at / self.timeline.bucket_size) as usize];
        if other.most > bucket.most {
            (bucket.at, bucket.rows, bucket.most) = (at, other.rows, other.most);
        }
        bucket.least = bucket.least.min(other.least);
        bucket.committed = bucket.committed.max(other.committed);
    }

    fn start(&mut self, serial: u64, moment: &Moment) {
        let Some(&block) = moment.blocks.get(&serial) else { return };
        self.count(block, u64::wrapping_add);
        self.live.insert(serial, Life { serial, born: self.moment, until: None, block });
    }

    fn stop(&mut self, serial: u64, block: Block) {
        self.count(block, u64::wrapping_sub);
        let Some(life) = self.live.remove(&serial) else { return };
        let kept = &self.timeline.kept;
        let after = kept.partition_point(|&(_, to)| to < life.born);
        if kept.get(after).is_some_and(|&(from, _)| from < self.moment) {
            self.timeline.lives.push(Life { until: Some(self.moment), ..life });
        }
    }

    fn is_kept(&self) -> bool {
        let after = self.timeline.kept.partition_point(|&(_, to)| to < self.moment);
        self.timeline.kept.get(after).is_some_and(|&(from, _)| from <= self.moment)
    }

    fn work(&mut self, site: u32, nanoseconds: u64, repeats: bool) {
        if self.is_kept() {
            let (n_reads, n_writes) = (self.reads.len() as u32, self.writes.len() as u32);
            let timeline = &mut self.timeline;
            let moment = self.moment;
            timeline.works.push(Work { moment, site, nanoseconds, repeats, n_reads, n_writes });
            timeline.operands.append(&mut self.reads);
            timeline.operands.append(&mut self.writes);
        }
        self.reads.clear();
        self.writes.clear();
    }

    fn hold(&mut self, serial: u64, by: u32, frees: u64) {
        if self.timeline.held.len() < MOST_HELD {
            self.timeline.held.push(HeldBy { moment: self.moment, serial, by, frees });
        }
    }

    /// Adds a block to the rows, or takes it away.
    fn count(&mut self, block: Block, change: impl Fn(u64, u64) -> u64) {
        let (row, rounding) = (block.owner as usize, block.bytes - block.requested);
        self.rows[row] = change(self.rows[row], block.requested);
        self.rows[N_ROWS - 1] = change(self.rows[N_ROWS - 1], rounding);
    }

    /// Notes the extremes.
    fn look(&mut self, moment: &Moment) {
        let (at, most) = (self.moment, moment.in_use);
        let timeline = &mut self.timeline;
        timeline.peak_committed = timeline.peak_committed.max(moment.committed);
        if most > timeline.peak.in_use || moment.change.is_none() {
            timeline.peak = Peak {
                moment: at,
                in_use: most,
                rows: self.rows,
                step: moment.step,
                phase: moment.phase.clone(),
                site: moment.site,
            };
        }
        let (rows, committed) = (self.rows, moment.committed);
        self.widen(at, Bucket { at, rows, most, least: most, committed });
    }

    fn end(mut self) -> Timeline {
        self.timeline.lives.extend(self.live.into_values());
        self.timeline.lives.sort_unstable_by_key(|life| (life.born, life.serial));
        self.timeline
    }
}
