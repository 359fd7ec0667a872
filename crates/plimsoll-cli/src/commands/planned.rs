//! Commands whose place on the command line is taken, and which are not there yet.

use crate::failure::Failure;
use crate::options::{ExplainOptions, PlanOptions};
use crate::recipe::Recipe;

/// `plimsoll plan`.
///
/// # Errors
/// Always: an unknown recipe, or that plans are not there yet.
pub fn plan(recipes: &[Recipe], options: &PlanOptions) -> Result<(), Failure> {
    super::find(recipes, &options.recipe)?;
    Err(Failure::other("`plan` is not there yet; `train` with `--steps 1 --json` shows what one step takes"))
}

/// `plimsoll explain`.
///
/// # Errors
/// Always: a file that is not there, or that profiles are not there yet.
pub fn explain(options: &ExplainOptions) -> Result<(), Failure> {
    match options.file.is_file() {
        true => Err(Failure::other("`explain` is not there yet: this version records no profiles")),
        false => Err(Failure::file(format!("{}: there is no such file", options.file.display()))),
    }
}
