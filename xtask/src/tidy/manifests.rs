//! Every crate inherits what the workspace decides once: lints, version, edition, compiler, licence.
//!
//! A crate that forgets a line is silently held to other rules than its neighbours.

use super::Finding;
use super::repo::{Repo, Text};

/// The lines that each manifest must have, and the table they stand in.
const INHERITED: &[(&str, &str)] = &[
    ("package", "version.workspace = true"),
    ("package", "edition.workspace = true"),
    ("package", "rust-version.workspace = true"),
    ("package", "license.workspace = true"),
    ("lints", "workspace = true"),
];

/// Reports every line that a manifest lacks.
pub fn check(repo: &Repo) -> Vec<Finding> {
    let members = repo.manifests.iter().filter(|manifest| {
        let folder = manifest.path.trim_end_matches("/Cargo.toml");
        folder == "xtask" || folder.strip_prefix("crates/").is_some_and(|name| !name.contains('/'))
    });
    members.flat_map(missing_lines).collect()
}

fn missing_lines(manifest: &Text) -> Vec<Finding> {
    let mut table = "";
    let mut present = Vec::new();
    for line in manifest.text.lines().map(str::trim) {
        match line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(name) => table = name,
            None => present.push((table, line)),
        }
    }
    let missing = INHERITED.iter().filter(|wanted| !present.contains(wanted));
    let report = |(table, line): &(&str, &str)| {
        let message = format!("[{table}] lacks `{line}`: what the workspace decides holds for every crate");
        Finding::failure(&manifest.path, 1, message)
    };
    missing.map(report).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[package]\nname = \"plimsoll\"\nversion.workspace = true\nedition.workspace = true\n\
        rust-version.workspace = true\nlicense.workspace = true\n\n[lints]\nworkspace = true\n";

    #[test]
    fn a_crate_that_inherits_everything_passes() {
        let repo = Repo::of(&[("Cargo.toml", "[workspace]\n"), ("crates/plimsoll/Cargo.toml", GOOD)]);
        assert_eq!(check(&repo), []);
    }

    #[test]
    fn each_missing_line_is_named() {
        for (table, line) in INHERITED {
            // The line still stands at the end, where it belongs to another table.
            let bad = format!("{}\n[features]\n{line}\n", GOOD.replacen(&format!("\n{line}\n"), "\n", 1));
            let found = check(&Repo::of(&[("xtask/Cargo.toml", &bad)]));
            assert_eq!(found.len(), 1, "{bad}");
            assert!(found[0].message.starts_with(&format!("[{table}] lacks `{line}`")), "{}", found[0]);
        }
    }
}
