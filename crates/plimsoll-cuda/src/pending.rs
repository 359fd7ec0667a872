//! Launches that are held back so that many of them can be started as one graph.
//!
//! While a thread records, what it launches is put into a list instead of the compute stream; a list that is long enough is started,
//! and a new one begins. The list is a part of the stream that is not issued yet: whatever else concerns the stream first has the list
//! started. So program order stays execution order, and a recording needs no exception anywhere: an upload, a value that is read, a
//! copy beside the work or pages that go back merely end a segment. Where another thread asks, the list is issued launch by launch, and the
//! rest of the run with it: such a list would be another one each time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::backend::{Backend, Event, Launches, Stream, Streams, dispatch_all};
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

    /// Starts what is held back.
    pub fn flush(&self) -> Result<()> {
        self.lock().flush(&*self.backend)
    }

    /// Starts what is held back, if it belongs to that stream.
    fn start_before(&self, stream: Stream) -> Result<()> {
        if stream == Stream::Compute { self.flush() } else { Ok(()) }
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
            if recording.is_full() {
                recording.start(&*self.backend)?;
            }
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
    /// Whether the list is long enough to be started.
    fn is_full(&self) -> bool {
        self.graphs.lock().is_full(self.launches.len())
    }

    /// Starts the list, as a graph if it can be; the next one begins.
    fn start(&mut self, backend: &dyn Backend) -> Result<()> {
        if self.launches.len() == 0 {
            return Ok(());
        }
        let started = self.graphs.lock().start(backend, &mut self.launches);
        self.launches.clear();
        started
    }
}

impl State {
    /// Starts what is held back. An error is this call's if the list is its thread's, else that thread learns of it.
    fn flush(&mut self, backend: &dyn Backend) -> Result<()> {
        let Some(recording) = &mut self.recording else { return Ok(()) };
        let is_own = recording.thread == thread::current().id();
        match (recording.is_whole, is_own) {
            (true, true) => recording.start(backend),
            (true, false) => {
                recording.is_whole = false;
                recording.failed = dispatch_all(backend, &mut recording.launches).err();
                Ok(())
            }
            (false, true) => recording.failed.take().map_or(Ok(()), Err),
            (false, false) => Ok(()),
        }
    }
}

/// The streams of a GPU, where what is held back comes before whatever the compute stream is made to wait for.
impl Streams for Pending {
    fn event(&self) -> Result<Event> {
        self.backend.event()
    }

    fn record(&self, event: Event, stream: Stream) -> Result<()> {
        self.start_before(stream)?;
        self.backend.record(event, stream)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        self.start_before(stream)?;
        self.backend.wait(stream, event)
    }

    fn wait_on_host(&self, event: Event) -> Result<()> {
        self.backend.wait_on_host(event)
    }

    unsafe fn copy_on(&self, stream: Stream, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()> {
        // SAFETY: the caller promises it.
        unsafe { self.backend.copy_on(stream, from, to, n_bytes) }
    }
}
