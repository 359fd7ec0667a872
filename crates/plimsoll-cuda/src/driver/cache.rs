//! Compiled kernels on disk, so that a second run starts at once.
//!
//! A file's name is the hash of everything that its contents follow from, and its contents begin with their own hash. So a
//! file is never out of date, one that is damaged is noticed and made anew, and two writers cannot disturb each other: each
//! writes under a name of its own and renames. A folder that cannot be written to makes runs slower and nothing else.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

/// What the files begin with; the number changes with their form.
const MAGIC: &[u8; 16] = b"plimsoll-cubin-1";

/// Where compiled kernels are kept.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    /// Nothing is kept if there is no folder.
    folder: Option<PathBuf>,
}

impl Cache {
    /// The user's cache: `$PLIMSOLL_CACHE`, or `plimsoll` under `$XDG_CACHE_HOME` or `~/.cache`.
    pub fn of_user() -> Cache {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = set("PLIMSOLL_CACHE")
            .or_else(|| Some(set("XDG_CACHE_HOME")?.join("plimsoll")))
            .or_else(|| Some(set("HOME")?.join(".cache").join("plimsoll")));
        Cache { folder }
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
        let mut contents = fs::read(&path).ok()?;
        let head = MAGIC.len() + 32;
        let whole = contents.len() >= head
            && contents.starts_with(MAGIC)
            && Sha256::digest(&contents[head..]).as_slice() == &contents[MAGIC.len()..head];
        if !whole {
            log::warn!("{} is damaged and is made anew", path.display());
            return None;
        }
        contents.drain(..head);
        Some(contents)
    }

    fn put(&self, key: &str, contents: &[u8]) -> io::Result<()> {
        let Some(path) = self.path(key) else { return Ok(()) };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let draft = path.with_extension(format!("{}-{number}.draft", process::id()));
        let written = fs::File::create_new(&draft).and_then(|mut file| {
            file.write_all(MAGIC)?;
            file.write_all(&Sha256::digest(contents))?;
            file.write_all(contents)?;
            file.sync_all()
        });
        let renamed = written.and_then(|()| fs::rename(&draft, &path));
        if renamed.is_err() {
            let _ = fs::remove_file(&draft);
        }
        renamed
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(format!("{key}.cubin")))
    }
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
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = env::temp_dir().join(format!("plimsoll-cache-{}-{name}", process::id()));
            let _ = fs::remove_dir_all(&path);
            Folder(path)
        }

        fn cache(&self) -> Cache {
            Cache { folder: Some(self.0.clone()) }
        }

        fn files(&self) -> Vec<PathBuf> {
            fs::read_dir(&self.0)
                .map(|dir| dir.map(|entry| entry.unwrap().path()).collect())
                .unwrap_or_default()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn never() -> Result<Vec<u8>, String> {
        Err("made again".to_owned())
    }

    #[test]
    fn what_was_made_once_is_read() {
        let folder = Folder::new("once");
        let made = folder.cache().get_or("a", || Ok::<_, String>(b"kernel".to_vec()));
        assert_eq!(made, Ok(b"kernel".to_vec()));
        assert_eq!(folder.cache().get_or("a", never), Ok(b"kernel".to_vec()));
        assert_eq!(folder.cache().get_or("b", never), Err("made again".to_owned()));
        assert_eq!(folder.files(), [folder.0.join("a.cubin")]);
    }

    #[test]
    fn a_damaged_file_is_made_anew() {
        let folder = Folder::new("damaged");
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
    fn writers_do_not_disturb_each_other_or_a_reader() {
        let folder = Folder::new("writers");
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
        let folder = Folder::new("file");
        fs::write(&folder.0, "a file where the folder would be").unwrap();
        let made = folder.cache().get_or("a", || Ok::<_, String>(b"kernel".to_vec()));
        assert_eq!(made, Ok(b"kernel".to_vec()));
        fs::remove_file(&folder.0).unwrap();
        assert_eq!(Cache { folder: None }.get_or("a", never), Err("made again".to_owned()));
    }

    #[test]
    fn keys_tell_parts_apart() {
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
        assert_eq!(key(&["ab", "c"]), key(&["ab", "c"]));
        assert_eq!(key(&[]).len(), 64);
    }
}
