//! Writes the examples in the docs of tensors' methods, `crates/plimsoll-tensor/docs/examples`, from the registry.

#![forbid(unsafe_code)]

use std::io;

fn main() -> io::Result<()> {
    plimsoll_testkit::write_examples()
}
