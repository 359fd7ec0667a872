//! Streams of other libraries of the process, where they and this framework use the same memory.
//!
//! All of them work in the GPU's primary context, each on streams of its own, which the driver knows by handles. Before one reads
//! what the other has written, or writes over what the other reads, the later stream waits for the earlier one by an event, and
//! the host for none. Where nobody knows the stream on which the other one works, the host waits for the whole GPU.

use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::gpu::Gpu;

/// The stream on which a library works that names none: the driver's default stream of the whole process.
pub const DEFAULT_STREAM: usize = 1;

impl Gpu {
    /// The stream on which ops run, as the driver and other libraries know it.
    pub fn compute_stream(&self) -> usize {
        self.backend.compute_stream()
    }

    /// Makes work that another library starts on its stream from here on wait for all that was launched here so far.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// It must be the handle of a stream of the GPU's primary context that is there, or of a default stream.
    pub unsafe fn lead(&self, stream: usize) -> Result<()> {
        let compute = self.compute_stream();
        // SAFETY: the compute stream lives as long as the GPU; the caller vouches for the other one.
        self.order("lead", |_| None, |backend| unsafe { backend.order(compute, stream) })
    }

    /// Makes work that is launched here from here on wait for all that another library has started on its stream so far.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// As for [`Gpu::lead`].
    pub unsafe fn follow(&self, stream: usize) -> Result<()> {
        let compute = self.compute_stream();
        // SAFETY: as above.
        self.order("follow", |_| None, |backend| unsafe { backend.order(stream, compute) })
    }

    /// Waits until all work on the GPU is done, also that of the process's other libraries.
    ///
    /// # Errors
    /// What the driver says.
    pub fn synchronize_all(&self) -> Result<()> {
        self.n_waits.fetch_add(1, Ordering::Relaxed);
        self.order("synchronize_all", |_| None, |backend| backend.synchronize_all())
    }
}
