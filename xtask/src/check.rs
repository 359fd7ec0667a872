//! `cargo xtask check`: everything that can be said about the code without running it.
//!
//! The steps go from the cheapest to the dearest and stop at the first failure, so that the usual mistakes are
//! found in seconds.

use std::path::Path;

use crate::Outcome;
use crate::step::Step;
use crate::tidy;

/// Runs every check in `root`.
pub fn run(root: &Path) -> Outcome {
    Step::cargo(root, &["fmt", "--all", "--check"]).run()?;
    tidy::run(root)?;
    Step::cargo(root, &["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"])
        .run()?;
    Step::cargo(root, &["doc", "--workspace", "--no-deps", "--document-private-items"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    dependencies(root)
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
