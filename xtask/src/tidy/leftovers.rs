//! Nothing is left lying about: prints in libraries, reminders without an issue, tests that are switched off.
//!
//! A library that prints takes the terminal from the program that uses it. A reminder without an issue is read by
//! nobody. A test that does not run proves nothing, and looks as if it did.

use super::Finding;
use super::repo::Repo;
use super::source::Source;

/// Macros that write to the terminal.
const PRINTS: &[&str] = &["print", "println", "eprint", "eprintln", "dbg"];

/// Crates whose purpose is the terminal.
const PROGRAMS: &[&str] = &["plimsoll-cli"];

/// Words that mark something unfinished.
const REMINDERS: &[&str] = &["TODO", "FIXME", "XXX"];

/// Reports all three kinds of leftovers.
pub fn check(repo: &Repo) -> Vec<Finding> {
    let rules = [prints, reminders, switched_off_tests];
    repo.sources.iter().flat_map(|source| rules.iter().flat_map(move |rule| rule(source))).collect()
}

fn prints(source: &Source) -> Vec<Finding> {
    let is_program = Repo::crate_of(&source.path).is_some_and(|name| PROGRAMS.contains(&name));
    let is_call = |&(offset, word): &(usize, &str)| {
        PRINTS.contains(&word)
            && source.code[offset + word.len()..].starts_with('!')
            && source.is_library(offset)
            && !is_program
    };
    let report = |(offset, word): (usize, &str)| {
        let message =
            format!("`{word}!` in a library, whose terminal belongs to the program: return the text");
        Finding::failure(&source.path, source.line_of(offset), message)
    };
    source.words().filter(is_call).map(report).collect()
}

fn reminders(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in source.comments.lines().enumerate() {
        let mut words = line.split(|c: char| c != '_' && !c.is_alphanumeric());
        let reminder = words.find(|word| REMINDERS.contains(word));
        let has_issue = line.split('#').skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        if let (Some(word), false) = (reminder, has_issue) {
            let message =
                format!("`{word}` without an issue is read by nobody: write `{word}(#7)`, or do it");
            findings.push(Finding::failure(&source.path, index + 1, message));
        }
    }
    findings
}

fn switched_off_tests(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, (code, comment)) in source.code.lines().zip(source.comments.lines()).enumerate() {
        let attribute: String = code.split_whitespace().collect();
        if attribute.contains("#[ignore") || comment.contains("```ignore") {
            let message = "a test that is switched off proves nothing: mend it, or remove it";
            findings.push(Finding::failure(&source.path, index + 1, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Repo::of(&[(path, text)])).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn programs_and_tests_may_print_and_libraries_may_not() {
        let text = "fn f() {\n    println!(\"a\");\n    dbg!(1);\n    print(\"println!\"); // println!\n}\n";
        assert_eq!(lines("crates/plimsoll-tensor/src/lib.rs", text), [2, 3]);
        let unit_tests = format!("#[cfg(test)]\nmod tests {{\n{text}}}\n");
        assert_eq!(lines("crates/plimsoll-tensor/src/lib.rs", &unit_tests), [] as [usize; 0]);
        for path in ["crates/plimsoll-cli/src/main.rs", "crates/plimsoll/examples/a.rs", "xtask/src/main.rs"]
        {
            assert_eq!(lines(path, text), [] as [usize; 0], "{path}");
        }
    }

    #[test]
    fn a_reminder_needs_its_issue() {
        let text = "// TODO(#12): mend.\n// TODO: mend.\n/* a\n FIXME # later */\nlet todo = \"TODO\";\n";
        assert_eq!(lines("crates/plimsoll/tests/a.rs", text), [2, 4]);
    }

    #[test]
    fn no_test_is_switched_off() {
        let text =
            "#[test]\nfn ignore() {}\n#[ignore]\n# [ignore = \"slow\"]\n/// ```ignore\n/// ```no_run\n";
        assert_eq!(lines("crates/plimsoll/src/lib.rs", text), [3, 4, 5]);
    }
}
