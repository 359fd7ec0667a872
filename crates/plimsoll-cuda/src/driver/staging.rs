//! Copies from the host, through memory that the device reads by itself.
//!
//! The host's bytes are copied into a ring of such memory and the device is told to fetch them, so that `upload` returns
//! when the bytes are read and the device goes on with its work. The ring has segments; small copies share one, and the
//! host waits only when it comes round to a segment that the device has not fetched yet.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUevent};

use super::context::{Context, check};
use crate::error::Result;

const SEGMENT_BYTES: usize = 1 << 20;
const N_SEGMENTS: usize = 8;

/// Places of small copies are multiples of this, so that each is fetched whole.
const UNIT: usize = 256;

/// The ring.
pub(super) struct Staging {
    context: Arc<Context>,
    memory: *mut u8,
    /// When the device has fetched all of a segment.
    fetched: Vec<CUevent>,
    segment: usize,
    /// The bytes of the present segment that were used.
    used: usize,
}

// SAFETY: the memory and the events belong to this value, which is used by one thread at a time.
unsafe impl Send for Staging {}

impl Staging {
    pub fn new(context: &Arc<Context>) -> Result<Staging> {
        let mut staging = Staging {
            context: context.clone(),
            memory: context.host_memory(SEGMENT_BYTES * N_SEGMENTS)?,
            fetched: Vec::with_capacity(N_SEGMENTS),
            segment: 0,
            used: 0,
        };
        for _ in 0..N_SEGMENTS {
            staging.fetched.push(context.event()?);
        }
        Ok(staging)
    }

    /// Copies `n_bytes`; those at `from` may change as soon as it returns.
    ///
    /// # Safety
    /// `from` must be valid for reading, and `to` an address of the device that is valid for writing in stream order.
    pub unsafe fn upload(&mut self, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()> {
        let mut done = 0;
        while done < n_bytes {
            if self.used == SEGMENT_BYTES {
                self.advance()?;
            }
            let part = (n_bytes - done).min(SEGMENT_BYTES - self.used);
            let offset = self.segment * SEGMENT_BYTES + self.used;
            // SAFETY: both ranges have `part` bytes: the segment has that much left, and the device does not read from
            // what is left of it. The device reads its bytes in stream order, before the segment is used again.
            unsafe {
                let place = self.memory.add(offset);
                std::ptr::copy_nonoverlapping(from.add(done), place, part);
                let to = to.wrapping_add(done).expose_provenance() as u64;
                check(
                    sys::cuMemcpyHtoDAsync_v2(to, place.cast(), part, self.context.stream),
                    "cuMemcpyHtoDAsync",
                )?;
            }
            self.used = (self.used + part).next_multiple_of(UNIT).min(SEGMENT_BYTES);
            done += part;
        }
        Ok(())
    }

    /// Goes to the next segment when the device has fetched what was there.
    fn advance(&mut self) -> Result<()> {
        let next = (self.segment + 1) % N_SEGMENTS;
        // SAFETY: events and stream are alive; waiting for an event that was never recorded returns at once.
        unsafe {
            check(sys::cuEventRecord(self.fetched[self.segment], self.context.stream), "cuEventRecord")?;
            check(sys::cuEventSynchronize(self.fetched[next]), "cuEventSynchronize")?;
        }
        (self.segment, self.used) = (next, 0);
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // The device may still be fetching. Should waiting fail, it does nothing any more.
        let _ = self.context.synchronize();
        // SAFETY: events and memory are this value's own, and the device is done with them.
        unsafe {
            for &event in &self.fetched {
                let _ = sys::cuEventDestroy_v2(event);
            }
            let _ = sys::cuMemFreeHost(self.memory.cast());
        }
    }
}
