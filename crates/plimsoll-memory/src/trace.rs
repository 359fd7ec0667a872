//! What a pool was asked for, in order.
//!
//! Two runs that ask for the same things in the same order on pools that began alike leave equal traces,
//! placement included; that is how a ghost run is held against the real one.

use crate::{Label, Name, Region, Site};

/// One event of a trace. Blocks are named by the serial numbers of their acquisitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// A block was handed out.
    Acquire {
        /// The number of the acquisition.
        serial: u64,
        /// The region it lies in.
        region: Region,
        /// Its offset in the region.
        offset: u64,
        /// The bytes asked for.
        bytes: u64,
        /// Its label.
        label: Label,
    },
    /// A block joined the free list.
    Release {
        /// The number of its acquisition.
        serial: u64,
    },
    /// A block got another owner or site.
    Relabel {
        /// The number of its acquisition.
        serial: u64,
        /// Its new label.
        label: Label,
    },
    /// Whoever uses the pool wants to find this moment again: see [`Pool::mark`](crate::Pool::mark).
    Mark {
        /// What begins here.
        name: Name,
        /// Which one of them, where they are counted.
        number: u64,
    },
    /// A kernel would run here, with all its memory held; only ghosts say so. See
    /// [`Pool::mark_work`](crate::Pool::mark_work).
    Work {
        /// The op, its layer and line.
        site: Site,
        /// How long it will take, as far as anybody can tell.
        nanoseconds: u64,
        /// What the pool has committed at this moment.
        committed: u64,
    },
}

impl TraceEvent {
    /// Whether the pool was asked for something, which is what a ghost run and the real one have in common.
    pub fn is_request(&self) -> bool {
        !matches!(self, TraceEvent::Mark { .. } | TraceEvent::Work { .. })
    }
}
