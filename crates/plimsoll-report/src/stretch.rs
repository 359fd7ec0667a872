//! Stretches of a long run: what a profile still tells of steps whose events it has left out.
//!
//! A stretch is one step, or several that follow each other. It has the moment of the most bytes in use with the rows of that
//! very moment, so that whatever is drawn of it adds up, and where it begins and ends, so that moments keep their numbers
//! and times whatever is left out before them.

use std::io;
use std::ops::Range;

use plimsoll_memory::Rows;

use crate::code::{Input, N_ROWS, damaged, put};

/// Some steps of a run, or part of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stretch {
    /// The number of its first step,
    pub step: u64,
    /// and how many steps begin in it.
    pub n_steps: u64,
    /// The moments that it has: the number of the one before its first event, and of the one after its last.
    pub moments: Range<u64>,
    /// When it began and ended, in nanoseconds since recording began,
    pub nanoseconds: Range<u64>,
    /// and how long the kernels before had run by formula.
    pub worked: Range<u64>,
    /// The bytes in use when it began.
    pub in_use: u64,
    /// The most in use,
    pub most: u64,
    /// the moment at which that was,
    pub most_at: u64,
    /// and by owner, those of rounding last.
    pub rows: [u64; N_ROWS],
    /// The least in use.
    pub least: u64,
    /// The most committed.
    pub committed: u64,
}

impl Stretch {
    /// The stretch that begins at such a moment, when so much is in use.
    pub(crate) fn begin(step: u64, moment: u64, nanoseconds: u64, worked: u64, rows: &Rows) -> Stretch {
        let in_use = rows.total();
        let from = |at: u64| at..at;
        Stretch {
            step,
            moments: from(moment),
            nanoseconds: from(nanoseconds),
            worked: from(worked),
            in_use,
            most: in_use,
            most_at: moment,
            rows: counted(rows),
            least: in_use,
            ..Stretch::default()
        }
    }

    /// Takes in the stretch that follows.
    pub(crate) fn join(&mut self, next: &Stretch) {
        if self.n_steps == 0 {
            self.step = next.step;
        }
        self.n_steps += next.n_steps;
        self.moments.end = next.moments.end;
        self.nanoseconds.end = next.nanoseconds.end;
        self.worked.end = next.worked.end;
        if next.most > self.most {
            (self.most, self.most_at, self.rows) = (next.most, next.most_at, next.rows);
        }
        self.least = self.least.min(next.least);
        self.committed = self.committed.max(next.committed);
    }

    pub(crate) fn put(&self, into: &mut Vec<u8>) {
        let Stretch { step, n_steps, in_use, most, most_at, least, committed, .. } = *self;
        for range in [&self.moments, &self.nanoseconds, &self.worked] {
            put(range.start, into);
            put(range.end - range.start, into);
        }
        let at = most_at - self.moments.start;
        [step, n_steps, in_use, most, at, least, committed].into_iter().for_each(|number| put(number, into));
        self.rows.into_iter().for_each(|number| put(number, into));
    }

    pub(crate) fn read(input: &mut Input<'_>) -> io::Result<Stretch> {
        let too_late = || damaged("a stretch ends later than can be counted");
        let mut range = || {
            let (start, len) = (input.number()?, input.number()?);
            Ok::<_, io::Error>(start..start.checked_add(len).ok_or_else(too_late)?)
        };
        let (moments, nanoseconds, worked) = (range()?, range()?, range()?);
        let (step, n_steps, in_use) = (input.number()?, input.number()?, input.number()?);
        let (most, at, least, committed) =
            (input.number()?, input.number()?, input.number()?, input.number()?);
        let mut rows = [0; N_ROWS];
        for row in &mut rows {
            *row = input.number()?;
        }
        let sum = rows.iter().try_fold(0u64, |sum, &row| sum.checked_add(row));
        // Each step has a mark.
        let n_moments = moments.end - moments.start;
        if sum != Some(most) || least > in_use || in_use > most || at > n_moments || n_steps > n_moments {
            return Err(damaged("what is told of a stretch does not add up"));
        }
        let most_at = moments.start + at;
        Ok(Stretch {
            step,
            n_steps,
            moments,
            nanoseconds,
            worked,
            in_use,
            most,
            most_at,
            rows,
            least,
            committed,
        })
    }
}

/// The rows of a pool as a profile has them.
pub(crate) fn counted(rows: &Rows) -> [u64; N_ROWS] {
    let mut all = [0; N_ROWS];
    all.iter_mut().zip(rows.iter()).for_each(|(row, (_, bytes))| *row = bytes);
    all
}

/// Joins stretches two by two until there are at most so many.
pub(crate) fn bounded(stretches: &mut Vec<Stretch>, most: usize) {
    while stretches.len() > most {
        let pairs = stretches.chunks(2).map(|pair| {
            let mut joined = pair[0].clone();
            pair[1..].iter().for_each(|next| joined.join(next));
            joined
        });
        *stretches = pairs.collect();
    }
}
