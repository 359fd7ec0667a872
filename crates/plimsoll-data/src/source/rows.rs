//! Elements that are rows of an array in a file, read where they are asked for: NPY and IDX.

use std::path::{Path, PathBuf};

use plimsoll_tensor::{DType, Error, FileBytes, NpyArray, Result, Shape};

use crate::example::ExampleMut;
use crate::source::Source;
use crate::spec::{Field, Spec};

/// Rows of an array that lies in a file.
pub(crate) struct FileRows {
    path: PathBuf,
    file: FileBytes,
    /// Where the first row begins.
    start: usize,
    n: u64,
    spec: Spec,
    /// Whether numbers begin with their greatest byte.
    is_big_endian: bool,
}

/// Refuses rows without a value: a file of a few bytes could announce so many of them that nobody comes to their end.
pub(crate) fn refuse_rows_of_nothing(path: &Path, shape: &Shape) -> Result<()> {
    match shape.n_elems() == 0 && shape.first().is_some_and(|&n| n > 0) {
        true => Err(Error::format(path, format!("{shape} are rows without a value"))),
        false => Ok(()),
    }
}

impl FileRows {
    /// The rows of an array of `shape` that begins at byte `start` and ends with the file.
    pub fn new(
        path: &Path,
        name: &str,
        (dtype, shape): (DType, &Shape),
        start: usize,
        is_big_endian: bool,
    ) -> Result<FileRows> {
        let Some((&n, dims)) = shape.split_first() else {
            return Err(Error::format(path, "the array is a single number, which has no rows"));
        };
        refuse_rows_of_nothing(path, shape)?;
        let file = FileBytes::open(path).map_err(|error| Error::io(path, error))?;
        let spec = Spec::new([Field::new(name, dtype, Shape::new(dims)?)?])?;
        let n_bytes = spec.n_bytes().checked_mul(n).and_then(|n| n.checked_add(start));
        if n_bytes != Some(file.n_bytes()) {
            let detail = format!("{shape} of {dtype} do not fill the {} bytes of the file", file.n_bytes());
            return Err(Error::format(path, detail));
        }
        Ok(FileRows { path: path.to_owned(), file, start, n: n as u64, spec, is_big_endian })
    }

    /// The rows of an NPY file.
    pub fn npy(path: &Path, name: &str) -> Result<FileRows> {
        let mut file = plimsoll_file::open(path).map_err(|error| Error::io(path, error))?;
        let array = NpyArray::read(&mut file, path)?;
        if array.is_fortran && array.stored.rank() > 1 {
            return Err(Error::format(
                path,
                "the array is in Fortran's order, so its rows are scattered; save it with `numpy.ascontiguousarray`, or \
                 read it with `Tensor::read_npy` and `contiguous`",
            ));
        }
        FileRows::new(path, name, (array.dtype, &array.stored), array.start as usize, false)
    }
}

/// Turns the bytes of each number around.
pub(crate) fn swap_bytes(bytes: &mut [u8], size: usize) {
    if size > 1 {
        bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
}

impl Source for FileRows {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn n(&self) -> u64 {
        self.n
    }

    fn write(&self, idx: u64, to: &mut ExampleMut<'_>) -> Result<()> {
        let field = &self.spec.fields()[0];
        let (bytes, _) = to.part_mut(0);
        let start = self.start + idx as usize * field.n_bytes();
        self.file.copy_to(start, bytes).map_err(|error| Error::io(&self.path, error))?;
        if self.is_big_endian {
            swap_bytes(bytes, field.dtype().size());
        }
        if field.dtype() == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
            return Err(Error::format(&self.path, format!("row {idx} has bytes that are no truth values")));
        }
        Ok(())
    }
}
