//! Safetensors files: a header that names tensors, then their bytes.
//!
//! Bytes go straight between the file and the pool, never through a buffer of a tensor's size. A file is distrusted:
//! its header must fit its length to the byte before anything is taken from it. Files that are written here carry a
//! note with the SHA-256 of the whole file, in which the checksum itself counts as zeros, so that a flipped bit
//! anywhere, the header included, is found before a value is used. Nothing is ever unpickled or executed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_tensor::{DType, Error, Result, Shape, Tensor, write_whole};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use sha2::{Digest, Sha256};

/// The key of our note in a file's metadata. There is one, because the format does not order them, and equal
/// contents shall make equal files.
const NOTE: &str = "plimsoll";
/// The length of the number that a file begins with: how long its header is.
const LEN_BYTES: usize = 8;
/// The format's own bound on headers.
const MAX_HEADER: u64 = 100_000_000;
/// What stands where the checksum will be while it is computed.
const NO_CHECKSUM: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// How the format spells our dtypes.
const DTYPES: [(DType, Dtype); 8] = [
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::I64, Dtype::I64),
    (DType::I32, Dtype::I32),
    (DType::U8, Dtype::U8),
    (DType::Bool, Dtype::BOOL),
];

/// A file whose header has been read and checked; its values have not been touched.
pub(super) struct TensorFile {
    path: PathBuf,
    file: Arc<File>,
    /// The header as it stands in the file, without the number before it.
    header: Vec<u8>,
    entries: BTreeMap<String, Entry>,
    note: Option<String>,
}

/// One tensor of a file.
pub(super) struct Entry {
    pub shape: Shape,
    /// The dtype, if tensors can have it.
    pub dtype: Result<DType, Dtype>,
    /// Where in the file its bytes begin.
    pub offset: u64,
}

impl TensorFile {
    /// Opens a file and checks its header against its length.
    pub fn open(path: &Path) -> Result<TensorFile> {
        let wrong = |detail: String| Error::format(path, detail);
        let io = |error| Error::io(path, error);
        let file = File::open(path).map_err(io)?;
        let file_len = file.metadata().map_err(io)?.len();
        let mut len = [0; LEN_BYTES];
        if file_len < LEN_BYTES as u64 {
            return Err(wrong(format!("not a safetensors file: it has only {file_len} bytes")));
        }
        file.read_exact_at(&mut len, 0).map_err(io)?;
        let header_len = u64::from_le_bytes(len);
        let most = MAX_HEADER.min(file_len - LEN_BYTES as u64);
        if header_len > most {
            return Err(wrong(format!(
                "not a safetensors file, or cut off: its first bytes announce a header of {header_len} bytes, and \
                 it can have {most}"
            )));
        }
        let mut header = vec![0; header_len as usize];
        file.read_exact_at(&mut header, LEN_BYTES as u64).map_err(io)?;
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|error| wrong(format!("the header is damaged: {error}")))?;
        let start = LEN_BYTES as u64 + header_len;
        let (announced, present) = (metadata.data_len() as u64, file_len - start);
        if announced != present {
            let wrong_end = if present < announced { "cut off" } else { "followed by something else" };
            return Err(wrong(format!(
                "the values are {wrong_end}: the header announces {announced} bytes, and {present} are there"
            )));
        }
        let mut entries = BTreeMap::new();
        for (name, info) in metadata.tensors() {
            let shape =
                Shape::new(&info.shape).map_err(|error| wrong(format!("tensor {name:?}: {error}")))?;
            let known = DTYPES.iter().find(|(_, theirs)| *theirs == info.dtype);
            let dtype = known.map(|(ours, _)| *ours).ok_or(info.dtype);
            entries.insert(name, Entry { shape, dtype, offset: start + info.data_offsets.0 as u64 });
        }
        let note = metadata.metadata().as_ref().and_then(|notes| notes.get(NOTE)).cloned();
        Ok(TensorFile { path: path.to_owned(), file: Arc::new(file), header, entries, note })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// The tensors by name.
    pub fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// The note of a file that was written here, once all of its bytes have been found to be those written;
    /// nothing for a file of somebody else's, which has no checksum.
    pub fn verified_note(&self) -> Result<Option<serde_json::Value>> {
        let wrong = |detail: &str| Error::format(&self.path, detail.to_owned());
        let Some(text) = &self.note else { return Ok(None) };
        let note: serde_json::Value = serde_json::from_str(text)
            .map_err(|_| wrong("the header is damaged: its note cannot be read"))?;
        let stored = note["sha256"].as_str().unwrap_or_default();
        let mut header = self.header.clone();
        let (Some(at), 64) = (find_only(&header, stored.as_bytes()), stored.len()) else {
            return Err(wrong("the header is damaged: it has no checksum"));
        };
        header[at..at + stored.len()].copy_from_slice(NO_CHECKSUM.as_bytes());
        let mut sum = Sha256::new();
        sum.update((header.len() as u64).to_le_bytes());
        sum.update(&header);
        self.add_values(&mut sum).map_err(|error| Error::io(&self.path, error))?;
        match hex(&sum.finalize()) == stored {
            true => Ok(Some(note)),
            false => Err(wrong("the file is damaged: its contents do not have the checksum that it carries")),
        }
    }

    fn add_values(&self, sum: &mut Sha256) -> io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        let mut at = (LEN_BYTES + self.header.len()) as u64;
        loop {
            match self.file.read_at(&mut buffer, at) {
                Ok(0) => return Ok(()),
                Ok(n) => {
                    sum.update(&buffer[..n]);
                    at += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// One tensor, on the current device.
    pub fn read(&self, name: &str) -> Result<Tensor> {
        let Some(entry) = self.entries.get(name) else {
            return Err(Error::format(&self.path, format!("there is no tensor {name:?}")));
        };
        let dtype = entry.dtype.as_ref().copied().map_err(|theirs| {
            Error::format(&self.path, format!("tensor {name:?} is {theirs}, which tensors here cannot hold"))
        })?;
        Tensor::from_bytes(entry.shape, dtype, |bytes| {
            self.file.read_exact_at(bytes, entry.offset).map_err(|error| Error::io(&self.path, error))
        })
    }
}

/// Writes named tensors and a note, which gets the checksum added. The file appears whole or not at all; equal
/// contents make equal files.
pub(super) fn write(
    path: &Path,
    mut tensors: Vec<(String, Tensor)>,
    mut note: serde_json::Map<String, serde_json::Value>,
) -> Result<()> {
    // Wide elements first, so that each tensor lies at a multiple of its elements' size.
    tensors.sort_by(|(a, left), (b, right)| right.dtype().size().cmp(&left.dtype().size()).then(a.cmp(b)));
    note.insert("sha256".to_owned(), NO_CHECKSUM.into());
    let mut header = header(path, &tensors, serde_json::Value::Object(note).to_string())?;
    let mut sum = Sha256::new();
    sum.update((header.len() as u64).to_le_bytes());
    sum.update(&header);
    for (_, tensor) in &tensors {
        tensor.with_bytes(|bytes| sum.update(bytes))?;
    }
    let Some(at) = find_only(&header, NO_CHECKSUM.as_bytes()) else {
        return Err(Error::format(path, "a name or note holds 64 zeros, which stand for the checksum"));
    };
    header[at..at + NO_CHECKSUM.len()].copy_from_slice(hex(&sum.finalize()).as_bytes());
    write_whole(path, |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        for (_, tensor) in &tensors {
            tensor.with_bytes(|bytes| file.write_all(bytes)).map_err(io::Error::other)??;
        }
        Ok(())
    })
}

/// The header, filled up with spaces so that the values begin at a multiple of eight.
fn header(path: &Path, tensors: &[(String, Tensor)], note: String) -> Result<Vec<u8>> {
    let mut infos = Vec::new();
    let mut end = 0;
    for (name, tensor) in tensors {
        let dtype = DTYPES.iter().find(|(ours, _)| *ours == tensor.dtype()).map(|(_, theirs)| *theirs);
        let Some(dtype) = dtype else { unreachable!("the table holds every dtype") };
        let data_offsets = (end, end + tensor.n_bytes());
        end = data_offsets.1;
        infos.push((name.clone(), TensorInfo { dtype, shape: tensor.shape().dims().to_vec(), data_offsets }));
    }
    let notes = [(NOTE.to_owned(), note)].into_iter().collect();
    let metadata =
        Metadata::new(Some(notes), infos).map_err(|error| Error::format(path, error.to_string()))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|error| Error::format(path, error.to_string()))?;
    header.resize(header.len().next_multiple_of(LEN_BYTES), b' ');
    Ok(header)
}

/// Where `wanted` stands in `text`, if it stands there once.
fn find_only(text: &[u8], wanted: &[u8]) -> Option<usize> {
    let mut places = text.windows(wanted.len().max(1)).enumerate().filter(|(_, part)| *part == wanted);
    let (at, _) = places.next()?;
    places.next().is_none().then_some(at)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
