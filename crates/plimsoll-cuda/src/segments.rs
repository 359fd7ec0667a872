//! Segments of a run, and the executables that start them by one call.
//!
//! A segment that is full is compared, byte by byte, with the executables that there are for its place in the run: kernels whose
//! parameters differ (an address that moved, the number of a random draw) are patched, and the executable is launched. Products and
//! convolutions of libraries cannot be patched, so other operands are another list. A list that was there before is captured; any
//! other one, whatever a driver refuses to capture, and what the device has no room for ([`GraphRoom`]), is started launch by
//! launch. So nothing that is baked into an executable can be out of date, and what runs is the same work in the same order either
//! way.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::backend::{Backend, Executable, Launches, dispatch_all};
use crate::error::Result;
use crate::graph_room::{GraphRoom, Program, Share};

/// The most executables of a segment. Batches of an input pipeline alternate between a few places.
const MAX_EXECUTABLES: usize = 4;

/// The launches of the first segment. Each later one has twice as many, up to the most.
const FIRST_SEGMENT: usize = 16;
const MAX_SEGMENT: usize = 128;

/// The lists that are remembered until they come again.
const N_SEEN: usize = 8;

/// An executable that was launched within so many runs is not given up for another one, because capturing costs as much as
/// several runs.
const KEPT_RUNS: u64 = 64;

/// The executables of one caller, such as a program. Dropping it destroys them.
pub struct Graphs(Arc<Mutex<Segments>>);

/// What is known of a caller's runs.
pub(crate) struct Segments {
    room: Arc<GraphRoom>,
    /// By their place in a run.
    all: Vec<Segment>,
    /// The segment that is being recorded.
    at: usize,
    n_runs: u64,
    /// The number that the device has for the latest run.
    last_run: u64,
    /// Whether a part of this run was started as a graph.
    is_graph: bool,
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
    _share: Share,
}

impl Graphs {
    /// None yet; they take of this room.
    pub fn new(room: &Arc<GraphRoom>) -> Graphs {
        let segments = Arc::new(Mutex::new(Segments {
            room: room.clone(),
            all: Vec::new(),
            at: 0,
            n_runs: 0,
            last_run: 0,
            is_graph: false,
            has_failed: false,
        }));
        let program: Weak<Mutex<dyn Program>> = Arc::<Mutex<Segments>>::downgrade(&segments);
        room.add(program);
        Graphs(segments)
    }

    /// How many launches the executables have.
    pub fn n_launches(&self) -> usize {
        let segments = self.lock();
        let captured = segments.all.iter().flat_map(|segment| &segment.captured);
        captured.map(|captured| captured.launches.len()).sum()
    }

    /// The same executables, for a recording.
    pub(crate) fn share(&self) -> Graphs {
        Graphs(self.0.clone())
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Segments> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Segments {
    /// A run begins.
    pub fn begin(&mut self) {
        (self.at, self.is_graph) = (0, false);
        self.n_runs += 1;
        self.last_run = self.room.begin_run();
    }

    /// Whether a part of the run was started as a graph.
    pub fn is_graph(&self) -> bool {
        self.is_graph
    }

    /// Whether a segment is full with so many launches.
    pub fn is_full(&self, n_launches: usize) -> bool {
        n_launches >= FIRST_SEGMENT << self.at.min(8) || n_launches >= MAX_SEGMENT
    }

    /// Starts a segment, by one call if it can be.
    pub fn start(&mut self, backend: &dyn Backend, launches: &mut Launches) -> Result<()> {
        let at = self.at;
        self.at += 1;
        if launches.len() < 2 || self.has_failed {
            return dispatch_all(backend, launches);
        }
        self.all.resize_with(self.all.len().max(at + 1), Segment::default);
        match self.all[at].start(backend, launches, self.n_runs, &self.room) {
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
                self.clear();
            }
        }
        dispatch_all(backend, launches)
    }
}

impl Program for Segments {
    fn has_executables(&self) -> bool {
        self.all.iter().any(|segment| !segment.captured.is_empty())
    }

    fn last_run(&self) -> u64 {
        self.last_run
    }

    fn clear(&mut self) {
        self.all.clear();
    }
}

impl Segment {
    /// Starts a list by one call, if it is known; whether it was.
    fn start(
        &mut self,
        backend: &dyn Backend,
        launches: &mut Launches,
        run: u64,
        room: &Arc<GraphRoom>,
    ) -> Result<bool> {
        let known = self.captured.iter().position(|captured| captured.launches.is_like(launches));
        let at = match known {
            Some(at) => Some(at),
            None => self.capture(backend, launches, run, room)?,
        };
        let Some(at) = at else { return Ok(false) };
        self.captured[at].start(backend, launches, run).map(|()| true)
    }

    /// Captures a list that was there before, if there is room for one more; its place.
    fn capture(
        &mut self,
        backend: &dyn Backend,
        launches: &mut Launches,
        run: u64,
        room: &Arc<GraphRoom>,
    ) -> Result<Option<usize>> {
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
        let Some(share) = room.take(launches.len()) else { return Ok(None) };
        let executable = backend.capture(launches)?;
        self.captured.push(Captured { executable, launches: launches.clone(), last: run, _share: share });
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
        write!(f, "Graphs({} launches)", self.n_launches())
    }
}
