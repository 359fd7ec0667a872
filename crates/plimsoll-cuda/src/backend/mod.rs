//! What a GPU must be able to do: the driver's and the emulated one's common face.

use std::ffi::c_void;

use crate::convolution::{Convolution, ConvolutionOperands};
use crate::error::Result;
use crate::gpu::MemoryInfo;
use crate::kernel::Grid;
use crate::matmul::{Matmul, MatmulOperands};
use crate::pages::Pages;

/// A loaded kernel, as its back end knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function(pub usize);

/// A queue of work of a GPU; what is in one is done in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Copies to the host that others need not wait for.
    Down,
    /// Copies from the host that others need not wait for.
    Up,
    /// Everything else.
    Compute,
}

/// A mark in a stream that others can wait for, as its back end knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event(pub usize);

/// What orders the work of several streams.
pub(crate) trait Streams: Send + Sync {
    /// A new event, which the back end keeps until it goes.
    fn event(&self) -> Result<Event>;

    /// Puts an event behind the work that a stream has so far, and nowhere else.
    fn record(&self, event: Event, stream: Stream) -> Result<()>;

    /// Makes the later work of a stream wait for an event as it was recorded last. The host does not wait.
    fn wait(&self, stream: Stream, event: Event) -> Result<()>;

    /// The host waits for an event.
    fn wait_on_host(&self, event: Event) -> Result<()>;

    /// Starts a copy between pinned memory of the host and the device.
    ///
    /// # Safety
    /// The addresses must be valid for as many bytes until the copy is done, the host's inside one piece that is pinned.
    unsafe fn copy_on(&self, stream: Stream, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()>;
}

/// The operations of a GPU. Everything but `download` and `synchronize` may return before the work is done. Whatever does not
/// name a stream is work of the compute stream.
///
/// # Safety
/// The pointers that the unsafe functions are given must be valid on the device for what they are used for until the work
/// is done; host memory only until the function returns.
pub(crate) trait Backend: Streams {
    /// Compiles a source with the one entry of that name, and loads it. The source is complete, the prelude included.
    fn build(&self, entry: &str, source: &str) -> Result<Function>;

    /// Starts a kernel; `params` point to the values of its parameters.
    ///
    /// # Safety
    /// As the trait says; the parameters must be those of the kernel.
    unsafe fn launch(&self, function: Function, grid: Grid, params: &mut [*mut c_void]) -> Result<()>;

    /// Copies from the host; the host's bytes may change as soon as it returns.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn upload(&self, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()>;

    /// Copies to the host, after all work before; the bytes are there when it returns.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn download(&self, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()>;

    /// Starts a copy of a few bytes to the host, at most [`POST_BYTES`](crate::gpu::POST_BYTES), and returns the slot
    /// where they will be; nothing if there is none, and the bytes have to be waited for with `download`.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn post(&self, _from: *const u8, _n_bytes: usize) -> Result<Option<u32>> {
        Ok(None)
    }

    /// Waits until the bytes of a slot are there, and for nothing that was started later; the slot is free then.
    fn fetch(&self, _slot: u32, _to: &mut [u8]) -> Result<()> {
        Ok(())
    }

    /// Copies within the device; the ranges do not overlap.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn copy(&self, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()>;

    /// Sets bytes.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn fill(&self, to: *mut u8, byte: u8, n_bytes: usize) -> Result<()>;

    /// A matrix product; false if there is no way to compute it, and nothing was started.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn matmul(&self, matmul: &Matmul, operands: &MatmulOperands) -> Result<bool>;

    /// A convolution or one of its gradients; false if there is no way to compute it, and nothing was started.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn convolve(&self, convolution: &Convolution, operands: &ConvolutionOperands) -> Result<bool>;

    /// Waits until all work of all streams is done.
    fn synchronize(&self) -> Result<()>;

    /// What the device has and what is free.
    fn memory(&self) -> Result<MemoryInfo>;

    /// A source of pages for a pool.
    fn pages(&self) -> Result<Pages>;

    /// Pins memory of the host, which copies can be about from then on.
    ///
    /// # Safety
    /// The memory must stay as it is until `unpin`.
    unsafe fn pin(&self, memory: *mut u8, n_bytes: usize) -> Result<()>;

    /// Undoes a `pin`.
    ///
    /// # Safety
    /// No copy may be about the memory any more.
    unsafe fn unpin(&self, memory: *mut u8) -> Result<()>;

    /// Memory of the host that kernels can write to and that both see: `n_bytes` zero bytes, for as long as the process
    /// lives. Returns its address on the device and on the host.
    fn shared_cell(&self, n_bytes: usize) -> Result<(*mut u8, *mut u8)>;
}
