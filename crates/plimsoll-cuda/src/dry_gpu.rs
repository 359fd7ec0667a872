//! A dry GPU, on which nothing happens: which kernels ops will ask for, found out before they run, so that all of them are compiled
//! at once.
//!
//! Whoever runs an op on it has the texts of its kernels noted, with addresses that mean nothing. What is noted can be compiled by any
//! thread (`Gpu::compile_ahead`) and lies in the cache when the op is run in earnest. A text that is not noted, or noted in vain,
//! costs time and nothing else.

use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_memory::Source;

use crate::backend::{
    Backend, Collectives, Event, Executable, Function, Grid, Launches, MemoryInfo, Stream, Streams,
};
use crate::convolution::{Convolution, ConvolutionOperands};
use crate::error::{Error, Result};
use crate::matmul::{Matmul, MatmulOperands};

/// The text of a kernel.
#[derive(Clone, Debug)]
pub struct KernelText {
    pub(crate) entry: String,
    pub(crate) source: String,
}

impl KernelText {
    /// The name of its entry.
    pub fn entry(&self) -> &str {
        &self.entry
    }

    /// The whole text.
    pub fn source(&self) -> &str {
        &self.source
    }
}

/// What a dry GPU has noted.
#[derive(Default)]
pub(crate) struct Notes {
    texts: Mutex<Vec<KernelText>>,
}

impl Notes {
    /// What was noted since the last time.
    pub fn take(&self) -> Vec<KernelText> {
        std::mem::take(&mut *self.texts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notes")
    }
}

/// The back end of a dry GPU.
pub(crate) struct Noting(pub Arc<Notes>);

fn never(what: &str) -> Error {
    Error::new(format!("a dry GPU has no {what}"))
}

impl Streams for Noting {
    fn event(&self) -> Result<Event> {
        Ok(Event(0))
    }

    fn record(&self, _event: Event, _stream: Stream) -> Result<()> {
        Ok(())
    }

    fn wait(&self, _stream: Stream, _event: Event) -> Result<()> {
        Ok(())
    }

    fn wait_on_host(&self, _event: Event) -> Result<()> {
        Ok(())
    }

    unsafe fn copy_on(&self, _stream: Stream, _from: *const u8, _to: *mut u8, _n_bytes: usize) -> Result<()> {
        Ok(())
    }
}

impl Backend for Noting {
    fn build(&self, entry: &str, source: &str) -> Result<Function> {
        let text = KernelText { entry: entry.to_owned(), source: source.to_owned() };
        self.0.texts.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        Ok(Function(0))
    }

    fn compiles_ahead(&self) -> bool {
        false
    }

    fn compile_ahead(&self, _entry: &str, _source: &str) -> Result<()> {
        Ok(())
    }

    fn unload(&self, _function: Function) {}

    unsafe fn launch(&self, _function: Function, _grid: Grid, _params: &mut [*mut c_void]) -> Result<()> {
        Ok(())
    }

    unsafe fn upload(&self, _from: *const u8, _to: *mut u8, _n_bytes: usize) -> Result<()> {
        Ok(())
    }

    unsafe fn download(&self, _from: *const u8, _to: *mut u8, _n_bytes: usize) -> Result<()> {
        Err(never("values to read"))
    }

    unsafe fn copy(&self, _from: *const u8, _to: *mut u8, _n_bytes: usize) -> Result<()> {
        Ok(())
    }

    unsafe fn fill(&self, _to: *mut u8, _byte: u8, _n_bytes: usize) -> Result<()> {
        Ok(())
    }

    unsafe fn matmul(&self, _matmul: &Matmul, _operands: &MatmulOperands) -> Result<bool> {
        Ok(true)
    }

    unsafe fn convolve(&self, _convolution: &Convolution, _operands: &ConvolutionOperands) -> Result<bool> {
        Ok(true)
    }

    fn knows_matmul(&self, _matmul: &Matmul, _operands: &MatmulOperands) -> Option<bool> {
        Some(true)
    }

    fn knows_convolution(&self, _convolution: &Convolution, _operands: &ConvolutionOperands) -> Option<bool> {
        Some(true)
    }

    fn capture(&self, _launches: &mut Launches) -> Result<Box<dyn Executable>> {
        Err(never("graphs"))
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn synchronize_all(&self) -> Result<()> {
        Ok(())
    }

    fn compute_stream(&self) -> usize {
        0
    }

    unsafe fn order(&self, _first: usize, _then: usize) -> Result<()> {
        Ok(())
    }

    fn memory(&self) -> Result<MemoryInfo> {
        Err(never("memory"))
    }

    fn pages(&self) -> Result<Box<dyn Source>> {
        Err(never("memory"))
    }

    unsafe fn pin(&self, _memory: *mut u8, _n_bytes: usize) -> Result<()> {
        Err(never("memory"))
    }

    unsafe fn unpin(&self, _memory: *mut u8) -> Result<()> {
        Ok(())
    }

    fn collectives(&self, _: &[u8; 128], _: usize, _: usize) -> Result<Box<dyn Collectives>> {
        Err(never("other ranks"))
    }

    fn shared_cell(&self, _n_bytes: usize) -> Result<(*mut u8, *mut u8)> {
        Err(never("memory"))
    }
}
