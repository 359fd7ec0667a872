//! Modules know what is below them, and nothing above.
//!
//! Crates are in an order that Cargo holds. Inside plimsoll-tensor, which is large, the folders are rooms, in the order of
//! [`ROOMS`]: library code of a room names the rooms below it and its own, by their paths. Names at the crate's root are for
//! users: a room that goes through them could reach a higher one unseen. In the other crates the modules at the root must not
//! know each other in a circle, but for the few that do so by nature ([`KNOTS`]); none may join them unnoticed.
//!
//! The rule reads paths. It does not see that a method of a type is defined in a higher room than its caller.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::module_paths::{root_names, top_module};
use super::repo::Repo;
use super::source::Source;

/// The crates that are divided into rooms, with the rooms from the lowest to the highest.
const ROOMS: &[(&str, &[&str])] = &[(
    "plimsoll-tensor",
    &["base", "device", "eager", "ops", "io", "remat", "autograd", "program", "function", "graph"],
)];

/// Modules at the roots of crates that know each other by nature.
const KNOTS: &[(&str, &[&str])] = &[
    // The pool follows a plan and can be watched by tests, which are made of pools.
    ("plimsoll-memory", &["fence", "planned", "pool", "state", "testing"]),
    // An element type names its kernels, which are made for element types.
    ("plimsoll-gemm", &["element", "isa", "matvec_kernel", "pack_kernel"]),
    // A depthwise convolution is one kind of convolution, and reads its form.
    ("plimsoll-gemm", &["conv", "depthwise"]),
    // Copies and pinned memory are a GPU's.
    ("plimsoll-cuda", &["copies", "gpu", "pinned"]),
    // A file of examples becomes a dataset, and a dataset may begin with files.
    ("plimsoll-data", &["dataset", "source"]),
    // A layer is built to a model, and a model is a layer.
    ("plimsoll-nn", &["build", "layer", "layers", "model", "summary"]),
    // A case knows what it needs, and what is needed is asked of a case.
    ("plimsoll-testkit", &["case", "checks", "golden", "needs"]),
];

/// Reports names of higher rooms, names of the root, files without a room, and circles of modules.
pub fn check(repo: &Repo) -> Vec<Finding> {
    let rooms = repo.sources.iter().flat_map(|source| {
        let rooms = ROOMS.iter().find(|(name, _)| Repo::crate_of(&source.path) == Some(name));
        rooms.map_or_else(Vec::new, |(_, rooms)| in_rooms(source, rooms))
    });
    rooms.chain(circles(repo, KNOTS)).collect()
}

fn in_rooms(source: &Source, rooms: &[&str]) -> Vec<Finding> {
    let Some(top) = top_module(&source.path) else { return Vec::new() };
    let level = |name: &str| rooms.iter().position(|room| *room == name);
    let Some(own) = level(top) else {
        let message = format!("`{top}` is no room: a module lies in one of {}", rooms.join(", "));
        return vec![Finding::failure(&source.path, 1, message)];
    };
    let report = |(offset, name): (usize, &str)| {
        let message = match level(name) {
            Some(other) if other <= own => return None,
            Some(_) => format!("`{top}` is below `{name}`: move this up, or let `{name}` give it down"),
            None => format!("`crate::{name}` is the users' name: name the room in which it is"),
        };
        Some(Finding::failure(&source.path, source.line_of(offset), message))
    };
    root_names(source).into_iter().filter_map(report).collect()
}

/// For each module at the root of a crate, those that it names, with the place where it first does so.
type Edges<'a> = BTreeMap<&'a str, BTreeMap<&'a str, (&'a str, usize)>>;

/// Circles of modules at the root of a crate that are no part of a knot that is known.
fn circles(repo: &Repo, knots: &[(&str, &[&str])]) -> Vec<Finding> {
    let crates: BTreeSet<&str> =
        repo.sources.iter().filter_map(|source| Repo::crate_of(&source.path)).collect();
    let with_rooms = |name: &&&str| ROOMS.iter().any(|(divided, _)| *divided == **name);
    let mut findings = Vec::new();
    for name in crates.iter().filter(|name| !with_rooms(name)) {
        let edges = edges(repo, name);
        let mut known: BTreeSet<&str> = BTreeSet::new();
        for &module in edges.keys() {
            let circle = circle_of(&edges, module);
            if circle.len() < 2 || !known.insert(circle.first().copied().unwrap_or_default()) {
                continue;
            }
            let is_knot =
                |(of, modules): &(&str, &[&str])| of == name && circle.iter().all(|m| modules.contains(m));
            if !knots.iter().any(is_knot) {
                let next = edges[module].iter().find(|(other, _)| circle.contains(*other));
                let (path, line) = next.map_or(("", 0), |(_, &place)| place);
                let names = circle.iter().copied().collect::<Vec<_>>().join(", ");
                let message = format!(
                    "these modules know each other in a circle: {names}; one must be below the others"
                );
                findings.push(Finding::failure(path, line, message));
            }
        }
    }
    findings
}

/// Which module at the root of a crate names which.
fn edges<'a>(repo: &'a Repo, name: &str) -> Edges<'a> {
    let of_crate = || repo.sources.iter().filter(|source| Repo::crate_of(&source.path) == Some(name));
    let modules: BTreeSet<&str> = of_crate().filter_map(|source| top_module(&source.path)).collect();
    let root = of_crate().find(|source| source.path.ends_with("/src/lib.rs"));
    let reexported: BTreeMap<&str, &str> = root.map_or_else(BTreeMap::new, reexports);
    let mut edges = Edges::new();
    for source in of_crate() {
        let Some(top) = top_module(&source.path) else { continue };
        let named = edges.entry(top).or_default();
        for (offset, name) in root_names(source) {
            let other = modules.get(name).or_else(|| reexported.get(name)).copied();
            if let Some(other) = other.filter(|other| *other != top) {
                named.entry(other).or_insert_with(|| (source.path.as_str(), source.line_of(offset)));
            }
        }
    }
    edges
}

/// The names that the root of a crate has from its modules, with the module.
fn reexports(root: &Source) -> BTreeMap<&str, &str> {
    let mut names = BTreeMap::new();
    let uses = root.words().filter(|(_, word)| *word == "use").map(|(offset, _)| offset + "use".len());
    for start in uses {
        let end = root.code[start..].find(';').map_or(root.code.len(), |length| start + length);
        let path =
            root.code[start..end].trim_start().trim_start_matches("crate::").trim_start_matches("self::");
        let Some((module, leaves)) = path.split_once("::") else { continue };
        names.extend(leaves.split(|c: char| c != '_' && !c.is_alphanumeric()).map(|leaf| (leaf, module)));
    }
    names
}

/// The modules that a module reaches and that reach it, and itself.
fn circle_of<'a>(edges: &Edges<'a>, module: &'a str) -> BTreeSet<&'a str> {
    let reached = |from: &'a str| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(next) = open.pop() {
            for &other in edges.get(next).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(other) {
                    open.push(other);
                }
            }
        }
        seen
    };
    let mut circle: BTreeSet<&str> =
        reached(module).into_iter().filter(|other| reached(other).contains(module)).collect();
    circle.insert(module);
    circle
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Repo::of(&[(path, text)])).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_room_names_those_below_it_and_itself() {
        let text =
            "use crate::base::Shape;\nuse crate::eager::{op::Op, tensor::Tensor};\nuse crate::ops::add;\n";
        assert_eq!(lines("crates/plimsoll-tensor/src/ops/sub.rs", text), [] as [usize; 0]);
        assert_eq!(lines("crates/plimsoll-tensor/src/eager/op.rs", text), [3]);
        assert_eq!(lines("crates/plimsoll-tensor/src/base/mod.rs", text), [2, 3]);
        assert_eq!(lines("crates/plimsoll-tensor/src/lib.rs", text), [] as [usize; 0]);
    }

    #[test]
    fn groups_functions_and_supers_hide_nothing() {
        let text = "use crate::{base::Shape,\n    ops::add};\nfn f() {\n    crate::program::run();\n}\nuse super::super::io;\n";
        assert_eq!(lines("crates/plimsoll-tensor/src/device/storage.rs", text), [2, 4, 6]);
    }

    #[test]
    fn the_root_is_for_users() {
        let text = "use crate::Tensor;\n//! [`Tensor`](crate::Tensor)\n#[cfg(test)]\nmod tests {\n    use crate::Tensor;\n}\n";
        assert_eq!(lines("crates/plimsoll-tensor/src/program/mod.rs", text), [1]);
    }

    #[test]
    fn every_module_has_a_room() {
        assert_eq!(lines("crates/plimsoll-tensor/src/attic.rs", "fn f() {}\n"), [1]);
    }

    #[test]
    fn modules_of_other_crates_know_each_other_in_no_circle() {
        let repo = Repo::of(&[
            ("crates/x/src/lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\n"),
            ("crates/x/src/a.rs", "use crate::b::B;\n"),
            ("crates/x/src/b/mod.rs", "use crate::c::C;\n"),
            ("crates/x/src/c.rs", "// crate::a\n\nuse crate::A;\n"),
        ]);
        let found = |knots| circles(&repo, knots).into_iter().map(|f| (f.path, f.line)).collect::<Vec<_>>();
        assert_eq!(found(&[]), [("crates/x/src/a.rs".to_owned(), 1)]);
        assert_eq!(found(&[("x", &["a", "b", "c"])]), []);
        assert_eq!(found(&[("x", &["a", "b"])]).len(), 1);
        assert_eq!(found(&[("y", &["a", "b", "c"])]).len(), 1);
    }

    #[test]
    fn a_line_of_modules_is_no_circle() {
        let repo = Repo::of(&[
            ("crates/x/src/a.rs", "use crate::b::B;\nuse crate::c;\n"),
            ("crates/x/src/b.rs", "use crate::c::C;\n"),
            ("crates/x/src/c.rs", "#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n"),
        ]);
        assert_eq!(circles(&repo, &[]), []);
    }
}
