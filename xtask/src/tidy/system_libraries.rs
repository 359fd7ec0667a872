//! The default members need no system library.
//!
//! `cargo build` must work wherever Rust does. A dependency asks for a library of the system through a `-sys` crate or
//! the `links` key, so that neither may be among the normal dependencies of the crate that people use.

use std::path::Path;

use super::Finding;
use crate::step::Step;

/// The crate that stands for the default members.
const ENTRY: &str = "plimsoll-cli";

/// Crates that look as if they linked a library and link nothing, with the reason.
const LINK_NOTHING: &[(&str, &str)] = &[
    ("linux-raw-sys", "numbers and types of the kernel's interface, in Rust"),
    ("rayon-core", "the key only keeps a program from holding two thread registries"),
];

/// Asks cargo for the dependencies and reports those that need a system library.
pub fn check(root: &Path) -> Result<Vec<Finding>, String> {
    let tree = ["tree", "--package", ENTRY, "--edges", "normal", "--prefix", "none", "--format", "{p}"];
    let tree = Step::cargo(root, &tree).read()?;
    let metadata = Step::cargo(root, &["metadata", "--format-version", "1"]).read()?;
    offenders(&tree, &metadata)
}

/// Reports the packages of `tree` that are `-sys` crates or have, according to `metadata`, a `links` key.
fn offenders(tree: &str, metadata: &str) -> Result<Vec<Finding>, String> {
    // A package that occurs again is listed again, marked with a star.
    let mut packages: Vec<(&str, &str)> = tree.lines().filter_map(name_and_version).collect();
    packages.sort_unstable();
    packages.dedup();
    let mut findings = Vec::new();
    for (name, version) in packages {
        let links = links_key(metadata, name, version)?;
        let excepted = LINK_NOTHING.iter().any(|(exception, _)| *exception == name);
        if (name.ends_with("-sys") || links.is_some()) && !excepted {
            let wants = links.map(|library| format!(" (it links `{library}`)")).unwrap_or_default();
            let message = format!(
                "{ENTRY} depends on {name} {version}{wants}: the default build must need no system library"
            );
            findings.push(Finding::failure(&format!("crates/{ENTRY}/Cargo.toml"), 1, message));
        }
    }
    Ok(findings)
}

/// Reads a line of `cargo tree`, such as `half v2.7.1` or `plimsoll v0.1.0 (path)`.
fn name_and_version(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.split_once(" v")?;
    Some((name, rest.split_whitespace().next()?))
}

/// The `links` key of a package.
///
/// The metadata is JSON on one line in which each package begins with its name and version, as dependencies and
/// targets do not. Should cargo ever write it otherwise, the package is not found, and that is an error.
fn links_key<'a>(metadata: &'a str, name: &str, version: &str) -> Result<Option<&'a str>, String> {
    let start = format!("{{\"name\":\"{name}\",\"version\":\"{version}\",");
    let (_, package) = metadata
        .split_once(&start)
        .ok_or_else(|| format!("`cargo metadata` does not list {name} {version} the way xtask reads it"))?;
    let (_, links) = package
        .split_once("\"links\":")
        .ok_or_else(|| format!("`cargo metadata` says nothing of links for {name} {version}"))?;
    Ok(links.strip_prefix('"').and_then(|library| library.split('"').next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = concat!(
        r#"{"packages":[{"name":"plimsoll","version":"0.1.0","dependencies":[{"name":"libz-sys","#,
        r#""source":null}],"links":null},{"name":"libz-sys","version":"1.1.0","links":"z"},"#,
        r#"{"name":"zlib","version":"2.0.0","links":"zlib"},"#,
        r#"{"name":"rayon-core","version":"1.13.0","links":"rayon-core"}]}"#
    );

    #[test]
    fn plain_crates_and_listed_exceptions_pass() {
        let tree = "plimsoll v0.1.0 (folder)\nrayon-core v1.13.0\nrayon-core v1.13.0 (*)\n";
        assert_eq!(offenders(tree, METADATA), Ok(vec![]));
    }

    #[test]
    fn crates_that_link_are_reported_once() {
        let tree = "plimsoll v0.1.0 (folder)\nlibz-sys v1.1.0\nlibz-sys v1.1.0 (*)\nzlib v2.0.0\n";
        let found = offenders(tree, METADATA).unwrap();
        assert_eq!(found.len(), 2);
        assert!(found[0].message.contains("libz-sys 1.1.0 (it links `z`)"), "{}", found[0]);
        assert!(found[1].message.contains("zlib 2.0.0 (it links `zlib`)"), "{}", found[1]);
    }

    #[test]
    fn unreadable_metadata_is_an_error() {
        assert!(offenders("half v2.7.1\n", METADATA).unwrap_err().contains("half 2.7.1"));
    }
}
