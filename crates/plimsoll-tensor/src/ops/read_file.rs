//! The op that reads a variable's value out of a file, and its 16-bit copy's with it. It writes variables and has no
//! inputs but their old values, which it ignores; it is run by `Variable::read_file` alone and is not in the registry.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_cuda::Gpu;
use plimsoll_memory::Owner;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::eager::context;
use crate::eager::op::{Gradient, Meta, Op, Output, Outputs, Run};
use crate::ops::copy;

/// The host's memory through which values go to a GPU, a piece at a time.
const STAGING_BYTES: usize = 4 << 20;

/// Reads the first output from a file; the second, if there is one, is the first in another dtype.
#[derive(Debug)]
pub(crate) struct ReadFile {
    file: Arc<File>,
    /// The file's name, for errors.
    path: PathBuf,
    /// Where the values begin.
    offset: u64,
}

impl ReadFile {
    pub fn new(file: Arc<File>, path: &Path, offset: u64) -> ReadFile {
        ReadFile { file, path: path.to_owned(), offset }
    }

    /// Reads the bytes of values from byte `start` of all of them on.
    fn read(&self, bytes: &mut [u8], start: usize, dtype: DType) -> Result<()> {
        let read = match self.offset.checked_add(start as u64) {
            Some(at) => self.file.read_exact_at(bytes, at),
            None => Err(std::io::ErrorKind::UnexpectedEof.into()),
        };
        if dtype == DType::Bool {
            // Other bytes than 0 and 1 would be no truth values, also where reading ended half-way.
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        read.map_err(|error| Error::io(&self.path, error))
    }
}

impl Op for ReadFile {
    fn name(&self) -> &'static str {
        "read_file"
    }

    /// A file that cannot be read leaves variables half written; whoever wants all or nothing reads it through first, as
    /// checkpoints do. A second block for every variable would double what loading takes.
    fn never_refuses(&self) -> bool {
        true
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        Ok(inputs.iter().map(|old| Output::New { shape: *old.shape(), dtype: old.dtype }).collect())
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let value = &run.outputs[0];
        let n_bytes = value.n_elems() * value.dtype().size();
        if n_bytes > 0 {
            // SAFETY: an output is row-major, as long as its layout says, and nobody else's while the op runs; pages
            // come zeroed from the source, so every byte has a value.
            let bytes = unsafe { std::slice::from_raw_parts_mut(value.ptr(), n_bytes) };
            self.read(bytes, 0, value.dtype())?;
        }
        if let Some(narrow) = run.outputs.get(1) {
            copy::copy(value, narrow);
        }
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let value = &run.outputs[0];
        let n_bytes = value.n_elems() * value.dtype().size();
        if n_bytes > 0 {
            let host = run.device().host();
            let len = n_bytes.min(STAGING_BYTES);
            let block = host.pool().acquire(len, context::label(Owner::Workspace, self.name()))?;
            // SAFETY: the block is as long as that, is nobody else's, and its pages come zeroed from the source.
            let staging = unsafe { std::slice::from_raw_parts_mut(block.as_ptr(), len) };
            for start in (0..n_bytes).step_by(STAGING_BYTES) {
                let piece = &mut staging[..len.min(n_bytes - start)];
                self.read(piece, start, value.dtype())?;
                // SAFETY: the output has these bytes, and the host's are read when the call returns.
                unsafe { gpu.upload(piece, value.ptr().add(start)) }?;
            }
        }
        match run.outputs.get(1) {
            Some(narrow) => copy::copy_cuda(self.name(), gpu, value, narrow),
            None => Ok(()),
        }
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("reading a file is not a function")
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }
}
