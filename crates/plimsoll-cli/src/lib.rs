//! Recipes as values, and the program `plimsoll`.
//!
//! [`main`] gives any crate the program's `train`, `plan` and `bench` for its own models:
//!
//! ```no_run
//! use plimsoll::nn::{layers::Dense, losses::MeanSquaredError};
//! use plimsoll_cli::{Feature, Recipe};
//!
//! fn main() -> std::process::ExitCode {
//!     let (inputs, labels) = (Feature::floats([2]), Feature::floats([1]));
//!     plimsoll_cli::main([Recipe::new("line", Dense::new(1), inputs, labels, MeanSquaredError)])
//! }
//! ```

#![forbid(unsafe_code)]

mod actions;
mod bench;
mod cluster;
mod commands;
mod data;
mod digest;
mod distributed;
mod event;
mod failure;
mod live;
mod machine;
mod optimizers;
mod options;
mod preflight;
mod profile;
mod progress;
mod recipe;
pub mod recipes;
mod reporter;
mod run_setup;
mod session;
mod size;
mod stop;
mod summary;
mod target;
mod terminal;
mod warnings;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

pub use bench::workloads;
pub use data::{Data, Feature};
pub use failure::{Exit, Failure};
pub use recipe::{Length, Recipe};

use options::{Command, Options};

/// Runs the program with these recipes, as the command line of the process says.
pub fn main(recipes: impl IntoIterator<Item = Recipe>) -> ExitCode {
    main_with(recipes, std::env::args_os())
}

/// The same for a command line that is given, whose first word is the program's name.
pub fn main_with(
    recipes: impl IntoIterator<Item = Recipe>,
    arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> ExitCode {
    warnings::show();
    let recipes: Vec<Recipe> = recipes.into_iter().collect();
    match run(&recipes, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let is_wished = failure.exit == Exit::Interrupted;
            terminal::warn(&if is_wished { failure.message } else { format!("error: {failure}") });
            ExitCode::from(failure.exit as u8)
        }
    }
}

/// Runs a command line, whose first word is the program's name. Bad options and `--help` end the process, as they do
/// in every program.
///
/// # Errors
/// Why the command failed, with the exit code.
pub fn run(
    recipes: &[Recipe],
    arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<(), Failure> {
    match Options::parse_from(arguments).command {
        Command::Train(options) => commands::train::run(recipes, &options),
        Command::Bench(options) => commands::bench::run(recipes, &options),
        Command::Devices(options) => commands::devices::run(&options),
        Command::Plan(options) => match &options.cluster {
            None => commands::plan::run(recipes, &options),
            Some(cluster) => commands::cluster::run(recipes, &options, cluster),
        },
        Command::Explain(options) => commands::explain::run(&options),
    }
}
