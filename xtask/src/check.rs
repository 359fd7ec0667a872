//! `cargo xtask check`: everything that can be said about the code without running it.
//!
//! The steps go from the cheapest to the dearest and stop at the first failure, so that the usual mistakes are
//! found in seconds.

use std::path::Path;

use crate::Outcome;
use crate::step::Step;
use crate::tidy;
use crate::times::part;

/// Runs every check in `root`.
pub fn run(root: &Path) -> Outcome {
    part("format", || Step::cargo(root, &["fmt", "--all", "--check"]).run())?;
    part("tidy", || tidy::run(root))?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
    part("clippy", || Step::cargo(root, &clippy).run())?;
    let doc = ["doc", "--workspace", "--no-deps", "--document-private-items"];
    part("docs", || Step::cargo(root, &doc).env("RUSTDOCFLAGS", "-D warnings").run())?;
    part("dependencies", || dependencies(root))
}

/// Checks licences, bans and sources of the dependencies, as `deny.toml` says.
///
/// Advisories are left out: they come from a database that changes by the day, and the same commit must pass or fail
/// the same way tomorrow, with or without a network.
fn dependencies(root: &Path) -> Outcome {
    if Step::cargo(root, &["deny", "--version"]).works() {
        Step::cargo(root, &["deny", "check", "bans", "licenses", "sources"]).run()
    } else {
        println!("left out: cargo deny check (to have it: cargo install cargo-deny --locked)");
        Ok(())
    }
}
