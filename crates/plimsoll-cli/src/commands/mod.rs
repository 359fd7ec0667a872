//! The commands, one per file.

pub mod bench;
pub mod devices;
pub mod explain;
pub mod plan;
pub mod train;

use plimsoll::nn::Policy;
use plimsoll::nn::optimizers::Optimizer;

use crate::failure::Failure;
use crate::optimizers;
use crate::options::RunOptions;
use crate::recipe::Recipe;

/// The recipe of that name.
///
/// # Errors
/// An unknown name; the error lists those that are known.
pub fn find<'a>(recipes: &'a [Recipe], name: &str) -> Result<&'a Recipe, Failure> {
    recipes.iter().find(|recipe| recipe.name() == name).ok_or_else(|| {
        let list: String = recipes.iter().map(|recipe| row(recipe.name(), recipe.description())).collect();
        Failure::options(format!("there is no recipe `{name}`; there are\n{}", list.trim_end()))
    })
}

/// A line of a list.
fn row(name: &str, about: &str) -> String {
    format!("  {name:<22} {about}\n")
}

/// The addresses that a process can have: no batch of more bytes can be, and all bytes of a smaller one's steps can be counted.
const MOST_BYTES: usize = 1 << 47;

/// The examples of one optimizer step.
///
/// # Errors
/// More parts than examples; more examples than there can be.
pub fn batch(recipe: &Recipe, options: &RunOptions) -> Result<usize, Failure> {
    let batch = options.batch.map_or(recipe.default_batch(), |batch| batch.get());
    let parts = options.accumulate.get();
    let example = recipe.inputs().n_bytes().saturating_add(recipe.labels().n_bytes());
    let most = MOST_BYTES / example.max(1);
    if batch > most {
        return Err(Failure::options(format!(
            "--batch {batch}: an example of {} takes {example} bytes, and no process has addresses for more than {most} of \
             them",
            recipe.name()
        )));
    }
    match parts <= batch {
        true => Ok(batch),
        false => Err(Failure::options(format!(
            "--accumulate {parts}: a batch of {batch} cannot be worked through in {parts} parts"
        ))),
    }
}

/// How layers compute: as the options say, or as the recipe does.
pub fn policy(recipe: &Recipe, options: &RunOptions) -> Policy {
    options.precision.unwrap_or(recipe.default_precision())
}

/// The optimizer that the options name, or the recipe's.
///
/// # Errors
/// An unknown name; a schedule that does not fit the number of steps.
pub fn optimizer(recipe: &Recipe, options: &RunOptions, steps: u64) -> Result<Optimizer, Failure> {
    match &options.optimizer {
        Some(name) => Ok(optimizers::by_name(name)?.build()),
        None => Ok(recipe.make_optimizer(steps)?),
    }
}
