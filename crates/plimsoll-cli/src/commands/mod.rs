//! The commands, one per file.

pub mod bench;
pub mod cluster;
pub mod devices;
pub mod explain;
pub mod plan;
pub mod train;

use crate::failure::Failure;
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
