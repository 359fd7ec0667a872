//! Files that tests make and read: folders that are gone when a test ends, and the sources of a crate.

use std::path::{Path, PathBuf};
use std::{fs, io};

use tempfile::TempDir;

/// A folder of its own for a test, removed when it is dropped.
#[derive(Debug)]
pub struct Folder(TempDir);

impl Folder {
    /// A new folder, whose name begins so that one that is left over can be told.
    pub fn new(name: &str) -> Folder {
        let made = tempfile::Builder::new().prefix(&format!("plimsoll-{name}-")).tempdir();
        Folder(made.unwrap_or_else(|error| panic!("a test needs a folder for temporary files: {error}")))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A file in it with these contents.
    pub fn file(&self, name: &str, contents: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, contents).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }
}

/// The texts of all Rust sources below a folder.
///
/// # Errors
/// A folder or a file that cannot be read.
pub fn sources(folder: &Path) -> io::Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            texts.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            texts.push(fs::read_to_string(&path)?);
        }
    }
    Ok(texts)
}
