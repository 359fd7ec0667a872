//! Files and functions stay small enough to be read.
//!
//! A function fits a screen; a file is about one thing. Tests at the bottom of a file do not count towards its length,
//! because cutting them would be the cheapest way to keep the rule.

use std::ops::Range;

use super::Finding;
use super::repo::Repo;
use super::source::Source;

/// Lines of a file above which it is worth a thought.
const FILE_SOFT: usize = 400;

/// Lines of a file above which it must be divided.
const FILE_HARD: usize = 800;

/// Lines of a function, from its `fn` to its last brace.
const FUNCTION: usize = 60;

/// A function that may be longer: file, name, and why dividing it would make it harder to read.
type Exception = (&'static str, &'static str, &'static str);

/// The functions that may be longer.
pub const LONG_FUNCTIONS: &[Exception] = &[];

/// Reports files and functions that are too long, and exceptions that nothing needs any more.
pub fn check(repo: &Repo, exceptions: &[Exception]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut used = vec![false; exceptions.len()];
    for source in &repo.sources {
        findings.extend(long_file(source));
        for (name, line, length) in functions(source).filter(|(_, _, length)| *length > FUNCTION) {
            match exceptions.iter().position(|(path, long, _)| *path == source.path && *long == name) {
                Some(index) => used[index] = true,
                None => {
                    let message =
                        format!("`{name}` has {length} lines, a screen holds {FUNCTION}: divide it");
                    findings.push(Finding::failure(&source.path, line, message));
                }
            }
        }
    }
    for (path, name, _) in exceptions.iter().zip(used).filter(|(_, used)| !used).map(|(entry, _)| entry) {
        let message = format!("`{name}` needs no exception any more: remove it from the list in tidy");
        findings.push(Finding::failure(path, 1, message));
    }
    findings
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

/// The name, first line and length in lines of every function that has a body.
fn functions(source: &Source) -> impl Iterator<Item = (&str, usize, usize)> {
    let keywords = source.words().filter(|(_, word)| *word == "fn").map(|(offset, _)| offset);
    keywords.filter_map(|offset| {
        let after = source.code[offset + 2..].trim_start();
        // A function pointer has no name; in a macro the name may be a variable.
        let name = after.split(|c: char| c != '$' && c != '_' && !c.is_alphanumeric()).next()?;
        let body = body_of(&source.code, offset)?;
        let (first, last) = (source.line_of(offset), source.line_of(source.closing_brace(body)));
        (!name.is_empty()).then_some((name, first, last - first + 1))
    })
}

/// The offset of the brace that opens the body of the function at `offset`, if it has one.
fn body_of(code: &str, offset: usize) -> Option<usize> {
    let mut depth = 0_i32;
    for (index, c) in code[offset..].char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' if depth == 0 => return Some(offset + index),
            // A declaration without a body, or the end of what surrounds a function pointer.
            ';' | '}' if depth <= 0 => return None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "crates/plimsoll/src/lib.rs";

    fn findings(text: &str) -> Vec<Finding> {
        check(&Repo::of(&[(PATH, text)]), &[])
    }

    /// A function of the given number of lines.
    fn function(lines: usize) -> String {
        format!("fn f() -> [u8; 1] {{\n{}}}\n", "    g();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_may_fill_a_screen_and_no_more() {
        assert_eq!(findings(&function(FUNCTION)), []);
        let found =
            findings(&format!("type P = fn();\ntrait T {{\n    fn g();\n}}\n{}", function(FUNCTION + 1)));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 5);
        assert!(found[0].message.starts_with("`f` has 61 lines"), "{}", found[0]);
    }

    #[test]
    fn exceptions_are_honoured_and_must_be_needed() {
        let exception = &[(PATH, "f", "one table")];
        assert_eq!(check(&Repo::of(&[(PATH, &function(FUNCTION + 1))]), exception), []);
        let found = check(&Repo::of(&[(PATH, &function(FUNCTION))]), exception);
        assert!(found[0].message.contains("needs no exception"), "{}", found[0]);
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
        let folder =
            check(&Repo::of(&[("crates/plimsoll/src/pool/tests.rs", &"\n".repeat(FILE_HARD + 1))]), &[]);
        assert_eq!(folder, []);
    }
}
