//! The program `plimsoll`: the shipped recipes, trained, measured and explained.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    plimsoll_cli::main(plimsoll_cli::recipes::all())
}
