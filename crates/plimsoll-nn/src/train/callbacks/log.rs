//! `Log`: a line for each epoch, and for some steps.

use std::io::Write;
use std::path::Path;

use plimsoll_tensor::{Error, Result};

use crate::train::callback::{Callback, Requests};
use crate::train::event::{EpochEvent, StepEvent};
use crate::train::history::History;

/// Writes a line for each epoch, for every step that was skipped, and, if asked, for every so many steps.
#[doc(alias("CSVLogger", "ProgbarLogger"))]
pub struct Log<W> {
    out: W,
    every_steps: Option<u64>,
}

impl<W: Write> Log<W> {
    /// Writes to a file, a buffer or a terminal.
    pub fn new(out: W) -> Log<W> {
        Log { out, every_steps: None }
    }

    /// This one with a line for every so many steps; zero counts as one.
    pub fn every_steps(self, n: u64) -> Log<W> {
        Log { every_steps: Some(n.max(1)), ..self }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) -> Result<()> {
        writeln!(self.out, "{line}").map_err(|error| Error::io(Path::new("the log"), error))
    }
}

impl<W: Write + Send> Callback for Log<W> {
    fn name(&self) -> &str {
        "log"
    }

    fn waits_for(&self, _step: u64) -> bool {
        false
    }

    fn on_step(&mut self, event: &StepEvent, _run: &mut Requests<'_>) -> Result<()> {
        let is_due = self.every_steps.is_some_and(|n| event.step.is_multiple_of(n));
        if is_due || event.skipped.is_some() { self.line(format_args!("{event}")) } else { Ok(()) }
    }

    fn on_epoch(&mut self, event: &EpochEvent, _run: &mut Requests<'_>) -> Result<()> {
        self.line(format_args!("{event}"))
    }

    fn on_end(&mut self, history: &History, _run: &mut Requests<'_>) -> Result<()> {
        match &history.stopped {
            Some(why) => self.line(format_args!("stopped after {} steps: {why}", history.steps)),
            None => Ok(()),
        }
    }
}
