//! Tensors that other libraries of the process look at, where they lie.
//!
//! An [`Export`] holds the memory of a tensor as a tensor does: nobody writes it while the export is there, and whoever assigns to the
//! variable that it came from writes elsewhere. On a GPU the other library works on a stream of its own. That stream waits for
//! what computes the values; and when the export goes, what the pool does next with the memory waits for the stream.

use std::sync::Arc;

use plimsoll_cuda::DEFAULT_STREAM;

use crate::base::error::{Error, Result};
use crate::device::Device;
use crate::device::storage::Storage;
use crate::eager::tensor::Tensor;

/// How another library reads memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// On the driver's default stream of the process.
    DefaultStream,
    /// On the stream of that handle.
    Stream(usize),
    /// On streams that it orders itself: nothing waits for anything when it begins.
    Unordered,
}

/// The memory of a tensor, for another library. It stays as it is until this is dropped.
pub struct Export {
    storage: Arc<Storage>,
    start: usize,
    reader: Reader,
}

impl Export {
    /// Where the elements begin, on the device.
    pub fn as_ptr(&self) -> *const u8 {
        self.storage.ptr().wrapping_add(self.start)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.storage.device()
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let Some(gpu) = self.storage.device().gpu() else { return };
        // A stream of the other library's own may be gone by now, so that only all of the GPU can be waited for. A GPU that has failed
        // reads nothing any more.
        let _ = match self.reader {
            // SAFETY: the default stream is always there.
            Reader::DefaultStream => unsafe { gpu.follow(DEFAULT_STREAM) },
            Reader::Stream(_) | Reader::Unordered => gpu.synchronize_all(),
        };
    }
}

impl Tensor {
    /// The memory of the tensor, for another library of this process, which must not write it.
    ///
    /// # Errors
    /// A view whose elements do not lie one after the other; a ghost tensor, which has no values; what the driver says.
    ///
    /// # Safety
    /// A stream that is named must be one of the GPU's primary context, and there.
    pub unsafe fn export(&self, reader: Reader) -> Result<Export> {
        if self.is_ghost() {
            return Err(Error::ghost("export"));
        }
        if !self.is_contiguous() {
            let detail =
                format!("the elements of this view of shape {} do not lie one after the other", self.shape());
            return Err(Error::argument("export", format!("{detail}; copy it with `contiguous`")));
        }
        let (storage, meta) = self.storage_view();
        if let Some(gpu) = storage.device().gpu() {
            match reader {
                // SAFETY: the default stream is always there.
                Reader::DefaultStream => unsafe { gpu.lead(DEFAULT_STREAM) }?,
                // SAFETY: the caller vouches for it.
                Reader::Stream(stream) => unsafe { gpu.lead(stream) }?,
                Reader::Unordered => {}
            }
        }
        Ok(Export { storage, start: meta.layout.offset() * meta.dtype.size(), reader })
    }
}

impl Device {
    /// The stream of a GPU on which ops run, as the driver and other libraries know it; none elsewhere.
    pub fn compute_stream(&self) -> Option<usize> {
        self.gpu().map(|gpu| gpu.compute_stream())
    }

    /// Makes ops that are called from here on wait for what another library has started on the driver's default stream of the
    /// process; nothing but on a GPU.
    ///
    /// # Errors
    /// What the driver says.
    pub fn follow_default_stream(&self) -> Result<()> {
        let Some(gpu) = self.gpu() else { return Ok(()) };
        // SAFETY: the default stream is always there.
        Ok(unsafe { gpu.follow(DEFAULT_STREAM) }?)
    }
}
