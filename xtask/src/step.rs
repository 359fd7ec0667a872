//! One external command as a visible step.
//!
//! A step prints the line that a person would type to repeat it, runs it in the repository root with its output
//! passed through, and says how long it took. A step never goes through a shell.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::Outcome;

/// A command that is about to run, and the line that shows it.
pub struct Step {
    command: Command,
    line: String,
}

impl Step {
    /// A step that runs `program` with `arguments` in `root`.
    pub fn new(root: &Path, program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(root);
        let words: Vec<String> =
            std::iter::once(&program).chain(arguments).map(|word| quoted(word)).collect();
        Self { command, line: words.join(" ") }
    }

    /// A step that runs cargo, the most frequent kind.
    pub fn cargo(root: &Path, arguments: &[&str]) -> Self {
        Self::new(root, "cargo", arguments)
    }

    /// Sets an environment variable for this step alone.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self.line = format!("{name}={} {}", quoted(value), self.line);
        self
    }

    /// Runs the step and waits for it.
    pub fn run(mut self) -> Outcome {
        println!("$ {}", self.line);
        let started = Instant::now();
        let status =
            self.command.status().map_err(|error| format!("`{}` cannot start: {error}", self.line))?;
        println!("  {:.1} s", started.elapsed().as_secs_f64());
        if !status.success() {
            return Err(format!("`{}` ended with {status}", self.line));
        }
        Ok(())
    }

    /// Runs the step without showing it and returns what it wrote to standard output.
    pub fn read(mut self) -> Result<String, String> {
        let output =
            self.command.output().map_err(|error| format!("`{}` cannot start: {error}", self.line))?;
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            return Err(format!("`{}` ended with {}: {}", self.line, output.status, complaint.trim()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs the step silently and tells whether it succeeded: the way to ask whether a tool is installed.
    pub fn works(mut self) -> bool {
        let silent = self.command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        silent.status().is_ok_and(|status| status.success())
    }
}

/// The word as it must be typed in a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_shows_a_line_that_a_shell_reads_back() {
        let step =
            Step::cargo(Path::new("."), &["test", "--bench", "*", "it's"]).env("RUSTFLAGS", "--cfg loom");
        assert_eq!(step.line, r"RUSTFLAGS='--cfg loom' cargo test --bench '*' 'it'\''s'");
    }

    #[test]
    fn the_exit_status_decides() {
        let root = Path::new(".");
        assert!(Step::new(root, "true", &[]).works());
        assert!(!Step::new(root, "false", &[]).works());
        assert!(!Step::new(root, "no-such-program", &[]).works());
        assert!(Step::new(root, "false", &[]).run().unwrap_err().contains("`false` ended with"));
        assert_eq!(Step::new(root, "printf", &["seven"]).read().as_deref(), Ok("seven"));
    }
}
