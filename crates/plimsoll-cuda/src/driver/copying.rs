//! Copies beside the work, and what orders them, by the driver's streams and events.

use std::ffi::c_uint;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUevent};

use super::context::{Context, check};
use super::{Driver, address};
use crate::backend::{Event, Stream, Streams};
use crate::error::Result;

/// Every event that was made, destroyed at the end.
pub(super) struct Events {
    context: Arc<Context>,
    made: Mutex<Vec<CUevent>>,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Events {}
// SAFETY: as above.
unsafe impl Sync for Events {}

impl Events {
    pub fn new(context: &Arc<Context>) -> Events {
        Events { context: context.clone(), made: Mutex::default() }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // Nothing waits for them any more, or the device is broken.
        let _ = self.context.synchronize();
        for &event in self.made.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // SAFETY: the event is ours.
            let _ = unsafe { sys::cuEventDestroy_v2(event) };
        }
    }
}

fn handle(event: Event) -> CUevent {
    ptr::with_exposed_provenance_mut(event.0)
}

/// Makes the later work of one stream wait for what another one has so far, both by their handles. Whoever waits for an event waits
/// for it as it is then, so that it can be recorded anew at once.
///
/// # Safety
/// The event and both streams must be of this context, and there.
pub(super) unsafe fn order(context: &Context, event: Event, first: usize, then: usize) -> Result<()> {
    const PLAINLY: c_uint = 0;
    let stream = |number| ptr::with_exposed_provenance_mut(number);
    context.enter()?;
    // SAFETY: the caller vouches for the event and the streams.
    check(unsafe { sys::cuEventRecord(handle(event), stream(first)) }, "cuEventRecord")?;
    // SAFETY: as above.
    check(unsafe { sys::cuStreamWaitEvent(stream(then), handle(event), PLAINLY) }, "cuStreamWaitEvent")
}

impl Streams for Driver {
    fn event(&self) -> Result<Event> {
        let event = self.context.event()?;
        self.events.made.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        Ok(Event(event.expose_provenance()))
    }

    fn record(&self, event: Event, stream: Stream) -> Result<()> {
        self.context.enter()?;
        let stream = self.context.stream_of(stream)?;
        // SAFETY: event and stream live as long as `self`.
        check(unsafe { sys::cuEventRecord(handle(event), stream) }, "cuEventRecord")
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        self.context.enter()?;
        let stream = self.context.stream_of(stream)?;
        const PLAINLY: c_uint = 0;
        // SAFETY: event and stream live as long as `self`.
        check(unsafe { sys::cuStreamWaitEvent(stream, handle(event), PLAINLY) }, "cuStreamWaitEvent")
    }

    fn wait_on_host(&self, event: Event) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the event lives as long as `self`.
        check(unsafe { sys::cuEventSynchronize(handle(event)) }, "cuEventSynchronize")
    }

    unsafe fn copy_on(&self, stream: Stream, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()> {
        self.context.enter()?;
        let queue = self.context.stream_of(stream)?;
        // SAFETY: the caller vouches for both addresses.
        unsafe {
            match stream {
                Stream::Down => check(
                    sys::cuMemcpyDtoHAsync_v2(to.cast(), address(from), n_bytes, queue),
                    "cuMemcpyDtoHAsync",
                ),
                Stream::Up | Stream::Compute => check(
                    sys::cuMemcpyHtoDAsync_v2(address(to), from.cast(), n_bytes, queue),
                    "cuMemcpyHtoDAsync",
                ),
            }
        }
    }
}
