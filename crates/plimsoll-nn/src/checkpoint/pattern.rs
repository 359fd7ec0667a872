//! Names with placeholders, such as `layers.{n}.{rest..}`.

use std::collections::{BTreeMap, HashSet};

/// A name with placeholders.
#[derive(Clone, Debug)]
pub(super) struct Pattern(Vec<Piece>);

#[derive(Clone, Debug)]
enum Piece {
    Text(String),
    Placeholder { name: String, with_dots: bool },
}

/// What the placeholders of a pattern stand for.
pub(super) type Captures = BTreeMap<String, String>;

impl Pattern {
    /// Braces without a partner are text.
    pub fn new(text: &str) -> Pattern {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{')
            && let Some((inside, behind)) = after.split_once('}')
        {
            pieces.push(Piece::Text(before.to_owned()));
            let (name, with_dots) = match inside.strip_suffix("..") {
                Some(name) => (name, true),
                None => (inside, false),
            };
            pieces.push(Piece::Placeholder { name: name.to_owned(), with_dots });
            rest = behind;
        }
        pieces.push(Piece::Text(rest.to_owned()));
        Pattern(pieces)
    }

    /// What the placeholders stand for in `name`, if it fits.
    pub fn captures(&self, name: &str) -> Option<Captures> {
        let keys = || self.0.iter().filter_map(Piece::key);
        let repeats = keys().collect::<HashSet<_>>().len() < keys().count();
        let (failed, captures) = (HashSet::new(), BTreeMap::new());
        let mut matcher = Matcher { captures, failed, repeats, n_left: MOST_ATTEMPTS };
        let fits = matcher.fits(&self.0, name);
        let owned = |(key, part): (&str, &str)| (key.to_owned(), part.to_owned());
        fits.then(|| matcher.captures.into_iter().map(owned).collect())
    }

    /// The name with the placeholders put in; one that stands for nothing stays as it is.
    pub fn fill(&self, captures: &Captures) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Placeholder { name, .. } => {
                captures.get(name).cloned().unwrap_or_else(|| format!("{{{name}}}"))
            }
        };
        self.0.iter().map(piece).collect()
    }
}

impl Piece {
    fn key(&self) -> Option<&str> {
        match self {
            Piece::Text(_) => None,
            Piece::Placeholder { name, .. } => Some(name),
        }
    }
}

/// How often a pattern in which a placeholder repeats is tried at some place; one that takes longer does not fit. Without
/// repetition each place is tried once.
const MOST_ATTEMPTS: usize = 100_000;

/// One attempt to fit a name to a pattern.
struct Matcher<'a> {
    /// What the placeholders so far stand for.
    captures: BTreeMap<&'a str, &'a str>,
    /// How many pieces and characters were left where nothing fitted.
    failed: HashSet<(usize, usize)>,
    /// Whether a placeholder occurs twice, so that what fits at a place depends on how it was reached.
    repeats: bool,
    n_left: usize,
}

impl<'a> Matcher<'a> {
    /// Whether `name` fits the pieces; the shortest part that fits is tried first for each placeholder.
    fn fits(&mut self, pieces: &'a [Piece], name: &'a str) -> bool {
        let Some((first, rest)) = pieces.split_first() else { return name.is_empty() };
        let place = (pieces.len(), name.len());
        if self.n_left == 0 || self.failed.contains(&place) {
            return false;
        }
        self.n_left -= usize::from(self.repeats);
        let fits = match first {
            Piece::Text(text) => name.strip_prefix(text.as_str()).is_some_and(|name| self.fits(rest, name)),
            Piece::Placeholder { name: key, with_dots } => match self.captures.get(key.as_str()).copied() {
                Some(known) => {
                    let may_be = *with_dots || !known.contains('.');
                    may_be && name.strip_prefix(known).is_some_and(|name| self.fits(rest, name))
                }
                None => {
                    let ends = name.char_indices().map(|(at, c)| (at + c.len_utf8(), c));
                    let mut ends = ends.take_while(|(_, character)| *with_dots || *character != '.');
                    let fits = ends.any(|(end, _)| {
                        self.captures.insert(key, &name[..end]);
                        self.fits(rest, &name[end..])
                    });
                    if !fits {
                        self.captures.remove(key.as_str());
                    }
                    fits
                }
            },
        };
        if !fits && !self.repeats {
            self.failed.insert(place);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `name` becomes by a rule, if it fits.
    fn renamed(from: &str, to: &str, name: &str) -> Option<String> {
        Pattern::new(from).captures(name).map(|captures| Pattern::new(to).fill(&captures))
    }

    #[test]
    fn a_pattern_of_many_placeholders_is_tried_in_little_time() {
        let name = "layer.".repeat(40);
        let many: String = (0..30).map(|n| format!("{{p{n}..}}")).collect();
        assert!(Pattern::new(&many).captures(&name).is_some());
        assert_eq!(Pattern::new(&format!("{many}weight")).captures(&name), None);
        assert_eq!(Pattern::new(&format!("{many}{{p0..}}weight")).captures(&name), None);
    }

    #[test]
    fn a_pattern_of_placeholders_that_repeat_is_given_up_in_little_time() {
        // Found by the fuzzer: a hundred thousand attempts, each of which looked at every end of every part.
        let pattern = format!("{{a..}}{{\"..}}{}{{c..}}", "{..}{b..}".repeat(40));
        let pattern = Pattern::new(&pattern);
        for n in 0..60 {
            let name = format!("{}fc.weight", "layer.".repeat(n));
            // A name that is long enough fits, because it repeats as well; what is found must be that name.
            let captures = pattern.captures(&name);
            assert!(captures.is_none_or(|captures| pattern.fill(&captures) == name), "{name}");
            assert!(n > 40 || pattern.captures(&name).is_none(), "{name}");
        }
    }

    #[test]
    fn placeholders_stand_for_parts_of_names() {
        let cases = [
            ("a.b", "c", "a.b", Some("c")),
            ("a.b", "c", "a.bc", None),
            ("layers.{n}.fc", "block_{n}", "layers.12.fc", Some("block_12")),
            ("layers.{n}.fc", "block_{n}", "layers.1.2.fc", None),
            ("layers.{n}.fc", "block_{n}", "layers..fc", None),
            ("{rest..}.weight", "{rest..}.kernel", "a.b.weight", Some("a.b.kernel")),
            ("{a}_{b}.x", "{b}{a}", "1_2_3.x", Some("2_31")),
            ("{n}.{n}", "{n}", "7.7", Some("7")),
            ("{n}.{n}", "{n}", "7.8", None),
            ("{n..}={n}", "{n}", "7.8=7.8", None),
            ("{n}={n..}", "{n}", "7=7", Some("7")),
            ("{a..}{a..}{b}", "{a}+{b}", "xyxyz", Some("xy+z")),
            ("{n}", "{m}", "x", Some("{m}")),
            ("{open", "x", "{open", Some("x")),
        ];
        for (from, to, name, expected) in cases {
            assert_eq!(renamed(from, to, name).as_deref(), expected, "{from} to {to}: {name}");
        }
    }
}
