//! Launches that are held back so that many of them can be started as one graph.
//!
//! While a thread records, what it launches is put into a list instead of the compute stream; a list that is long enough is started,
//! and a new one begins. The list is a part of the stream that is not issued yet: whatever else concerns the stream, from any thread, first has the list issued, launch by launch, and
//! ends the recording. So program order stays execution order, and a recording needs no exception anywhere: an upload, a
//! value that is read, a copy beside the work or pages that go back merely make it an ordinary run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::backend::{Backend, Launches, dispatch_all};
use crate::error::{Error, Result};
use crate::segments::Graphs;

/// The end of the compute stream of a GPU.
pub(crate) struct Pending {
    backend: Arc<dyn Backend>,
    state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    recording: Option<Recording>,
    /// An empty list whose buffers are used again.
    spare: Launches,
}

struct Recording {
    thread: ThreadId,
    launches: Launches,
    /// What lists are started by.
    graphs: Graphs,
    /// Whether nobody else had a list issued yet.
    is_whole: bool,
    /// What went wrong when somebody else had the list issued.
    failed: Option<Error>,
}

impl Pending {
    pub fn new(backend: Arc<dyn Backend>) -> Pending {
        Pending { backend, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to hold back what this thread launches; false if a thread does so already.
    pub fn begin(&self, graphs: &Graphs) -> bool {
        let mut state = self.lock();
        if state.recording.is_some() {
            return false;
        }
        graphs.lock().begin();
        let (thread, launches) = (thread::current().id(), std::mem::take(&mut state.spare));
        let graphs = graphs.share();
        state.recording = Some(Recording { thread, launches, graphs, is_whole: true, failed: None });
        true
    }

    /// Issues what is held back.
    pub fn flush(&self) -> Result<()> {
        self.lock().flush(&*self.backend)
    }

    /// Work of the compute stream: held back if this thread records and `defer` can, else started by `call`.
    pub fn order<R>(
        &self,
        defer: impl FnOnce(&mut Launches) -> Option<R>,
        call: impl FnOnce(&dyn Backend) -> Result<R>,
    ) -> Result<R> {
        let mut state = self.lock();
        let own = thread::current().id();
        let whole =
            state.recording.as_mut().filter(|recording| recording.is_whole && recording.thread == own);
        if let Some(recording) = whole
            && let Some(deferred) = defer(&mut recording.launches)
        {
            recording.start_if_full(&*self.backend)?;
            return Ok(deferred);
        }
        state.flush(&*self.backend)?;
        // Calls are made under the lock: a capture sends those of its own thread to another stream.
        call(&*self.backend)
    }

    /// Ends this thread's recording. What nobody had issued yet `start` is to start.
    pub fn end(&self, start: impl FnOnce(&Graphs, &dyn Backend, &mut Launches) -> Result<()>) -> Result<()> {
        let mut state = self.lock();
        let Some(mut recording) = state.recording.take() else { return Ok(()) };
        let ended = match recording.is_whole {
            true => start(&recording.graphs, &*self.backend, &mut recording.launches),
            false => recording.failed.take().map_or(Ok(()), Err),
        };
        recording.launches.clear();
        state.spare = recording.launches;
        ended
    }
}

impl Recording {
    /// Starts a list that is long enough.
    fn start_if_full(&mut self, backend: &dyn Backend) -> Result<()> {
        let mut segments = self.graphs.lock();
        if !segments.is_full(self.launches.len()) {
            return Ok(());
        }
        let started = segments.start(backend, &mut self.launches);
        self.launches.clear();
        started
    }
}

impl State {
    /// Issues what is held back. An error is this call's if the list is its thread's, else that thread learns of it.
    fn flush(&mut self, backend: &dyn Backend) -> Result<()> {
        let Some(recording) = &mut self.recording else { return Ok(()) };
        if recording.is_whole {
            recording.is_whole = false;
            recording.failed = dispatch_all(backend, &mut recording.launches).err();
        }
        match recording.thread == thread::current().id() {
            true => recording.failed.take().map_or(Ok(()), Err),
            false => Ok(()),
        }
    }
}
