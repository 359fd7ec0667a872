//! Files of users are opened and written in one place.
//!
//! `File::open` waits for a FIFO and reads from a device, and `fs::write` follows a link and leaves half a file behind when it
//! is interrupted. `plimsoll-file` does neither, so libraries go through it.

use super::Finding;
use super::repo::Repo;

/// Calls that open a file by its name.
const CALLS: &[&str] =
    &["File::open(", "File::create", "fs::read(", "fs::read_to_string(", "fs::write(", "OpenOptions::new("];

/// Files that may make them, because what they open is no file of a user's.
const HOMES: &[(&str, &str)] = &[
    ("crates/plimsoll-file/", "the place itself"),
    ("crates/plimsoll-cli/src/machine.rs", "what the system says of itself"),
    ("crates/plimsoll-cuda/src/driver/libraries.rs", "what the system says of the process"),
    ("crates/plimsoll-cuda/src/emulated/", "kernels of tests, in the target folder"),
    ("crates/plimsoll-memory/src/spill_file.rs", "a file without a name"),
    ("crates/plimsoll-testkit/", "tests only"),
];

/// Reports every such call elsewhere in a library.
pub fn check(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &repo.sources {
        if HOMES.iter().any(|(home, _)| source.path.starts_with(home)) {
            continue;
        }
        for call in CALLS {
            let is_call = |&(offset, _): &(usize, &str)| {
                // `TensorFile::open` is something else.
                let is_word = !source.code[..offset].ends_with(|before: char| before.is_alphanumeric());
                is_word && source.is_library(offset)
            };
            for (offset, _) in source.code.match_indices(call).filter(is_call) {
                let name = call.trim_end_matches('(');
                let message =
                    format!("`{name}` may wait, follow a link or leave half a file: use `plimsoll_file`");
                findings.push(Finding::failure(&source.path, source.line_of(offset), message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_open_files_in_one_place() {
        let text = "fn f() {\n    File::open(path);\n    fs::write(path, b\"\"); // File::open(\n    TensorFile::open(path);\n}\n";
        let lines = |path: &str, text: &str| -> Vec<usize> {
            let mut lines: Vec<usize> =
                check(&Repo::of(&[(path, text)])).into_iter().map(|finding| finding.line).collect();
            lines.sort_unstable();
            lines
        };
        assert_eq!(lines("crates/plimsoll-data/src/csv.rs", text), [2, 3]);
        let unit_tests = format!("#[cfg(test)]\nmod tests {{\n{text}}}\n");
        assert_eq!(lines("crates/plimsoll-data/src/csv.rs", &unit_tests), [] as [usize; 0]);
        for path in
            ["crates/plimsoll-file/src/open.rs", "crates/plimsoll-data/tests/files.rs", "xtask/src/main.rs"]
        {
            assert_eq!(lines(path, text), [] as [usize; 0], "{path}");
        }
    }
}
