//! A GPU that the host plays, so that every kernel is tested on machines without one.
//!
//! A kernel is compiled by the system's C++ compiler (`module`), after a prelude that gives CUDA's words a meaning
//! (`prelude.hpp`). Blocks run one after the other; the threads of a block are fibers (`fiber`) that a machine lets run in
//! turn (`machine`), so that barriers and operations of warps do what they do on a GPU. What a GPU leaves undefined is
//! made visible: a barrier or a shuffle at which not all threads meet, an index beyond a declared array and an address
//! that is not aligned are errors that say which thread and which line; memory that nobody has written, shared or fresh
//! from the device, is all ones, which as floats is not a number.
//!
//! It is not fast and does not try to be; a launch is done when it returns, and a copy on a stream of its own not before
//! somebody waits for it (`streams`). A kernel that goes
//! beyond the memory that a parameter points to is not noticed: that is for the tools of a real GPU.

mod convolution;
mod failures;
mod fiber;
mod graph;
mod machine;
mod matmul;
mod module;
mod number;
mod pages;
mod status;
mod streams;

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_memory::Source;

use crate::backend::{Backend, Collectives, Executable, Function, Grid, Launches, MemoryInfo};
use crate::convolution::{Convolution, ConvolutionOperands};
use crate::driver::{Cache, compiles};
use crate::error::{Error, Result};
use crate::matmul::{Matmul, MatmulOperands};
use crate::profile::Profile;

pub use failures::{Failure, fail_at};
use module::{Compiler, Module};
pub use pages::EmulatedPages;
use streams::Queues;
pub use streams::{WaitsFor, take_waits};

/// The handle of the compute stream.
const COMPUTE_STREAM: usize = 0x1000;

/// The memory of the device.
const MEMORY_BYTES: u64 = 8 << 30;

/// An emulated GPU.
pub(crate) fn open() -> Result<(Box<dyn Backend>, Profile)> {
    let profile = Profile {
        name: "emulated".to_owned(),
        architecture: 90,
        n_multiprocessors: 4,
        memory_bytes: MEMORY_BYTES,
        granule: 2 << 20,
        shared_bytes_per_block: machine::SHARED_BYTES as u32,
        matmul_workspace: 1 << 20,
        convolution_workspace: 1 << 20,
        graph_granule: 4096,
        graph_bytes: 1 << 20,
        ..Profile::h200()
    };
    let backend = Emulated {
        compiler: Compiler::find()?,
        committed: Arc::default(),
        queues: Arc::default(),
        architectures: architectures()?,
        cache: Cache::of_user(),
    };
    Ok((Box::new(backend), profile))
}

/// The variable that names architectures, such as `80,90`, for which NVRTC compiles every kernel that is built here, too:
/// what runs on the host need not be CUDA C.
const COMPILE_FOR: &str = "PLIMSOLL_COMPILE_FOR";

fn architectures() -> Result<Vec<u32>> {
    let named = std::env::var(COMPILE_FOR).unwrap_or_default();
    let parse = |number: &str| number.trim().parse::<u32>();
    let numbers = named.split(',').filter(|number| !number.trim().is_empty()).map(parse);
    numbers
        .collect::<std::result::Result<Vec<u32>, _>>()
        .map_err(|_| Error::new(format!("{COMPILE_FOR} is {named:?}; it is a list of numbers such as 80,90")))
}

/// The host as a GPU.
struct Emulated {
    compiler: &'static Compiler,
    /// Bytes that all sources of pages of this device hold.
    committed: Arc<AtomicU64>,
    /// Copies beside the work.
    queues: Arc<Queues>,
    /// The architectures for which every kernel must compile.
    architectures: Vec<u32>,
    cache: Cache,
}

impl Backend for Emulated {
    fn build(&self, entry: &str, source: &str) -> Result<Function> {
        failures::check(Failure::Build)?;
        for &architecture in &self.architectures {
            compiles(&self.cache, source, entry, architecture)?;
        }
        let module: &'static Module = self.compiler.build(entry, source)?;
        Ok(Function(std::ptr::from_ref(module) as usize))
    }

    fn compiles_ahead(&self) -> bool {
        true
    }

    fn compile_ahead(&self, entry: &str, source: &str) -> Result<()> {
        for &architecture in &self.architectures {
            compiles(&self.cache, source, entry, architecture)?;
        }
        self.compiler.build(entry, source).map(drop)
    }

    fn unload(&self, _function: Function) {
        // Modules of the host are the process's: another GPU may run the same.
    }

    unsafe fn launch(&self, function: Function, grid: Grid, params: &mut [*mut c_void]) -> Result<()> {
        // SAFETY: `build` made the number from a module that lives as long as the process.
        let module = unsafe { &*std::ptr::with_exposed_provenance::<Module>(function.0) };
        // SAFETY: the caller promises that the parameters are those of the kernel.
        unsafe { machine::launch(module, grid, params) }
    }

    unsafe fn upload(&self, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()> {
        // SAFETY: the caller promises valid addresses; host and device memory do not overlap.
        unsafe { to.copy_from_nonoverlapping(from, n_bytes) };
        Ok(())
    }

    unsafe fn download(&self, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()> {
        // SAFETY: as for `upload`.
        unsafe { to.copy_from_nonoverlapping(from, n_bytes) };
        Ok(())
    }

    unsafe fn copy(&self, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()> {
        // SAFETY: the caller promises valid addresses that do not overlap.
        unsafe { to.copy_from_nonoverlapping(from, n_bytes) };
        Ok(())
    }

    unsafe fn fill(&self, to: *mut u8, byte: u8, n_bytes: usize) -> Result<()> {
        // SAFETY: the caller promises a valid address.
        unsafe { to.write_bytes(byte, n_bytes) };
        Ok(())
    }

    unsafe fn matmul(&self, matmul: &Matmul, operands: &MatmulOperands) -> Result<bool> {
        // SAFETY: the caller promises it.
        unsafe { matmul::run(matmul, operands) };
        Ok(true)
    }

    unsafe fn convolve(&self, convolution: &Convolution, operands: &ConvolutionOperands) -> Result<bool> {
        // SAFETY: the caller promises it.
        unsafe { convolution::run(convolution, operands) };
        Ok(true)
    }

    fn knows_matmul(&self, _matmul: &Matmul, _operands: &MatmulOperands) -> Option<bool> {
        Some(true)
    }

    fn knows_convolution(&self, _convolution: &Convolution, _operands: &ConvolutionOperands) -> Option<bool> {
        Some(true)
    }

    fn capture(&self, launches: &mut Launches) -> Result<Box<dyn Executable>> {
        graph::capture(launches)
    }

    fn synchronize(&self) -> Result<()> {
        self.queues.finish();
        Ok(())
    }

    fn synchronize_all(&self) -> Result<()> {
        streams::note_wait(WaitsFor::Everybody);
        self.synchronize()
    }

    fn compute_stream(&self) -> usize {
        COMPUTE_STREAM
    }

    unsafe fn order(&self, first: usize, then: usize) -> Result<()> {
        // Kernels are done when they are launched, and there is no other library: that somebody asked is all there is to see.
        streams::note_wait(WaitsFor::Stream { first, then });
        Ok(())
    }

    fn memory(&self) -> Result<MemoryInfo> {
        let committed = self.committed.load(Ordering::Relaxed);
        Ok(MemoryInfo { free: MEMORY_BYTES - committed, total: MEMORY_BYTES })
    }

    fn pages(&self) -> Result<Box<dyn Source>> {
        let pages = EmulatedPages::new(self.committed.clone(), self.queues.clone(), MEMORY_BYTES);
        Ok(Box::new(pages.map_err(|error| Error::new(error.to_string()))?))
    }

    unsafe fn pin(&self, memory: *mut u8, n_bytes: usize) -> Result<()> {
        self.queues.pin(memory, n_bytes);
        Ok(())
    }

    unsafe fn unpin(&self, memory: *mut u8) -> Result<()> {
        self.queues.unpin(memory)
    }

    fn collectives(&self, _: &[u8; 128], _: usize, _: usize) -> Result<Box<dyn Collectives>> {
        Err(Error::new("the emulated GPU has no NCCL"))
    }

    fn shared_cell(&self, n_bytes: usize) -> Result<(*mut u8, *mut u8)> {
        let words: &'static mut [u64] = vec![0; n_bytes.div_ceil(8)].leak();
        let cell = words.as_mut_ptr().cast();
        Ok((cell, cell))
    }
}
