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

/// The operations of a GPU. Everything but `download` and `synchronize` may return before the work is done; work is done
/// in the order of the calls.
///
/// # Safety
/// The pointers that the unsafe functions are given must be valid on the device for what they are used for until the work
/// is done; host memory only until the function returns.
pub(crate) trait Backend: Send + Sync {
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

    /// A matrix product.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn matmul(&self, matmul: &Matmul, operands: &MatmulOperands) -> Result<()>;

    /// A convolution or one of its gradients; false if there is no way to compute it, and nothing was started.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn convolve(&self, convolution: &Convolution, operands: &ConvolutionOperands) -> Result<bool>;

    /// Waits until all work is done.
    fn synchronize(&self) -> Result<()>;

    /// What the device has and what is free.
    fn memory(&self) -> Result<MemoryInfo>;

    /// A source of pages for a pool.
    fn pages(&self) -> Result<Pages>;

    /// Memory of the host that kernels can write to and that both see: `n_bytes` zero bytes, for as long as the process
    /// lives. Returns its address on the device and on the host.
    fn shared_cell(&self, n_bytes: usize) -> Result<(*mut u8, *mut u8)>;
}
