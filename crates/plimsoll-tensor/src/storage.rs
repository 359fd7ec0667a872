//! Storage: a block of the device's pool that tensors, variables and tape slots share.
//!
//! It is the only file of this crate outside `ops` that touches raw memory. A storage is written while it is
//! made, and after that only where it is held once (see `Tensor::into_unshared` and `Variable`), so shared storage
//! is never seen to change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use plimsoll_memory::{Block, Owner};

use crate::context;
use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::error::Result;
use crate::shape::Shape;

/// Bytes on a device, freed when the last holder goes.
pub(crate) struct Storage {
    block: Block,
    device: Device,
    /// The number of tape slots that hold this storage.
    n_slots: AtomicU32,
}

impl Storage {
    /// Room for `shape` elements of `dtype` on `device`, labelled with the present op and line.
    pub fn new(device: &Device, shape: &Shape, dtype: DType, op: &'static str) -> Result<Arc<Storage>> {
        let label = context::label(context::output_owner(), op);
        let block = device.pool().acquire(shape.n_elems() * dtype.size(), label)?;
        Ok(Arc::new(Storage { block, device: device.clone(), n_slots: AtomicU32::new(0) }))
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn block(&self) -> &Block {
        &self.block
    }

    /// The address of the first byte; null on a ghost.
    pub fn ptr(&self) -> *mut u8 {
        self.block.as_ptr()
    }

    /// A tape slot takes hold. What was temporary until now is kept for backward from here on.
    pub fn keep(&self) {
        if self.n_slots.fetch_add(1, Ordering::Relaxed) == 0 && self.block.label().owner == Owner::Temporary {
            self.block.relabel(Owner::Saved);
        }
    }

    /// A tape slot lets go. What somebody else still holds is temporary again.
    pub fn unkeep(self: &Arc<Storage>) {
        let was_last = self.n_slots.fetch_sub(1, Ordering::Relaxed) == 1;
        if was_last && Arc::strong_count(self) > 1 && self.block.label().owner == Owner::Saved {
            self.block.relabel(Owner::Temporary);
        }
    }

    /// Whether a tape slot holds this storage.
    pub fn is_kept(&self) -> bool {
        self.n_slots.load(Ordering::Relaxed) > 0
    }

    /// Whether the bytes belong to the model rather than to a step.
    pub fn is_persistent(&self) -> bool {
        matches!(self.block.label().owner, Owner::Parameters | Owner::Optimizer)
    }

    /// The number of tape slots that hold this storage.
    pub fn n_slots(&self) -> usize {
        self.n_slots.load(Ordering::Relaxed) as usize
    }

    /// The bytes of a storage on the host.
    pub fn bytes(&self) -> &[u8] {
        if self.block.bytes() == 0 {
            return &[];
        }
        assert!(!self.ptr().is_null(), "a ghost has no values; callers refuse it first");
        // SAFETY: The block is that long, and it is not written while it is shared.
        unsafe { std::slice::from_raw_parts(self.ptr(), self.block.bytes()) }
    }

    /// The bytes of a storage on the host that nobody else has seen yet; empty on a ghost.
    pub fn bytes_mut(self: &mut Arc<Storage>) -> &mut [u8] {
        assert!(Arc::get_mut(self).is_some(), "a shared storage is never written");
        if self.ptr().is_null() || self.block.bytes() == 0 {
            return &mut [];
        }
        // SAFETY: The block is that long and belongs to this storage alone (checked above); pages come zeroed from the
        // source, so every byte has a value.
        unsafe { std::slice::from_raw_parts_mut(self.ptr(), self.block.bytes()) }
    }

    /// Copies `values` to the beginning of a storage that nobody else has seen yet.
    pub fn fill_from<T: Element>(self: &mut Arc<Storage>, values: &[T]) {
        assert!(Arc::get_mut(self).is_some(), "a shared storage is never written");
        assert!(size_of_val(values) <= self.block.bytes(), "the values fit the block");
        if self.ptr().is_null() {
            return;
        }
        // SAFETY: The block is at least as long as the values (checked above), belongs to this storage alone
        // (checked above), and `T` has no padding.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr().cast(), self.ptr(), size_of_val(values)) };
    }

    /// `n` elements from element `first` on, copied out of a storage on the host.
    pub fn copy_out<T: Element>(&self, first: usize, n: usize) -> Vec<T> {
        assert!((first + n) * size_of::<T>() <= self.block.bytes(), "the values lie inside the block");
        assert!(!self.ptr().is_null(), "a ghost has no values; callers refuse it first");
        let mut values = Vec::with_capacity(n);
        // SAFETY: The block holds these elements (checked above), which were written when the storage was made, and
        // it is not written while it is shared; the vector has room for them.
        unsafe {
            std::ptr::copy_nonoverlapping(self.ptr().cast::<T>().add(first), values.as_mut_ptr(), n);
            values.set_len(n);
        }
        values
    }
}
