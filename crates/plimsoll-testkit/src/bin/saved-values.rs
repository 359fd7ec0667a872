//! Writes `docs/saved-values.md` from the registry.

use std::io;

fn main() -> io::Result<()> {
    plimsoll_testkit::write_saved_values()
}
