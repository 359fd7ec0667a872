//! NPY files: one array each, as numpy saves and loads them. Format 1.0, little endian.
//!
//! Values go straight between the file and the tensor's memory, without a copy of the whole beside it. A file is
//! distrusted until its header, its length and (for truth values) its bytes are checked; pickled objects are refused.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::device::Device;
use crate::device::storage::Storage;
use crate::eager::context;
use crate::eager::op::Meta;
use crate::eager::tensor::{Nodes, Tensor};

/// The first bytes of every file, with the version.
const MAGIC: &[u8; 8] = b"\x93NUMPY\x01\x00";
/// The header ends at a multiple of this.
const ALIGNMENT: usize = 64;

const _: () = assert!(cfg!(target_endian = "little"), "values are read and written as they lie in memory");

impl Tensor {
    /// Reads an NPY file to the current device. An array in Fortran's order becomes a permuted view.
    ///
    /// # Errors
    /// A file that is not there, is damaged, or holds a type that tensors do not; memory that is full.
    #[doc(alias = "load")]
    #[track_caller]
    pub fn read_npy(path: impl AsRef<Path>) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let path = path.as_ref();
        let device = Device::current();
        if !device.is_host() {
            let _host = device.host().enter();
            return Tensor::read_npy(path)?.to_device(&device);
        }
        let mut file = plimsoll_file::open(path).map_err(|error| Error::io(path, error))?;
        let NpyArray { dtype, stored: shape, is_fortran, .. } = NpyArray::read(&mut file, path)?;
        let mut storage = Storage::for_host_data(&shape, dtype, "read_npy")?;
        file.read_exact(storage.bytes_mut()).map_err(|error| Error::io(path, error))?;
        if dtype == DType::Bool {
            check_truths(storage.bytes_mut(), path)?;
        }
        let tensor = Tensor::over(storage, Meta::fresh(shape, dtype), Nodes::new());
        match is_fortran {
            true => tensor.permute((0..shape.rank()).rev()),
            false => Ok(tensor),
        }
    }

    /// Writes an NPY file that numpy loads. It appears whole or not at all.
    ///
    /// # Errors
    /// A ghost, which has no values; bfloat16, which numpy does not know; a path that cannot be written.
    #[doc(alias = "save")]
    #[track_caller]
    pub fn write_npy(&self, path: impl AsRef<Path>) -> Result<()> {
        let _line = context::at_callers_line();
        let Some((_, descr)) = DESCRS.iter().find(|(dtype, _)| *dtype == self.dtype()) else {
            return Err(Error::dtype(
                "write_npy",
                format!("NPY has no {}; write `cast(DType::F32)` of it, which loses nothing", self.dtype()),
            ));
        };
        if self.is_ghost() {
            return Err(Error::ghost("write_npy"));
        }
        if !self.device().is_host() {
            return self.without_nodes().to_device(&self.device().host())?.write_npy(path);
        }
        let (storage, meta) = context::replay(|| self.without_nodes().contiguous())?.storage_view();
        let start = meta.layout.offset() * meta.dtype.size();
        let header = header_bytes(descr, self.shape());
        crate::io::file::write_whole(path.as_ref(), |file| {
            file.write_all(&header)?;
            file.write_all(&storage.bytes()[start..start + meta.n_bytes()])
        })
    }
}

/// Where the array of an NPY file lies in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NpyArray {
    /// The type of the elements.
    pub dtype: DType,
    /// The extents in the order of storage: those of the array, or, in Fortran's order, the same backwards.
    pub stored: Shape,
    /// Whether the array is stored in Fortran's order.
    pub is_fortran: bool,
    /// The byte of the file at which the elements begin; they end with the file.
    pub start: u64,
}

impl NpyArray {
    /// Reads the header of a file, up to the first element, and checks that the rest is as long as it says.
    ///
    /// # Errors
    /// A file that is damaged or holds a type that tensors do not.
    pub fn read(file: &mut File, path: &Path) -> Result<NpyArray> {
        let (Header { dtype, is_fortran, mut dims }, start) = Header::read(file, path)?;
        if is_fortran {
            dims.reverse();
        }
        let stored = Shape::new(&dims).map_err(|error| Error::format(path, error.to_string()))?;
        let n_bytes = stored.n_elems() as u64 * dtype.size() as u64;
        let present = file.metadata().map_err(|error| Error::io(path, error))?.len().saturating_sub(start);
        if present != n_bytes {
            let wrong = if present < n_bytes { "cut off" } else { "followed by something else" };
            return Err(Error::format(
                path,
                format!(
                    "the data are {wrong}: {stored} of {dtype} are {n_bytes} bytes, and {present} are there"
                ),
            ));
        }
        Ok(NpyArray { dtype, stored, is_fortran, start })
    }
}

/// How the format spells the dtypes.
const DESCRS: [(DType, &str); 7] = [
    (DType::F64, "<f8"),
    (DType::F32, "<f4"),
    (DType::F16, "<f2"),
    (DType::I64, "<i8"),
    (DType::I32, "<i4"),
    (DType::U8, "|u1"),
    (DType::Bool, "|b1"),
];

/// Magic, length and dictionary, filled up with spaces to the alignment.
fn header_bytes(descr: &str, shape: &Shape) -> Vec<u8> {
    let extents: String = shape.iter().map(|dim| format!("{dim}, ")).collect();
    // One extent keeps its comma, as a tuple of Python does.
    let extents = if shape.rank() > 1 { extents.trim_end_matches(", ") } else { extents.trim_end() };
    let dictionary = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({extents}), }}");
    let before = MAGIC.len() + 2;
    let end = (before + dictionary.len() + 1).next_multiple_of(ALIGNMENT);
    let mut bytes = MAGIC.to_vec();
    bytes.extend(((end - before) as u16).to_le_bytes());
    bytes.extend(dictionary.as_bytes());
    bytes.resize(end - 1, b' ');
    bytes.push(b'\n');
    bytes
}

/// What a file says of its array.
#[derive(Debug, PartialEq)]
struct Header {
    dtype: DType,
    is_fortran: bool,
    dims: Vec<usize>,
}

impl Header {
    /// Reads the header, and says where the data begin.
    fn read(file: &mut impl Read, path: &Path) -> Result<(Header, u64)> {
        let mut fill = |bytes: &mut [u8]| {
            file.read_exact(bytes).map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => Error::format(path, "the file ends within the header"),
                _ => Error::io(path, error),
            })
        };
        let mut magic = [0; MAGIC.len()];
        fill(&mut magic)?;
        if magic[..6] != MAGIC[..6] {
            return Err(Error::format(path, "not an NPY file: it does not begin with \\x93NUMPY"));
        }
        if magic[6..] != MAGIC[6..] {
            let version = format!("{}.{}", magic[6], magic[7]);
            return Err(Error::format(
                path,
                format!("format {version}; only 1.0 is read, as `numpy.save` writes it"),
            ));
        }
        let mut len = [0; 2];
        fill(&mut len)?;
        let len = u16::from_le_bytes(len);
        let mut text = vec![0; usize::from(len)];
        fill(&mut text)?;
        let header = Parser { rest: &text }.header().map_err(|detail| Error::format(path, detail))?;
        Ok((header, (MAGIC.len() + 2) as u64 + u64::from(len)))
    }
}

fn dtype_of(descr: &str) -> Result<DType, String> {
    if let Some((dtype, _)) = DESCRS.iter().find(|(_, known)| *known == descr) {
        return Ok(*dtype);
    }
    let advice = match descr.as_bytes().first() {
        Some(b'>') => "its values are big endian; save them with `.astype('<...')`",
        _ if descr.contains('O') => "it holds pickled objects, which are never read",
        _ => "tensors hold f8, f4, f2, i8, i4, u1 and b1; convert it with `.astype`",
    };
    Err(format!("the type is {descr:?}: {advice}"))
}

/// A byte of truth values that is neither 0 nor 1 has no meaning.
fn check_truths(bytes: &[u8], path: &Path) -> Result<()> {
    match bytes.iter().position(|&byte| byte > 1) {
        None => Ok(()),
        Some(at) => {
            Err(Error::format(path, format!("element {at} of bool is {}, neither 0 nor 1", bytes[at])))
        }
    }
}

/// Reads the header's dictionary, which is written as Python writes it.
struct Parser<'a> {
    rest: &'a [u8],
}

impl Parser<'_> {
    fn header(mut self) -> Result<Header, String> {
        let (mut dtype, mut is_fortran, mut dims) = (None, None, None);
        self.expect("{")?;
        while !self.take("}") {
            let key = self.string()?;
            self.expect(":")?;
            match key.as_str() {
                "descr" => dtype = Some(dtype_of(&self.string()?)?),
                "fortran_order" => is_fortran = Some(self.truth()?),
                "shape" => dims = Some(self.tuple()?),
                other => return Err(format!("the header has an unknown key {other:?}")),
            }
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        if !self.rest.trim_ascii().is_empty() {
            return Err("the header goes on after its dictionary".to_string());
        }
        let missing = |key: &str| format!("the header has no {key:?}");
        Ok(Header {
            dtype: dtype.ok_or_else(|| missing("descr"))?,
            is_fortran: is_fortran.ok_or_else(|| missing("fortran_order"))?,
            dims: dims.ok_or_else(|| missing("shape"))?,
        })
    }

    /// Goes over a word if it is next.
    fn take(&mut self, word: &str) -> bool {
        self.rest = self.rest.trim_ascii_start();
        let after = self.rest.strip_prefix(word.as_bytes());
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn expect(&mut self, word: &str) -> Result<(), String> {
        match self.take(word) {
            true => Ok(()),
            false => Err(format!("the header has {:?} where {word:?} should be", self.next_few())),
        }
    }

    /// What comes next, for error texts.
    fn next_few(&self) -> String {
        String::from_utf8_lossy(&self.rest[..self.rest.len().min(12)]).into_owned()
    }

    /// A string in single or double quotes, without escapes.
    fn string(&mut self) -> Result<String, String> {
        let quote = if self.take("'") { b'\'' } else { self.expect("\"").map(|()| b'"')? };
        let Some(end) = self.rest.iter().position(|&byte| byte == quote) else {
            return Err("the header has a string without an end".to_string());
        };
        let text = String::from_utf8_lossy(&self.rest[..end]).into_owned();
        self.rest = &self.rest[end + 1..];
        Ok(text)
    }

    fn truth(&mut self) -> Result<bool, String> {
        if self.take("True") { Ok(true) } else { self.expect("False").map(|()| false) }
    }

    /// Whole numbers in parentheses.
    fn tuple(&mut self) -> Result<Vec<usize>, String> {
        let mut numbers = Vec::new();
        self.expect("(")?;
        while !self.take(")") {
            let n_digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let digits = String::from_utf8_lossy(&self.rest[..n_digits]);
            let number = digits
                .parse()
                .map_err(|_| format!("the header has {:?} where an extent should be", self.next_few()))?;
            numbers.push(number);
            self.rest = &self.rest[n_digits..];
            if !self.take(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests;
