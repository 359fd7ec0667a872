//! Writes every sample that PyTorch has an expression for, as JSON, for `golden/generate.py`.

#![forbid(unsafe_code)]

use std::io::{self, Write};

fn main() -> io::Result<()> {
    writeln!(io::stdout().lock(), "{}", plimsoll_testkit::golden_samples())
}
