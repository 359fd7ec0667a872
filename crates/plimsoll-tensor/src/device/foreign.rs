//! Foreign memory: tensors over bytes that somebody else has, such as an array of numpy or a tensor of another framework.
//!
//! Nothing is copied. Whatever keeps the bytes alive is held as long as a tensor looks at them, and dropped with the last of
//! them. Like what the input pipeline lends, the bytes are never written over: who writes, writes to memory of the pool. No
//! pool and no limit counts them, because it was not the framework that took them; a report has them in a row of their own.
//!
//! On a GPU ops that read the bytes may still be under way when the last tensor goes. Who has the bytes may use them for something
//! else as soon as it is told, on a stream that nobody here knows, so the host waits for the ops before it tells.

use std::sync::Arc;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::device::Device;
use crate::device::storage::Storage;

/// Where the memory of a GPU begins, as blocks do: kernels read it in long words. What begins between such addresses is a view of memory
/// that begins before it.
const GPU_ALIGNMENT: usize = 512;

/// Bytes that somebody else has.
pub(crate) struct Foreign {
    /// Where they begin for views of them.
    base: *mut u8,
    /// How many bytes lie before those that somebody vouches for, which no view means.
    n_before: usize,
    n_bytes: usize,
    device: Device,
    /// What keeps them alive.
    _keeper: Box<dyn Send + Sync>,
}

// SAFETY: the bytes are only read, and whoever made it promised that they stay; the keeper may move between threads itself.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// A storage over `n_bytes` from `ptr` on, in which `layout` names elements, and the layout of these in the storage.
    ///
    /// # Errors
    /// A layout that names elements beyond the bytes; an address that is no multiple of the element's size; a ghost.
    ///
    /// # Safety
    /// As for [`Tensor::from_foreign`](crate::Tensor::from_foreign).
    pub unsafe fn storage(
        device: &Device,
        (ptr, n_bytes): (*const u8, usize),
        layout: &Layout,
        dtype: DType,
        keeper: Box<dyn Send + Sync>,
    ) -> Result<(Arc<Storage>, Layout)> {
        let refused = |detail: String| Err(Error::argument("from_foreign", detail));
        if device.is_ghost() || ptr.is_null() {
            return refused(format!("there are no bytes at {ptr:?} on {device}"));
        }
        if !layout.lies_within(n_bytes / dtype.size()) {
            return refused(format!(
                "shape {} with strides {:?} from element {} on does not lie within {n_bytes} bytes of {dtype}",
                layout.shape(),
                layout.strides(),
                layout.offset()
            ));
        }
        if !ptr.addr().is_multiple_of(dtype.size()) {
            return refused(format!(
                "the address {ptr:?} is no multiple of {}; make a copy instead",
                dtype.size()
            ));
        }
        let n_before = if device.is_host() { 0 } else { ptr.addr() % GPU_ALIGNMENT };
        let offset = layout.offset() + n_before / dtype.size();
        let layout = Layout::new(*layout.shape(), layout.strides(), offset)?;
        device.count_foreign(n_bytes, true);
        let base = ptr.cast_mut().wrapping_sub(n_before);
        let foreign = Foreign { base, n_before, n_bytes, device: device.clone(), _keeper: keeper };
        Ok((Storage::foreign(foreign, dtype), layout))
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Where views of the bytes count from.
    pub fn ptr(&self) -> *mut u8 {
        self.base
    }

    /// From there to the end of the bytes.
    pub fn n_bytes(&self) -> usize {
        self.n_before + self.n_bytes
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(gpu) = self.device.gpu() {
            // A GPU that has failed reads nothing any more.
            let _ = gpu.synchronize();
        }
        self.device.count_foreign(self.n_bytes, false);
    }
}
