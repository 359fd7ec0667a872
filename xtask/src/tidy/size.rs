//! Files stay small enough to be read.
//!
//! A file is about one thing. Tests at the bottom of a file do not count towards its length, because cutting them would be
//! the cheapest way to keep the rule. That a function fits a screen is held by clippy (`too_many_lines`).

use std::ops::Range;

use super::Finding;
use super::repo::Repo;
use super::source::Source;

/// Lines of a file above which it is worth a thought.
const FILE_SOFT: usize = 400;

/// Lines of a file above which it must be divided.
const FILE_HARD: usize = 800;

/// Reports files that are too long.
pub fn check(repo: &Repo) -> Vec<Finding> {
    repo.sources.iter().filter_map(long_file).collect()
}

fn long_file(source: &Source) -> Option<Finding> {
    if source.is_test_file() {
        return None;
    }
    let length = source.text.lines().count() - test_lines(source);
    if length > FILE_HARD {
        let message =
            format!("{length} lines without tests, at most {FILE_HARD}: divide the file by subject");
        Some(Finding::failure(&source.path, 1, message))
    } else if length > FILE_SOFT {
        let message =
            format!("{length} lines without tests; above {FILE_SOFT} a file often holds two things");
        Some(Finding::note(&source.path, 1, message))
    } else {
        None
    }
}

/// How many lines the test modules inside the file have.
fn test_lines(source: &Source) -> usize {
    let lines = |span: Range<usize>| source.line_of(span.end) - source.line_of(span.start) + 1;
    source.test_modules().into_iter().map(lines).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "crates/plimsoll/src/lib.rs";

    fn findings(text: &str) -> Vec<Finding> {
        check(&Repo::of(&[(PATH, text)]))
    }

    #[test]
    fn a_long_file_is_a_note_and_a_longer_one_a_failure() {
        let lines = |n: usize| "const A: u8 = 0;\n".repeat(n);
        assert_eq!(findings(&lines(FILE_SOFT)), []);
        assert_eq!(findings(&lines(FILE_SOFT + 1))[0].weight, super::super::Weight::Note);
        assert_eq!(findings(&lines(FILE_HARD + 1))[0].weight, super::super::Weight::Failure);
    }

    #[test]
    fn tests_do_not_count() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "    // A test.\n".repeat(FILE_HARD));
        assert_eq!(findings(&tests), []);
        assert_eq!(findings(&tests.replace("#[cfg(test)]", "#[cfg(unix)]")).len(), 1);
        let folder = check(&Repo::of(&[("crates/plimsoll/src/pool/tests.rs", &"\n".repeat(FILE_HARD + 1))]));
        assert_eq!(folder, []);
    }
}
