//! CUDA graphs: a run of launches that is started by one call from its second time on.
//!
//! A [`GraphRecording`] holds back what its thread launches. At its end the list is compared, byte by byte, with those of the
//! executables that the caller's [`Graphs`] has: kernels whose parameters differ (an address that moved, the number of a random
//! draw) are patched, and the executable is launched. Products and convolutions of libraries cannot be patched, so other
//! operands are another list. A list that was there before is captured; any other one, and whatever a driver refuses to capture,
//! is started launch by launch. So nothing that is baked into an executable can be out of date, and what runs is the same work
//! in the same order either way.
//!
//! Nothing is uploaded or waited for inside a graph: whoever does so ends the recording (`pending`).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::backend::{Backend, Executable, Launches, dispatch_all};
use crate::error::Result;
use crate::gpu::Gpu;

/// The most executables of one [`Graphs`]. Batches of an input pipeline alternate between a few places.
pub const MAX_EXECUTABLES: usize = 4;

/// The lists that are remembered until they come again.
const N_SEEN: usize = 8;

/// An executable that was launched within so many runs is not given up for another one, because capturing costs as much as
/// several runs.
const KEPT_RUNS: u64 = 64;

/// The executables of one caller, such as a program. Dropping it destroys them.
pub struct Graphs {
    captured: Vec<Captured>,
    /// The fingerprints of lists that were started launch by launch, the latest at the end.
    seen: Vec<u64>,
    /// An executable has at most so many launches.
    max_launches: usize,
    n_runs: u64,
    /// Whether a capture has failed; it is not tried again.
    has_failed: bool,
}

struct Captured {
    executable: Box<dyn Executable>,
    launches: Launches,
    /// The run that launched it last.
    last: u64,
}

impl Graphs {
    /// None yet; each will have at most so many launches.
    pub fn new(max_launches: usize) -> Graphs {
        let (captured, seen) = (Vec::new(), Vec::new());
        Graphs { captured, seen, max_launches, n_runs: 0, has_failed: false }
    }

    /// Starts a list, by one call if it can be; whether it was.
    fn start(&mut self, backend: &dyn Backend, launches: &mut Launches) -> Result<bool> {
        let by_launches = |launches: &mut Launches| dispatch_all(backend, launches).map(|()| false);
        self.n_runs += 1;
        if launches.len() < 2 || launches.len() > self.max_launches {
            return by_launches(launches);
        }
        let known = self.captured.iter().position(|captured| captured.launches.is_like(launches));
        let at = known.or_else(|| self.capture(backend, launches));
        let Some(at) = at else { return by_launches(launches) };
        match self.captured[at].start(backend, launches, self.n_runs) {
            Ok(()) => Ok(true),
            Err(error) => {
                self.captured.swap_remove(at);
                self.fail(&error);
                by_launches(launches)
            }
        }
    }

    /// Captures a list that was there before, if there is room for one more; its place.
    fn capture(&mut self, backend: &dyn Backend, launches: &mut Launches) -> Option<usize> {
        let fingerprint = launches.fingerprint();
        if self.has_failed {
            return None;
        }
        if !self.seen.contains(&fingerprint) {
            if self.seen.len() == N_SEEN {
                self.seen.remove(0);
            }
            self.seen.push(fingerprint);
            return None;
        }
        if self.captured.len() == MAX_EXECUTABLES {
            let oldest = (0..MAX_EXECUTABLES).min_by_key(|&at| self.captured[at].last)?;
            if self.n_runs - self.captured[oldest].last <= KEPT_RUNS {
                return None;
            }
            self.captured.swap_remove(oldest);
        }
        match backend.capture(launches) {
            Ok(executable) => {
                self.captured.push(Captured { executable, launches: launches.clone(), last: self.n_runs });
                Some(self.captured.len() - 1)
            }
            Err(error) => {
                self.fail(&error);
                None
            }
        }
    }

    /// Says once that there will be no more executables.
    fn fail(&mut self, error: &crate::Error) {
        if !self.has_failed {
            log::warn!("a program runs launch by launch, because the driver makes no graph of it: {error}");
        }
        self.has_failed = true;
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
        write!(f, "Graphs({} executables)", self.captured.len())
    }
}

/// A thread that holds back what it launches. Dropping it starts all of that launch by launch.
pub struct GraphRecording {
    gpu: Arc<Gpu>,
    is_open: bool,
}

impl Gpu {
    /// Holds back what this thread launches from now on, to be started as a graph. None if another thread does so at this
    /// moment, or if the host waits for each launch anyway.
    pub fn record_graph(self: &Arc<Gpu>) -> Option<GraphRecording> {
        let begins = !self.waits() && self.pending.begin();
        begins.then(|| GraphRecording { gpu: self.clone(), is_open: true })
    }

    /// How many recordings were started by one call so far.
    pub fn n_graph_launches(&self) -> u64 {
        self.n_graph_launches.load(Ordering::Relaxed)
    }
}

impl GraphRecording {
    /// Starts what was held back: by one call where one of these graphs can do it.
    ///
    /// # Errors
    /// What the driver says of launches; that a graph cannot be made is none.
    pub fn finish(mut self, graphs: &mut Graphs) -> Result<()> {
        let gpu = self.gpu.clone();
        self.end(|backend, launches| {
            let is_graph = graphs.start(backend, launches)?;
            gpu.n_graph_launches.fetch_add(u64::from(is_graph), Ordering::Relaxed);
            Ok(())
        })
    }

    fn end(&mut self, start: impl FnOnce(&dyn Backend, &mut Launches) -> Result<()>) -> Result<()> {
        self.is_open = false;
        self.gpu.check()?;
        self.gpu.pending.end(start).map_err(|error| self.gpu.break_with(&error))
    }
}

impl Drop for GraphRecording {
    fn drop(&mut self) {
        if self.is_open {
            // Whatever made the caller give up is what is reported.
            let _ = self.end(dispatch_all);
        }
    }
}
