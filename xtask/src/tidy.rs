//! `cargo xtask tidy`: the rules of the house that a text search can hold.
//!
//! Each rule is a module with one function from the [`Repo`] to its findings, and tests on a snippet that keeps the
//! rule and one that breaks it. Rules read text, not syntax trees: they are fast, have no dependency, and may miss
//! what a macro hides. What the compiler or clippy already refuses is left to them.

mod bindings;
mod document_paths;
mod files;
mod leftovers;
mod manifests;
mod module_paths;
mod ops;
mod repo;
mod rooms;
mod size;
mod source;
mod system_libraries;
mod tensor_type;
mod unsafe_code;
mod words;

use std::fmt;
use std::path::Path;
use std::time::Instant;

use crate::Outcome;
use repo::Repo;

/// Something that a rule has to say about a line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    /// The file, relative to the root of the repository.
    path: String,
    /// The line, counted from 1.
    line: usize,
    /// What is wrong, and why the rule is there.
    message: String,
    /// Whether `tidy` fails because of it.
    weight: Weight,
}

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    /// Worth knowing.
    Note,
    /// Must be mended.
    Failure,
}

impl Finding {
    /// A finding that makes `tidy` fail.
    fn failure(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into(), weight: Weight::Failure }
    }

    /// A finding that is only printed.
    fn note(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { weight: Weight::Note, ..Self::failure(path, line, message) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.weight == Weight::Note { "note: " } else { "" };
        write!(f, "{}:{}: {prefix}{}", self.path, self.line, self.message)
    }
}

/// Applies every rule to the repository in `root`.
pub fn run(root: &Path) -> Outcome {
    println!("$ cargo xtask tidy");
    let started = Instant::now();
    let repo = Repo::read(root)?;
    let mut findings = [
        bindings::check(&repo),
        document_paths::check(&repo),
        files::check(&repo),
        leftovers::check(&repo),
        manifests::check(&repo),
        ops::check(&repo),
        rooms::check(&repo),
        size::check(&repo),
        system_libraries::check(root)?,
        tensor_type::check(&repo),
        unsafe_code::check(&repo),
        words::check(&repo),
    ]
    .concat();
    // Notes first, so that the failures are what remains on the screen.
    findings.sort_by_key(|finding| (finding.weight == Weight::Failure, finding.path.clone(), finding.line));
    for finding in &findings {
        println!("{finding}");
    }
    println!("  {:.1} s", started.elapsed().as_secs_f64());
    match findings.iter().filter(|finding| finding.weight == Weight::Failure).count() {
        0 => Ok(()),
        1 => Err("tidy found 1 thing to mend, named above".to_owned()),
        n => Err(format!("tidy found {n} things to mend, named above")),
    }
}
