//! No op that is shipped can be called by others.
//!
//! A kernel trusts its operands: they were checked by its own `infer`. `Op::run` is a safe function, so whoever has an op, and a
//! `Run` that was made for another, could bring the two together. So an op is a type that its crate keeps to itself, and what
//! others get of it is an `OpRef`, which does not show what it refers to. Ops of tests are their own business.

use super::Finding;
use super::repo::Repo;
use super::source::Source;

/// Reports types that implement `Op` and can be named from outside, and functions that give an op away.
pub fn check(repo: &Repo) -> Vec<Finding> {
    repo.sources.iter().flat_map(|source| [implemented(source), given_away(source)].concat()).collect()
}

/// Types with an `impl Op for` that are `pub`, or are not declared where they implement it.
fn implemented(source: &Source) -> Vec<Finding> {
    let words: Vec<(usize, &str)> = source.words().collect();
    let mut findings = Vec::new();
    for window in words.windows(3) {
        let [(offset, "Op"), (_, "for"), (_, name)] = *window else { continue };
        if !source.is_library(offset) {
            continue;
        }
        let declared =
            words.windows(2).position(|pair| matches!(pair[0].1, "struct" | "enum") && pair[1].1 == name);
        let message = match declared {
            None => format!(
                "`{name}` implements `Op` in another file than it is declared in; nobody sees whether it is private"
            ),
            Some(at) if is_public(source, words[at].0) => {
                format!(
                    "`{name}` is an op and `pub`: others could call its kernel with operands that were checked for another"
                )
            }
            Some(_) => continue,
        };
        findings.push(Finding::failure(&source.path, source.line_of(offset), message));
    }
    findings
}

/// Whether the item whose keyword is at `offset` is `pub` without a restriction.
fn is_public(source: &Source, offset: usize) -> bool {
    source.code[..offset].trim_end().ends_with("pub")
}

/// Public functions whose result shows an op.
fn given_away(source: &Source) -> Vec<Finding> {
    let words: Vec<(usize, &str)> = source.words().collect();
    let mut findings = Vec::new();
    for (at, &(offset, word)) in words.iter().enumerate() {
        let is_function = word == "fn" && at > 0 && is_public_function(source, &words[..at]);
        if !is_function || !source.is_library(offset) {
            continue;
        }
        let head = &source.code[offset..];
        let head = &head[..head.find(['{', ';']).unwrap_or(head.len())];
        let result = head.split("->").last().unwrap_or_default();
        let is_shown = |kind: &str| {
            result
                .split(|c: char| !c.is_alphanumeric() && c != '_' && c != ' ')
                .any(|part| part.trim() == kind)
        };
        if head.contains("->") && (is_shown("dyn Op") || is_shown("impl Op")) {
            let message = "a public function gives an op away; give an `OpRef`, which does not show it";
            findings.push(Finding::failure(&source.path, source.line_of(offset), message));
        }
    }
    findings
}

/// Whether a `fn` that comes after these words is `pub`, with `const`, `unsafe` or `async` between.
fn is_public_function(source: &Source, before: &[(usize, &str)]) -> bool {
    let keyword = before.iter().rev().find(|(_, word)| !matches!(*word, "const" | "unsafe" | "async"));
    keyword.is_some_and(|&(offset, word)| {
        word == "pub" && !source.code[offset + 3..].trim_start().starts_with('(')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&Repo::of(&[(path, text)])).into_iter().map(|finding| finding.message).collect()
    }

    const LIBRARY: &str = "crates/plimsoll-tensor/src/ops/sort.rs";

    #[test]
    fn ops_that_a_crate_keeps_to_itself_pass() {
        let text = "struct Sort;\nimpl Op for Sort {}\npub(super) struct Over<R>(R);\nimpl<R: Rule> Op for Over<R> {}\n\
                    pub(crate) enum Both { A }\nimpl Op for Both {}\npub struct Config;\nimpl Debug for Config {}\n\
                    pub(crate) fn get(&self) -> &dyn Op { x }\npub fn op(&self) -> OpRef { x }\npub fn f(op: &dyn Op) {}\n";
        assert_eq!(messages(LIBRARY, text), [] as [&str; 0]);
    }

    #[test]
    fn ops_that_others_can_name_are_reported() {
        assert!(
            messages(LIBRARY, "pub struct Sort;\nimpl Op for Sort {}\n")[0]
                .contains("`Sort` is an op and `pub`")
        );
        assert!(
            messages(LIBRARY, "pub enum Sort<T> { A(T) }\nimpl<T> Op for Sort<T> {}\n")[0].contains("`pub`")
        );
        assert!(messages(LIBRARY, "impl Op for Sort {}\n")[0].contains("another file"));
    }

    #[test]
    fn functions_that_give_an_op_away_are_reported() {
        for text in [
            "pub fn get(&self) -> &dyn Op { x }\n",
            "pub const fn get() -> Option<Arc<dyn Op>> { x }\n",
            "pub fn get() -> impl Op { x }\n",
        ] {
            assert!(messages(LIBRARY, text)[0].contains("gives an op away"), "{text}");
        }
    }

    #[test]
    fn tests_have_ops_of_their_own() {
        let text = "pub struct Sort;\nimpl Op for Sort {}\n";
        assert_eq!(messages("crates/plimsoll-tensor/tests/own_op.rs", text), [] as [&str; 0]);
    }
}
