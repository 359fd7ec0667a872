//! Elements that are the lines of a text file, as bytes without their ending, read where they are asked for.
//!
//! The file is gone through once when it is opened, to find where each line begins. These places are a tensor of the
//! pool, counted as data: eight bytes a line.

use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use plimsoll_tensor::{DType, Device, Error, FileBytes, Piece, Result, elements, elements_mut};

use crate::example::ExampleMut;
use crate::source::Source;
use crate::spec::{Field, Spec};

/// The lines of a file.
pub(crate) struct Lines {
    path: PathBuf,
    file: FileBytes,
    /// Where each line begins, and after the last the end of the file.
    starts: Piece,
    n: u64,
    spec: Spec,
}

impl Lines {
    pub fn open(path: &Path) -> Result<Lines> {
        let file = FileBytes::open(path).map_err(|error| Error::io(path, error))?;
        let mut n = 0;
        let mut longest = 0;
        let mut last = 0;
        let n_bytes = each_start(path, |start| {
            longest = longest.max(start - last);
            last = start;
            n += 1;
        })?;
        // What follows the last newline is a line, too, if there is anything.
        n += usize::from(last < n_bytes);
        longest = longest.max(n_bytes - last);
        // The places are read on this machine, whatever device is current.
        let device = Device::current().host();
        let device = if device.is_ghost() { Device::cpu() } else { device };
        let mut starts = Piece::acquire(&device, (n + 1) * size_of::<i64>(), "lines")?;
        let places = elements_mut::<i64>(starts.bytes_mut()).unwrap_or_default();
        let mut k = 1;
        let changed = || Error::format(path, "the file changed while it was opened");
        let again = each_start(path, |start| {
            if let Some(place) = places.get_mut(k) {
                *place = start as i64;
            }
            k += 1;
        })?;
        if again != n_bytes || again != file.n_bytes() || k > n + 1 {
            return Err(changed());
        }
        places[0] = 0;
        places[n] = n_bytes as i64;
        let spec = Spec::new([Field::new("line", DType::U8, longest)?.varying()?])?;
        Ok(Lines { path: path.to_owned(), file, starts, n: n as u64, spec })
    }
}

/// Calls `f` with the place after each newline; returns the length of the file.
fn each_start(path: &Path, mut f: impl FnMut(usize)) -> Result<usize> {
    let io = |error| Error::io(path, error);
    let mut file = BufReader::new(plimsoll_file::open(path).map_err(io)?);
    let mut chunk = [0; 1 << 14];
    let mut start = 0;
    loop {
        let n = match file.read(&mut chunk) {
            Ok(0) => return Ok(start),
            Ok(n) => n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(io(error)),
        };
        for (idx, _) in chunk[..n].iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
            f(start + idx + 1);
        }
        start += n;
    }
}

impl Source for Lines {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn n(&self) -> u64 {
        self.n
    }

    fn write(&self, idx: u64, to: &mut ExampleMut<'_>) -> Result<()> {
        let idx = idx as usize;
        let places = elements::<i64>(self.starts.bytes()).unwrap_or_default();
        let (start, end) = (places[idx] as usize, places[idx + 1] as usize);
        let (bytes, _) = to.part_mut(0);
        let line = &mut bytes[..end - start];
        self.file.copy_to(start, line).map_err(|error| Error::io(&self.path, error))?;
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let len = line.strip_suffix(b"\r").unwrap_or(line).len();
        to.set_len(0, len)
    }
}
