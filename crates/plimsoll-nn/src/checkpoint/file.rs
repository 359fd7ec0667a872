//! Safetensors files: a header that names tensors, then their bytes.
//!
//! Bytes go straight between the file and the pool, never through a buffer of a tensor's size. A file is distrusted:
//! its header must fit its length to the byte before anything is taken from it. Files that are written here carry a
//! note with the SHA-256 of the whole file, in which the checksum itself counts as zeros, so that a flipped bit
//! anywhere, the header included, is found before a value is used. Nothing is ever unpickled or executed.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_tensor::{Error, Result, Tensor, write_whole};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::header::{Draft, Entry, Header, LEN_BYTES, NOTES, Ordered};

/// The format's own bound on headers.
const MAX_HEADER: u64 = 100_000_000;
/// What stands where the checksum will be while it is computed.
const NO_CHECKSUM: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// How much is read at a time.
const BUFFER: usize = 64 << 10;

/// A file whose header has been read and checked; its values have not been touched.
pub(super) struct TensorFile {
    path: PathBuf,
    file: Arc<File>,
    header: Header,
    /// Where the values begin.
    start: u64,
}

impl TensorFile {
    /// Opens a file and checks its header against its length.
    pub fn open(path: &Path) -> Result<TensorFile> {
        let wrong = |detail: String| Error::format(path, detail);
        let io = |error| Error::io(path, error);
        let mut file = plimsoll_file::open(path).map_err(io)?;
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
        file.seek(SeekFrom::Start(LEN_BYTES as u64)).map_err(io)?;
        let header = Header::read(BufReader::new((&file).take(header_len)))
            .map_err(|error| wrong(format!("the header is damaged: {error}")))?;
        let start = LEN_BYTES as u64 + header_len;
        let (announced, present) = (header.n_bytes as u64, file_len - start);
        if announced != present {
            let wrong_end = if present < announced { "cut off" } else { "followed by something else" };
            return Err(wrong(format!(
                "the values are {wrong_end}: the header announces {announced} bytes, and {present} are there"
            )));
        }
        Ok(TensorFile { path: path.to_owned(), file: Arc::new(file), header, start })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// The tensors by name.
    pub fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.header.entries
    }

    /// Where in the file the bytes of a tensor begin.
    pub fn place(&self, entry: &Entry) -> u64 {
        self.start + entry.offset as u64
    }

    /// The note of a file that was written here, once all of its bytes have been found to be those written;
    /// nothing for a file of somebody else's, which has no checksum.
    pub fn verified_note(&self) -> Result<Option<Value>> {
        let wrong = |detail: &str| Error::format(&self.path, detail.to_owned());
        let io = |error| Error::io(&self.path, error);
        let Some(text) = &self.header.note else { return Ok(None) };
        let note: Value = serde_json::from_str(text)
            .map_err(|_| wrong("the header is damaged: its note cannot be read"))?;
        let stored = note["sha256"].as_str().unwrap_or_default();
        let place = match stored.len() == NO_CHECKSUM.len() {
            true => self.only_place(stored.as_bytes()).map_err(io)?,
            false => None,
        };
        let Some(place) = place else {
            return Err(wrong("the header is damaged: it has no checksum"));
        };
        match self.sum_without(place).map_err(io)? == stored {
            true => Ok(Some(note)),
            false => Err(wrong("the file is damaged: its contents do not have the checksum that it carries")),
        }
    }

    /// Where the header holds `wanted`, if it does so once.
    fn only_place(&self, wanted: &[u8]) -> io::Result<Option<u64>> {
        let mut buffer = vec![0; BUFFER];
        let (mut at, mut found) = (LEN_BYTES as u64, None);
        loop {
            let n = buffer.len().min((self.start - at) as usize);
            self.file.read_exact_at(&mut buffer[..n], at)?;
            let windows = buffer[..n].windows(wanted.len()).zip(at..);
            for (_, place) in windows.filter(|(part, _)| *part == wanted) {
                if found.replace(place).is_some() {
                    return Ok(None);
                }
            }
            if at + n as u64 == self.start {
                return Ok(found);
            }
            // What lies across the edge begins in the next piece.
            at += (n - (wanted.len() - 1)) as u64;
        }
    }

    /// The SHA-256 of the file with zeros in the place of the checksum.
    fn sum_without(&self, checksum: u64) -> io::Result<String> {
        let mut buffer = vec![0; BUFFER];
        let (mut sum, mut at) = (Sha256::new(), 0);
        loop {
            let n = match self.file.read_at(&mut buffer, at) {
                Ok(0) => return Ok(hex(&sum.finalize())),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let here = |place: u64| (place.clamp(at, at + n as u64) - at) as usize;
            buffer[here(checksum)..here(checksum + NO_CHECKSUM.len() as u64)].fill(b'0');
            sum.update(&buffer[..n]);
            at += n as u64;
        }
    }

    /// Some bytes of a tensor, from the one of that number on.
    pub fn read_at(&self, name: &str, first: u64, bytes: &mut [u8]) -> Result<()> {
        let Some(entry) = self.entries().get(name) else {
            return Err(Error::format(&self.path, format!("there is no tensor {name:?}")));
        };
        let place = self.place(entry) + first;
        self.file.read_exact_at(bytes, place).map_err(|error| Error::io(&self.path, error))
    }

    /// One tensor, on the current device.
    pub fn read(&self, name: &str) -> Result<Tensor> {
        let Some(entry) = self.entries().get(name) else {
            return Err(Error::format(&self.path, format!("there is no tensor {name:?}")));
        };
        let dtype = entry.dtype.as_ref().copied().map_err(|theirs| {
            Error::format(&self.path, format!("tensor {name:?} is {theirs}, which tensors here cannot hold"))
        })?;
        Tensor::from_bytes(entry.shape, dtype, |bytes| {
            self.file.read_exact_at(bytes, self.place(entry)).map_err(|error| Error::io(&self.path, error))
        })
    }
}

/// Writes named tensors and a note, which gets the checksum added. The file appears whole or not at all; equal
/// contents make equal files.
pub(super) fn write(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, Tensor)>,
    mut note: Map<String, Value>,
) -> Result<()> {
    let ordered = |(name, tensor): (String, Tensor)| ((Reverse(tensor.dtype().size()), name), tensor);
    let tensors: Ordered = tensors.into_iter().map(ordered).collect();
    if tensors.keys().any(|(_, name)| name == NOTES) {
        return Err(Error::format(
            path,
            format!("a tensor cannot be named {NOTES:?}, where the format has notes"),
        ));
    }
    let mut draft = |checksum: &str| {
        note.insert("sha256".to_owned(), checksum.into());
        Draft { tensors: &tensors, note: Value::Object(note.clone()).to_string() }
    };
    let mut sum = Sha256::new();
    let without = draft(NO_CHECKSUM);
    without.write(&mut sum).map_err(|error| Error::io(path, error))?;
    for tensor in tensors.values() {
        tensor.with_bytes(|bytes| sum.update(bytes))?;
    }
    let header = draft(&hex(&sum.finalize()));
    write_whole(path, |file| {
        header.write(&mut *file)?;
        for tensor in tensors.values() {
            tensor.with_bytes(|bytes| file.write_all(bytes)).map_err(io::Error::other)??;
        }
        Ok(())
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
