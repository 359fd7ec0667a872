//! A GPU, as the rest of the framework sees it.

use std::ffi::c_void;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use smallvec::SmallVec;

use crate::backend::{Backend, Grid, Launch, Launches, MemoryInfo, POST_BYTES};
use crate::convolution::{Convolution, ConvolutionOperands};
use crate::copies::Copies;
use crate::driver;
use crate::dry_gpu::{KernelText, Notes, Noting};
use crate::error::{Error, Result};
use crate::fault::{FaultCell, FaultCells};
use crate::kernel::{Kernel, Kernels, Param, Template};
use crate::matmul::{Matmul, MatmulOperands};
use crate::pages::Pages;
use crate::pending::Pending;
use crate::profile::Profile;

/// How many ops an error names that shows long after they were launched.
const N_REMEMBERED: usize = 64;

/// A GPU with one stream of work, and two of copies beside it.
///
/// The unsafe functions take addresses of device memory; they must be valid for what is asked until the work is done. The
/// pool of a device sees to that: a block is given to others in program order, and pages go back only after waiting.
pub struct Gpu {
    pub(crate) backend: Arc<dyn Backend>,
    /// What is launched and not issued yet.
    pub(crate) pending: Arc<Pending>,
    pub(crate) copies: Copies,
    profile: Profile,
    kernels: Kernels,
    faults: Arc<FaultCells>,
    /// The ops launched since the host last waited, the latest at the end.
    launched: Mutex<Vec<&'static str>>,
    /// How often the host has waited for everything on the device.
    pub(crate) n_waits: AtomicU64,
    /// How many recordings were started as graphs.
    pub(crate) n_graph_launches: AtomicU64,
    /// What communicators have taken of its memory.
    pub(crate) communicator_bytes: AtomicU64,
    /// The error after which nothing works any more.
    broken: OnceLock<Error>,
    /// Whether the host waits for each kernel, so that an error names the op that made it.
    waits: bool,
    /// Whether products of f32 are made in TF32.
    tf32: AtomicBool,
    /// A GPU like this one on which nothing happens.
    dry_gpu: OnceLock<Arc<Gpu>>,
    /// What such a one has noted.
    notes: Arc<Notes>,
}

impl Gpu {
    /// The GPU of that number.
    ///
    /// # Errors
    /// No such GPU, no driver, or one that is too old; the text says what was looked for.
    pub fn open(number: usize) -> Result<Arc<Gpu>> {
        let (backend, profile) = driver::open(number)?;
        Gpu::over(backend, profile)
    }

    /// A GPU that the host plays: for tests.
    ///
    /// # Errors
    /// No C++ compiler.
    #[cfg(feature = "emulated")]
    pub fn emulated() -> Result<Arc<Gpu>> {
        let (backend, profile) = crate::emulated::open()?;
        Gpu::over(backend, profile)
    }

    fn over(backend: Box<dyn Backend>, profile: Profile) -> Result<Arc<Gpu>> {
        Ok(Gpu::with_notes(Arc::from(backend), profile, Arc::default()))
    }

    fn with_notes(backend: Arc<dyn Backend>, profile: Profile, notes: Arc<Notes>) -> Arc<Gpu> {
        Arc::new(Gpu {
            pending: Arc::new(Pending::new(backend.clone())),
            backend,
            copies: Copies::default(),
            profile,
            kernels: Kernels::default(),
            faults: Arc::default(),
            launched: Mutex::new(Vec::with_capacity(N_REMEMBERED)),
            n_waits: AtomicU64::new(0),
            n_graph_launches: AtomicU64::new(0),
            communicator_bytes: AtomicU64::new(0),
            broken: OnceLock::new(),
            tf32: AtomicBool::new(false),
            waits: std::env::var("PLIMSOLL_SYNC").is_ok_and(|value| value == "1"),
            dry_gpu: OnceLock::new(),
            notes,
        })
    }

    /// A GPU of a model on which nothing happens, on any machine: the kernels that are asked of it are noted, each once.
    pub fn dry(profile: Profile) -> Arc<Gpu> {
        let notes: Arc<Notes> = Arc::default();
        Gpu::with_notes(Arc::new(Noting(notes.clone())), profile, notes)
    }

    /// A dry GPU of this one's model.
    pub fn dry_gpu(&self) -> &Gpu {
        self.dry_gpu.get_or_init(|| Gpu::dry(self.profile.clone()))
    }

    /// What a dry GPU has noted since the last time.
    pub fn take_noted(&self) -> Vec<KernelText> {
        self.notes.take()
    }

    /// The kernels of shipped ops that are loaded, as numbers and names that tell them apart.
    pub fn loaded_kernels(&self) -> Vec<(usize, &'static str, u64)> {
        self.kernels.loaded()
    }

    /// Whether kernels that are compiled ahead are there when they are launched.
    pub fn compiles_ahead(&self) -> bool {
        self.backend.compiles_ahead()
    }

    /// Compiles a kernel that a dry run on this GPU has noted. Several threads may do so.
    ///
    /// # Errors
    /// A compiler that is missing, a text that it refuses.
    pub fn compile_ahead(&self, text: &KernelText) -> Result<()> {
        self.backend.compile_ahead(&text.entry, &text.source)
    }

    /// How often the host has waited for everything on the device so far.
    pub fn n_waits(&self) -> u64 {
        self.n_waits.load(Ordering::Relaxed)
    }

    /// The model of the GPU.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Whether products and convolutions of f32 round their operands to TF32 (10 bits after the point instead of 23),
    /// which tensor cores multiply several times as fast. Off unless it is set.
    pub fn set_tf32(&self, is_on: bool) {
        self.tf32.store(is_on, Ordering::Relaxed);
    }

    /// Whether TF32 is on.
    pub fn tf32(&self) -> bool {
        self.tf32.load(Ordering::Relaxed)
    }

    /// A source of pages for a pool.
    ///
    /// # Errors
    /// What the driver says.
    pub fn pages(&self) -> Result<Pages> {
        Ok(Pages::new(self.backend.pages()?, &self.pending))
    }

    /// What the device has and what is free.
    ///
    /// # Errors
    /// What the driver says.
    pub fn memory(&self) -> Result<MemoryInfo> {
        self.backend.memory()
    }

    /// The kernel of a template for an op and a variant, compiled when it is new. `define` states what the template
    /// leaves open, as preprocessor lines and functions; it must depend on op and variant alone.
    ///
    /// # Errors
    /// A compiler that is missing, a text that it refuses.
    pub fn kernel(
        &self,
        template: &'static Template,
        op: &'static str,
        variant: u64,
        define: impl Fn() -> String,
    ) -> Result<Kernel> {
        self.kernels.get(&*self.backend, template, op, variant, &define)
    }

    /// Starts a kernel.
    ///
    /// # Errors
    /// What the driver refuses; with `PLIMSOLL_SYNC=1`, what the kernel did wrong.
    ///
    /// # Safety
    /// The parameters must be those of the kernel, and the addresses among them valid for what it does with them.
    pub unsafe fn launch(&self, kernel: &Kernel, grid: Grid, params: &[&dyn Param]) -> Result<()> {
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        let defer = |launches: &mut Launches| {
            let params: SmallVec<[(*mut c_void, usize); 16]> =
                params.iter().map(|param| (param.address(), param.n_bytes())).collect();
            // SAFETY: parameters are as long as they say, and without padding.
            unsafe { launches.push_kernel(kernel.function, grid, &params) };
            Some(())
        };
        self.order(kernel.op, defer, |backend| {
            let mut addresses: SmallVec<[*mut c_void; 16]> =
                params.iter().map(|param| param.address()).collect();
            // SAFETY: the caller promises it.
            unsafe { backend.launch(kernel.function, grid, &mut addresses) }
        })
    }

    /// Computes a matrix product, for an op.
    ///
    /// # Errors
    /// A library that is missing, what it refuses.
    ///
    /// # Safety
    /// The addresses must be valid for what the product reads and writes.
    pub unsafe fn matmul(&self, op: &'static str, matmul: &Matmul, operands: &MatmulOperands) -> Result<()> {
        // SAFETY: the caller promises it.
        match unsafe { self.try_matmul(op, matmul, operands) }? {
            true => Ok(()),
            false => Err(Error::new(format!("{op}: the library has no algorithm for {matmul:?}"))),
        }
    }

    /// Computes a matrix product, for an op. False says that the library has no way to compute it, and that nothing was
    /// started.
    ///
    /// # Errors
    /// A library that is missing, what it says.
    ///
    /// # Safety
    /// As for [`Gpu::matmul`].
    pub unsafe fn try_matmul(
        &self,
        op: &'static str,
        matmul: &Matmul,
        operands: &MatmulOperands,
    ) -> Result<bool> {
        let matmul = Matmul { tf32: matmul.tf32 || self.tf32(), ..*matmul };
        let defer = |launches: &mut Launches| {
            let is_known = self.backend.knows_matmul(&matmul, operands)?;
            if is_known {
                launches.push(Launch::Matmul(matmul, *operands));
            }
            Some(is_known)
        };
        // SAFETY: the caller promises it.
        self.order(op, defer, |backend| unsafe { backend.matmul(&matmul, operands) })
    }

    /// Computes a convolution or one of its gradients, for an op. False says that the library has no way to compute it that
    /// keeps to what was asked for, and that nothing was started.
    ///
    /// # Errors
    /// A library that is missing, what it says.
    ///
    /// # Safety
    /// The addresses must be valid for what the convolution reads and writes.
    pub unsafe fn convolve(
        &self,
        op: &'static str,
        convolution: &Convolution,
        operands: &ConvolutionOperands,
    ) -> Result<bool> {
        let convolution = Convolution { tf32: convolution.tf32 || self.tf32(), ..*convolution };
        let defer = |launches: &mut Launches| {
            let is_known = self.backend.knows_convolution(&convolution, operands)?;
            if is_known {
                launches.push(Launch::Convolution(convolution, *operands));
            }
            Some(is_known)
        };
        // SAFETY: the caller promises it.
        self.order(op, defer, |backend| unsafe { backend.convolve(&convolution, operands) })
    }

    /// Copies from the host.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The address must be valid for as many bytes.
    pub unsafe fn upload(&self, from: &[u8], to: *mut u8) -> Result<()> {
        // SAFETY: the caller promises it.
        self.dispatch("upload", |backend| unsafe { backend.upload(from.as_ptr(), to, from.len()) })
    }

    /// Copies to the host, after all work before.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The address must be valid for as many bytes, and `to` for writing them.
    pub unsafe fn download(&self, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()> {
        self.n_waits.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller promises it.
        self.dispatch("download", |backend| unsafe { backend.download(from, to, n_bytes) })?;
        self.settle();
        Ok(())
    }

    /// Starts a copy of a few bytes to the host. Whoever gets them waits for nothing that was launched later.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The address must be valid for as many bytes.
    pub unsafe fn post(self: &Arc<Gpu>, from: *const u8, n_bytes: usize) -> Result<Posted> {
        let mut slot = None;
        if n_bytes <= POST_BYTES {
            self.dispatch("post", |backend| {
                // SAFETY: the caller promises it.
                slot = unsafe { backend.post(from, n_bytes) }?;
                Ok(())
            })?;
        }
        let mut bytes = vec![0; n_bytes];
        if slot.is_none() {
            // SAFETY: the caller promises it; the vector is as long.
            unsafe { self.download(from, bytes.as_mut_ptr(), n_bytes) }?;
        }
        Ok(Posted { gpu: self.clone(), slot, bytes })
    }

    /// Copies within the device, for an op; the ranges do not overlap.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The addresses must be valid for as many bytes.
    pub unsafe fn copy(&self, op: &'static str, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()> {
        let defer = |launches: &mut Launches| {
            launches.push(Launch::Copy(from, to, n_bytes));
            Some(())
        };
        // SAFETY: the caller promises it.
        self.order(op, defer, |backend| unsafe { backend.copy(from, to, n_bytes) })
    }

    /// Sets bytes, for an op.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The address must be valid for as many bytes.
    pub unsafe fn fill(&self, op: &'static str, to: *mut u8, byte: u8, n_bytes: usize) -> Result<()> {
        let defer = |launches: &mut Launches| {
            launches.push(Launch::Fill(to, byte, n_bytes));
            Some(())
        };
        // SAFETY: the caller promises it.
        self.order(op, defer, |backend| unsafe { backend.fill(to, byte, n_bytes) })
    }

    /// A cell for faults of kernels that are launched from now on. A kernel is given its address and the number of a call.
    ///
    /// # Errors
    /// What the driver says.
    pub fn fault_cell(&self) -> Result<FaultCell> {
        self.faults.claim(
            || self.backend.shared_cell(FaultCells::BYTES),
            // SAFETY: the cell is that long, and only kernels launched before may still write it.
            |cell, n_bytes| unsafe { self.fill("fault_cell", cell, 0, n_bytes) },
        )
    }

    /// Whether the host waits for each kernel, as `PLIMSOLL_SYNC=1` says.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Waits until all work is done.
    ///
    /// # Errors
    /// What went wrong since the last time, with the ops that may have done it.
    pub fn synchronize(&self) -> Result<()> {
        self.n_waits.fetch_add(1, Ordering::Relaxed);
        self.check()?;
        self.settle_copies().map_err(|error| self.break_with(&error))?;
        self.settle();
        Ok(())
    }

    /// Waits until all work is done, copies included.
    pub(crate) fn settle_copies(&self) -> Result<()> {
        self.pending.flush()?;
        self.backend.synchronize()?;
        self.copies.settle();
        Ok(())
    }

    /// Runs a call of the back end for an op, after all that was launched before.
    pub(crate) fn dispatch<R>(
        &self,
        op: &'static str,
        call: impl FnOnce(&dyn Backend) -> Result<R>,
    ) -> Result<R> {
        self.run_noted(op, || {
            self.pending.flush()?;
            call(&*self.backend)
        })
    }

    /// Work of the compute stream for an op: held back where this thread records and `defer` can, else a call.
    pub(crate) fn order<R>(
        &self,
        op: &'static str,
        defer: impl FnOnce(&mut Launches) -> Option<R>,
        call: impl FnOnce(&dyn Backend) -> Result<R>,
    ) -> Result<R> {
        self.run_noted(op, || self.pending.order(defer, call))
    }

    /// Work of the compute stream that a library starts, for an op.
    pub(crate) fn ordered<R>(&self, op: &'static str, call: impl FnOnce() -> Result<R>) -> Result<R> {
        self.order(op, |_| None, |_| call())
    }

    /// Notes an op as launched and runs its call.
    pub(crate) fn run_noted<R>(&self, op: &'static str, call: impl FnOnce() -> Result<R>) -> Result<R> {
        self.check()?;
        {
            let mut launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner);
            if launched.len() == N_REMEMBERED {
                launched.drain(..N_REMEMBERED / 2);
            }
            launched.push(op);
        }
        let result = call().map_err(|error| self.break_with(&error))?;
        if self.waits {
            self.synchronize()?;
        }
        Ok(result)
    }

    /// The device has been waited for: what was launched has worked.
    fn settle(&self) {
        self.launched.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// An error, if the device is broken.
    pub(crate) fn check(&self) -> Result<()> {
        match self.broken.get() {
            None => Ok(()),
            Some(error) => Err(Error::new(format!(
                "the GPU cannot be used any more in this process since an earlier error: {error}"
            ))),
        }
    }

    /// The error with the ops that may have made it; the device is broken if the back end says that it is.
    pub(crate) fn break_with(&self, error: &Error) -> Error {
        let launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner);
        let last: Vec<&str> = launched.iter().rev().take(8).copied().collect();
        let text = match self.waits || launched.len() <= 1 {
            true => format!("{error}, in `{}`", last.first().unwrap_or(&"?")),
            false => format!(
                "{error}, in one of the ops launched since the host last waited, the latest first: {}; \
                 PLIMSOLL_SYNC=1 tells which",
                last.join(", ")
            ),
        };
        let error = Error::new(text);
        if self.backend.synchronize().is_err() {
            // The first error is the one that tells.
            let _ = self.broken.set(error.clone());
        }
        error
    }
}

/// A few bytes on their way from a GPU to the host.
#[derive(Debug)]
pub struct Posted {
    gpu: Arc<Gpu>,
    slot: Option<u32>,
    bytes: Vec<u8>,
}

impl Posted {
    /// The bytes, waited for.
    ///
    /// # Errors
    /// What the driver says.
    pub fn get(mut self) -> Result<Vec<u8>> {
        if let Some(slot) = self.slot.take() {
            self.gpu.check()?;
            self.gpu.backend.fetch(slot, &mut self.bytes).map_err(|error| self.gpu.break_with(&error))?;
        }
        Ok(std::mem::take(&mut self.bytes))
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            // Whoever drops it does not want to know; the slot is free in any case.
            let _ = self.gpu.backend.fetch(slot, &mut self.bytes);
        }
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({})", self.profile.name)
    }
}
