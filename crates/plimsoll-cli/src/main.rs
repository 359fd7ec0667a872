//! The program `plimsoll`: the shipped recipes, trained, measured and explained.

fn main() -> std::process::ExitCode {
    plimsoll_cli::main(plimsoll_cli::recipes::all())
}
