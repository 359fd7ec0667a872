//! Compiled kernels on disk, so that a second run starts at once.
//!
//! A file's name is the hash of everything that its contents follow from, and its contents begin with a hash of that name
//! and of themselves. So a file is never out of date, one that is damaged or has been given another's name is noticed
//! and made anew, and two writers cannot disturb each other.
//!
//! Kernels are code that runs with the user's rights. A folder or a file that anybody else can write to is not used, and
//! says so once. A folder that cannot be written to makes runs slower and nothing else.

use std::env;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use plimsoll_file::{open_own, own_folder, remove_leftovers_in, write_whole};
use sha2::{Digest, Sha256};

/// What the files begin with; the number changes with their form.
const MAGIC: &[u8; 16] = b"plimsoll-cubin-2";
/// What stands before a kernel.
const HEAD: usize = MAGIC.len() + 32;

/// Where compiled kernels are kept.
#[derive(Debug)]
pub(crate) struct Cache {
    /// Nothing is kept if there is no folder.
    folder: Option<PathBuf>,
    /// Whether the folder can be used, once somebody has looked.
    is_usable: OnceLock<bool>,
}

impl Cache {
    /// The user's cache: `$PLIMSOLL_CACHE`, or `plimsoll` under `$XDG_CACHE_HOME` or `~/.cache`.
    pub fn of_user() -> Cache {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = set("PLIMSOLL_CACHE")
            .or_else(|| Some(set("XDG_CACHE_HOME")?.join("plimsoll")))
            .or_else(|| Some(set("HOME")?.join(".cache").join("plimsoll")));
        Cache::of(folder)
    }

    fn of(folder: Option<PathBuf>) -> Cache {
        Cache { folder, is_usable: OnceLock::new() }
    }

    /// Whether there is a folder in which contents are kept.
    pub fn is_on_disk(&self) -> bool {
        self.path("").is_some()
    }

    /// The contents that were kept under a key, or new ones, which are kept.
    pub fn get_or<E>(&self, key: &str, make: impl FnOnce() -> Result<Vec<u8>, E>) -> Result<Vec<u8>, E> {
        if let Some(kept) = self.get(key) {
            return Ok(kept);
        }
        let made = make()?;
        if let Err(error) = self.put(key, &made) {
            log::debug!("a compiled kernel could not be kept: {error}");
        }
        Ok(made)
    }

    fn get(&self, key: &str) -> Option<Vec<u8>> {
        let path = self.path(key)?;
        let read = || {
            let mut contents = Vec::new();
            open_own(&path)?.read_to_end(&mut contents)?;
            Ok(contents)
        };
        let mut contents: Vec<u8> = match read() {
            Ok(contents) => contents,
            Err(error) if io::Error::kind(&error) == io::ErrorKind::NotFound => return None,
            Err(error) => {
                log::warn!("{}: {error}; the kernel is compiled anew", path.display());
                return None;
            }
        };
        let is_whole = contents.len() >= HEAD && contents[..HEAD] == head(key, &contents[HEAD..]);
        if !is_whole {
            log::warn!("{} is damaged and is made anew", path.display());
            return None;
        }
        contents.drain(..HEAD);
        Some(contents)
    }

    fn put(&self, key: &str, contents: &[u8]) -> io::Result<()> {
        let Some(path) = self.path(key) else { return Ok(()) };
        write_whole(&path, |file| {
            file.write_all(&head(key, contents))?;
            file.write_all(contents)
        })
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        let folder = self.folder.as_ref()?;
        let is_usable = *self.is_usable.get_or_init(|| usable(folder));
        is_usable.then(|| folder.join(format!("{key}.cubin")))
    }
}

/// Makes a folder ready, and says why if it cannot be used. What killed processes left there is removed.
fn usable(folder: &Path) -> bool {
    match own_folder(folder) {
        Ok(()) => {
            remove_leftovers_in(folder);
            true
        }
        Err(error) => {
            log::warn!("compiled kernels are not kept in {}: {error}", folder.display());
            false
        }
    }
}

/// What stands before a kernel: the form, and the hash of what it was compiled from and of itself.
fn head(key: &str, contents: &[u8]) -> [u8; HEAD] {
    let hash = Sha256::new().chain_update(key).chain_update(contents).finalize();
    let mut head = [0; HEAD];
    head[..MAGIC.len()].copy_from_slice(MAGIC);
    head[MAGIC.len()..].copy_from_slice(&hash);
    head
}

/// The key of what follows from these parts alone.
pub(super) fn key(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        // With its length before it, no part can pass for the end of another.
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use tempfile::{TempDir, tempdir};

    use super::*;

    /// A folder for a cache, which makes it itself, inside a temporary one.
    struct Folder(PathBuf, #[expect(dead_code, reason = "it is removed when it is dropped")] TempDir);

    impl Folder {
        fn new() -> Folder {
            let temporary = tempdir().unwrap();
            Folder(temporary.path().join("cache"), temporary)
        }

        fn cache(&self) -> Cache {
            Cache::of(Some(self.0.clone()))
        }

        fn files(&self) -> Vec<PathBuf> {
            fs::read_dir(&self.0)
                .map(|dir| dir.map(|entry| entry.unwrap().path()).collect())
                .unwrap_or_default()
        }
    }

    fn never() -> Result<Vec<u8>, String> {
        Err("made again".to_owned())
    }

    #[test]
    fn what_was_made_once_is_read() {
        let folder = Folder::new();
        let made = folder.cache().get_or("a", || Ok::<_, String>(b"kernel".to_vec()));
        assert_eq!(made, Ok(b"kernel".to_vec()));
        assert_eq!(folder.cache().get_or("a", never), Ok(b"kernel".to_vec()));
        assert_eq!(folder.cache().get_or("b", never), Err("made again".to_owned()));
        assert_eq!(folder.files(), [folder.0.join("a.cubin")]);
    }

    #[test]
    fn a_damaged_file_is_made_anew() {
        let folder = Folder::new();
        folder.cache().put("a", b"kernel").unwrap();
        let path = folder.0.join("a.cubin");
        let whole = fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        for damaged in [&flipped[..], &whole[..whole.len() - 1], &whole[..20], b""] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(folder.cache().get("a"), None, "{} bytes", damaged.len());
            let made = folder.cache().get_or("a", || Ok::<_, String>(b"kernel".to_vec()));
            assert_eq!(made, Ok(b"kernel".to_vec()));
            assert_eq!(fs::read(&path).unwrap(), whole);
        }
    }

    #[test]
    fn a_kernel_under_the_name_of_another_is_made_anew() {
        let folder = Folder::new();
        folder.cache().put("a", b"kernel of a").unwrap();
        fs::copy(folder.0.join("a.cubin"), folder.0.join("b.cubin")).unwrap();
        assert_eq!(folder.cache().get("b"), None);
        assert_eq!(folder.cache().get("a").as_deref(), Some(&b"kernel of a"[..]));
    }

    #[test]
    fn what_others_could_have_written_is_not_used() {
        let folder = Folder::new();
        folder.cache().put("a", b"kernel").unwrap();
        let path = folder.0.join("a.cubin");
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        assert!(folder.cache().get("a").is_some());
        for mode in [0o666, 0o620] {
            set(&path, mode);
            assert_eq!(folder.cache().get("a"), None, "a file of mode {mode:o}");
        }
        set(&path, 0o600);
        for mode in [0o777, 0o770, 0o1777] {
            set(&folder.0, mode);
            assert_eq!(folder.cache().get("a"), None, "a folder of mode {mode:o}");
            let made = folder.cache().get_or("b", || Ok::<_, String>(b"kernel".to_vec()));
            assert_eq!(made, Ok(b"kernel".to_vec()));
            assert_eq!(folder.files().as_slice(), std::slice::from_ref(&path), "nothing is put there");
        }
        set(&folder.0, 0o700);
        symlink(&path, folder.0.join("b.cubin")).unwrap();
        assert_eq!(folder.cache().get("b"), None, "a symbolic link");
    }

    #[test]
    fn what_killed_processes_left_is_cleared() {
        let folder = Folder::new();
        folder.cache().put("a", b"kernel").unwrap();
        fs::write(folder.0.join(".b.cubin.x1.tmp"), b"half").unwrap();
        assert!(folder.cache().get("a").is_some());
        assert_eq!(folder.files(), [folder.0.join("a.cubin")]);
    }

    #[test]
    fn writers_do_not_disturb_each_other_or_a_reader() {
        let folder = Folder::new();
        let contents = vec![7u8; 1 << 16];
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..16).for_each(|_| folder.cache().put("a", &contents).unwrap()));
            }
            scope.spawn(|| {
                for _ in 0..64 {
                    // Either nothing is there yet, or all of it is.
                    if folder.0.join("a.cubin").exists() {
                        assert_eq!(folder.cache().get("a").as_ref(), Some(&contents));
                    }
                }
            });
        });
        assert_eq!(folder.files(), [folder.0.join("a.cubin")]);
    }

    #[test]
    fn a_folder_that_cannot_be_is_no_error() {
        let folder = Folder::new();
        fs::write(&folder.0, "a file where the folder would be").unwrap();
        let made = folder.cache().get_or("a", || Ok::<_, String>(b"kernel".to_vec()));
        assert_eq!(made, Ok(b"kernel".to_vec()));
        fs::remove_file(&folder.0).unwrap();
        assert_eq!(Cache::of(None).get_or("a", never), Err("made again".to_owned()));
    }

    #[test]
    fn keys_tell_parts_apart() {
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
        assert_eq!(key(&["ab", "c"]), key(&["ab", "c"]));
        assert_eq!(key(&[]).len(), 64);
    }
}
