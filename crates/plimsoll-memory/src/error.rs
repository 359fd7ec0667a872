//! The one error of a pool: there is no memory, and here is who has it.

use std::fmt;
use std::ops::Deref;

use crate::limit::Limit;
use crate::{Bytes, Holder, Label, Region, SourceError, rounded_size};

/// A block could not be had.
///
/// The fields are those of [`Shortage`], which this dereferences to; it is boxed to keep results small.
#[derive(Clone, Debug, PartialEq)]
pub struct OutOfMemory(Box<Shortage>);

/// What was asked for, what there is, and who holds it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Shortage {
    /// The bytes asked for.
    pub requested: u64,
    /// Who asked.
    pub label: Label,
    /// The region in which they were to lie.
    pub region: Region,
    /// Why they could not be had.
    pub cause: Cause,
    /// The limit on committed bytes.
    pub limit: Option<u64>,
    /// The least and the most of it that is set aside for others than the pool.
    pub aside: (u64, u64),
    /// The unit in which bytes are committed.
    pub granule: u64,
    /// Bytes of live blocks.
    pub in_use: u64,
    /// Bytes with pages behind them.
    pub committed: u64,
    /// The longest free run of bytes with pages behind them.
    pub largest_free: u64,
    /// The largest holders by owner and line, largest first.
    pub holders: Vec<Holder>,
    /// What the source said, where it was the source that failed.
    pub source: Option<SourceError>,
}

/// Why a block could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The limit would be exceeded.
    Limit {
        /// By how much, in whole granules, with every free granule given back.
        short: u64,
    },
    /// The region has no free run of addresses that is long enough.
    Addresses,
    /// The source of pages failed.
    Source,
    /// A limit was asked for that is below what is in use.
    LimitTooLow {
        /// The least limit that could be set now.
        least: u64,
    },
}

impl OutOfMemory {
    pub(crate) fn new(shortage: Shortage) -> Self {
        Self(Box::new(shortage))
    }
}

impl Deref for OutOfMemory {
    type Target = Shortage;

    fn deref(&self) -> &Shortage {
        &self.0
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for OutOfMemory {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|error| error as _)
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_headline(f)?;
        let free = self.committed - self.in_use;
        let limit = self.limit.map_or("none".to_owned(), |limit| Bytes::new(limit).to_string());
        write!(f, "\n  in use {}, committed {}", Bytes::new(self.in_use), Bytes::new(self.committed))?;
        write!(f, "\n  free {}, longest run {}", Bytes::new(free), Bytes::new(self.largest_free))?;
        write!(f, "\n  limit {limit}")?;
        if let aside @ 1.. = self.limits().aside() {
            write!(f, ", of which {} are set aside", Bytes::new(aside))?;
        }
        if !self.holders.is_empty() {
            write!(f, "\n  largest holders (bytes, blocks, owner, line):")?;
        }
        for holder in &self.holders {
            write!(f, "\n{holder}")?;
        }
        write!(f, "\n  what would help: {}", self.advice())
    }
}

impl Shortage {
    fn write_headline(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Cause::LimitTooLow { least } = self.cause {
            let asked = Bytes::new(self.requested);
            return write!(f, "a limit of {asked} cannot be set: what is in use needs {}", Bytes::new(least));
        }
        let (size, Label { owner, site }) = (Bytes::new(self.requested), self.label);
        write!(f, "out of memory: {size} for {owner} by {site} could not be had: ")?;
        match (&self.cause, &self.source) {
            (Cause::Limit { .. }, _) if self.is_fragmented() => {
                write!(f, "{} of the limit are not in use, but lie in pieces", Bytes::new(self.unused()))
            }
            (Cause::Limit { short }, _) => {
                write!(f, "the limit would be exceeded by {}", Bytes::new(*short))
            }
            (Cause::Addresses, _) => {
                write!(f, "the {} region has no free run of addresses that is long enough", self.region)
            }
            (_, Some(error)) => write!(f, "{error}"),
            (_, None) => f.write_str("the source of pages failed"),
        }
    }

    fn limits(&self) -> Limit {
        Limit { bytes: self.limit, least_aside: self.aside.0, most_aside: self.aside.1 }
    }

    /// The bytes of the limit, in whole granules, that no block takes.
    fn unused(&self) -> u64 {
        let whole = |capacity: u64| capacity - capacity % self.granule;
        self.limits().capacity().map_or(0, |capacity| whole(capacity).saturating_sub(self.in_use))
    }

    /// Whether the limit has room for the block and only fragmentation keeps it out.
    fn is_fragmented(&self) -> bool {
        let is_limit = matches!(self.cause, Cause::Limit { .. }) && !self.holders.is_empty();
        is_limit && self.unused() >= rounded_size(self.requested)
    }

    /// The least limit under which this block could be had, or the limit be set, as things are; nothing where no limit is
    /// to blame.
    pub fn least_limit(&self) -> Option<u64> {
        match self.cause {
            Cause::Limit { short } => {
                let capacity = self.limits().capacity().unwrap_or(self.committed);
                // Only whole granules can be committed, and `short` counts from there.
                let enough = (capacity - capacity % self.granule).saturating_add(short);
                Some(self.limits().for_capacity(enough))
            }
            Cause::LimitTooLow { least } => Some(least),
            Cause::Addresses | Cause::Source => None,
        }
    }

    /// What there is to drop, if anything is held.
    fn or_drop(&self) -> &'static str {
        if self.holders.is_empty() { "" } else { ", or dropping what is listed above" }
    }

    fn advice(&self) -> String {
        let enough = Bytes::new(self.least_limit().unwrap_or_default());
        match self.cause {
            Cause::Limit { .. } if self.is_fragmented() => format!(
                "this is fragmentation: a limit of at least {enough} for this block alone, a run that is planned, as \
                 `Trainer`'s are, or dropping what is listed above in the order in which it was made"
            ),
            Cause::Limit { .. } => {
                let or_drop = self.or_drop();
                let or = if or_drop.is_empty() { " or" } else { "," };
                format!("a limit of at least {enough} for this block alone{or} a smaller batch{or_drop}")
            }
            Cause::Addresses => {
                "a smaller request, or more addresses for the process (`ulimit -v`)".to_owned()
            }
            Cause::Source => {
                "freeing memory elsewhere on the device, or a limit below what it has, so that the run is \
                 planned to fit"
                    .to_owned()
            }
            Cause::LimitTooLow { .. } => format!("a limit of at least {enough}{}", self.or_drop()),
        }
    }
}
