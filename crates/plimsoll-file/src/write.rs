//! Writing files so that a reader finds the old contents or the new, and never a part of either.
//!
//! Contents are written under a temporary name beside the file, brought to the disk, and renamed. A process that is killed
//! meanwhile leaves its temporary file behind, and the next writer of the same file removes it. Several processes may
//! do all of that to one file at once, so each must tell what is left over from what somebody is still writing:
//!
//! - A writer holds a lock on its temporary file, which the system lifts when the process ends, however it ends.
//! - A name is there for a moment before its lock is. So a writer that has the lock looks whether the file still has its
//!   name; if somebody removed it in that moment, or is about to, it takes another name. From then on nobody removes it.
//! - Names are drawn at random, so that processes which cannot see each other, such as those of two containers, do not
//!   draw the same. A name that exists is never opened, whatever has been planted there.
//!
//! Nobody waits for a lock: whoever can read a file could hold its lock for ever.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use tempfile::{Builder, NamedTempFile};

use crate::open::{open_with, refuse_irregular};

/// How the names of temporary files end.
const TEMPORARY_END: &str = ".tmp";
/// The mode of a file that is new, of which the process's mask takes away what it does.
const NEW_FILE: u32 = 0o666;
/// How often a writer takes another name because somebody has removed its file as left over.
const ATTEMPTS: usize = 100;

/// Writes a file under a temporary name beside it, brings it to the disk, and gives it its name. If that fails, the
/// temporary file is removed and the old one stays as it was; so it does if the process is killed meanwhile. A file that
/// is replaced keeps its mode.
///
/// # Errors
/// What the operating system says; a path that is a symbolic link, or no regular file.
pub fn write_whole(
    path: &Path,
    contents: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> io::Result<()> {
    replace(path, contents).map(drop)
}

/// Like [`write_whole`], and gives back the new file, at its end, for whoever goes on writing it piece by piece.
///
/// # Errors
/// Those of [`write_whole`].
pub fn replace(
    path: &Path,
    contents: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> io::Result<File> {
    let mode = replaceable(path)?;
    remove_leftovers(path);
    let temporary = create_locked(path, mode)?;
    let file = temporary.as_file();
    let mut writer = BufWriter::new(file);
    contents(&mut writer)?;
    writer.flush()?;
    drop(writer);
    if let Some(mode) = mode {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    file.sync_all()?;
    // The lock is held until the file has its name. If it gets none, the temporary file is removed on drop.
    let file = temporary.persist(path).map_err(|error| error.error)?;
    // The name is on the disk when its folder is.
    File::open(folder(path))?.sync_all()?;
    Ok(file)
}

/// Makes a file that is written piece by piece, such as a log, in place of one that is there: whoever reads it finds what has
/// been written so far, and so does its writer.
///
/// # Errors
/// What the operating system says; a path that is a symbolic link, or no regular file.
pub fn create(path: &Path) -> io::Result<File> {
    replaceable(path)?;
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path)?;
    refuse_irregular(&file.metadata()?)?;
    Ok(file)
}

/// Tells whether [`write_whole`] could write a file now: makes its temporary file, and removes it.
///
/// # Errors
/// Those of [`write_whole`].
pub fn check_writable(path: &Path) -> io::Result<()> {
    let mode = replaceable(path)?;
    create_locked(path, mode).map(drop)
}

/// The mode of the file that is to be replaced, if there is one.
///
/// A symbolic link is refused: renaming would put a file in its place and leave what it points to as it was, and
/// following it would let whoever planted it choose a file to overwrite. A link to a folder is no obstacle.
fn replaceable(path: &Path) -> io::Result<Option<u32>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => {
            let target = fs::read_link(path)?;
            Err(io::Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "it is a symbolic link to {}, and links are not written through; remove it, or name the file \
                     that it points to",
                    target.display()
                ),
            ))
        }
        Ok(metadata) => refuse_irregular(&metadata).map(|()| Some(metadata.mode() & 0o777)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A temporary file for `path` that nobody but its maker removes while its maker lives.
fn create_locked(path: &Path, mode: Option<u32>) -> io::Result<NamedTempFile> {
    let prefix = temporary_start(path);
    let mut builder = Builder::new();
    builder
        .prefix(&prefix)
        .suffix(TEMPORARY_END)
        .permissions(Permissions::from_mode(mode.unwrap_or(NEW_FILE)));
    for _ in 0..ATTEMPTS {
        let temporary = builder.tempfile_in(folder(path))?;
        match temporary.as_file().try_lock() {
            Ok(()) if has_name(temporary.as_file(), temporary.path()) => return Ok(temporary),
            // Somebody took it for left over before it was locked, and has removed it or will.
            Ok(()) | Err(TryLockError::WouldBlock) => {}
            // Where files cannot be locked, nobody can tell that one is left over, and nobody removes it.
            Err(TryLockError::Error(_)) => return Ok(temporary),
        }
    }
    Err(io::Error::other("temporary files in this folder are locked or removed by somebody else"))
}

/// Whether a file still has a name.
fn has_name(file: &File, path: &Path) -> bool {
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let (of_file, of_name) = (file.metadata().map(id), fs::symlink_metadata(path).map(id));
    matches!((of_file, of_name), (Ok(file), Ok(name)) if file == name)
}

/// Removes what killed writers of whatever file have left in a folder that is the program's alone, such as a cache.
pub fn remove_leftovers_in(folder: &Path) {
    clear(folder, OsStr::new("."));
}

/// Removes temporary files of `path` that nobody writes any more.
fn remove_leftovers(path: &Path) {
    clear(folder(path), &temporary_start(path));
}

/// Removes temporary files whose names begin so and that nobody writes any more. What cannot be opened or removed stays:
/// it is in nobody's way.
fn clear(folder: &Path, start: &OsStr) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if !is_temporary(&entry.file_name(), start) || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let Ok(file) = open_with(&entry.path(), libc::O_NOFOLLOW) else { continue };
        // With the lock held its maker can no longer begin to use it.
        if file.try_lock().is_ok() && has_name(&file, &entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// How the names of temporary files of `path` begin.
fn temporary_start(path: &Path) -> OsString {
    let mut start = OsString::from(".");
    start.push(path.file_name().unwrap_or_default());
    start.push(".");
    start
}

fn is_temporary(name: &OsStr, start: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(start.as_encoded_bytes()) && name.ends_with(TEMPORARY_END.as_bytes())
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests;
