//! Tensors from and to other places: raw bytes, files, NumPy's format, memory that others lend.

pub(crate) mod borrowed;
pub(crate) mod file;
pub(crate) mod npy;
pub(crate) mod raw;
