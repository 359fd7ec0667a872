//! Tensors from and to other places: values of the host, text, raw bytes, files, NumPy's format, memory that others lend.

pub(crate) mod borrowed;
pub(crate) mod control;
pub(crate) mod export;
pub(crate) mod file;
pub(crate) mod npy;
pub(crate) mod print;
pub(crate) mod raw;
pub(crate) mod read;
