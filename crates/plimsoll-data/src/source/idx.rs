//! IDX files, the format of MNIST and its descendants: plain, read through a memory map, or compressed, read whole.
//!
//! A header is two zeros, a type, a number of dimensions and that many extents, greatest byte first. It is distrusted
//! until the file is as long as it says; of a compressed file, until it is no longer than compression could make it.

use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

use flate2::bufread::GzDecoder;
use plimsoll_tensor::{DType, Device, Error, Piece, Result, Shape, Tensor};

use crate::source::rows::{FileRows, refuse_rows_of_nothing, swap_bytes};

/// The most bytes that deflate can make of one.
const MOST_INFLATION: u64 = 1032;

struct Header {
    dtype: DType,
    shape: Shape,
    n_bytes: usize,
}

/// Either way of reading the rows of a file.
pub(crate) enum IdxRows {
    /// A plain file.
    Mapped(FileRows),
    /// What a compressed file held, as a tensor.
    Inflated(Tensor),
}

impl IdxRows {
    /// Opens a file; one that begins like a gzip file is one, whatever its name.
    pub fn open(path: &Path, name: &str) -> Result<IdxRows> {
        let io = |error| Error::io(path, error);
        let mut file = plimsoll_file::open(path).map_err(io)?;
        let mut magic = [0; 2];
        let is_gzip = match file.read_exact(&mut magic) {
            Ok(()) => magic == [0x1F, 0x8B],
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => false,
            Err(error) => return Err(io(error)),
        };
        let mut file = BufReader::new(plimsoll_file::open(path).map_err(io)?);
        if is_gzip {
            let n_bytes = file.get_ref().metadata().map_err(io)?.len();
            return inflate(path, GzDecoder::new(file), n_bytes).map(IdxRows::Inflated);
        }
        let header = Header::read(&mut file, path)?;
        FileRows::new(path, name, (header.dtype, &header.shape), header.n_bytes, true).map(IdxRows::Mapped)
    }
}

/// Reads a compressed file straight into the memory of a tensor.
fn inflate(path: &Path, mut file: impl Read, compressed_bytes: u64) -> Result<Tensor> {
    let Header { dtype, shape, .. } = Header::read(&mut file, path)?;
    refuse_rows_of_nothing(path, &shape)?;
    let n_bytes = shape.n_elems() * dtype.size();
    if n_bytes as u64 > compressed_bytes.saturating_mul(MOST_INFLATION) {
        let detail = format!("{shape} of {dtype} cannot come out of {compressed_bytes} compressed bytes");
        return Err(Error::format(path, detail));
    }
    let device = Device::current().host();
    let mut piece = Piece::acquire(&device, n_bytes, "read_idx")?;
    if !device.is_ghost() {
        file.read_exact(piece.bytes_mut()).map_err(|error| damaged(path, error, "the values"))?;
        let mut beyond = [0];
        match file.read(&mut beyond) {
            Ok(0) => {}
            Ok(_) => return Err(Error::format(path, format!("something follows the {shape} of {dtype}"))),
            Err(error) => return Err(damaged(path, error, "the values")),
        }
        swap_bytes(piece.bytes_mut(), dtype.size());
    }
    piece.into_tensor(shape, dtype)
}

fn damaged(path: &Path, error: io::Error, part: &str) -> Error {
    match error.kind() {
        ErrorKind::UnexpectedEof => Error::format(path, format!("the file ends within {part}")),
        ErrorKind::InvalidInput | ErrorKind::InvalidData => {
            Error::format(path, format!("{part} are not compressed as gzip does it: {error}"))
        }
        _ => Error::io(path, error),
    }
}

impl Header {
    fn read(file: &mut impl Read, path: &Path) -> Result<Header> {
        let mut fill = |bytes: &mut [u8]| file.read_exact(bytes).map_err(|e| damaged(path, e, "the header"));
        let mut magic = [0; 4];
        fill(&mut magic)?;
        let [0, 0, kind, rank] = magic else {
            return Err(Error::format(path, "not an IDX file: it does not begin with two zeros"));
        };
        let dtype = match kind {
            0x08 => DType::U8,
            0x0C => DType::I32,
            0x0D => DType::F32,
            0x0E => DType::F64,
            other => {
                let detail = "uint8 (8), int32 (12), float32 (13) and float64 (14) can be read";
                return Err(Error::format(path, format!("the values are of type {other}; {detail}")));
            }
        };
        let mut dims = Vec::new();
        for _ in 0..rank {
            let mut dim = [0; 4];
            fill(&mut dim)?;
            dims.push(u32::from_be_bytes(dim) as usize);
        }
        let shape = Shape::new(&dims).map_err(|error| Error::format(path, error.to_string()))?;
        Ok(Header { dtype, shape, n_bytes: 4 + 4 * dims.len() })
    }
}
