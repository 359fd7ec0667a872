//! Foreign interfaces have one home each.
//!
//! A crate that names `cudarc` knows about drivers, one that names `pyo3` about an interpreter. Everything else goes
//! through the crate that wraps them, so that it builds and is tested on any machine.

use super::Finding;
use super::repo::Repo;

/// What is bound, and the only crate that may name it.
const HOMES: &[(&str, &str)] = &[("cudarc", "plimsoll-cuda"), ("pyo3", "plimsoll-python")];

/// Reports every other crate that names one of the bindings, in its manifest or its code.
pub fn check(repo: &Repo) -> Vec<Finding> {
    let sources = repo.sources.iter().map(|source| (&source.path, source.code.clone()));
    // The manifest at the top lists the versions of all dependencies and uses none.
    let manifests = repo.manifests.iter().filter(|manifest| manifest.path != "Cargo.toml");
    let manifests = manifests.map(|manifest| (&manifest.path, without_comments(&manifest.text)));
    let mut findings = Vec::new();
    for (path, text) in sources.chain(manifests) {
        for (binding, home) in HOMES {
            if Repo::crate_of(path) == Some(home) {
                continue;
            }
            for (index, _) in text.lines().enumerate().filter(|(_, line)| line.contains(binding)) {
                let message =
                    format!("`{binding}` is named outside {home}, which alone wraps it: use its API");
                findings.push(Finding::failure(path, index + 1, message));
            }
        }
    }
    findings
}

/// The manifest without its comments. A `#` inside a string ends the line too, which no dependency's name needs.
fn without_comments(manifest: &str) -> String {
    manifest.lines().map(|line| line.split('#').next().unwrap_or(line)).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_crate_comments_and_the_workspace_may_name_it() {
        let repo = Repo::of(&[
            ("Cargo.toml", "[workspace.dependencies]\ncudarc = \"0.19\"\n"),
            ("crates/plimsoll-cuda/Cargo.toml", "cudarc.workspace = true\n"),
            ("crates/plimsoll-cuda/src/lib.rs", "use cudarc::driver;\n"),
            ("crates/plimsoll-tensor/Cargo.toml", "# not cudarc\n"),
            (
                "crates/plimsoll-tensor/src/lib.rs",
                "//! Knows nothing of cudarc.\nconst A: &str = \"pyo3\";\n",
            ),
        ]);
        assert_eq!(check(&repo), []);
    }

    #[test]
    fn others_may_not() {
        let repo = Repo::of(&[
            ("crates/plimsoll-cuda/src/lib.rs", "use pyo3::prelude::*;\n"),
            ("crates/plimsoll-tensor/Cargo.toml", "[dependencies]\ncudarc.workspace = true\n"),
            ("crates/plimsoll-tensor/src/lib.rs", "\nuse cudarc::driver;\n"),
        ]);
        let found: Vec<(String, usize)> = check(&repo).into_iter().map(|f| (f.path, f.line)).collect();
        let expected = [
            ("crates/plimsoll-cuda/src/lib.rs".to_owned(), 1),
            ("crates/plimsoll-tensor/src/lib.rs".to_owned(), 2),
            ("crates/plimsoll-tensor/Cargo.toml".to_owned(), 2),
        ];
        assert_eq!(found, expected);
    }
}
