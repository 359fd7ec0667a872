//! Who a byte belongs to and which line asked for it.
//!
//! A label is two small copies: an owner (one of eight words used everywhere) and a site, the interned
//! (file, line, scope, op) of the user's call, with the place where the layer was described. Interning keeps every distinct site for the life of the
//! process: there are as many as a program has lines times layers, so this is kilobytes. Names that people give to
//! phases and files are interned likewise, up to a number that no program needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{OnceLock, PoisonError, RwLock};

use crate::LongList;

/// What a block is for. The ninth row of every report, `rounding`, is not an owner one can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Owner {
    /// Weights and whatever else a model is made of.
    Parameters,
    /// Gradients of parameters.
    Gradients,
    /// State of an optimizer.
    Optimizer,
    /// Values saved for backward.
    Saved,
    /// Results of ops that the program holds.
    Temporary,
    /// Scratch of kernels.
    Workspace,
    /// Batches and the buffers of the input pipeline.
    Data,
    /// Constants and buffers of cached graphs.
    Graph,
}

impl Owner {
    /// Every owner, in the order of the reports.
    pub const ALL: [Owner; 8] = [
        Owner::Parameters,
        Owner::Gradients,
        Owner::Optimizer,
        Owner::Saved,
        Owner::Temporary,
        Owner::Workspace,
        Owner::Data,
        Owner::Graph,
    ];

    /// The word used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Owner::Parameters => "parameters",
            Owner::Gradients => "gradients",
            Owner::Optimizer => "optimizer",
            Owner::Saved => "saved",
            Owner::Temporary => "temporary",
            Owner::Workspace => "workspace",
            Owner::Data => "data",
            Owner::Graph => "graph",
        }
    }

    /// The region where blocks of this owner are placed.
    pub const fn region(self) -> Region {
        match self {
            Owner::Parameters | Owner::Optimizer => Region::Persistent,
            Owner::Data => Region::Data,
            _ => Region::Step,
        }
    }

    /// Whether dropping such a block means that a model or a cached graph is being disposed of.
    pub(crate) const fn marks_disposal(self) -> bool {
        matches!(self, Owner::Parameters | Owner::Optimizer | Owner::Graph)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A range of addresses for blocks of similar lifetime, so that short lives do not leave holes between long ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Region {
    /// Parameters and optimizer state.
    Persistent,
    /// What a step makes and drops.
    Step,
    /// The input pipeline's allowance and batches.
    Data,
}

impl Region {
    /// Every region, in the order of their numbers.
    pub const ALL: [Region; 3] = [Region::Persistent, Region::Step, Region::Data];

    /// The word used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Region::Persistent => "persistent",
            Region::Step => "step",
            Region::Data => "data",
        }
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that somebody gave, such as that of a phase: a text that lives as long as the process.
///
/// A constant of a program is a name as it is. Any other text is interned: the first time it is copied and kept for ever,
/// from then on it is only looked up. Of the texts that are not constants at most [`Name::MOST`] are kept, so that a program
/// that makes up a new name at every step does not grow; whatever comes after them is called [`Name::OTHER`].
///
/// Names that begin with a colon are the framework's own, for marks that it must find again among those of others; what is
/// interned loses its colons.
///
/// ```
/// use plimsoll_memory::Name;
/// const FORWARD: Name = Name::constant("forward");
/// assert_eq!(Name::intern("forward"), FORWARD);
/// assert_eq!(Name::intern(&format!("phase {}", 1)).as_str(), "phase 1");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(&'static str);

impl Name {
    /// The most texts that are kept.
    pub const MOST: usize = 1 << 16;

    /// What a text is called that is one too many.
    pub const OTHER: Name = Name("other");

    /// A constant's name.
    pub const fn constant(text: &'static str) -> Name {
        Name(text)
    }

    /// The name with that text; the same text always gives the same name.
    pub fn intern(text: &str) -> Name {
        let text = text.trim_start_matches(':');
        let known = table().read().unwrap_or_else(PoisonError::into_inner).names.get(text).copied();
        known.map_or_else(|| table().write().unwrap_or_else(PoisonError::into_inner).name(text), Name)
    }

    /// The text.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl From<&'static str> for Name {
    fn from(text: &'static str) -> Name {
        Name::constant(text)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({:?})", self.0)
    }
}

/// The place in a program that asked for a block: an interned (file, line, scope, op).
///
/// ```
/// use plimsoll_memory::Site;
/// let site = Site::intern("src/main.rs", 12, "encoder.0", "matmul");
/// assert_eq!(site, Site::intern("src/main.rs", 12, "encoder.0", "matmul"));
/// assert_eq!(site.to_string(), "src/main.rs:12 encoder.0 matmul");
/// ```
///
/// The line is that of the call, which for the ops of a whole model is one and the same. A site inside a layer also knows the
/// place where somebody described that layer, which is another line of the program; `{:#}` shows it, too.
///
/// ```
/// # use plimsoll_memory::Site;
/// let described = Site::place_at("src/model.rs", 7);
/// let site = Site::intern_in_layer("src/main.rs", 12, "encoder.0", "matmul", described);
/// assert_eq!(site.described(), Some(("src/model.rs", 7)));
/// assert_eq!(format!("{site:#}"), "src/main.rs:12 encoder.0 matmul, described at src/model.rs:7");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Site(u32);

/// The parts of a site; all strings are interned, too. Those that differ most come first in a comparison.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Parts<'a> {
    line: u32,
    op: &'a str,
    scope: &'a str,
    file: &'a str,
    /// The number of the place where the layer was described; zero if nobody knows.
    described: u32,
}

/// The process-wide table of sites. `parts[i]` describes `Site(i)`. It grows with a model's layers, so it is made of
/// small pieces: trees and a long list.
struct Table {
    numbers: BTreeMap<Parts<'static>, u32>,
    strings: BTreeSet<&'static str>,
    /// Those of the strings that are names.
    names: BTreeSet<&'static str>,
    parts: LongList<Parts<'static>>,
}

impl Table {
    fn new() -> Self {
        let unknown = Parts { file: "", line: 0, scope: "", op: "", described: 0 };
        Self {
            numbers: BTreeMap::from([(unknown, 0)]),
            strings: BTreeSet::new(),
            names: BTreeSet::new(),
            parts: std::iter::once(unknown).collect(),
        }
    }

    fn text(&mut self, text: &str) -> &'static str {
        if let Some(known) = self.strings.get(text) {
            return known;
        }
        let kept: &'static str = Box::leak(text.into());
        self.strings.insert(kept);
        kept
    }

    fn name(&mut self, text: &str) -> Name {
        if self.names.len() >= Name::MOST && !self.names.contains(text) {
            return Name::OTHER;
        }
        let kept = self.text(text);
        self.names.insert(kept);
        Name(kept)
    }

    fn add(&mut self, parts: Parts<'_>) -> u32 {
        if let Some(&number) = self.numbers.get(&parts) {
            return number;
        }
        let kept = Parts {
            file: self.text(parts.file),
            line: parts.line,
            scope: self.text(parts.scope),
            op: self.text(parts.op),
            described: parts.described,
        };
        let number = self.parts.len() as u32;
        self.parts.push(kept);
        self.numbers.insert(kept, number);
        number
    }
}

fn table() -> &'static RwLock<Table> {
    static TABLE: OnceLock<RwLock<Table>> = OnceLock::new();
    TABLE.get_or_init(|| RwLock::new(Table::new()))
}

impl Site {
    /// The site of a block whose maker is not known.
    pub const UNKNOWN: Site = Site(0);

    /// The site with these four parts; the same parts always give the same site.
    pub fn intern(file: &str, line: u32, scope: &str, op: &str) -> Site {
        Site::intern_in_layer(file, line, scope, op, Site::UNKNOWN)
    }

    /// A line of a program and nothing else.
    pub fn place_at(file: &str, line: u32) -> Site {
        Site::intern(file, line, "", "")
    }

    /// The site with these four parts in a layer that was described at that place.
    pub fn intern_in_layer(file: &str, line: u32, scope: &str, op: &str, described: Site) -> Site {
        let parts = Parts { file, line, scope, op, described: described.0 };
        let known = table().read().unwrap_or_else(PoisonError::into_inner).numbers.get(&parts).copied();
        Site(known.unwrap_or_else(|| table().write().unwrap_or_else(PoisonError::into_inner).add(parts)))
    }

    /// Its number, for tables: sites are numbered from zero in the order in which the process came across them.
    pub const fn number(self) -> u32 {
        self.0
    }

    fn parts(self) -> Parts<'static> {
        table().read().unwrap_or_else(PoisonError::into_inner).parts[self.0 as usize]
    }

    /// The source file, or an empty string where it is not known.
    pub fn file(self) -> &'static str {
        self.parts().file
    }

    /// The line in the file, counted from 1; zero where it is not known.
    pub fn line(self) -> u32 {
        self.parts().line
    }

    /// The layer scope, or an empty string outside all layers.
    pub fn scope(self) -> &'static str {
        self.parts().scope
    }

    /// The op's name, or an empty string.
    pub fn op(self) -> &'static str {
        self.parts().op
    }

    /// File and line, where they are known.
    pub fn place(self) -> Option<(&'static str, u32)> {
        let Parts { file, line, .. } = self.parts();
        (!file.is_empty()).then_some((file, line))
    }

    /// File and line of the place that described the innermost layer, where they are known.
    pub fn described(self) -> Option<(&'static str, u32)> {
        self.layer().1.place()
    }

    /// The layer scope, and the place that described it, as [`Site::intern_in_layer`] takes them.
    pub fn layer(self) -> (&'static str, Site) {
        let Parts { scope, described, .. } = self.parts();
        (scope, Site(described))
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { file, line, scope, op, .. } = self.parts();
        let place = if file.is_empty() { String::new() } else { format!("{file}:{line}") };
        let words = [place.as_str(), scope, op];
        let text: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        if text.is_empty() {
            return f.pad("an unknown line");
        }
        match self.described().filter(|_| f.alternate()) {
            Some((file, line)) => f.pad(&format!("{}, described at {file}:{line}", text.join(" "))),
            None => f.pad(&text.join(" ")),
        }
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Site({self})")
    }
}

/// What a block is for and which line asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Label {
    /// What the block is for.
    pub owner: Owner,
    /// Which line asked for it.
    pub site: Site,
}

impl Label {
    /// A label of its two parts.
    pub const fn new(owner: Owner, site: Site) -> Self {
        Self { owner, site }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_and_regions_are_numbered_in_the_order_of_all() {
        assert!(Owner::ALL.iter().enumerate().all(|(i, &owner)| owner as usize == i));
        assert!(Region::ALL.iter().enumerate().all(|(i, &region)| region as usize == i));
    }

    #[test]
    fn names_are_kept_once_and_not_without_end() {
        let mut table = Table::new();
        let made = [String::from("warm up"), String::from("warm up")].map(|text| table.name(&text));
        assert_eq!(made[0], made[1]);
        assert!(std::ptr::eq(made[0].as_str(), made[1].as_str()));
        assert_eq!((table.names.len(), made[0]), (1, Name::constant("warm up")));
        (0..2 * Name::MOST).for_each(|n| _ = table.name(&n.to_string()));
        assert_eq!((table.names.len(), table.strings.len()), (Name::MOST, Name::MOST));
        let late = table.name("too late");
        assert_eq!((late, table.name("7").as_str(), table.name("warm up")), (Name::OTHER, "7", made[0]));
        assert_eq!(Name::intern("::step").as_str(), "step");
    }

    #[test]
    fn a_site_gives_back_its_parts() {
        let site = Site::intern("a.rs", 7, "net.0", "relu");
        assert_eq!((site.file(), site.line(), site.scope(), site.op()), ("a.rs", 7, "net.0", "relu"));
        assert_ne!(site, Site::intern("a.rs", 8, "net.0", "relu"));
        assert_eq!(Site::intern("b.rs", 1, "", "add").to_string(), "b.rs:1 add");
        assert_eq!(Site::intern("", 0, "", "trim").to_string(), "trim");
        assert_eq!(Site::UNKNOWN.to_string(), "an unknown line");
        assert_eq!(Site::intern("", 0, "", ""), Site::UNKNOWN);
        let described = Site::intern_in_layer("a.rs", 7, "net.0", "relu", Site::place_at("b.rs", 3));
        assert_eq!((described.described(), site.described()), (Some(("b.rs", 3)), None));
        assert_ne!(described, site);
        assert_eq!((described.to_string(), format!("{site:#}")), (site.to_string(), site.to_string()));
    }
}
