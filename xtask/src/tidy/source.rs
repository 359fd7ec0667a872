//! A Rust file split into code and comments, so that a rule never takes one for the other.
//!
//! This is no parser. It knows comments, strings, characters and lifetimes, which is what it takes to search code
//! for words and to count braces.

use std::ops::Range;

/// A Rust file in three versions with the same lines.
pub struct Source {
    /// The path relative to the root of the repository.
    pub path: String,
    /// The file as it is.
    pub text: String,
    /// The file with comments, strings and characters blanked out.
    pub code: String,
    /// The file with everything but its comments blanked out.
    pub comments: String,
}

/// What a character of a Rust file belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

impl Source {
    /// Splits the text of the file at `path`.
    pub fn new(path: &str, text: String) -> Self {
        let characters: Vec<char> = text.chars().collect();
        let kinds = classify(&characters);
        let only = |wanted: Kind| {
            let blank = |(&c, &kind): (&char, &Kind)| if kind == wanted || c == '\n' { c } else { ' ' };
            characters.iter().zip(&kinds).map(blank).collect()
        };
        Self { path: path.to_owned(), code: only(Kind::Code), comments: only(Kind::Comment), text }
    }

    /// Tells whether the byte `offset` of the code is part of a library, and not of a test, benchmark, example or tool.
    pub fn is_library(&self, offset: usize) -> bool {
        let folder = self.path.strip_prefix("crates/").and_then(|rest| rest.split('/').nth(1));
        let for_tests = self.is_test_file() || self.test_modules().iter().any(|span| span.contains(&offset));
        folder == Some("src") && !for_tests
    }

    /// Tells whether the file is a test module of its own.
    pub fn is_test_file(&self) -> bool {
        self.path.ends_with("/tests.rs")
    }

    /// The spans of the outermost test modules inside the file, each from its `mod` to its closing brace.
    pub fn test_modules(&self) -> Vec<Range<usize>> {
        let modules = self.words().filter(|(_, word)| *word == "mod").map(|(offset, _)| offset);
        let for_tests = modules.filter(|&offset| {
            let line = self.code[..offset].rfind('\n').map_or(0, |newline| newline + 1);
            let before = self.code[..line].lines().rev().map(str::trim).filter(|line| !line.is_empty());
            before.take_while(|line| line.starts_with("#[")).any(|line| {
                line.starts_with("#[cfg(") && line.contains("test") && !line.contains("not(test)")
            })
        });
        let spans = for_tests.filter_map(|offset| {
            let open = offset + self.code[offset..].find(['{', ';'])?;
            self.code[open..].starts_with('{').then(|| offset..self.closing_brace(open))
        });
        let mut spans: Vec<Range<usize>> = spans.collect();
        // A module inside a test module is part of it already.
        let mut end = 0;
        spans.retain(|span| {
            let outermost = span.start >= end;
            end = end.max(span.end);
            outermost
        });
        spans
    }

    /// The words of the code (identifiers, keywords, numbers) with their byte offsets.
    pub fn words(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut rest = 0;
        std::iter::from_fn(move || {
            let start = rest + self.code[rest..].find(is_word)?;
            let length = self.code[start..].find(|c| !is_word(c)).unwrap_or(self.code.len() - start);
            rest = start + length;
            Some((start, &self.code[start..rest]))
        })
    }

    /// The number of the line that holds the byte `offset` of the code, counted from 1.
    pub fn line_of(&self, offset: usize) -> usize {
        self.code[..offset].matches('\n').count() + 1
    }

    /// The offset of the brace that closes the one at `open`, or the end of the code.
    pub fn closing_brace(&self, open: usize) -> usize {
        let mut depth = 0_usize;
        for (offset, c) in self.code[open..].char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => continue,
            }
            if depth == 0 {
                return open + offset;
            }
        }
        self.code.len()
    }
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// Says for every character what it belongs to.
fn classify(text: &[char]) -> Vec<Kind> {
    let mut kinds = Vec::with_capacity(text.len());
    while kinds.len() < text.len() {
        let at = kinds.len();
        let (kind, length) = match &text[at..] {
            ['/', '/', ..] => (Kind::Comment, until(text, at, |rest| rest[0] == '\n')),
            ['/', '*', ..] => (Kind::Comment, block_comment(&text[at..])),
            ['"', ..] => (Kind::Literal, string(&text[at..])),
            ['r', '#' | '"', ..] if starts_literal(&text[..at]) => raw_string(&text[at..]),
            ['\'', '\\', _, ..] => (Kind::Literal, 3 + until(text, at + 3, |rest| rest[0] == '\'') + 1),
            ['\'', _, '\'', ..] => (Kind::Literal, 3),
            _ => (Kind::Code, 1),
        };
        kinds.resize((at + length).min(text.len()), kind);
    }
    kinds
}

/// How many characters lie between `at` and the first place where `stop` holds.
fn until(text: &[char], at: usize, stop: impl Fn(&[char]) -> bool) -> usize {
    (at..text.len()).find(|&end| stop(&text[end..])).unwrap_or(text.len()).saturating_sub(at)
}

/// The length of the block comment, which may hold others, that `text` begins with.
fn block_comment(text: &[char]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        match &text[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The length of the string with escapes that `text` begins with.
fn string(text: &[char]) -> usize {
    let mut at = 1;
    while at < text.len() && text[at] != '"' {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// Tells whether an `r` after `before` can begin a raw string: it is no part of a word, save a prefix `b` or `c`.
fn starts_literal(before: &[char]) -> bool {
    match before {
        [.., other, 'b' | 'c'] => !is_word(*other),
        ['b' | 'c'] => true,
        [.., last] => !is_word(*last),
        [] => true,
    }
}

/// The raw string or raw identifier that `text` begins with.
fn raw_string(text: &[char]) -> (Kind, usize) {
    let hashes = text[1..].iter().take_while(|&&c| c == '#').count();
    if text.get(1 + hashes) != Some(&'"') {
        return (Kind::Code, 1);
    }
    let closes =
        |rest: &[char]| rest[0] == '"' && rest.len() > hashes && rest[1..=hashes].iter().all(|&c| c == '#');
    let opening = 2 + hashes;
    (Kind::Literal, opening + until(text, opening, closes) + 1 + hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::new("crates/plimsoll/src/lib.rs", text.to_owned())
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        let text =
            "let a = \"{ // \\\" no\"; // b {\nlet c = '{'; let d = '\\''; /* { /* { */ */ e::<'static>();\n";
        let source = source(text);
        assert_eq!(source.code.split_whitespace().collect::<Vec<_>>().join(" "), {
            "let a = ; let c = ; let d = ; e::<'static>();"
        });
        assert_eq!(
            source.comments.split_whitespace().collect::<Vec<_>>().join(" "),
            "// b { /* { /* { */ */"
        );
    }

    #[test]
    fn raw_strings_end_at_their_own_hashes() {
        let source = source("f(r#\"a \" b\"#, br\"{\", r\"\\\", r#fn, bar\"x\", 'é');");
        assert_eq!(source.code.replace(' ', ""), "f(,b,,r#fn,bar,);");
    }

    #[test]
    fn unfinished_text_is_read_to_its_end() {
        for text in ["\"abc", "/* abc", "r#\"abc", "'\\", "'\\n", "// abc", "\"abc\\"] {
            let source = source(text);
            assert_eq!(source.code.chars().count(), text.chars().count(), "{text}");
        }
    }

    #[test]
    fn words_lines_and_braces_are_found() {
        let source = source("fn a() {\n  if b { c(\"}\") }\n}\nfn d() {}\n");
        let words: Vec<&str> = source.words().map(|(_, word)| word).collect();
        assert_eq!(words, ["fn", "a", "if", "b", "c", "fn", "d"]);
        assert_eq!(source.line_of(source.closing_brace(source.code.find('{').unwrap())), 3);
    }

    #[test]
    fn nested_test_modules_count_once() {
        let text = "#[cfg(test)]\nmod a {\n    #[cfg(test)]\n    mod b {}\n}\n#[cfg(test)]\nmod c {}\n";
        let source = source(text);
        let starts: Vec<usize> =
            source.test_modules().iter().map(|span| source.line_of(span.start)).collect();
        assert_eq!(starts, [2, 7]);
    }

    #[test]
    fn only_src_without_its_tests_is_the_library() {
        let text = "fn a() {}\n#[cfg(test)]\npub(crate) mod tests {\n    fn b() {}\n}\n#[cfg(not(test))]\nmod c {}\n";
        let is_library = |path: &str, name: &str| {
            let source = Source::new(path, text.to_owned());
            source.is_library(source.words().find(|(_, word)| *word == name).unwrap().0)
        };
        assert!(is_library("crates/plimsoll/src/lib.rs", "a"));
        assert!(!is_library("crates/plimsoll/src/lib.rs", "b"));
        assert!(is_library("crates/plimsoll/src/lib.rs", "c"));
        for path in ["src/pool/tests.rs", "tests/pool.rs", "examples/src.rs", "benches/pool.rs"] {
            assert!(!is_library(&format!("crates/plimsoll/{path}"), "a"), "{path}");
        }
        assert!(!is_library("xtask/src/main.rs", "a"));
    }
}
