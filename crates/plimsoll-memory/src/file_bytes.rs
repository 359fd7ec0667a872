//! The bytes of a file, read where they are asked for.
//!
//! The file's pages belong to the system's cache, which takes them back when it needs them, so they are no part of a pool.
//! Other programs may write to the file or cut it short at any moment; therefore it is read and not mapped: a map of a
//! file that has shrunk ends the program by a signal, however closely its length is watched, and a read is an error.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A plain file, open for reading.
#[derive(Debug)]
pub struct FileBytes {
    file: File,
    n_bytes: usize,
}

impl FileBytes {
    /// The file at `path`, as long as it is now.
    ///
    /// # Errors
    /// What the operating system says; something that is not a regular file.
    pub fn open(path: &Path) -> io::Result<FileBytes> {
        let file = plimsoll_file::open(path)?;
        let n_bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        Ok(FileBytes { file, n_bytes })
    }

    /// The length of the file when it was opened.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Copies the bytes from `start` on to `to`.
    ///
    /// # Errors
    /// The range goes beyond the end, or the file has become shorter since it was opened; what the operating system says.
    pub fn copy_to(&self, start: usize, to: &mut [u8]) -> io::Result<()> {
        if to.is_empty() {
            return Ok(());
        }
        let is_inside = start.checked_add(to.len()).is_some_and(|end| end <= self.n_bytes);
        if !is_inside {
            return Err(self.too_short(start, to.len()));
        }
        self.file.read_exact_at(to, start as u64).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.too_short(start, to.len()),
            _ => error,
        })
    }

    fn too_short(&self, start: usize, len: usize) -> io::Error {
        let present = self.file.metadata().map_or(0, |metadata| metadata.len());
        let end = start.saturating_add(len);
        let detail = format!(
            "bytes {start} to {end} were wanted, and the file has {present} ({} when it was opened)",
            self.n_bytes
        );
        io::Error::new(io::ErrorKind::UnexpectedEof, detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_where_asked_and_never_beyond_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bytes");
        std::fs::write(&path, b"0123456789").unwrap();
        let file = FileBytes::open(&path).unwrap();
        let mut four = [0; 4];
        file.copy_to(6, &mut four).unwrap();
        assert_eq!(&four, b"6789");
        assert!(file.copy_to(7, &mut four).is_err());
        assert!(file.copy_to(usize::MAX, &mut four).is_err());

        File::options().write(true).open(&path).unwrap().set_len(3).unwrap();
        let error = file.copy_to(2, &mut four).unwrap_err();
        assert!(error.to_string().contains("the file has 3 (10 when it was opened)"), "{error}");
        file.copy_to(0, &mut four[..3]).unwrap();
        assert_eq!(&four[..3], b"012");

        std::fs::write(&path, b"").unwrap();
        let empty = FileBytes::open(&path).unwrap();
        assert!(empty.n_bytes() == 0 && empty.copy_to(0, &mut four).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(FileBytes::open(&path).is_err() && FileBytes::open(folder.path()).is_err());
    }

    /// Whoever comes first, reading gives the bytes, zeros that the file has grown by again, or an error; a map of the file
    /// would end the program.
    #[test]
    fn a_file_that_is_cut_while_it_is_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cut");
        let len = 1 << 20;
        std::fs::write(&path, vec![7; len]).unwrap();
        let file = FileBytes::open(&path).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let other = File::options().write(true).open(&path).unwrap();
                for _ in 0..200 {
                    other.set_len(0).unwrap();
                    other.set_len(len as u64).unwrap();
                }
            });
            let mut bytes = vec![1; len];
            for _ in 0..200 {
                match file.copy_to(0, &mut bytes) {
                    Ok(()) => assert!(bytes.iter().all(|&byte| byte == 7 || byte == 0)),
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof),
                }
            }
        });
    }
}
