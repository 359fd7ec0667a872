//! What a pool was asked for, in order.
//!
//! Two runs that ask for the same things in the same order on pools that began alike leave equal traces,
//! placement included; that is how a ghost run is held against the real one.

use std::fmt;

use crate::{Label, LongList, Name, Region, Site};

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

/// Whoever is told of the events of a pool as they happen, each with the bytes that the pool has committed then: see
/// [`Pool::set_trace_sink`](crate::Pool::set_trace_sink).
pub type TraceSink = Box<dyn FnMut(&TraceEvent, u64) + Send>;

/// The name of the mark with which an optimizer step begins; its number is that of the step, counted from one.
pub const STEP: Name = Name::constant(":step");

/// The name of the mark that a sink is told of when a block could not be had; its number is that of the bytes asked for. Lists have none
/// of these, because a program that was recorded would repeat them.
pub const OUT_OF_MEMORY: Name = Name::constant("out of memory");

/// Where the events of a pool go: into a list, to a sink, to both, or nowhere.
#[derive(Default)]
pub(crate) struct Tracing {
    list: Option<LongList<TraceEvent>>,
    sink: Option<TraceSink>,
}

impl Tracing {
    pub(crate) fn start(&mut self) {
        self.list = Some(LongList::default());
    }

    pub(crate) fn take(&mut self) -> LongList<TraceEvent> {
        self.list.take().unwrap_or_default()
    }

    pub(crate) fn set_sink(&mut self, sink: Option<TraceSink>) {
        self.sink = sink;
    }

    pub(crate) fn is_on(&self) -> bool {
        self.list.is_some() || self.sink.is_some()
    }

    /// Notes an event, which is only made if somebody wants it.
    pub(crate) fn note(&mut self, committed: u64, event: impl FnOnce() -> TraceEvent) {
        if !self.is_on() {
            return;
        }
        let event = event();
        self.sink.iter_mut().for_each(|sink| sink(&event, committed));
        self.list.iter_mut().for_each(|list| list.push(event));
    }

    /// Tells the sink, if there is one, that so many bytes could not be had.
    pub(crate) fn tell_shortage(&mut self, committed: u64, bytes: u64) {
        let event = TraceEvent::Mark { name: OUT_OF_MEMORY, number: bytes };
        self.sink.iter_mut().for_each(|sink| sink(&event, committed));
    }
}

impl fmt::Debug for Tracing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracing").field("list", &self.list).field("sink", &self.sink.is_some()).finish()
    }
}
