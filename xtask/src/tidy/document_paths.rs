//! Documents point only at what exists.
//!
//! A code map with a wrong path is worse than none. Whatever stands in backticks in one of the guides and looks like a
//! path of this repository must be there.

use super::Finding;
use super::repo::Repo;

/// The documents that guide a reader through the code.
const GUIDES: &[&str] = &["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"];

/// What a path of this repository begins with.
const ROOTS: &[&str] = &["crates/", "xtask/", "examples/", "docs/", ".ci/"];

/// Reports every path in a guide that leads nowhere.
pub fn check(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for guide in repo.documents.iter().filter(|document| GUIDES.contains(&document.path.as_str())) {
        for (index, line) in guide.text.lines().enumerate() {
            for path in paths(line).filter(|path| !repo.has(path)) {
                let message = format!("`{path}` does not exist: readers follow the paths in this document");
                findings.push(Finding::failure(&guide.path, index + 1, message));
            }
        }
    }
    findings
}

/// The paths in backticks on the line, each up to its first placeholder (`<op>`, `*`), which stands for any name.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split('`').skip(1).step_by(2);
    let named = quoted.filter(|text| {
        !text.contains(char::is_whitespace) && ROOTS.iter().any(|root| text.starts_with(root))
    });
    named.map(|path| match path.find(['<', '*', '{']) {
        Some(placeholder) => &path[..path[..placeholder].rfind('/').map_or(0, |slash| slash + 1)],
        None => path,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: (&str, &str) = ("crates/plimsoll-tensor/src/ops/add.rs", "");

    #[test]
    fn existing_paths_placeholders_and_other_text_pass() {
        let text = "See `crates/plimsoll-tensor/src/ops/add.rs` and `crates/plimsoll-tensor/`,\n\
            one file each, `crates/plimsoll-tensor/src/ops/<op>.rs`; run `cargo test`, not `a/b`.\n";
        assert_eq!(check(&Repo::of(&[FILE, ("ARCHITECTURE.md", text)])), []);
    }

    #[test]
    fn missing_paths_are_reported_in_guides_alone() {
        let text = "\nSee `crates/plimsoll-tensor/src/ops/sub.rs` or `docs/<name>.md`.\n";
        let found = check(&Repo::of(&[FILE, ("README.md", text), ("crates/plimsoll/notes.md", text)]));
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|finding| finding.path == "README.md" && finding.line == 2));
        assert!(found[0].message.contains("ops/sub.rs") && found[1].message.contains("`docs/`"));
    }
}
