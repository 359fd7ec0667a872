//! Counters: what is in use and by whom, peaks, and calls to the source.
//!
//! The rows are kept, not computed: every acquisition, release and change of owner moves them by exactly the
//! bytes concerned, so they add up to the bytes in use at every moment and at the peak.

use std::fmt;

use crate::bytes::grouped;
use crate::{Bytes, Owner};

/// Bytes in use by owner, and the row `rounding`; together they are the bytes in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    requested: [u64; Owner::ALL.len()],
    rounding: u64,
}

impl Rows {
    /// The bytes that blocks of this owner asked for.
    pub fn get(&self, owner: Owner) -> u64 {
        self.requested[owner as usize]
    }

    /// What the blocks take beyond what they asked for.
    pub fn rounding(&self) -> u64 {
        self.rounding
    }

    /// The sum of all rows.
    pub fn total(&self) -> u64 {
        self.requested.iter().sum::<u64>() + self.rounding
    }

    /// The rows with their names, in the order of the reports; `rounding` is the last.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let owners = Owner::ALL.iter().map(|owner| (owner.name(), self.get(*owner)));
        owners.chain([("rounding", self.rounding)])
    }

    /// Counts a block of so many bytes, of which so many were asked for.
    pub fn add(&mut self, owner: Owner, requested: u64, rounded: u64) {
        self.requested[owner as usize] += requested;
        self.rounding += rounded - requested;
    }

    pub(crate) fn subtract(&mut self, owner: Owner, requested: u64, rounded: u64) {
        self.requested[owner as usize] -= requested;
        self.rounding -= rounded - requested;
    }
}

/// How often the source was called, and about how many bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceCalls {
    /// Successful calls of `commit`.
    pub n_commits: u64,
    /// The bytes they committed.
    pub committed_bytes: u64,
    /// Successful calls of `decommit`.
    pub n_decommits: u64,
    /// The bytes they gave back.
    pub decommitted_bytes: u64,
}

impl SourceCalls {
    /// Calls of either kind.
    pub fn total(&self) -> u64 {
        self.n_commits + self.n_decommits
    }
}

/// The counters of a pool at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of live blocks, rounding included.
    pub in_use: u64,
    /// The part of `in_use` beyond what was asked for.
    pub rounding: u64,
    /// Bytes with pages behind them: in use and free.
    pub committed: u64,
    /// The limit on `committed`.
    pub limit: Option<u64>,
    /// The most that was in use since the last [`reset_peaks`](crate::Pool::reset_peaks).
    pub peak_in_use: u64,
    /// The rows at the moment when `peak_in_use` was reached.
    pub peak_rows: Rows,
    /// The most that was committed since the last `reset_peaks`.
    pub peak_committed: u64,
    /// Blocks handed out so far.
    pub n_acquired: u64,
    /// Blocks taken back so far.
    pub n_released: u64,
    /// Blocks handed out and not yet taken back.
    pub n_live: u64,
    /// Calls to the source so far.
    pub source: SourceCalls,
    pub(crate) rows: Rows,
}

impl Stats {
    /// Bytes in use by owner.
    pub fn rows(&self) -> Rows {
        self.rows
    }

    /// Whether the numbers agree with each other.
    ///
    /// # Errors
    ///
    /// A sentence that names the first pair of numbers that contradict each other.
    pub fn check(&self) -> Result<(), String> {
        let equal = [
            ("sum of rows", self.rows.total(), "bytes in use", self.in_use),
            ("rounding", self.rounding, "row rounding", self.rows.rounding),
            ("sum of peak rows", self.peak_rows.total(), "peak in use", self.peak_in_use),
            ("acquired less released", self.n_acquired - self.n_released, "live blocks", self.n_live),
        ];
        let ordered = [
            ("bytes in use", self.in_use, "committed", self.committed),
            ("bytes in use", self.in_use, "peak in use", self.peak_in_use),
            ("committed", self.committed, "peak committed", self.peak_committed),
            ("committed", self.committed, "limit", self.limit.unwrap_or(u64::MAX)),
        ];
        for (name, value, other, bound) in equal {
            if value != bound {
                return Err(format!("{name} {value} is not {other} {bound}"));
            }
        }
        for (name, value, other, bound) in ordered {
            if value > bound {
                return Err(format!("{name} {value} is more than {other} {bound}"));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<12}{:>22}{:>22}", "bytes", "now", "at the peak")?;
        for ((name, now), (_, peak)) in self.rows.iter().zip(self.peak_rows.iter()) {
            writeln!(f, "{name:<12}{:>22}{:>22}", grouped(now), grouped(peak))?;
        }
        writeln!(f, "{:<12}{:>22}{:>22}", "in use", grouped(self.in_use), grouped(self.peak_in_use))?;
        writeln!(
            f,
            "{:<12}{:>22}{:>22}",
            "committed",
            grouped(self.committed),
            grouped(self.peak_committed)
        )?;
        let limit = self.limit.map_or("none".to_owned(), |limit| Bytes::new(limit).to_string());
        write!(f, "limit {limit}; {} live blocks; {} calls to the source", self.n_live, self.source.total())
    }
}

/// The counters while they run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) rows: Rows,
    pub(crate) in_use: u64,
    pub(crate) peak_in_use: u64,
    pub(crate) peak_rows: Rows,
    pub(crate) n_acquired: u64,
    pub(crate) n_released: u64,
    /// The most in use since each open peak scope began; closed ones leave a vacancy.
    scopes: Vec<Option<u64>>,
}

impl Ledger {
    #[inline]
    pub(crate) fn acquire(&mut self, owner: Owner, requested: u64, rounded: u64) {
        self.rows.add(owner, requested, rounded);
        self.in_use += rounded;
        self.n_acquired += 1;
        if self.in_use > self.peak_in_use {
            self.peak_in_use = self.in_use;
            self.peak_rows = self.rows;
        }
        for peak in self.scopes.iter_mut().flatten() {
            *peak = self.in_use.max(*peak);
        }
    }

    #[inline]
    pub(crate) fn release(&mut self, owner: Owner, requested: u64, rounded: u64) {
        self.rows.subtract(owner, requested, rounded);
        self.in_use -= rounded;
        self.n_released += 1;
    }

    pub(crate) fn relabel(&mut self, from: Owner, to: Owner, requested: u64) {
        self.rows.requested[from as usize] -= requested;
        self.rows.requested[to as usize] += requested;
    }

    pub(crate) fn n_live(&self) -> u64 {
        self.n_acquired - self.n_released
    }

    pub(crate) fn reset_peaks(&mut self) {
        self.peak_in_use = self.in_use;
        self.peak_rows = self.rows;
    }

    /// Opens a peak scope and returns its number.
    pub(crate) fn open_scope(&mut self) -> usize {
        let vacancy = self.scopes.iter().position(Option::is_none);
        let number = vacancy.unwrap_or_else(|| {
            self.scopes.push(None);
            self.scopes.len() - 1
        });
        self.scopes[number] = Some(self.in_use);
        number
    }

    pub(crate) fn scope_peak(&self, number: usize) -> u64 {
        self.scopes[number].unwrap_or(self.in_use)
    }

    pub(crate) fn close_scope(&mut self, number: usize) {
        self.scopes[number] = None;
        while self.scopes.last() == Some(&None) {
            self.scopes.pop();
        }
    }
}
