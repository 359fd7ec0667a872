//! Files as memory: a read-only map whose bytes are copied out, never referred to.
//!
//! The pages of a map belong to the system's cache, which takes them back when it needs them, so they are no part of a
//! pool. Other programs may write to the file or cut it short while it is mapped; therefore this hands out copies and
//! no references, and looks at the file's present length before each copy, so that a file that has shrunk is an error
//! and not a signal that ends the program.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;

/// A file mapped for reading.
#[derive(Debug)]
pub struct FileMap {
    file: File,
    /// Null-free even for an empty file, which is not mapped at all.
    base: NonNull<u8>,
    n_bytes: usize,
}

// SAFETY: the mapping is read-only and is unmapped by its one owner.
unsafe impl Send for FileMap {}
// SAFETY: as above; reading from several threads is what a read-only mapping allows.
unsafe impl Sync for FileMap {}

impl FileMap {
    /// Maps the file at `path` as long as it is now.
    ///
    /// # Errors
    /// What the operating system says; something that is not a regular file.
    pub fn open(path: &Path) -> io::Result<FileMap> {
        let file = plimsoll_file::open(path)?;
        let n_bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        if n_bytes == 0 {
            return Ok(FileMap { file, base: NonNull::dangling(), n_bytes });
        }
        // SAFETY: a fresh read-only mapping of an open file at an address of the system's choice disturbs nothing.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), n_bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        match NonNull::new(address.cast()) {
            Some(base) if address != libc::MAP_FAILED => Ok(FileMap { file, base, n_bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The length of the file when it was opened.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Copies the bytes from `start` on to `to`.
    ///
    /// # Errors
    /// The range goes beyond the end, or the file has become shorter since it was opened.
    pub fn copy_to(&self, start: usize, to: &mut [u8]) -> io::Result<()> {
        if to.is_empty() {
            return Ok(());
        }
        let end = start.checked_add(to.len()).filter(|&end| end <= self.n_bytes);
        let present = self.file.metadata()?.len();
        let Some(end) = end.filter(|&end| end as u64 <= present) else {
            let detail = format!(
                "bytes {start} to {} were wanted, and the file has {present} ({} when it was opened)",
                start.saturating_add(to.len()),
                self.n_bytes
            );
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, detail));
        };
        // SAFETY: the range lies in the mapping and in the file (checked above), `to` is exclusively ours and as long;
        // no reference to the mapping is made, because others may write to the file.
        unsafe { std::ptr::copy_nonoverlapping(self.base.as_ptr().add(start), to.as_mut_ptr(), end - start) };
        Ok(())
    }
}

impl Drop for FileMap {
    fn drop(&mut self) {
        if self.n_bytes > 0 {
            // SAFETY: this is what `open` mapped, and nothing refers to it. There is nothing to be done about a failure.
            let _ = unsafe { libc::munmap(self.base.as_ptr().cast(), self.n_bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_where_asked_and_never_beyond_its_end() {
        let path = std::env::temp_dir().join(format!("plimsoll-map-{}", std::process::id()));
        std::fs::write(&path, b"0123456789").unwrap();
        let map = FileMap::open(&path).unwrap();
        let mut four = [0; 4];
        map.copy_to(6, &mut four).unwrap();
        assert_eq!(&four, b"6789");
        assert!(map.copy_to(7, &mut four).is_err());
        assert!(map.copy_to(usize::MAX, &mut four).is_err());

        File::options().write(true).open(&path).unwrap().set_len(3).unwrap();
        let error = map.copy_to(2, &mut four).unwrap_err();
        assert!(error.to_string().contains("the file has 3 (10 when it was opened)"), "{error}");
        map.copy_to(0, &mut four[..3]).unwrap();
        assert_eq!(&four[..3], b"012");

        std::fs::write(&path, b"").unwrap();
        let empty = FileMap::open(&path).unwrap();
        assert!(empty.n_bytes() == 0 && empty.copy_to(0, &mut four).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(FileMap::open(&path).is_err() && FileMap::open(&std::env::temp_dir()).is_err());
    }
}
