//! The bytes of tensors and variables, for files: lent to whoever writes them, filled by whoever reads them.
//!
//! Values lie in memory as files hold them: row-major, little endian. Nothing here copies them anywhere else, so what
//! is saved and loaded needs no memory beside the pool's.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use plimsoll_memory::LongList;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::IntoShape;
use crate::device::storage::Storage;
use crate::eager::context;
use crate::eager::op::{Meta, OpRef};
use crate::eager::tensor::{Nodes, Tensor};
use crate::eager::update::{self, Update};
use crate::eager::variable::Variable;
use crate::ops::read_file::ReadFile;

impl Tensor {
    /// Calls `f` with the bytes of the values in row-major order, little endian. They are those in the pool, unless
    /// the tensor is strided: then they are gathered first.
    ///
    /// # Errors
    /// A ghost, which has no values; memory that is full.
    #[track_caller]
    pub fn with_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let _line = context::at_callers_line();
        if self.is_ghost() {
            return Err(Error::ghost("with_bytes"));
        }
        if !self.device().is_host() {
            return self.without_nodes().to_device(&self.device().host())?.with_bytes(f);
        }
        let (storage, meta) = context::replay(|| self.without_nodes().contiguous())?.storage_view();
        let start = meta.layout.offset() * meta.dtype.size();
        Ok(f(&storage.bytes()[start..start + meta.n_bytes()]))
    }

    /// A tensor on the current device whose bytes `fill` writes: row-major, little endian. On a ghost nothing is
    /// written.
    ///
    /// # Errors
    /// Those of `fill`; truth values that are neither 0 nor 1; memory that is full.
    #[track_caller]
    pub fn from_bytes(
        shape: impl IntoShape,
        dtype: DType,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let shape = shape.into_shape()?;
        let device = context::current_device();
        if !device.is_host() {
            let _host = device.host().enter();
            return Tensor::from_bytes(shape, dtype, fill)?.to_device(&device);
        }
        let mut storage = Storage::for_host_data(&shape, dtype, "from_bytes")?;
        if !device.is_ghost() {
            fill(storage.bytes_mut())?;
        }
        if dtype == DType::Bool
            && let Some(at) = storage.bytes_mut().iter().position(|&byte| byte > 1)
        {
            return Err(Error::argument(
                "from_bytes",
                format!("element {at} of bool is {}, neither 0 nor 1", storage.bytes_mut()[at]),
            ));
        }
        Ok(Tensor::over(storage, Meta::fresh(shape, dtype), Nodes::new()))
    }
}

/// A variable, and where in a file its value begins: in the variable's dtype, or its master's if it has one.
pub type VariableInFile<'a> = (&'a Variable, u64);

impl Variable {
    /// Gives variables the values that lie in a file, straight into their memory; copies that are computed with are
    /// made anew. All memory is taken before the first variable is written. Inside a step it happens at its end.
    ///
    /// # Errors
    /// Memory that is full: then nothing has changed. A file that cannot be read as far as that: whoever wants all
    /// or nothing reads it through first, as checkpoints do for their checksum.
    #[doc(hidden)]
    #[track_caller]
    pub fn read_file(file: &Arc<File>, path: &Path, places: &[VariableInFile<'_>]) -> Result<()> {
        let _line = context::at_callers_line();
        let update = |&(variable, offset): &VariableInFile<'_>| {
            let op = OpRef::shipped(ReadFile::new(file.clone(), path, offset));
            match variable.master() {
                Some(master) => Update::new(op, &[master, variable], &[]),
                None => Update::new(op, &[variable], &[]),
            }
        };
        update::apply(places.iter().map(update).collect::<Result<LongList<_>>>()?)
    }
}
