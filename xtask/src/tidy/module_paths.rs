//! Which modules of its crate a file names: the first names behind `crate::`, and behind as many `super::` as lead to the root.
//!
//! Only library code counts: tests may use what they like, and links in comments bind nobody.

use std::ops::Range;

use super::source::Source;

/// The modules from the root of its crate to a file of a library; none for the root itself, nothing for tests, benchmarks,
/// examples and tools.
pub fn modules_of(path: &str) -> Option<Vec<&str>> {
    let (_, file) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let mut modules: Vec<&str> = file.strip_suffix(".rs")?.split('/').collect();
    if matches!(modules.last(), Some(&("mod" | "lib" | "main"))) {
        modules.pop();
    }
    Some(modules)
}

/// The module at the root of its crate that a file belongs to.
pub fn top_module(path: &str) -> Option<&str> {
    modules_of(path)?.first().copied()
}

/// The names at the root of its crate that library code of a file mentions, with their byte offsets.
pub fn root_names(source: &Source) -> Vec<(usize, &str)> {
    let Some(modules) = modules_of(&source.path) else { return Vec::new() };
    let inline = inline_modules(source);
    let mut names = Vec::new();
    // A chain of `super` is looked at from its first word on.
    let mut looked_at = 0;
    for (offset, word) in source.words() {
        let depth = match word {
            "crate" => 0,
            "super" if offset >= looked_at => {
                modules.len() + inline.iter().filter(|span| span.contains(&offset)).count()
            }
            _ => continue,
        };
        let (mut at, mut n_supers) = (offset, 0);
        while depth > 0 && source.code[at..].starts_with("super::") {
            (at, n_supers) = (at + "super::".len(), n_supers + 1);
        }
        looked_at = at;
        let tail = match depth {
            0 => source.code[offset..].strip_prefix("crate::"),
            _ => (n_supers >= depth).then(|| &source.code[at..]),
        };
        if let Some(tail) = tail.filter(|_| source.is_library(offset)) {
            names.extend(first_names(tail, source.code.len() - tail.len()));
        }
    }
    names
}

/// The modules that are written inside the file.
fn inline_modules(source: &Source) -> Vec<Range<usize>> {
    let modules = source.words().filter(|(_, word)| *word == "mod").map(|(offset, _)| offset);
    modules
        .filter_map(|offset| {
            let open = offset + source.code[offset..].find(['{', ';'])?;
            source.code[open..].starts_with('{').then(|| open..source.closing_brace(open))
        })
        .collect()
}

/// The first name of a path, or of each path of a group in braces; `start` is the offset of `tail`.
fn first_names(tail: &str, start: usize) -> Vec<(usize, &str)> {
    let Some(group) = tail.strip_prefix('{') else {
        return first_name(tail).map(|name| (start, name)).into_iter().collect();
    };
    let (mut depth, mut begin, mut names) = (0_usize, 0, Vec::new());
    let mut add = |begin: usize, end: usize| {
        let path = group[begin..end].trim_start();
        let offset = start + 1 + end - path.len();
        names.extend(first_name(path).map(|name| (offset, name)));
    };
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                add(begin, at);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                add(begin, at);
                begin = at + 1;
            }
            _ => {}
        }
    }
    names
}

fn first_name(path: &str) -> Option<&str> {
    let length = path.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(path.len());
    Some(&path[..length]).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &str, text: &str) -> Vec<String> {
        let source = Source::new(path, text.to_owned());
        root_names(&source).into_iter().map(|(_, name)| name.to_owned()).collect()
    }

    #[test]
    fn paths_and_groups_are_found_where_they_are() {
        let text =
            "use crate::a::B;\nuse crate::{c, d::{E, f::G}, h as i};\nlet x = crate::j::k(); // crate::l\n";
        let source = Source::new("crates/x/src/m.rs", text.to_owned());
        let found: Vec<(usize, &str)> =
            root_names(&source).into_iter().map(|(at, name)| (source.line_of(at), name)).collect();
        assert_eq!(found, [(1, "a"), (2, "c"), (2, "d"), (2, "h"), (3, "j")]);
        for (at, name) in root_names(&source) {
            assert!(text[at..].starts_with(name), "{name}");
        }
    }

    #[test]
    fn as_many_supers_as_the_file_is_deep_lead_to_the_root() {
        let text =
            "use super::a;\nuse super::super::b;\nmod m { use super::c; use super::super::super::d; }\n";
        assert_eq!(names("crates/x/src/one/two.rs", text), ["b", "d"]);
        assert_eq!(
            names("crates/x/src/one/mod.rs", "use super::a;\nuse super::{b, c::D};\n"),
            ["a", "b", "c"]
        );
        assert_eq!(names("crates/x/src/one.rs", "use super::*;\n"), [] as [&str; 0]);
    }

    #[test]
    fn tests_and_tools_may_use_what_they_like() {
        let text = "#[cfg(test)]\nmod tests {\n    use crate::a;\n}\npub(crate) fn f() {}\n";
        assert_eq!(names("crates/x/src/one.rs", text), [] as [&str; 0]);
        for path in ["crates/x/tests/t.rs", "crates/x/src/one/tests.rs", "xtask/src/main.rs"] {
            assert_eq!(names(path, "use crate::a;\n"), [] as [&str; 0], "{path}");
        }
    }
}
