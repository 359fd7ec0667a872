//! Communicators of GPUs: NCCL, found at run time.
//!
//! What NCCL takes of a GPU lies outside the pool. It is asked for all that it will need when a communicator is made, the driver's
//! count is read before and after, and what it has taken since is a row of its own ([`Gpu::communicator_bytes`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_memory::{Region, Source};

use crate::backend::Collectives;
use crate::driver;
use crate::error::{Error, Result};
use crate::gpu::Gpu;

/// What the ranks of a new communicator find each other by.
pub type NcclId = [u8; 128];

/// An id for a new communicator; one rank makes it for all.
///
/// # Errors
/// No NCCL; what it says.
pub fn nccl_id() -> Result<NcclId> {
    driver::nccl_id()
}

/// A rank on a GPU among others on theirs. What it is asked to do is done in the order of the GPU's work, and is not waited for.
///
/// The unsafe functions take addresses of the GPU's memory; they must be valid until the work is done.
pub struct NcclCommunicator {
    gpu: Arc<Gpu>,
    collectives: Option<Box<dyn Collectives>>,
    rank: usize,
    size: usize,
    n_bytes: u64,
}

impl std::fmt::Debug for NcclCommunicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NcclCommunicator(rank {} of {}, {} bytes)", self.rank, self.size, self.n_bytes)
    }
}

impl NcclCommunicator {
    /// Joins the ranks that have the same id, of which there is one on each GPU; waits for all of them.
    ///
    /// # Errors
    /// No NCCL; what it says, for example of two ranks on one GPU.
    pub fn join(gpu: &Arc<Gpu>, id: &NcclId, rank: usize, size: usize) -> Result<NcclCommunicator> {
        if rank >= size {
            return Err(Error::new(format!("there is no rank {rank} of {size}")));
        }
        gpu.synchronize()?;
        let before = gpu.memory()?.free;
        let collectives = gpu.backend.collectives(id, rank, size)?;
        let gpu = gpu.clone();
        let mut joined = NcclCommunicator { gpu, collectives: Some(collectives), rank, size, n_bytes: 0 };
        joined.connect()?;
        // Other pools may have given something back meanwhile.
        joined.n_bytes = before.saturating_sub(joined.gpu.memory()?.free);
        joined.gpu.communicator_bytes.fetch_add(joined.n_bytes, Ordering::Relaxed);
        Ok(joined)
    }

    /// Makes each kind of transfer once, by which it takes all that it will ever need, on memory that goes at once.
    fn connect(&self) -> Result<()> {
        const N_BYTES: usize = 512;
        let pages = self.gpu.pages()?;
        let n_bytes = (self.size + 1) * N_BYTES;
        let (region, range) = (Region::Step, 0..(n_bytes as u64).next_multiple_of(pages.granule()));
        pages.commit(region, range.clone()).map_err(|error| Error::new(error.to_string()))?;
        let own = pages.base(region);
        let (next, before) = ((self.rank + 1) % self.size, (self.rank + self.size - 1) % self.size);
        let gathered = own.wrapping_add(N_BYTES);
        let transfer = || {
            // SAFETY: there are as many bytes, from `own` on for one rank and then for all of them, until all is done.
            unsafe {
                self.gpu.fill("nccl", own, 0, n_bytes)?;
                for root in 0..self.size {
                    self.broadcast(own, own, N_BYTES, root)?;
                }
                self.all_gather(own, gathered, N_BYTES)?;
                self.exchange((own, next), (gathered, before), N_BYTES)?;
            }
            self.gpu.synchronize()
        };
        let transferred = transfer();
        let given_back = pages.decommit(region, range).map_err(|error| Error::new(error.to_string()));
        transferred.and(given_back)
    }

    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// What the driver counted more after this rank had joined than before.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    fn call(&self, op: &'static str, call: impl FnOnce(&dyn Collectives) -> Result<()>) -> Result<()> {
        let Some(collectives) = &self.collectives else { unreachable!("it goes when this is dropped") };
        self.gpu.ordered(op, || call(&**collectives))
    }

    /// Gives all ranks the bytes that the rank `root` has at `from`.
    ///
    /// # Errors
    /// What the library says.
    ///
    /// # Safety
    /// Both addresses must be valid for as many bytes; they are the same, or do not overlap.
    pub unsafe fn broadcast(&self, from: *const u8, to: *mut u8, n_bytes: usize, root: usize) -> Result<()> {
        // SAFETY: the caller promises it.
        self.call("broadcast", |collectives| unsafe { collectives.broadcast(from, to, n_bytes, root) })
    }

    /// Gives all ranks the bytes of all, in their order: `n_bytes` of each.
    ///
    /// # Errors
    /// What the library says.
    ///
    /// # Safety
    /// The addresses must be valid for as many bytes, `to` for those of all ranks.
    pub unsafe fn all_gather(&self, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()> {
        // SAFETY: the caller promises it.
        self.call("all_gather", |collectives| unsafe { collectives.all_gather(from, to, n_bytes) })
    }

    /// Sends bytes to another rank, which must receive them.
    ///
    /// # Errors
    /// What the library says.
    ///
    /// # Safety
    /// The address must be valid for as many bytes.
    pub unsafe fn send(&self, from: *const u8, n_bytes: usize, to: usize) -> Result<()> {
        // SAFETY: the caller promises it.
        self.call("send", |collectives| unsafe { collectives.send(from, n_bytes, to) })
    }

    /// Receives bytes that another rank sends.
    ///
    /// # Errors
    /// What the library says.
    ///
    /// # Safety
    /// The address must be valid for as many bytes.
    pub unsafe fn recv(&self, to: *mut u8, n_bytes: usize, from: usize) -> Result<()> {
        // SAFETY: the caller promises it.
        self.call("recv", |collectives| unsafe { collectives.recv(to, n_bytes, from) })
    }

    /// Sends bytes to one rank and receives as many of another one at the same time; either may be this one.
    ///
    /// # Errors
    /// What the library says.
    ///
    /// # Safety
    /// Both addresses must be valid for as many bytes, which do not overlap.
    pub unsafe fn exchange(
        &self,
        (from, to_rank): (*const u8, usize),
        (to, from_rank): (*mut u8, usize),
        n_bytes: usize,
    ) -> Result<()> {
        self.call("exchange", |collectives| {
            collectives.begin_group()?;
            // SAFETY: the caller promises it.
            let (sent, received) = unsafe {
                (collectives.send(from, n_bytes, to_rank), collectives.recv(to, n_bytes, from_rank))
            };
            collectives.end_group()?;
            sent.and(received)
        })
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        drop(self.collectives.take());
        self.gpu.communicator_bytes.fetch_sub(self.n_bytes, Ordering::Relaxed);
    }
}

impl Gpu {
    /// What communicators have taken of this GPU's memory, outside all pools.
    pub fn communicator_bytes(&self) -> u64 {
        self.communicator_bytes.load(Ordering::Relaxed)
    }
}
