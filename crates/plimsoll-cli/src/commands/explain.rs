//! `plimsoll explain`: its place on the command line is taken, and it is not there yet.

use crate::failure::Failure;
use crate::options::ExplainOptions;

/// Explains a profile.
///
/// # Errors
/// Always: a file that is not there, or that profiles are not there yet.
pub fn run(options: &ExplainOptions) -> Result<(), Failure> {
    match options.file.is_file() {
        true => Err(Failure::other("`explain` is not there yet: this version records no profiles")),
        false => Err(Failure::file(format!("{}: there is no such file", options.file.display()))),
    }
}
