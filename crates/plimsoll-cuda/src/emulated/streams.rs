//! Copies beside the work, as late as they may come.
//!
//! Kernels run when they are launched; a copy on a stream of its own waits in a queue until somebody waits for it. On a GPU
//! it may come at any moment between the two, and whoever forgets to wait is usually lucky. Here he never is.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::backend::{Event, Stream, Streams};
use crate::error::{Error, Result};

use super::Emulated;

/// A wait that was asked for on behalf of another library of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// One stream waits for another, by their handles.
    Stream {
        /// What is waited for.
        first: usize,
        /// Who waits.
        then: usize,
    },
    /// The host waits for the whole GPU.
    Everybody,
}

thread_local! {
    static WAITS: RefCell<Vec<WaitsFor>> = const { RefCell::new(Vec::new()) };
}

/// The waits for other libraries that this thread has asked emulated GPUs for since the last time.
pub fn take_waits() -> Vec<WaitsFor> {
    WAITS.take()
}

pub(super) fn note_wait(wait: WaitsFor) {
    WAITS.with_borrow_mut(|waits| waits.push(wait));
}

/// The queues of the copy streams, and what their events stand for.
#[derive(Default)]
pub(super) struct Queues(Mutex<State>);

#[derive(Default)]
struct State {
    /// Work that nobody has waited for, by stream.
    waiting: [VecDeque<Work>; 2],
    /// How much work each stream has had, and how much of it is done.
    n_queued: [u64; 2],
    n_done: [u64; 2],
    n_events: usize,
    /// The work that an event comes after; nothing for one behind kernels, which are done.
    recorded: HashMap<usize, Option<(Stream, u64)>>,
    /// Pinned memory, by address.
    pinned: BTreeMap<usize, usize>,
}

enum Work {
    Copy {
        from: *const u8,
        to: *mut u8,
        n_bytes: usize,
    },
    /// Work of the other stream must come first.
    Wait(Stream, u64),
}

// SAFETY: the addresses are used by whoever holds the lock, as the caller of `copy_on` allows.
unsafe impl Send for State {}

impl Queues {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does all the work that waits.
    pub fn finish(&self) {
        let mut state = self.lock();
        for stream in [Stream::Down, Stream::Up] {
            let queued = state.n_queued[stream as usize];
            state.run(stream, queued);
        }
    }

    pub fn pin(&self, memory: *mut u8, n_bytes: usize) {
        self.lock().pinned.insert(memory.addr(), n_bytes);
    }

    pub fn unpin(&self, memory: *mut u8) -> Result<()> {
        let unpinned = self.lock().pinned.remove(&memory.addr());
        unpinned.map(drop).ok_or_else(|| Error::new("memory is unpinned that is not pinned"))
    }
}

impl State {
    /// Does the work of a stream up to a number, and what it waits for before.
    fn run(&mut self, stream: Stream, until: u64) {
        while self.n_done[stream as usize] < until {
            let Some(work) = self.waiting[stream as usize].pop_front() else { return };
            match work {
                // SAFETY: whoever started the copy vouched for its addresses until it is done.
                Work::Copy { from, to, n_bytes } => unsafe { to.copy_from_nonoverlapping(from, n_bytes) },
                // A stream waits only for work that was queued before, so that this ends.
                Work::Wait(other, until) => self.run(other, until),
            }
            self.n_done[stream as usize] += 1;
        }
    }

    fn queue(&mut self, stream: Stream, work: Work) {
        self.waiting[stream as usize].push_back(work);
        self.n_queued[stream as usize] += 1;
    }

    /// Whether an address is inside one piece of pinned memory, with so many bytes after it.
    fn is_pinned(&self, address: usize, n_bytes: usize) -> bool {
        let piece = self.pinned.range(..=address).next_back();
        piece.is_some_and(|(start, len)| address + n_bytes <= start + len)
    }
}

impl Streams for Emulated {
    fn event(&self) -> Result<Event> {
        let mut state = self.queues.lock();
        state.n_events += 1;
        Ok(Event(state.n_events))
    }

    fn record(&self, event: Event, stream: Stream) -> Result<()> {
        let mut state = self.queues.lock();
        let after = (stream != Stream::Compute).then(|| (stream, state.n_queued[stream as usize]));
        state.recorded.insert(event.0, after);
        Ok(())
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        let mut state = self.queues.lock();
        if let Some((other, until)) = state.recorded.get(&event.0).copied().flatten() {
            match stream {
                Stream::Compute => state.run(other, until),
                _ => state.queue(stream, Work::Wait(other, until)),
            }
        }
        Ok(())
    }

    fn wait_on_host(&self, event: Event) -> Result<()> {
        self.wait(Stream::Compute, event)
    }

    unsafe fn copy_on(&self, stream: Stream, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()> {
        let mut state = self.queues.lock();
        let host = if stream == Stream::Up { from.addr() } else { to.addr() };
        if !state.is_pinned(host, n_bytes) {
            return Err(Error::new(format!(
                "a copy of {n_bytes} bytes is not inside one piece of pinned memory"
            )));
        }
        state.queue(stream, Work::Copy { from, to, n_bytes });
        Ok(())
    }
}
