//! Storage: memory of the device's pool that tensors, variables and tape slots share.
//!
//! Beside `piece.rs` it is the only file of this crate outside `ops` that touches raw memory. A storage is written
//! while it is made, and after that only where it is held once (see `Tensor::into_unshared` and `Variable`), so shared
//! storage is never seen to change. Memory that somebody lends to a tensor goes back to the lender when the last
//! holder goes; it is never overwritten and never changes its owner, because it is not the holder's to keep.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use plimsoll_cuda::{Copied, PinnedBlock, Posted};
use plimsoll_memory::{Block, Owner, Site};

use crate::base::dtype::{DType, Element};
use crate::base::error::{Error, Result};
use crate::base::labels;
use crate::base::shape::Shape;
use crate::device::Device;
use crate::device::fault;
use crate::device::foreign::Foreign;
use crate::device::holders::Holder;
use crate::device::piece::Lent;
use crate::device::survey::BlockKey;

/// Bytes on a device, freed or given back when the last holder goes.
pub(crate) struct Storage {
    memory: Memory,
    device: Device,
    /// How many parts of the framework hold this storage, by kind.
    n_held: [AtomicU32; Holder::COUNT],
    /// How often the bytes were written over since they were first there.
    n_overwrites: AtomicU32,
    /// By what a step's log knows the value in it; zero if none does.
    tag: AtomicU64,
    /// The type of the elements that the bytes were made for.
    dtype: DType,
}

/// Where the bytes lie.
enum Memory {
    /// In a block of its own.
    Own(Block),
    /// In a part of a block that its lender wants back.
    Lent(Lent),
    /// In memory that somebody else has.
    Foreign(Foreign),
    /// Nowhere: on a ghost, in place of bytes that its pool counts already.
    Shadow { n_bytes: usize, owner: Owner },
}

impl Storage {
    /// Room for `shape` elements of `dtype` on `device`, labelled with the present op and line.
    pub fn new(device: &Device, shape: &Shape, dtype: DType, op: &'static str) -> Result<Arc<Storage>> {
        // A shape has at most 2^48 elements, so that its bytes can be counted.
        Storage::with_bytes(device, shape.n_elems() * dtype.size(), dtype, op)
    }

    /// Room for `n_bytes` of `dtype` on `device`, labelled with the present op and line.
    pub fn with_bytes(
        device: &Device,
        n_bytes: usize,
        dtype: DType,
        op: &'static str,
    ) -> Result<Arc<Storage>> {
        let label = labels::label(labels::output_owner(), op);
        let block = device.acquire(n_bytes, label)?;
        Ok(Storage::over(Memory::Own(block), dtype, device))
    }

    /// A block of `device` that is filled already.
    pub fn own(block: Block, dtype: DType, device: &Device) -> Arc<Storage> {
        Storage::over(Memory::Own(block), dtype, device)
    }

    /// The block of a storage that nobody else holds.
    pub fn into_block(storage: Arc<Storage>) -> Option<Block> {
        match Arc::into_inner(storage)?.memory {
            Memory::Own(block) => Some(block),
            Memory::Lent(_) | Memory::Foreign(_) | Memory::Shadow { .. } => None,
        }
    }

    /// Bytes that somebody lends until the storage is dropped.
    pub fn lent(lent: Lent, dtype: DType) -> Arc<Storage> {
        let device = lent.device().clone();
        Storage::over(Memory::Lent(lent), dtype, &device)
    }

    /// Bytes that somebody else has.
    pub fn foreign(foreign: Foreign, dtype: DType) -> Arc<Storage> {
        let device = foreign.device().clone();
        Storage::over(Memory::Foreign(foreign), dtype, &device)
    }

    /// On the ghost of a device, what stands for a storage that was there when the ghost was made: the ghost's pool counts
    /// its bytes already.
    ///
    /// # Errors
    /// A device that is no ghost: it would look for values where there are none.
    pub fn shadow(&self, ghost: &Device) -> Result<Arc<Storage>> {
        if !ghost.is_ghost() {
            let detail = format!("{ghost} is no ghost; make one with `Device::ghost`");
            return Err(Error::device("shadow", detail));
        }
        let memory = Memory::Shadow { n_bytes: self.n_bytes(), owner: self.owner() };
        Ok(Storage::over(memory, self.dtype, ghost))
    }

    /// What describes bytes that a device would hold: no memory, on the ghost for such descriptions.
    pub fn spec(device: &Device, n_bytes: usize, dtype: DType) -> Arc<Storage> {
        Storage::over(Memory::Shadow { n_bytes, owner: Owner::Temporary }, dtype, &device.specs())
    }

    fn over(memory: Memory, dtype: DType, device: &Device) -> Arc<Storage> {
        Arc::new(Storage {
            memory,
            device: device.clone(),
            n_held: Default::default(),
            n_overwrites: AtomicU32::new(0),
            tag: AtomicU64::new(0),
            dtype,
        })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The type of the elements that the bytes were made for.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The bytes asked for.
    pub fn n_bytes(&self) -> usize {
        match &self.memory {
            Memory::Own(block) => block.bytes(),
            Memory::Lent(lent) => lent.n_bytes(),
            Memory::Foreign(foreign) => foreign.n_bytes(),
            Memory::Shadow { n_bytes, .. } => *n_bytes,
        }
    }

    /// The block that it has to itself; none for memory that is lent.
    pub fn block(&self) -> Option<&Block> {
        match &self.memory {
            Memory::Own(block) => Some(block),
            Memory::Lent(_) | Memory::Foreign(_) | Memory::Shadow { .. } => None,
        }
    }

    /// The block that its bytes lie in, its own or one that is lent in pieces; none for memory that is in no pool.
    #[inline]
    pub fn key(&self) -> Option<BlockKey> {
        match &self.memory {
            Memory::Own(block) => Some(BlockKey::new(&self.device, block.serial())),
            Memory::Lent(lent) => Some(lent.key()),
            Memory::Foreign(_) | Memory::Shadow { .. } => None,
        }
    }

    /// The address of the first byte; null on a ghost.
    pub fn ptr(&self) -> *mut u8 {
        match &self.memory {
            Memory::Own(block) => block.as_ptr(),
            Memory::Lent(lent) => lent.ptr(),
            Memory::Foreign(foreign) => foreign.ptr(),
            Memory::Shadow { .. } => std::ptr::null_mut(),
        }
    }

    /// Whose bytes these are; what the input pipeline lends is data, whoever holds it.
    pub fn owner(&self) -> Owner {
        match &self.memory {
            Memory::Own(block) => block.label().owner,
            Memory::Lent(_) | Memory::Foreign(_) => Owner::Data,
            Memory::Shadow { owner, .. } => *owner,
        }
    }

    /// Counts the bytes as `owner`'s from here on, unless they are lent.
    pub fn relabel(&self, owner: Owner) {
        if let Memory::Own(block) = &self.memory {
            block.relabel(owner);
        }
    }

    /// Says that another line is to be named as the maker of the bytes, unless they are lent.
    pub fn set_site(&self, site: Site) {
        if let Memory::Own(block) = &self.memory {
            block.set_site(site);
        }
    }

    /// Whether the bytes must go back to a lender as they are.
    pub fn is_lent(&self) -> bool {
        matches!(self.memory, Memory::Lent(_) | Memory::Foreign(_) | Memory::Shadow { .. })
    }

    /// A tape slot takes hold. What was temporary until now is saved for backward from here on.
    pub fn add_slot(&self) {
        if self.hold(Holder::Slot) == 0 && self.owner() == Owner::Temporary {
            self.relabel(Owner::Saved);
        }
    }

    /// A tape slot is emptied. What somebody else still holds is temporary again.
    pub fn remove_slot(self: &Arc<Storage>) {
        let was_last = self.release(Holder::Slot) == 1;
        if was_last && Arc::strong_count(self) > 1 && self.owner() == Owner::Saved {
            self.relabel(Owner::Temporary);
        }
    }

    /// A part of the framework takes hold; returns how many of its kind did so before.
    pub fn hold(&self, by: Holder) -> u32 {
        self.n_held[by as usize].fetch_add(1, Ordering::Relaxed)
    }

    /// A part of the framework lets go; returns how many of its kind held it before.
    pub fn release(&self, by: Holder) -> u32 {
        self.n_held[by as usize].fetch_sub(1, Ordering::Relaxed)
    }

    /// How many parts of the framework hold this storage, by kind.
    pub fn n_held(&self) -> [usize; Holder::COUNT] {
        std::array::from_fn(|by| self.n_held[by].load(Ordering::Relaxed) as usize)
    }

    /// By what a step's log knows the value in this storage.
    pub fn tag(&self) -> u64 {
        self.tag.load(Ordering::Relaxed)
    }

    /// A step's log has recorded how the value in this storage was computed.
    pub fn set_tag(&self, tag: u64) {
        self.tag.store(tag, Ordering::Relaxed);
    }

    /// Makes a storage that is held once one that nobody remembers: whoever knows it without holding it, such as a tape's
    /// rebuild chain or the record of a log, no longer finds it, also if they look at this moment on another thread. Whether
    /// that is so now; else somebody holds it.
    pub fn renew(self: &mut Arc<Storage>) -> bool {
        // Nobody remembers it: only this handle leads to it, so that nobody can begin to.
        if Arc::get_mut(self).is_none() {
            let memory = Memory::Shadow { n_bytes: 0, owner: Owner::Temporary };
            let place = Storage::over(memory, self.dtype, &self.device);
            match Arc::try_unwrap(std::mem::replace(self, place)) {
                Ok(storage) => match Arc::get_mut(self) {
                    Some(place) => *place = storage,
                    None => unreachable!("a storage that was just made is held once"),
                },
                Err(shared) => {
                    *self = shared;
                    return false;
                }
            }
        }
        self.set_tag(0);
        true
    }

    /// A variable has written a new value over the old one.
    pub fn overwritten(&self) {
        self.n_overwrites.fetch_add(1, Ordering::Relaxed);
    }

    /// How often a new value was written over an old one: what tells one who remembers the storage without holding it
    /// whether the value is still the same.
    pub fn n_overwrites(&self) -> u32 {
        self.n_overwrites.load(Ordering::Relaxed)
    }

    /// Whether a tape slot holds this storage.
    pub fn is_saved(&self) -> bool {
        self.n_slots() > 0
    }

    /// Whether the bytes belong to the model rather than to a step.
    pub fn is_persistent(&self) -> bool {
        matches!(self.owner(), Owner::Parameters | Owner::Optimizer)
    }

    /// The number of tape slots that hold this storage.
    pub fn n_slots(&self) -> usize {
        self.n_held[Holder::Slot as usize].load(Ordering::Relaxed) as usize
    }

    /// Starts a copy to pinned memory beside the work of a GPU; nothing elsewhere. Whoever writes to the storage calls
    /// `overwrite` first.
    pub fn download_to(&self, pinned: &PinnedBlock) -> Result<Option<Copied>> {
        let (Memory::Own(block), Some(gpu)) = (&self.memory, self.device.gpu()) else { return Ok(None) };
        // SAFETY: the block is of this GPU's pool. The host never touches what is pinned for values, and writers wait:
        // see `overwrite`, and the end of `Offloaded`.
        Ok(Some(unsafe { gpu.download_async(block, pinned) }?))
    }

    /// Starts a copy from pinned memory beside the work of a GPU, to a storage that nobody else has seen yet; nothing
    /// elsewhere. Whoever shows it to others waits for the copy first.
    pub fn upload_from(self: &mut Arc<Storage>, pinned: &PinnedBlock) -> Result<Option<Copied>> {
        assert!(Arc::get_mut(self).is_some(), "a shared storage is never written");
        let (Memory::Own(block), Some(gpu)) = (&self.memory, self.device.gpu()) else { return Ok(None) };
        // SAFETY: the block is of this GPU's pool, and nobody uses it before the copy has been waited for; the host never
        // touches what is pinned for values.
        Ok(Some(unsafe { gpu.upload_async(pinned, block) }?))
    }

    /// Says that the storage is about to be written over: what still copies it is waited for on the device.
    pub fn overwrite(&self) -> Result<()> {
        if let (Memory::Own(block), Some(gpu)) = (&self.memory, self.device.gpu()) {
            gpu.reuse(block)?;
        }
        Ok(())
    }

    /// The bytes of a storage on the host.
    pub fn bytes(&self) -> &[u8] {
        if self.n_bytes() == 0 {
            return &[];
        }
        assert!(!self.ptr().is_null(), "a ghost has no values; callers refuse it first");
        assert!(self.device.is_host(), "the host cannot read a GPU's memory; callers copy it first");
        // SAFETY: The block is that long, and it is not written while it is shared.
        unsafe { std::slice::from_raw_parts(self.ptr(), self.n_bytes()) }
    }

    /// The bytes of a storage on the host that nobody else has seen yet; empty on a ghost.
    pub fn bytes_mut(self: &mut Arc<Storage>) -> &mut [u8] {
        assert!(Arc::get_mut(self).is_some(), "a shared storage is never written");
        if self.ptr().is_null() || self.n_bytes() == 0 {
            return &mut [];
        }
        assert!(self.device.is_host(), "the host cannot write a GPU's memory; callers copy to it");
        // SAFETY: The block is that long and belongs to this storage alone (checked above); pages come zeroed from the
        // source, so every byte has a value.
        unsafe { std::slice::from_raw_parts_mut(self.ptr(), self.n_bytes()) }
    }

    /// Clears a block that nobody has seen.
    pub fn clear_block(block: &Block, device: &Device) -> Result<()> {
        Storage::fill_block(block, device, 0)
    }

    /// Sets all bytes of a block that nobody reads.
    pub fn fill_block(block: &Block, device: &Device, byte: u8) -> Result<()> {
        if block.as_ptr().is_null() || block.bytes() == 0 {
            return Ok(());
        }
        match device.gpu() {
            // SAFETY: the block is that long, and whoever holds it lets nobody read it.
            Some(gpu) => Ok(unsafe { gpu.fill("clear", block.as_ptr(), byte, block.bytes()) }?),
            None => {
                // SAFETY: as above.
                unsafe { block.as_ptr().write_bytes(byte, block.bytes()) };
                Ok(())
            }
        }
    }

    /// Sets all bytes of a storage that nobody else has seen yet to zero.
    pub fn clear(self: &mut Arc<Storage>) -> Result<()> {
        assert!(Arc::get_mut(self).is_some(), "a shared storage is never written");
        if self.ptr().is_null() || self.n_bytes() == 0 {
            return Ok(());
        }
        match self.device.gpu() {
            // SAFETY: the block is that long and belongs to this storage alone (checked above).
            Some(gpu) => Ok(unsafe { gpu.fill("clear", self.ptr(), 0, self.n_bytes()) }?),
            None => {
                self.bytes_mut().fill(0);
                Ok(())
            }
        }
    }

    /// Copies `values` to the beginning of a storage that nobody else has seen yet.
    pub fn fill_from<T: Element>(self: &mut Arc<Storage>, values: &[T]) -> Result<()> {
        assert!(Arc::get_mut(self).is_some(), "a shared storage is never written");
        assert!(size_of_val(values) <= self.n_bytes(), "the values fit the block");
        if self.ptr().is_null() {
            return Ok(());
        }
        if let Some(gpu) = self.device.gpu() {
            // SAFETY: `T` has no padding, so its values are bytes.
            let bytes =
                unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
            // SAFETY: The block is at least as long as the values (checked above) and nobody else's.
            unsafe { gpu.upload(bytes, self.ptr()) }?;
            return Ok(());
        }
        // SAFETY: The block is at least as long as the values (checked above), belongs to this storage alone
        // (checked above), and `T` has no padding.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr().cast(), self.ptr(), size_of_val(values)) };
        Ok(())
    }

    /// Starts a copy of bytes of a storage on a GPU to the host; nothing for one on the host.
    pub fn post(&self, start: usize, n_bytes: usize) -> Result<Option<Posted>> {
        assert!(start + n_bytes <= self.n_bytes(), "the bytes lie inside the block");
        let Some(gpu) = self.device.gpu() else { return Ok(None) };
        // SAFETY: the block holds these bytes (checked above); whoever gets it next writes in the order of the GPU's work.
        Ok(Some(unsafe { gpu.post(self.ptr().wrapping_add(start), n_bytes) }?))
    }

    /// `n` elements from element `first` on, copied out; a GPU is waited for.
    pub fn copy_out<T: Element>(&self, first: usize, n: usize) -> Result<Vec<T>> {
        assert!((first + n) * size_of::<T>() <= self.n_bytes(), "the values lie inside the block");
        assert!(!self.ptr().is_null(), "a ghost has no values; callers refuse it first");
        let mut values = Vec::<T>::with_capacity(n);
        if let Some(gpu) = self.device.gpu() {
            let from = self.ptr().cast::<T>().wrapping_add(first).cast::<u8>();
            // SAFETY: The block holds these elements (checked above); the vector has room for them, and they are there
            // when the call returns.
            unsafe {
                gpu.download(from, values.as_mut_ptr().cast(), n * size_of::<T>())?;
                values.set_len(n);
            }
            fault::look(&self.device)?;
            return Ok(values);
        }
        // SAFETY: The block holds these elements (checked above), which were written when the storage was made, and
        // it is not written while it is shared; the vector has room for them.
        unsafe {
            std::ptr::copy_nonoverlapping(self.ptr().cast::<T>().add(first), values.as_mut_ptr(), n);
            values.set_len(n);
        }
        Ok(values)
    }
}

/// Copies bytes from the memory of one device to that of another; from GPU to GPU through the host.
///
/// # Errors
/// What the driver says; a value that a kernel of the GPU that is read from has refused.
///
/// # Safety
/// Both addresses are of their devices and valid for so many bytes, which do not overlap; nobody else uses the target's.
pub(crate) unsafe fn copy_between(
    (from, source): (&Device, *mut u8),
    (to, target): (&Device, *mut u8),
    n_bytes: usize,
) -> Result<()> {
    if n_bytes == 0 {
        return Ok(());
    }
    // SAFETY: asked of the caller.
    let host_bytes = |ptr: *mut u8| unsafe { std::slice::from_raw_parts(ptr, n_bytes) };
    match (from.gpu(), to.gpu()) {
        // SAFETY: asked of the caller.
        (None, None) => unsafe { target.copy_from_nonoverlapping(source, n_bytes) },
        // SAFETY: asked of the caller.
        (None, Some(gpu)) => unsafe { gpu.upload(host_bytes(source), target) }?,
        (Some(gpu), None) => {
            // SAFETY: asked of the caller.
            unsafe { gpu.download(source, target, n_bytes) }?;
            fault::look(from)?;
        }
        (Some(gpu), Some(other)) if Arc::ptr_eq(gpu, other) => {
            // SAFETY: asked of the caller.
            unsafe { gpu.copy("to_device", source, target, n_bytes) }?;
        }
        (Some(gpu), Some(other)) => {
            let label = labels::label(Owner::Temporary, "to_device");
            let between = Device::cpu().pool().acquire(n_bytes, label)?;
            // SAFETY: the block between is that long, and the rest is asked of the caller; the download has ended when it
            // returns.
            unsafe {
                gpu.download(source, between.as_ptr(), n_bytes)?;
                other.upload(host_bytes(between.as_ptr()), target)?;
            }
            fault::look(from)?;
        }
    }
    Ok(())
}
