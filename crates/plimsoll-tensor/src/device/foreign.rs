//! Foreign memory: tensors over bytes that somebody else has, such as an array of numpy or a tensor of another framework.
//!
//! Nothing is copied. Whatever keeps the bytes alive is held as long as a tensor looks at them, and dropped with the last of
//! them. Like what the input pipeline lends, the bytes are never written over: who writes, writes to memory of the pool. No
//! pool and no limit counts them, because it was not the framework that took them; a report has them in a row of their own.

use std::sync::Arc;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::device::Device;
use crate::device::storage::Storage;

/// Where the memory of a GPU must begin, as blocks do: kernels read it in long words.
const GPU_ALIGNMENT: usize = 512;

/// Bytes that somebody else has.
pub(crate) struct Foreign {
    ptr: *mut u8,
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
    /// A storage over `n_bytes` from `ptr` on, in which `layout` names elements.
    ///
    /// # Errors
    /// A layout that names elements beyond the bytes; an address that is no multiple of the element's size, or on a GPU of
    /// 512; a ghost.
    ///
    /// # Safety
    /// As for [`Tensor::from_foreign`](crate::Tensor::from_foreign).
    pub unsafe fn storage(
        device: &Device,
        (ptr, n_bytes): (*const u8, usize),
        layout: &Layout,
        dtype: DType,
        keeper: Box<dyn Send + Sync>,
    ) -> Result<Arc<Storage>> {
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
        let alignment = if device.is_host() { dtype.size() } else { GPU_ALIGNMENT };
        if !ptr.addr().is_multiple_of(alignment) {
            return refused(format!(
                "the address {ptr:?} is no multiple of {alignment}; make a copy instead"
            ));
        }
        device.count_foreign(n_bytes, true);
        let foreign = Foreign { ptr: ptr.cast_mut(), n_bytes, device: device.clone(), _keeper: keeper };
        Ok(Storage::foreign(foreign, dtype))
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.device.count_foreign(self.n_bytes, false);
    }
}
