//! What a pool was asked for, in order.
//!
//! Two runs that ask for the same things in the same order on pools that began alike leave equal traces,
//! placement included; that is how a ghost run is held against the real one.

use std::fmt;

use crate::stats::Ledger;
use crate::{BlockInfo, Label, LongList, Name, Region, Rows, Site, Snapshot};

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
    /// The op of the next [`Work`](TraceEvent::Work) reads a block; only sinks are told.
    Read {
        /// The number of its acquisition.
        serial: u64,
    },
    /// The op of the next `Work` writes a block; only sinks are told.
    Write {
        /// The number of its acquisition.
        serial: u64,
    },
    /// A kernel runs here, with all its memory held, or would run on a ghost. Lists have only those of ghosts, because they are
    /// no requests. See [`Pool::mark_work`](crate::Pool::mark_work).
    Work {
        /// The op, its layer and line.
        site: Site,
        /// How long it will take, as far as anybody can tell.
        nanoseconds: u64,
        /// What the pool has committed at this moment.
        committed: u64,
        /// Whether it may run again for the same bits and no other effect.
        repeats: bool,
    },
    /// Somebody was asked who keeps a block alive; only sinks are told. See [`Pool::tell_held`](crate::Pool::tell_held).
    Held {
        /// The number of its acquisition.
        serial: u64,
        /// Who.
        by: Name,
        /// The bytes that go if all of them let go of whatever they hold.
        frees: u64,
    },
    /// Something is complete: a step of a thread has ended, or an answer about who keeps blocks alive. Only sinks are told. One that
    /// gathers events before it writes them should write them now: nobody knows what comes next, or when.
    Flush,
}

/// What an op does to the blocks of a pool: see [`Pool::mark_work`](crate::Pool::mark_work).
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The op, its layer and line.
    pub site: Site,
    /// How long it takes, by formula.
    pub nanoseconds: u64,
    /// Whether it may run again for the same bits and no other effect.
    pub repeats: bool,
    /// The blocks that it reads, by the numbers of their acquisitions.
    pub reads: &'a [u64],
    /// Those that it writes.
    pub writes: &'a [u64],
}

impl TraceEvent {
    /// Whether the pool was asked for something, which is what a ghost run and the real one have in common.
    pub fn is_request(&self) -> bool {
        use TraceEvent::{Acquire, Relabel, Release};
        matches!(self, Acquire { .. } | Release { .. } | Relabel { .. })
    }
}

/// What a pool counts at the moment of an event, with what the event has changed.
#[derive(Clone, Copy)]
pub struct Levels<'a> {
    /// The bytes committed.
    pub committed: u64,
    /// The bytes in use,
    pub in_use: u64,
    /// and by owner.
    pub rows: &'a Rows,
    blocks: &'a dyn Blocks,
}

/// Whoever has the blocks of a pool.
pub(crate) trait Blocks {
    /// The live ones, in any order.
    fn live(&self) -> Vec<BlockInfo>;
}

impl<'a> Levels<'a> {
    pub(crate) fn new(committed: u64, ledger: &'a Ledger, blocks: &'a dyn Blocks) -> Levels<'a> {
        Levels { committed, in_use: ledger.in_use, rows: &ledger.rows, blocks }
    }

    /// The live blocks. The one that an `Acquire` tells of is not among them yet.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self.blocks.live())
    }
}

impl fmt::Debug for Levels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Levels").field("committed", &self.committed).field("rows", self.rows).finish()
    }
}

/// Whoever is told of the events of a pool as they happen, each with what the pool counts then: see
/// [`Pool::set_trace_sink`](crate::Pool::set_trace_sink).
pub type TraceSink = Box<dyn FnMut(&TraceEvent, &Levels<'_>) + Send>;

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
    pub(crate) fn note(&mut self, levels: &Levels<'_>, event: impl FnOnce() -> TraceEvent) {
        if !self.is_on() {
            return;
        }
        let event = event();
        self.sink.iter_mut().for_each(|sink| sink(&event, levels));
        self.list.iter_mut().for_each(|list| list.push(event));
    }

    /// Tells the sink, if there is one, of an event that lists do not have.
    pub(crate) fn tell(&mut self, levels: &Levels<'_>, event: TraceEvent) {
        self.sink.iter_mut().for_each(|sink| sink(&event, levels));
    }
}

impl fmt::Debug for Tracing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracing").field("list", &self.list).field("sink", &self.sink.is_some()).finish()
    }
}
