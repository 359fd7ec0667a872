//! CUDA graphs: runs of launches that are started by one call from their second time on.
//!
//! A [`GraphRecording`] holds back what its thread launches, a segment at a time: a few launches at first, so that the GPU begins
//! soon, then more, so that a call starts many. A segment that is full is started while the host goes on with the next one, by one
//! call where the caller's [`Graphs`] know it (`segments`).
//!
//! Nothing is uploaded, waited for or copied beside the work inside a graph: whoever does so ends a segment (`pending`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::backend::{Backend, Launches, dispatch_all};
use crate::error::Result;
use crate::gpu::Gpu;
use crate::segments::Graphs;

/// A thread that holds back what it launches. Dropping it starts what is left of that launch by launch.
pub struct GraphRecording<'a> {
    gpu: Arc<Gpu>,
    graphs: &'a Graphs,
    is_open: bool,
}

impl Gpu {
    /// Holds back what this thread launches from now on, to be started as graphs. None if another thread does so at this
    /// moment, or if the host waits for each launch anyway.
    pub fn record_graph<'a>(self: &Arc<Gpu>, graphs: &'a Graphs) -> Option<GraphRecording<'a>> {
        let begins = !self.waits() && self.pending.begin(graphs);
        begins.then(|| GraphRecording { gpu: self.clone(), graphs, is_open: true })
    }

    /// How many recordings were started by a few calls so far, or a part of them.
    pub fn n_graph_launches(&self) -> u64 {
        self.n_graph_launches.load(Ordering::Relaxed)
    }
}

impl GraphRecording<'_> {
    /// Starts what is left of what was held back.
    ///
    /// # Errors
    /// What the driver says of launches; that a graph cannot be made is none.
    pub fn finish(mut self) -> Result<()> {
        self.end(|graphs, backend, launches| graphs.lock().start(backend, launches))
    }

    fn end(&mut self, start: impl FnOnce(&Graphs, &dyn Backend, &mut Launches) -> Result<()>) -> Result<()> {
        self.is_open = false;
        let usable = self.gpu.check();
        let ended = self.gpu.pending.end(|graphs, backend, launches| match &usable {
            Ok(()) => start(graphs, backend, launches),
            Err(_) => Ok(()),
        });
        self.gpu.n_graph_launches.fetch_add(u64::from(self.graphs.lock().is_graph()), Ordering::Relaxed);
        usable.and(ended.map_err(|error| self.gpu.break_with(&error)))
    }
}

impl Drop for GraphRecording<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // Whatever made the caller give up is what is reported.
            let _ = self.end(|_, backend, launches| dispatch_all(backend, launches));
        }
    }
}
