//! Writing files so that a reader finds the old contents or the new, and never a part of either.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Writes a file under a temporary name beside it, brings it to the disk, and gives it its name. If that fails, the
/// temporary file is removed and the old one stays as it was.
///
/// # Errors
/// What the operating system says.
pub(crate) fn write_whole(
    path: &Path,
    contents: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<()> {
    let temporary = temporary_name(path);
    let write = || {
        let mut writer = BufWriter::new(File::create_new(&temporary)?);
        contents(&mut writer)?;
        writer.flush()?;
        writer.get_ref().sync_all()?;
        fs::rename(&temporary, path)?;
        // The name is on the disk when its folder is.
        File::open(folder(path))?.sync_all()
    };
    write().map_err(|error| {
        // There may be nothing to remove, and the first error is the one to report.
        let _ = fs::remove_file(&temporary);
        Error::io(path, error)
    })
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// A name in the same folder that no other writer uses.
fn temporary_name(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}-{}.tmp", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    folder(path).join(name)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A folder of its own for each test, removed at the end.
    pub(crate) struct Folder(pub PathBuf);

    impl Folder {
        pub(crate) fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("plimsoll-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_other() {
        let folder = Folder::new("write-whole");
        let path = folder.0.join("x");
        write_whole(&path, |file| file.write_all(b"old")).unwrap();
        let error = write_whole(&path, |file| {
            file.write_all(b"half of the n")?;
            Err(io::Error::other("the disk is full"))
        });
        assert!(error.unwrap_err().to_string().contains("the disk is full"));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = write_whole(Path::new("no-such-folder/x"), |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("no-such-folder/x"));
    }
}
