//! Copies beside the work: between a GPU and pinned memory of the host, on two streams of their own.
//!
//! What goes to the host and what comes from it each have a stream, so that both run while kernels do. What must not
//! overtake what is said with events, on the device; the host never waits:
//!
//! - A copy begins after the work that was started before it.
//! - Work that is started later does not wait for it until [`Gpu::wait_for`] says so: before a value that came up is read,
//!   and before one that is going down is overwritten.
//! - Memory may be freed and handed out again while a copy still reads or writes it. Whoever hands it out says so
//!   ([`Gpu::reuse`]), and only if a copy is about that very memory is it waited for.
//! - A copy waits for earlier ones of the other direction that are about the same pinned memory.
//!
//! Each stream's clock says which copies it has waited for, so that nothing is waited for twice; what the compute stream
//! has waited for is forgotten. Whether a copy has ended is never asked.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_memory::Block;

use crate::backend::{Event, Stream, Streams};
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::pinned::{PIECE_BYTES, PinnedBlock};

/// The numbers of the latest copies in each direction that a stream comes after.
type Clock = [u64; 2];

/// A copy that was started: what later work can be made to wait for.
#[derive(Clone)]
pub struct Copied {
    stream: Stream,
    /// What is done when the copy is, the copy itself included.
    clock: Clock,
    event: Arc<Lease>,
}

impl Copied {
    fn number(&self) -> u64 {
        self.clock[self.stream as usize]
    }
}

impl fmt::Debug for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Copied({:?} {})", self.stream, self.number())
    }
}

/// An event that can be used for something else when nobody wants to wait for it any more.
struct Lease {
    event: Event,
    vacant: Arc<Mutex<Vec<Event>>>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        lock(&self.vacant).push(self.event);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory that a copy reads or writes.
struct Access {
    addresses: Range<usize>,
    copied: Copied,
}

/// The copies of a GPU and who waits for which.
#[derive(Default)]
pub(crate) struct Copies {
    state: Mutex<State>,
    /// Whether there is an access that the compute stream has not waited for.
    is_busy: AtomicBool,
}

#[derive(Default)]
struct State {
    /// By stream.
    clocks: [Clock; 3],
    /// What the compute stream has not waited for.
    accesses: Vec<Access>,
    /// Events that nobody waits for.
    vacant: Arc<Mutex<Vec<Event>>>,
}

impl Copies {
    /// Starts a copy in the direction of a stream.
    ///
    /// # Safety
    /// Both addresses must be valid for as many bytes until the copy is done; the host's must be pinned.
    pub unsafe fn start(
        &self,
        streams: &dyn Streams,
        stream: Stream,
        from: *const u8,
        to: *mut u8,
        n_bytes: usize,
    ) -> Result<Copied> {
        let mut state = lock(&self.state);
        let touched = [from.addr()..from.addr() + n_bytes, to.addr()..to.addr() + n_bytes];
        state.follow_compute(streams, stream)?;
        state.wait_for_accesses(streams, stream, &touched)?;
        let host = if stream == Stream::Up { from.addr() } else { to.addr() };
        for part in pieces(host, n_bytes) {
            // SAFETY: the caller promises it, and the part lies inside.
            unsafe { streams.copy_on(stream, from.add(part.start), to.add(part.start), part.len()) }?;
        }
        let event = state.event(streams)?;
        streams.record(event.event, stream)?;
        let clock = &mut state.clocks[stream as usize];
        clock[stream as usize] += 1;
        let copied = Copied { stream, clock: *clock, event: Arc::new(event) };
        let accesses = touched.map(|addresses| Access { addresses, copied: copied.clone() });
        state.accesses.extend(accesses);
        self.is_busy.store(true, Ordering::Relaxed);
        Ok(copied)
    }

    /// Makes work that is started from here on wait for a copy.
    pub fn wait_for(&self, streams: &dyn Streams, copied: &Copied) -> Result<()> {
        let mut state = lock(&self.state);
        state.wait(streams, Stream::Compute, copied)?;
        self.forget(&mut state);
        Ok(())
    }

    /// Makes work that is started from here on wait for the copies that are about these addresses.
    pub fn reuse(&self, streams: &dyn Streams, addresses: Range<usize>) -> Result<()> {
        if !self.is_busy.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut state = lock(&self.state);
        state.wait_for_accesses(streams, Stream::Compute, &[addresses])?;
        self.forget(&mut state);
        Ok(())
    }

    /// All work on the device is done.
    pub fn settle(&self) {
        let mut state = lock(&self.state);
        let latest = [Stream::Down, Stream::Up].map(|stream| state.clocks[stream as usize][stream as usize]);
        state.clocks = [latest; 3];
        self.forget(&mut state);
    }

    /// Forgets what the compute stream has waited for. The copy streams come after whatever it comes after, since each
    /// copy follows it.
    fn forget(&self, state: &mut State) {
        let seen = state.clocks[Stream::Compute as usize];
        state.accesses.retain(|access| access.copied.number() > seen[access.copied.stream as usize]);
        self.is_busy.store(!state.accesses.is_empty(), Ordering::Relaxed);
    }
}

impl State {
    fn event(&self, streams: &dyn Streams) -> Result<Lease> {
        let vacant = lock(&self.vacant).pop();
        let event = vacant.map_or_else(|| streams.event(), Ok)?;
        Ok(Lease { event, vacant: self.vacant.clone() })
    }

    /// Makes a copy stream wait for the work that was started so far.
    fn follow_compute(&mut self, streams: &dyn Streams, stream: Stream) -> Result<()> {
        // Whoever waits for an event waits for it as it is then: it can be recorded anew for something else at once.
        let event = self.event(streams)?;
        streams.record(event.event, Stream::Compute)?;
        streams.wait(stream, event.event)?;
        self.advance(stream, self.clocks[Stream::Compute as usize]);
        Ok(())
    }

    /// Makes a stream wait for the copies that are about any of these addresses.
    fn wait_for_accesses(
        &mut self,
        streams: &dyn Streams,
        stream: Stream,
        touched: &[Range<usize>],
    ) -> Result<()> {
        let overlaps = |access: &&Access| touched.iter().any(|range| overlap(range, &access.addresses));
        // The copies of a direction are done in order: the latest stands for all.
        let mut latest: [Option<Copied>; 2] = [None, None];
        for access in self.accesses.iter().filter(overlaps) {
            latest[access.copied.stream as usize] = Some(access.copied.clone());
        }
        latest.iter().flatten().try_for_each(|copied| self.wait(streams, stream, copied))
    }

    fn wait(&mut self, streams: &dyn Streams, stream: Stream, copied: &Copied) -> Result<()> {
        if self.clocks[stream as usize][copied.stream as usize] >= copied.number() {
            return Ok(());
        }
        streams.wait(stream, copied.event.event)?;
        self.advance(stream, copied.clock);
        Ok(())
    }

    fn advance(&mut self, stream: Stream, clock: Clock) {
        let own = &mut self.clocks[stream as usize];
        *own = [own[0].max(clock[0]), own[1].max(clock[1])];
    }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// The parts of a range of host memory that lie in one piece of pinned memory each, as offsets: the driver knows each
/// piece by itself and refuses a copy across two.
fn pieces(address: usize, n_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let end = ((address + start) / PIECE_BYTES + 1) * PIECE_BYTES - address;
        let part = start..end.min(n_bytes);
        start = part.end;
        (!part.is_empty()).then_some(part)
    })
}

impl Gpu {
    /// Starts a copy of a block to pinned memory and returns at once. The block may be freed while it goes on.
    ///
    /// # Errors
    /// A pinned block that is too small, what the driver says.
    ///
    /// # Safety
    /// The block must be of a pool over this GPU's pages. Until the copy is done, the host must not touch the pinned bytes,
    /// and nobody may write the block without [`Gpu::wait_for`].
    pub unsafe fn download_async(&self, from: &Block, to: &PinnedBlock) -> Result<Copied> {
        let n_bytes = room(from.bytes(), to.bytes())?;
        self.run_noted("download_async", || {
            // SAFETY: the blocks are that long; memory that is freed stays valid until its pages go back, which waits.
            unsafe { self.copies.start(&*self.pending, Stream::Down, from.as_ptr(), to.as_ptr(), n_bytes) }
        })
    }

    /// Starts a copy from pinned memory to a block, as many bytes as the block has, and returns at once. The pinned block
    /// may be freed while it goes on.
    ///
    /// # Errors
    /// A pinned block that is too small, what the driver says.
    ///
    /// # Safety
    /// The block must be of a pool over this GPU's pages. Until the copy is done, the host must not write the pinned bytes,
    /// and nobody may read or write the block without [`Gpu::wait_for`].
    pub unsafe fn upload_async(&self, from: &PinnedBlock, to: &Block) -> Result<Copied> {
        let n_bytes = room(to.bytes(), from.bytes())?;
        self.run_noted("upload_async", || {
            // SAFETY: as above.
            unsafe { self.copies.start(&*self.pending, Stream::Up, from.as_ptr(), to.as_ptr(), n_bytes) }
        })
    }

    /// Makes the work that is started from here on wait for a copy; the host does not.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait_for(&self, copied: &Copied) -> Result<()> {
        self.check()?;
        self.copies.wait_for(&*self.pending, copied).map_err(|error| self.break_with(&error))
    }

    /// Says that memory is handed out for something new: work that is started from here on waits for the copies that are
    /// still about it. The host does not.
    ///
    /// # Errors
    /// What the driver says.
    #[inline]
    pub fn reuse(&self, block: &Block) -> Result<()> {
        let start = block.as_ptr().addr();
        let reused = self.copies.reuse(&*self.pending, start..start + block.rounded());
        reused.map_err(|error| self.break_with(&error))
    }

    /// Waits, on the host, until a copy is done: its pinned bytes can be read or written then.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait_on_host(&self, copied: &Copied) -> Result<()> {
        self.check()?;
        self.n_waits.fetch_add(1, Ordering::Relaxed);
        self.backend.wait_on_host(copied.event.event).map_err(|error| self.break_with(&error))
    }
}

/// The bytes of a copy, if there is room for them.
fn room(n_bytes: usize, pinned_bytes: usize) -> Result<usize> {
    if n_bytes <= pinned_bytes {
        return Ok(n_bytes);
    }
    Err(Error::new(format!(
        "a copy of {n_bytes} bytes needs as many in pinned memory; {pinned_bytes} were given"
    )))
}

#[cfg(test)]
#[path = "copies_tests.rs"]
mod tests;
