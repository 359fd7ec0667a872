//! Recipes as values, and the program `plimsoll`.

mod commands;
mod event;
mod failure;
mod machine;
mod options;
pub mod recipes;
mod size;
mod terminal;
