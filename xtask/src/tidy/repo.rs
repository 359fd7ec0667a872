//! The files of the repository, read once and shared by all rules.
//!
//! A `Repo` can also be made of snippets, which is how the rules are tested.

use std::path::Path;

use super::source::Source;

/// Folders that hold no text of ours.
const SKIPPED: &[&str] = &[".git", "target"];

/// Every file of the repository, with the text of those that the rules look at.
#[derive(Default)]
pub struct Repo {
    /// Every path, relative to the root, with `/` between its parts.
    pub paths: Vec<String>,
    /// The Rust sources.
    pub sources: Vec<Source>,
    /// The sources of kernels for GPUs.
    pub kernels: Vec<Source>,
    /// The `Cargo.toml` files.
    pub manifests: Vec<Text>,
    /// The Markdown documents.
    pub documents: Vec<Text>,
}

/// A file that is not Rust.
pub struct Text {
    /// The path relative to the root.
    pub path: String,
    /// The whole file.
    pub text: String,
}

impl Repo {
    /// Reads the repository in `root`.
    pub fn read(root: &Path) -> Result<Self, String> {
        let mut repo = Self::default();
        repo.read_folder(root, "")?;
        Ok(repo)
    }

    /// A repository of the given paths and texts.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let mut repo = Self::default();
        for (path, text) in files {
            repo.add(path, || Ok((*text).to_owned())).unwrap();
        }
        repo
    }

    /// The name of the crate that the path belongs to, if it lies in one of `crates/`.
    pub fn crate_of(path: &str) -> Option<&str> {
        path.strip_prefix("crates/")?.split('/').next()
    }

    /// Tells whether the path is a file of the repository, or a folder that holds one.
    pub fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let inside = |known: &String| known.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
        self.paths.iter().any(|known| known == path || inside(known))
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) -> Result<(), String> {
        let unreadable = |error| format!("cannot list {}: {error}", folder.display());
        let entries: Result<Vec<_>, _> = folder.read_dir().map_err(unreadable)?.collect();
        let mut entries = entries.map_err(unreadable)?;
        // The order of a directory is the file system's; sorted, the findings come in the same order everywhere.
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            if entry.file_type().map_err(unreadable)?.is_dir() {
                if !SKIPPED.contains(&name.as_str()) {
                    self.read_folder(&entry.path(), &format!("{path}/"))?;
                }
            } else {
                let read = || std::fs::read_to_string(entry.path());
                self.add(&path, || read().map_err(|error| format!("cannot read {path}: {error}")))?;
            }
        }
        Ok(())
    }

    /// Adds a file; its text is asked for only if a rule looks at files of its kind.
    fn add(&mut self, path: &str, text: impl FnOnce() -> Result<String, String>) -> Result<(), String> {
        let name = path.rsplit('/').next().unwrap_or(path);
        if name.ends_with(".rs") {
            self.sources.push(Source::new(path, text()?));
        } else if name.ends_with(".cu") || name.ends_with(".cuh") {
            self.kernels.push(Source::new(path, text()?));
        } else if name == "Cargo.toml" {
            self.manifests.push(Text { path: path.to_owned(), text: text()? });
        } else if name.ends_with(".md") {
            self.documents.push(Text { path: path.to_owned(), text: text()? });
        }
        self.paths.push(path.to_owned());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_their_folders_are_known() {
        let repo = Repo::of(&[("crates/plimsoll-cpu/src/lib.rs", ""), ("deny.toml", "")]);
        for known in ["crates", "crates/plimsoll-cpu/", "crates/plimsoll-cpu/src/lib.rs", "deny.toml"] {
            assert!(repo.has(known), "{known}");
        }
        for unknown in ["crates/plimsoll", "lib.rs", "deny"] {
            assert!(!repo.has(unknown), "{unknown}");
        }
    }

    #[test]
    fn a_path_belongs_to_the_crate_of_its_folder() {
        assert_eq!(Repo::crate_of("crates/plimsoll-cpu/src/lib.rs"), Some("plimsoll-cpu"));
        assert_eq!(Repo::crate_of("xtask/src/main.rs"), None);
    }
}
