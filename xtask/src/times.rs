//! How long each part of a command took, as a table at its end.
//!
//! A part is what a person would speed up: clippy, the build of the tests, the examples. Parts do not nest, and those of one
//! name are added up. What a command does outside of its parts is the difference to its whole time.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::time::Instant;

/// The parts that have ended, in the order in which they began.
static PARTS: Mutex<Vec<(&'static str, f64)>> = Mutex::new(Vec::new());

/// Runs a part of a command and remembers its seconds, whether it succeeds or not.
pub fn part<T>(name: &'static str, run: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = run();
    add(
        &mut PARTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner()),
        name,
        started.elapsed().as_secs_f64(),
    );
    result
}

fn add(parts: &mut Vec<(&'static str, f64)>, name: &'static str, seconds: f64) {
    match parts.iter_mut().find(|(known, _)| *known == name) {
        Some((_, known)) => *known += seconds,
        None => parts.push((name, seconds)),
    }
}

/// The table of the parts so far, as a document has it; none for a command of one part or less.
pub fn table(whole: f64) -> Option<String> {
    let parts = PARTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    (parts.len() > 1).then(|| rows(&parts, whole))
}

fn rows(parts: &[(&str, f64)], whole: f64) -> String {
    let mut table = String::from("| part | seconds |\n|---|---:|\n");
    for (name, seconds) in parts.iter().copied().chain([("in all", whole)]) {
        // Writing into a string does not fail.
        let _ = writeln!(table, "| {name} | {seconds:.0} |");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_one_name_are_added_up() {
        let mut parts = Vec::new();
        for (name, seconds) in [("format", 1.0), ("examples", 2.5), ("format", 0.25), ("examples", 1.0)] {
            add(&mut parts, name, seconds);
        }
        assert_eq!(parts, [("format", 1.25), ("examples", 3.5)]);
        let expected = "| part | seconds |\n|---|---:|\n| format | 1 |\n| examples | 4 |\n| in all | 6 |\n";
        assert_eq!(rows(&parts, 6.2), expected);
    }
}
