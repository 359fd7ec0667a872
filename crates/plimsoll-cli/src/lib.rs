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
//!     plimsoll_cli::main([Recipe::new("line", Dense::new(1), inputs, labels, MeanSquaredError::new())])
//! }
//! ```

mod bench;
mod commands;
mod data;
mod digest;
mod event;
mod failure;
mod log;
mod machine;
mod optimizers;
mod options;
mod progress;
mod recipe;
pub mod recipes;
mod reporter;
mod session;
mod size;
mod stop;
mod summary;
mod terminal;

use std::process::ExitCode;

use clap::Parser;

pub use bench::workloads;
pub use data::{Data, Feature};
pub use failure::{Exit, Failure};
pub use recipe::{Length, Recipe};

use options::{Command, Options};

/// Runs the program with these recipes, as the command line of the process says.
pub fn main(recipes: impl IntoIterator<Item = Recipe>) -> ExitCode {
    log::show_warnings();
    let recipes: Vec<Recipe> = recipes.into_iter().collect();
    match run(&recipes, Options::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            terminal::warn(&format!("error: {failure}"));
            ExitCode::from(failure.exit as u8)
        }
    }
}

fn run(recipes: &[Recipe], command: Command) -> Result<(), Failure> {
    match command {
        Command::Train(options) => commands::train::run(recipes, &options),
        Command::Bench(options) => commands::bench::run(recipes, &options),
        Command::Devices(options) => commands::devices::run(&options),
        Command::Plan(options) => commands::planned::plan(recipes, &options),
        Command::Explain(options) => commands::planned::explain(&options),
    }
}
