//! A file for bytes that are away from memory for a while.
//!
//! The file has no name from the beginning, so whatever ends the process, nothing is left behind. Bytes go past the page
//! cache: what is offloaded must not come back as memory by another name, for which reason a folder that lies
//! in memory itself is refused. Where the file system cannot do without its cache, each write is waited for and its pages
//! are dropped.
//!
//! It knows offsets, not who may use which: a [`Pool`](crate::Pool) over ghost pages keeps account of the room.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// What offsets in the file are multiples of.
pub const SPILL_ALIGNMENT: u64 = PAGE as u64;

const PAGE: usize = 4096;
/// Blocks of a pool are aligned to that; it is enough for the devices that we know.
const MEMORY_ALIGNMENT: usize = 512;
/// The part of the free space that a file may take, in percent.
const SHARE_OF_FREE: u64 = 95;

/// A nameless file in a folder.
#[derive(Debug)]
pub struct SpillFile {
    file: File,
    folder: PathBuf,
    is_direct: bool,
    room: u64,
}

/// A piece of memory that every device takes.
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

impl SpillFile {
    /// A new file in a folder.
    ///
    /// # Errors
    /// What the operating system says; a folder that lies in memory.
    pub fn open(folder: &Path) -> io::Result<SpillFile> {
        let plain = nameless(folder, 0)?;
        refuse_memory(&plain)?;
        let room = room(&plain)?;
        let direct = nameless(folder, libc::O_DIRECT).ok().filter(takes_blocks);
        let is_direct = direct.is_some();
        Ok(SpillFile { file: direct.unwrap_or(plain), folder: folder.to_owned(), is_direct, room })
    }

    /// How large a new file in a folder could become, without making one: for plans, which write nothing.
    ///
    /// # Errors
    /// Those of [`SpillFile::open`], as far as they can be known without writing.
    pub fn room_in(folder: &Path) -> io::Result<u64> {
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let folder = OpenOptions::new().read(true).custom_flags(flags).open(folder)?;
        refuse_memory(&folder)?;
        // SAFETY: the descriptor is open and the path ends in a zero; the call only reads both.
        let answer = unsafe {
            libc::faccessat(folder.as_raw_fd(), c".".as_ptr(), libc::W_OK | libc::X_OK, libc::AT_EACCESS)
        };
        match answer {
            0 => room(&folder),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The folder that the file was made in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// How large the file may become: most of what was free when it was made.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Writes bytes from an offset on, a multiple of [`SPILL_ALIGNMENT`]. The file is used in whole pages of that size:
    /// what follows the bytes in their last page is overwritten, too.
    ///
    /// # Errors
    /// What the operating system says, such as a disk that is full.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        #[cfg(feature = "testing")]
        crate::testing::next_spilling(&self.folder)?;
        let (whole, rest) = bytes.split_at(whole_pages(bytes));
        self.file.write_all_at(whole, offset)?;
        let mut at = offset + whole.len() as u64;
        for part in rest.chunks(PAGE) {
            let mut page = Page([0; PAGE]);
            page.0[..part.len()].copy_from_slice(part);
            self.file.write_all_at(&page.0, at)?;
            at += PAGE as u64;
        }
        if !self.is_direct {
            self.file.sync_data()?;
            self.forget(offset, at - offset);
        }
        Ok(())
    }

    /// Reads back what was written from an offset on.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        #[cfg(feature = "testing")]
        crate::testing::next_spilling(&self.folder)?;
        let (whole, rest) = bytes.split_at_mut(whole_pages(bytes));
        self.file.read_exact_at(whole, offset)?;
        let mut at = offset + whole.len() as u64;
        for part in rest.chunks_mut(PAGE) {
            let mut page = Page([0; PAGE]);
            self.file.read_exact_at(&mut page.0, at)?;
            part.copy_from_slice(&page.0[..part.len()]);
            at += PAGE as u64;
        }
        if !self.is_direct {
            self.forget(offset, at - offset);
        }
        Ok(())
    }

    /// Drops the system's own copy of a part of the file.
    fn forget(&self, offset: u64, n_bytes: u64) {
        let (offset, n_bytes) = (offset as libc::off_t, n_bytes as libc::off_t);
        // SAFETY: the descriptor is open; the call reads and writes no memory of ours. It is advice, and may fail.
        let _ =
            unsafe { libc::posix_fadvise(self.file.as_raw_fd(), offset, n_bytes, libc::POSIX_FADV_DONTNEED) };
    }
}

/// The bytes at the beginning of a slice that a device can take from where they are.
fn whole_pages(bytes: &[u8]) -> usize {
    match bytes.as_ptr().addr().is_multiple_of(MEMORY_ALIGNMENT) {
        true => bytes.len() / PAGE * PAGE,
        false => 0,
    }
}

/// A new file without a name.
fn nameless(folder: &Path, flags: libc::c_int) -> io::Result<File> {
    let options = |flags: libc::c_int| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600).custom_flags(flags);
        options
    };
    match options(flags | libc::O_TMPFILE).open(folder) {
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) =>
        {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!(".plimsoll-spill-{}-{number}", std::process::id()));
            let file = options(flags).create_new(true).open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        opened => opened,
    }
}

/// How large a file may become that lies where this one, or this folder, does.
fn room(file: &File) -> io::Result<u64> {
    Ok(free_bytes(file)? / 100 * SHARE_OF_FREE)
}

/// Refuses a file that lies in memory.
fn refuse_memory(file: &File) -> io::Result<()> {
    const RAMFS: i64 = 0x8584_58F6;
    let mut status = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open, and there is room for the answer.
    if unsafe { libc::fstatfs(file.as_raw_fd(), status.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded and has filled it.
    let kind = unsafe { status.assume_init() }.f_type;
    if kind == libc::TMPFS_MAGIC || kind == RAMFS {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "this folder lies in memory (tmpfs), where moving saves nothing; name one on a disk",
        ));
    }
    Ok(())
}

/// What the file system of a file has left for us.
fn free_bytes(file: &File) -> io::Result<u64> {
    let mut status = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the descriptor is open, and there is room for the answer.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), status.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded and has filled it.
    let status = unsafe { status.assume_init() };
    Ok(status.f_bavail.saturating_mul(status.f_frsize))
}

/// Whether a file that is opened past the cache takes memory that is aligned as blocks are.
fn takes_blocks(file: &File) -> bool {
    #[repr(C, align(4096))]
    struct Pages([u8; 2 * PAGE]);
    let mut pages = Pages([1; 2 * PAGE]);
    let block = &mut pages.0[MEMORY_ALIGNMENT..MEMORY_ALIGNMENT + PAGE];
    file.write_all_at(block, 0).and_then(|()| file.read_exact_at(block, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> PathBuf {
        // The folder of the build lies on a disk; that of temporary files may not.
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
    }

    fn written(file: &SpillFile) {
        let pattern = |seed: u64, n: usize| -> Vec<u8> {
            (0..n as u64).map(|idx| (idx.wrapping_mul(seed * 2 + 1) >> 3) as u8).collect()
        };
        let sizes = [1, 511, 512, 4096, 4097, 70_000, 1 << 20];
        let mut offset = 0;
        let mut places = Vec::new();
        for (seed, &size) in sizes.iter().enumerate() {
            file.write(offset, &pattern(seed as u64, size)).unwrap();
            places.push(offset);
            offset += (size as u64).next_multiple_of(SPILL_ALIGNMENT);
        }
        // Room is used again, and its neighbours stay as they are.
        file.write(places[3], &pattern(99, 4096)).unwrap();
        for (seed, (&size, &place)) in sizes.iter().zip(&places).enumerate() {
            let mut back = vec![0; size];
            file.read(place, &mut back).unwrap();
            assert!(back == pattern(if seed == 3 { 99 } else { seed as u64 }, size), "{size} bytes");
        }
    }

    #[test]
    fn bytes_come_back_as_they_were() {
        let file = SpillFile::open(&folder()).unwrap();
        assert!(file.room() > 0);
        written(&file);
        let cached = SpillFile { file: nameless(&folder(), 0).unwrap(), is_direct: false, ..file };
        written(&cached);
    }

    #[test]
    fn the_file_has_no_name() {
        let before = std::fs::read_dir(folder()).unwrap().count();
        let _file = SpillFile::open(&folder()).unwrap();
        assert_eq!(std::fs::read_dir(folder()).unwrap().count(), before);
    }

    #[test]
    fn the_room_in_a_folder_is_known_without_a_file() {
        // Others write to the disk meanwhile.
        let (room, opened) = (SpillFile::room_in(&folder()).unwrap(), SpillFile::open(&folder()).unwrap());
        assert!(room.abs_diff(opened.room()) < room / 2, "{room} and {}", opened.room());
        assert!(SpillFile::room_in(&folder().join("Cargo.toml")).is_err());
    }

    #[test]
    fn a_folder_that_is_missing_or_lies_in_memory_is_refused() {
        let asked: [fn(&Path) -> io::Result<u64>; 2] =
            [|folder| SpillFile::open(folder).map(|file| file.room()), SpillFile::room_in];
        for room in asked {
            assert!(room(&folder().join("nowhere")).is_err());
            let memory = Path::new("/dev/shm");
            if memory.is_dir() {
                let error = room(memory).unwrap_err();
                assert!(error.to_string().contains("tmpfs"), "{error}");
            }
        }
    }

    #[test]
    fn reading_beyond_the_end_is_an_error() {
        let file = SpillFile::open(&folder()).unwrap();
        assert!(file.read(1 << 30, &mut [0; 100]).is_err());
    }
}
