//! Writing files so that a reader finds the old contents or the new, and never a part of either.
//!
//! A process that is killed while it writes leaves its temporary file behind. A writer holds a lock on its own, which
//! the system lifts when the process ends, however it ends; so the next writer of the same file can tell what is left
//! over from what somebody is still writing, and clears it away.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Writes a file under a temporary name beside it, brings it to the disk, and gives it its name. If that fails, the
/// temporary file is removed and the old one stays as it was; so it does if the process is killed meanwhile.
///
/// # Errors
/// What the operating system says.
pub fn write_whole(path: &Path, contents: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<()> {
    remove_leftovers(path);
    let temporary = temporary_name(path);
    let write = || {
        let file = File::create_new(&temporary)?;
        // Where files cannot be locked, leftovers cannot be told apart and stay.
        let _ = file.lock();
        let mut writer = BufWriter::new(file);
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
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    folder(path).join(format!("{}{}-{number}{TEMPORARY_END}", temporary_start(path), std::process::id()))
}

/// How the names of temporary files of `path` begin.
fn temporary_start(path: &Path) -> String {
    format!(".{}.", path.file_name().unwrap_or_default().to_string_lossy())
}

/// How the names of temporary files end.
const TEMPORARY_END: &str = ".tmp";

/// Removes temporary files of `path` that nobody writes any more. What cannot be read or removed stays: it is in
/// nobody's way.
fn remove_leftovers(path: &Path) {
    let start = temporary_start(path);
    for entry in fs::read_dir(folder(path)).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_temporary =
            name.to_str().is_some_and(|name| name.starts_with(&start) && name.ends_with(TEMPORARY_END));
        if is_temporary && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_file(entry.path());
        }
    }
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
    fn what_a_killed_writer_left_is_cleared_away_and_what_is_being_written_is_not() {
        let folder = Folder::new("leftovers");
        let path = folder.0.join("x");
        let (left, other) = (folder.0.join(".x.1-0.tmp"), folder.0.join(".xy.1-0.tmp"));
        fs::write(&left, b"half").unwrap();
        fs::write(&other, b"another file's").unwrap();
        write_whole(&path, |file| {
            assert!(!left.exists());
            // Somebody else writes the same file meanwhile; the last one to finish has the name.
            write_whole(&path, |file| file.write_all(b"quick")).unwrap();
            file.write_all(b"slow")
        })
        .unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"slow");
        assert!(other.exists());
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 2);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = write_whole(Path::new("no-such-folder/x"), |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("no-such-folder/x"));
    }
}
