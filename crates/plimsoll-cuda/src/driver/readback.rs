//! Copies to the host that are waited for, through memory that the device writes by itself.
//!
//! The driver would copy to ordinary memory in small steps, one after the other. Here the device fills the segments of a
//! ring while the host empties those that are full.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUevent};

use super::context::{Context, check};
use crate::error::Result;

const SEGMENT_BYTES: usize = 4 << 20;
const N_SEGMENTS: usize = 4;

/// The ring.
pub(super) struct Readback {
    context: Arc<Context>,
    memory: *mut u8,
    /// When the device has filled a segment.
    filled: Vec<CUevent>,
}

// SAFETY: the memory and the events belong to this value, which is used by one thread at a time.
unsafe impl Send for Readback {}

impl Readback {
    pub fn new(context: &Arc<Context>) -> Result<Readback> {
        let memory = context.host_memory(SEGMENT_BYTES * N_SEGMENTS)?;
        let mut readback =
            Readback { context: context.clone(), memory, filled: Vec::with_capacity(N_SEGMENTS) };
        for _ in 0..N_SEGMENTS {
            readback.filled.push(context.event()?);
        }
        Ok(readback)
    }

    /// Copies `n_bytes` after the work that was started before; they are there when it returns.
    ///
    /// # Safety
    /// `from` must be an address of the device that is valid for reading in stream order, `to` valid for writing.
    pub unsafe fn download(&mut self, from: u64, to: *mut u8, n_bytes: usize) -> Result<()> {
        let n_parts = n_bytes.div_ceil(SEGMENT_BYTES);
        for part in 0..n_parts.min(N_SEGMENTS) {
            // SAFETY: the part lies inside the bytes that the caller vouches for.
            unsafe { self.fill(from, part, n_bytes) }?;
        }
        for part in 0..n_parts {
            let (start, len) = bounds(part, n_bytes);
            // SAFETY: events live as long as `self`. The segment has been filled when its event has come; both ranges have
            // as many bytes, and the device writes the segment again only when it is told to below.
            unsafe {
                check(sys::cuEventSynchronize(self.filled[part % N_SEGMENTS]), "cuEventSynchronize")?;
                let segment = self.memory.add(part % N_SEGMENTS * SEGMENT_BYTES);
                std::ptr::copy_nonoverlapping(segment, to.add(start), len);
                if part + N_SEGMENTS < n_parts {
                    self.fill(from, part + N_SEGMENTS, n_bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Tells the device to fill a segment with a part.
    ///
    /// # Safety
    /// As for `download`; nobody wants the bytes of the segment any more.
    unsafe fn fill(&mut self, from: u64, part: usize, n_bytes: usize) -> Result<()> {
        let (start, len) = bounds(part, n_bytes);
        let stream = self.context.stream;
        // SAFETY: the segment has room for the part; the caller vouches for the rest.
        unsafe {
            let segment = self.memory.add(part % N_SEGMENTS * SEGMENT_BYTES);
            let copied = sys::cuMemcpyDtoHAsync_v2(segment.cast(), from + start as u64, len, stream);
            check(copied, "cuMemcpyDtoHAsync")?;
            check(sys::cuEventRecord(self.filled[part % N_SEGMENTS], stream), "cuEventRecord")
        }
    }
}

/// Where a part begins and how many bytes it has.
fn bounds(part: usize, n_bytes: usize) -> (usize, usize) {
    let start = part * SEGMENT_BYTES;
    (start, SEGMENT_BYTES.min(n_bytes - start))
}

impl Drop for Readback {
    fn drop(&mut self) {
        // The device may still be writing. Should waiting fail, it does nothing any more.
        let _ = self.context.synchronize();
        // SAFETY: events and memory are this value's own, and the device is done with them.
        unsafe {
            for &event in &self.filled {
                let _ = sys::cuEventDestroy_v2(event);
            }
            let _ = sys::cuMemFreeHost(self.memory.cast());
        }
    }
}
