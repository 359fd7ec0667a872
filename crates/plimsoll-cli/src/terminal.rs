//! Where the program writes: results on stdout, everything else on stderr.
//!
//! With `--json` stdout holds JSON lines and nothing else; people's text is left out.

use std::io::{self, Write};

use crate::event::Event;
use crate::failure::Failure;
use crate::progress::with_bar_hidden;

/// How a command's results are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// As text for people.
    Text,
    /// As one JSON object a line.
    Json,
    /// Not at all: another rank shows them.
    Silent,
}

impl Style {
    /// The style that `--json` stands for.
    pub fn of(json: bool) -> Style {
        if json { Style::Json } else { Style::Text }
    }

    /// Writes a line for people.
    ///
    /// # Errors
    /// An output that does not take it.
    pub fn say(self, text: &str) -> Result<(), Failure> {
        match self {
            Style::Text => write_line(text),
            Style::Json | Style::Silent => Ok(()),
        }
    }

    /// Writes a line for programs.
    ///
    /// # Errors
    /// An output that does not take it.
    pub fn emit(self, event: &Event) -> Result<(), Failure> {
        match self {
            Style::Text | Style::Silent => Ok(()),
            Style::Json => write_line(&as_json(event)?),
        }
    }
}

/// A value as one line of JSON.
pub fn as_json(value: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string(value)
        .map_err(|error| Failure::other(format!("a result has no JSON form: {error}")))
}

/// Writes a line on stdout.
pub fn write_line(text: &str) -> Result<(), Failure> {
    let write = || {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush())
    };
    // Where both are the same terminal, the bar would be in the line.
    with_bar_hidden(write).map_err(|error| Failure::other(format!("cannot write to stdout: {error}")))
}

/// Writes a line on stderr.
pub fn warn(text: &str) {
    // If the message cannot be written, the exit code still says it.
    let _unheard = with_bar_hidden(|| writeln!(io::stderr().lock(), "{text}"));
}
