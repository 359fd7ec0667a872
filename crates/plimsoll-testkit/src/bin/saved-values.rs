//! Writes `docs/saved-values.md` from the registry.

#![forbid(unsafe_code)]

use std::io;

fn main() -> io::Result<()> {
    plimsoll_testkit::write_saved_values()
}
