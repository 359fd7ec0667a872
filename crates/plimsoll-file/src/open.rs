//! Opening files without waiting.
//!
//! Opening a FIFO blocks until somebody opens its other end, and reading from a terminal until somebody types; a run that
//! does so hangs and hears no signal. What is not a regular file is therefore refused, with its kind.

use std::fs::{self, DirBuilder, File, FileType, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file for reading, at once. Symbolic links are followed.
///
/// # Errors
/// What the operating system says; something that is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    // Asked before it is opened, because opening a device can set something going.
    refuse_irregular(&fs::metadata(path)?)?;
    open_with(path, 0)
}

/// Opens a regular file that this user owns and nobody else can write to. A symbolic link is refused.
///
/// # Errors
/// What the operating system says; a file that somebody else could have written.
pub fn open_own(path: &Path) -> io::Result<File> {
    refuse_irregular(&fs::symlink_metadata(path)?)?;
    let file = open_with(path, libc::O_NOFOLLOW)?;
    refuse_foreign(&file.metadata()?)?;
    Ok(file)
}

/// Makes a folder, if it is not there, that nobody but this user can look into, and refuses one to which anybody else can
/// write.
///
/// # Errors
/// What the operating system says; a folder of somebody else, or one that others can write to.
pub fn own_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let metadata = fs::metadata(path)?;
    match metadata.is_dir() {
        true => refuse_foreign(&metadata),
        false => Err(refused(format!("it is {}, and no folder", kind(metadata.file_type())))),
    }
}

/// The contents of a regular file that has at most `most` bytes.
///
/// # Errors
/// Those of [`open`]; a file that is larger.
pub fn read_small(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let mut contents = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut contents)?;
    match contents.len() <= most {
        true => Ok(contents),
        false => Err(refused(format!("it has more than {most} bytes, the most that such a file can have"))),
    }
}

/// Opens a file and looks at what was opened, which may be another file than the one that had the name before.
pub(crate) fn open_with(path: &Path, flags: libc::c_int) -> io::Result<File> {
    let flags = flags | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    refuse_irregular(&file.metadata()?)?;
    Ok(file)
}

/// Refuses what is not a regular file, and names its kind.
pub(crate) fn refuse_irregular(metadata: &Metadata) -> io::Result<()> {
    match metadata.is_file() {
        true => Ok(()),
        false => {
            Err(refused(format!("it is {}, and only a regular file will do", kind(metadata.file_type()))))
        }
    }
}

/// Refuses what another user owns or could have written.
pub(crate) fn refuse_foreign(metadata: &Metadata) -> io::Result<()> {
    let mode = metadata.mode() & 0o777;
    match metadata.uid() == user() && mode & 0o022 == 0 {
        true => Ok(()),
        false => Err(refused(format!(
            "it belongs to user {} with mode {mode:03o}, and only what nobody but this user ({}) can write is trusted",
            metadata.uid(),
            user()
        ))),
    }
}

/// The user that files of this process belong to.
fn user() -> u32 {
    // The process's own folder belongs to its effective user.
    fs::metadata("/proc/self").map_or(u32::MAX, |metadata| metadata.uid())
}

fn refused(why: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why)
}

fn kind(kind: FileType) -> &'static str {
    match kind {
        kind if kind.is_symlink() => "a symbolic link",
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a FIFO",
        kind if kind.is_char_device() || kind.is_block_device() => "a device",
        kind if kind.is_socket() => "a socket",
        _ => "a file",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::*;

    #[test]
    fn whatever_is_not_a_regular_file_is_refused_at_once_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), b"abc").unwrap();
        assert!(Command::new("mkfifo").arg(path("fifo")).status().unwrap().success());
        let _socket = UnixListener::bind(path("socket")).unwrap();
        symlink(path("file"), path("link")).unwrap();
        symlink(path("fifo"), path("link to fifo")).unwrap();
        for (name, kind) in [("fifo", "FIFO"), ("link to fifo", "FIFO"), ("socket", "socket"), ("", "folder")]
        {
            let error = open(&path(name)).unwrap_err().to_string();
            assert!(error.contains(kind) && error.contains("regular file"), "{name}: {error}");
        }
        for device in ["/dev/zero", "/dev/null", "/dev/tty"] {
            let error = open(Path::new(device)).unwrap_err().to_string();
            assert!(error.contains("device") || !Path::new(device).exists(), "{device}: {error}");
        }
        assert_eq!(open(&path("none")).unwrap_err().kind(), ErrorKind::NotFound);
        for name in ["file", "link"] {
            assert_eq!(read_small(&path(name), 3).unwrap(), b"abc");
            assert!(read_small(&path(name), 2).unwrap_err().to_string().contains("more than 2 bytes"));
        }
    }

    #[test]
    fn only_what_nobody_else_could_have_written_is_ours() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&path, b"abc").unwrap();
        symlink(&path, &link).unwrap();
        for (mode, is_own) in [(0o600, true), (0o644, true), (0o664, false), (0o602, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(open_own(&path).is_ok(), is_own, "{mode:o}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(open_own(&link).unwrap_err().to_string().contains("symbolic link"));
        let cache = folder.path().join("a/b");
        own_folder(&cache).unwrap();
        assert_eq!(fs::metadata(&cache).unwrap().mode() & 0o777, 0o700);
        for (mode, is_own) in [(0o755, true), (0o777, false), (0o770, false)] {
            fs::set_permissions(&cache, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(own_folder(&cache).is_ok(), is_own, "{mode:o}");
        }
        assert!(own_folder(&path).is_err());
        if user() == 0 {
            for foreign in [&path, &cache] {
                chown(foreign, Some(65534), None).unwrap();
            }
            let error = open_own(&path).unwrap_err().to_string();
            assert!(error.contains("belongs to user 65534"), "{error}");
            fs::set_permissions(&cache, fs::Permissions::from_mode(0o700)).unwrap();
            assert!(own_folder(&cache).is_err());
        }
        let system = open_own(Path::new("/etc/passwd"));
        assert_eq!(system.is_ok(), user() == 0, "the file of another user");
    }
}
