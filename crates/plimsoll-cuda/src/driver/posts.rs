//! A few bytes on their way to the host, without waiting for the work that comes after them.
//!
//! Each copy has a slot of memory that the device writes by itself, and an event behind it: whoever wants the bytes waits
//! for that event alone, so a loss can be read while the next step is running.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUevent};

use super::context::{Context, check};
use crate::backend::POST_BYTES;
use crate::error::Result;

/// The copies that can be on their way at a time.
const N_SLOTS: usize = 16;

/// The slots.
pub(super) struct Posts {
    context: Arc<Context>,
    memory: *mut u8,
    arrived: Vec<CUevent>,
    free: Vec<u32>,
}

// SAFETY: the memory and the events belong to this value, which is used by one thread at a time.
unsafe impl Send for Posts {}

impl Posts {
    pub fn new(context: &Arc<Context>) -> Result<Posts> {
        let memory = context.host_memory(N_SLOTS * POST_BYTES)?;
        let mut posts = Posts { context: context.clone(), memory, arrived: Vec::new(), free: Vec::new() };
        for slot in 0..N_SLOTS as u32 {
            posts.arrived.push(context.event()?);
            posts.free.push(slot);
        }
        Ok(posts)
    }

    /// Starts a copy; nothing if all slots are taken.
    ///
    /// # Safety
    /// `from` must be an address of the device that is valid for reading so many bytes, at most [`POST_BYTES`], in stream
    /// order.
    pub unsafe fn post(&mut self, from: u64, n_bytes: usize) -> Result<Option<u32>> {
        let Some(slot) = self.free.pop() else { return Ok(None) };
        // SAFETY: the slot has room for the bytes and nobody else uses it; events and stream are alive.
        let started = unsafe {
            let to = self.memory.add(slot as usize * POST_BYTES);
            let copied = sys::cuMemcpyDtoHAsync_v2(to.cast(), from, n_bytes, self.context.stream);
            check(copied, "cuMemcpyDtoHAsync").and_then(|()| {
                check(sys::cuEventRecord(self.arrived[slot as usize], self.context.stream), "cuEventRecord")
            })
        };
        started?;
        Ok(Some(slot))
    }

    /// The event behind a slot's copy.
    pub fn arrival(&self, slot: u32) -> CUevent {
        self.arrived[slot as usize]
    }

    /// The bytes of a slot whose event has come; the slot is free again.
    pub fn take(&mut self, slot: u32, to: &mut [u8]) {
        // SAFETY: the slot has at least as many bytes, and the device is done with them.
        unsafe {
            let from = self.memory.add(slot as usize * POST_BYTES);
            std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len().min(POST_BYTES));
        }
        self.free.push(slot);
    }
}

impl Drop for Posts {
    fn drop(&mut self) {
        // The device may still be writing. Should waiting fail, it does nothing any more.
        let _ = self.context.synchronize();
        // SAFETY: events and memory are this value's own, and the device is done with them.
        unsafe {
            for &event in &self.arrived {
                let _ = sys::cuEventDestroy_v2(event);
            }
            let _ = sys::cuMemFreeHost(self.memory.cast());
        }
    }
}
