//! What a pool was asked for, in order.
//!
//! Two runs that ask for the same things in the same order on pools that began alike leave equal traces,
//! placement included; that is how a ghost run is held against the real one.

use crate::{Label, Region};

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
}
