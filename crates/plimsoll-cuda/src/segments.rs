//! Segments of a run, and the executables that start them by one call.
//!
//! A segment that is full is compared, byte by byte, with the executables that there are for its place in the run: kernels whose
//! parameters differ (an address that moved, the number of a random draw) are patched, and the executable is launched. Products and
//! convolutions of libraries cannot be patched, so other operands are another list. A list that was there before is captured; any
//! other one, and whatever a driver refuses to capture, is started launch by launch. So nothing that is baked into an executable
//! can be out of date, and what runs is the same work in the same order either way.

use std::fmt;

use crate::backend::{Backend, Executable, Launches, dispatch_all};
use crate::error::Result;

/// The most executables of a segment. Batches of an input pipeline alternate between a few places.
pub const MAX_EXECUTABLES: usize = 4;

/// The launches of the first segment. Each later one has twice as many, up to the most.
const FIRST_SEGMENT: usize = 16;
const MAX_SEGMENT: usize = 128;

/// The lists that are remembered until they come again.
const N_SEEN: usize = 8;

/// An executable that was launched within so many runs is not given up for another one, because capturing costs as much as
/// several runs.
const KEPT_RUNS: u64 = 64;

/// The executables of one caller, such as a program. Dropping it destroys them.
#[derive(Default)]
pub struct Graphs {
    /// By their place in a run.
    segments: Vec<Segment>,
    /// The segment that is being recorded, and the launches before it.
    at: usize,
    n_before: usize,
    /// Launches beyond so many are never captured.
    max_launches: usize,
    n_runs: u64,
    /// Whether a part of this run was started as a graph.
    pub(crate) is_graph: bool,
    /// Whether a capture has failed; it is not tried again.
    has_failed: bool,
}

/// What is known of one place of a run.
#[derive(Default)]
struct Segment {
    captured: Vec<Captured>,
    /// The fingerprints of lists that were started launch by launch, the latest at the end.
    seen: Vec<u64>,
}

struct Captured {
    executable: Box<dyn Executable>,
    launches: Launches,
    /// The run that launched it last.
    last: u64,
}

impl Graphs {
    /// None yet; those of a run will have at most so many launches together.
    pub fn new(max_launches: usize) -> Graphs {
        Graphs { max_launches, ..Graphs::default() }
    }

    /// A run begins.
    pub(crate) fn begin(&mut self) {
        (self.at, self.n_before, self.is_graph) = (0, 0, false);
        self.n_runs += 1;
    }

    /// Whether a segment is full with so many launches.
    pub(crate) fn is_full(&self, n_launches: usize) -> bool {
        n_launches >= FIRST_SEGMENT << self.at.min(8) || n_launches >= MAX_SEGMENT
    }

    /// Starts a segment, by one call if it can be.
    pub(crate) fn start(&mut self, backend: &dyn Backend, launches: &mut Launches) -> Result<()> {
        let (at, n_launches) = (self.at, launches.len());
        self.at += 1;
        self.n_before += n_launches;
        if n_launches < 2 || self.n_before > self.max_launches || self.has_failed {
            return dispatch_all(backend, launches);
        }
        self.segments.resize_with(self.segments.len().max(at + 1), Segment::default);
        match self.segments[at].start(backend, launches, self.n_runs) {
            Ok(true) => {
                self.is_graph = true;
                return Ok(());
            }
            Ok(false) => {}
            Err(error) => {
                log::warn!(
                    "a program runs launch by launch, because the driver makes no graph of it: {error}"
                );
                self.has_failed = true;
                self.segments = Vec::new();
            }
        }
        dispatch_all(backend, launches)
    }
}

impl Segment {
    /// Starts a list by one call, if it is known; whether it was.
    fn start(&mut self, backend: &dyn Backend, launches: &mut Launches, run: u64) -> Result<bool> {
        let known = self.captured.iter().position(|captured| captured.launches.is_like(launches));
        let at = match known {
            Some(at) => Some(at),
            None => self.capture(backend, launches, run)?,
        };
        let Some(at) = at else { return Ok(false) };
        self.captured[at].start(backend, launches, run).map(|()| true)
    }

    /// Captures a list that was there before, if there is room for one more; its place.
    fn capture(&mut self, backend: &dyn Backend, launches: &mut Launches, run: u64) -> Result<Option<usize>> {
        let fingerprint = launches.fingerprint();
        if !self.seen.contains(&fingerprint) {
            if self.seen.len() == N_SEEN {
                self.seen.remove(0);
            }
            self.seen.push(fingerprint);
            return Ok(None);
        }
        if self.captured.len() == MAX_EXECUTABLES {
            let oldest = (0..MAX_EXECUTABLES).min_by_key(|&at| self.captured[at].last);
            match oldest.filter(|&oldest| run - self.captured[oldest].last > KEPT_RUNS) {
                Some(oldest) => _ = self.captured.swap_remove(oldest),
                None => return Ok(None),
            }
        }
        let executable = backend.capture(launches)?;
        self.captured.push(Captured { executable, launches: launches.clone(), last: run });
        Ok(Some(self.captured.len() - 1))
    }
}

impl Captured {
    fn start(&mut self, backend: &dyn Backend, launches: &mut Launches, run: u64) -> Result<()> {
        for number in launches.differing(&self.launches) {
            self.executable.patch(number, launches)?;
        }
        self.launches.take_params(launches);
        self.last = run;
        self.executable.launch(backend)
    }
}

impl fmt::Debug for Graphs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n: usize = self.segments.iter().map(|segment| segment.captured.len()).sum();
        write!(f, "Graphs({n} executables)")
    }
}
