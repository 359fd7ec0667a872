//! The driver's GPUs: what the back end's face asks for, by the driver's own functions and NVIDIA's libraries.

mod blaslt;
mod cache;
mod compile;
mod context;
mod copying;
mod dnn;
mod graph;
mod handles;
mod libraries;
mod nccl;
mod pages;
mod plans;
mod posts;
mod readback;
mod staging;

use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUfunction, CUfunction_attribute as Attribute, CUmodule};
use plimsoll_memory::Source;

use self::blaslt::Blas;
pub(crate) use self::cache::Cache;
use self::compile::compile_cached;
#[cfg(feature = "emulated")]
pub(crate) use self::compile::compiles;
use self::context::{Context, check};
use self::copying::Events;
use self::dnn::Dnn;
use self::posts::Posts;
use self::readback::Readback;
use self::staging::Staging;
use crate::backend::{
    Backend, Collectives, Event, Executable, Function, Grid, Launches, MemoryInfo, Streams,
};
use crate::convolution::{Convolution, ConvolutionOperands};
use crate::error::{Error, Result};
use crate::matmul::{Matmul, MatmulOperands};
use crate::profile::Profile;

pub use self::compile::compile;
pub use self::libraries::{LibraryInfo, libraries};
pub(crate) use self::nccl::new_id as nccl_id;
pub use self::pages::DriverPages;

/// The profile of a GPU of this machine, for plans: nothing is opened, and no memory of the GPU is taken.
///
/// # Errors
/// No such GPU, no driver, or one that is too old.
pub fn profile_of(number: usize) -> Result<Profile> {
    Ok(context::find(number)?.1)
}

/// The GPU of that number.
pub(crate) fn open(number: usize) -> Result<(Box<dyn Backend>, Profile)> {
    let (context, profile) = Context::open(number)?;
    let context = Arc::new(context);
    let driver = Driver {
        staging: Mutex::new(None),
        readback: Mutex::new(None),
        events: Events::new(&context),
        handover: Mutex::new(None),
        posts: Mutex::new(None),
        modules: Mutex::new(Vec::new()),
        blas: Mutex::new(None),
        dnn: Mutex::new(None),
        cache: Cache::of_user(),
        profile: profile.clone(),
        context,
    };
    Ok((Box::new(driver), profile))
}

/// A GPU of the driver's. What is not always needed is made when it first is.
struct Driver {
    staging: Mutex<Option<Staging>>,
    readback: Mutex<Option<Readback>>,
    events: Events,
    /// The event by which our streams and those of other libraries wait for each other, recorded anew each time.
    handover: Mutex<Option<Event>>,
    posts: Mutex<Option<Posts>>,
    /// What kernels were loaded in.
    modules: Mutex<Vec<(Function, Module)>>,
    blas: Mutex<Option<Blas>>,
    dnn: Mutex<Option<Dnn>>,
    cache: Cache,
    profile: Profile,
    context: Arc<Context>,
}

/// Calls with the value behind a lock, which is made if it is not there yet.
fn with<T, R>(
    cell: &Mutex<Option<T>>,
    make: impl FnOnce() -> Result<T>,
    call: impl FnOnce(&mut T) -> Result<R>,
) -> Result<R> {
    let mut guard = cell.lock().unwrap_or_else(PoisonError::into_inner);
    let value = match guard.take() {
        Some(value) => value,
        None => make()?,
    };
    call(guard.insert(value))
}

/// An address as the driver's functions take it.
fn address(pointer: *const u8) -> u64 {
    pointer.expose_provenance() as u64
}

impl Backend for Driver {
    fn build(&self, entry: &str, source: &str) -> Result<Function> {
        let code = compile_cached(&self.cache, source, entry, self.profile.architecture)?;
        self.context.enter()?;
        let module = Module::load(&self.context, &code)?;
        let function = module.function(entry, self.profile.shared_bytes_per_block)?;
        self.modules.lock().unwrap_or_else(PoisonError::into_inner).push((function, module));
        Ok(function)
    }

    fn compiles_ahead(&self) -> bool {
        self.cache.is_on_disk()
    }

    fn compile_ahead(&self, entry: &str, source: &str) -> Result<()> {
        compile_cached(&self.cache, source, entry, self.profile.architecture).map(drop)
    }

    fn unload(&self, function: Function) {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        modules.retain(|(other, _)| *other != function);
    }

    unsafe fn launch(&self, function: Function, grid: Grid, params: &mut [*mut c_void]) -> Result<()> {
        self.context.enter()?;
        let (blocks, threads) = (grid.blocks, grid.threads);
        // SAFETY: the function was loaded and lives as long as `self`; the caller vouches for the parameters.
        let status = unsafe {
            sys::cuLaunchKernel(
                ptr::with_exposed_provenance_mut(function.0),
                blocks[0],
                blocks[1],
                blocks[2],
                threads[0],
                threads[1],
                1,
                grid.shared_bytes,
                self.context.target(),
                params.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check(status, "cuLaunchKernel")
    }

    unsafe fn upload(&self, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()> {
        self.context.enter()?;
        let make = || Staging::new(&self.context);
        // SAFETY: the caller vouches for both addresses.
        with(&self.staging, make, |staging| unsafe { staging.upload(from, to, n_bytes) })
    }

    unsafe fn download(&self, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()> {
        self.context.enter()?;
        let make = || Readback::new(&self.context);
        // SAFETY: the caller vouches for both addresses.
        with(&self.readback, make, |readback| unsafe { readback.download(address(from), to, n_bytes) })?;
        self.context.synchronize_compute()
    }

    unsafe fn post(&self, from: *const u8, n_bytes: usize) -> Result<Option<u32>> {
        self.context.enter()?;
        let mut slot = None;
        with(
            &self.posts,
            || Posts::new(&self.context),
            |posts| {
                // SAFETY: the caller vouches for the address.
                slot = unsafe { posts.post(address(from), n_bytes) }?;
                Ok(())
            },
        )?;
        Ok(slot)
    }

    fn fetch(&self, slot: u32, to: &mut [u8]) -> Result<()> {
        self.context.enter()?;
        with(
            &self.posts,
            || Posts::new(&self.context),
            |posts| {
                // SAFETY: the event is alive as long as the slots.
                check(unsafe { sys::cuEventSynchronize(posts.arrival(slot)) }, "cuEventSynchronize")?;
                posts.take(slot, to);
                Ok(())
            },
        )
    }

    unsafe fn copy(&self, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()> {
        if n_bytes == 0 {
            return Ok(());
        }
        self.context.enter()?;
        // SAFETY: the caller vouches for both addresses.
        let status =
            unsafe { sys::cuMemcpyDtoDAsync_v2(address(to), address(from), n_bytes, self.context.target()) };
        check(status, "cuMemcpyDtoDAsync")
    }

    unsafe fn fill(&self, to: *mut u8, byte: u8, n_bytes: usize) -> Result<()> {
        if n_bytes == 0 {
            return Ok(());
        }
        self.context.enter()?;
        // SAFETY: the caller vouches for the address.
        let status = unsafe { sys::cuMemsetD8Async(address(to), byte, n_bytes, self.context.target()) };
        check(status, "cuMemsetD8Async")
    }

    unsafe fn matmul(&self, matmul: &Matmul, operands: &MatmulOperands) -> Result<bool> {
        self.context.enter()?;
        let make = || Blas::new(&self.context);
        // SAFETY: the caller vouches for the addresses.
        with(&self.blas, make, |blas| unsafe { blas.matmul(matmul, operands) })
    }

    unsafe fn convolve(&self, convolution: &Convolution, operands: &ConvolutionOperands) -> Result<bool> {
        self.context.enter()?;
        let make = || Dnn::new(&self.context);
        // SAFETY: the caller vouches for the addresses.
        with(&self.dnn, make, |dnn| unsafe { dnn.convolve(convolution, operands) })
    }

    fn knows_matmul(&self, matmul: &Matmul, operands: &MatmulOperands) -> Option<bool> {
        let blas = self.blas.lock().unwrap_or_else(PoisonError::into_inner);
        blas.as_ref()?.knows(matmul, operands)
    }

    fn knows_convolution(&self, convolution: &Convolution, operands: &ConvolutionOperands) -> Option<bool> {
        let dnn = self.dnn.lock().unwrap_or_else(PoisonError::into_inner);
        dnn.as_ref()?.knows(convolution, operands)
    }

    fn capture(&self, launches: &mut Launches) -> Result<Box<dyn Executable>> {
        let captured = graph::capture(self, &self.context, launches);
        let mut dnn = self.dnn.lock().unwrap_or_else(PoisonError::into_inner);
        let plans = dnn.as_mut().map(Dnn::take_captured).unwrap_or_default();
        Ok(Box::new(captured?.keeping(plans)))
    }

    fn synchronize(&self) -> Result<()> {
        self.context.synchronize()
    }

    fn synchronize_all(&self) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the context is current.
        check(unsafe { sys::cuCtxSynchronize() }, "cuCtxSynchronize")
    }

    fn compute_stream(&self) -> usize {
        self.context.stream.expose_provenance()
    }

    unsafe fn order(&self, first: usize, then: usize) -> Result<()> {
        let order = |event: &mut Event| {
            // SAFETY: the event is ours, and the caller vouches for the streams.
            unsafe { copying::order(&self.context, *event, first, then) }
        };
        with(&self.handover, || self.event(), order)
    }

    fn memory(&self) -> Result<MemoryInfo> {
        self.context.memory()
    }

    fn pages(&self) -> Result<Box<dyn Source>> {
        Ok(Box::new(DriverPages::new(&self.context, self.profile.granule)?))
    }

    unsafe fn pin(&self, memory: *mut u8, n_bytes: usize) -> Result<()> {
        self.context.enter()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE;
        // SAFETY: the caller vouches for the memory.
        check(unsafe { sys::cuMemHostRegister_v2(memory.cast(), n_bytes, flags) }, "cuMemHostRegister")
    }

    unsafe fn unpin(&self, memory: *mut u8) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the caller vouches for the memory, which `pin` was given.
        check(unsafe { sys::cuMemHostUnregister(memory.cast()) }, "cuMemHostUnregister")
    }

    fn collectives(&self, id: &[u8; 128], rank: usize, size: usize) -> Result<Box<dyn Collectives>> {
        Ok(Box::new(nccl::Communicator::join(&self.context, id, (rank, size))?))
    }

    fn shared_cell(&self, n_bytes: usize) -> Result<(*mut u8, *mut u8)> {
        let on_host = self.context.host_memory(n_bytes)?;
        // SAFETY: the memory was just made, with as many bytes.
        unsafe { on_host.write_bytes(0, n_bytes) };
        let mut on_device = 0;
        // SAFETY: the memory is mapped for the device; the call writes one address.
        let status = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut on_device, on_host.cast(), 0) };
        check(status, "cuMemHostGetDevicePointer")?;
        Ok((ptr::with_exposed_provenance_mut(on_device as usize), on_host))
    }
}

/// Loaded machine code.
struct Module {
    context: Arc<Context>,
    module: CUmodule,
}

// SAFETY: a handle of the driver's, which any thread may use.
unsafe impl Send for Module {}

impl Module {
    fn load(context: &Arc<Context>, code: &[u8]) -> Result<Module> {
        let mut module = ptr::null_mut();
        // SAFETY: the code is a whole cubin, whose header says how long it is.
        check(unsafe { sys::cuModuleLoadData(&raw mut module, code.as_ptr().cast()) }, "cuModuleLoadData")?;
        Ok(Module { context: context.clone(), module })
    }

    /// The entry of that name, allowed to take all the shared memory that a block may have.
    fn function(&self, entry: &str, shared_bytes: u32) -> Result<Function> {
        let name =
            CString::new(entry).map_err(|_| Error::new(format!("{entry:?} is no name of a kernel")))?;
        let mut function: CUfunction = ptr::null_mut();
        // SAFETY: the module is loaded, and the name ends in zero.
        let status = unsafe { sys::cuModuleGetFunction(&raw mut function, self.module, name.as_ptr()) };
        check(status, "cuModuleGetFunction")?;
        let mut declared: c_int = 0;
        let shared = Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        // SAFETY: the function was just found; the call writes one number.
        check(unsafe { sys::cuFuncGetAttribute(&raw mut declared, shared, function) }, "cuFuncGetAttribute")?;
        let rest = shared_bytes as c_int - declared;
        let most = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function was just found.
        check(unsafe { sys::cuFuncSetAttribute(function, most, rest) }, "cuFuncSetAttribute")?;
        Ok(Function(function.expose_provenance()))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // A kernel of it may still be running.
        let _ = self.context.synchronize();
        // SAFETY: the module is loaded, and nothing of it is in use any more.
        let _ = unsafe { sys::cuModuleUnload(self.module) };
    }
}
