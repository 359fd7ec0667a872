//! The recipes that the program ships.

pub mod gpt;
