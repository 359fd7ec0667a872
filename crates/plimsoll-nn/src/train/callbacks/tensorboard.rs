//! `TensorBoard`: loss, metrics and memory as scalars that TensorBoard shows while a run trains.

use std::path::Path;

use plimsoll_report::TensorBoardWriter;
use plimsoll_tensor::{Error, Result};

use crate::train::callback::{Callback, Requests};
use crate::train::event::{EpochEvent, StepEvent};

/// Writes scalars into a folder for TensorBoard: at each step `loss`, `learning_rate`, `ms`, `memory/in_use_bytes`, `memory/peak_bytes` and
/// `memory/committed_bytes`, and after each epoch all its numbers as `epoch/loss`, `epoch/val_loss` and so on. A disk that is full
/// ends the writing with a warning, not the run.
#[derive(Debug)]
pub struct TensorBoard {
    /// Nothing once writing has failed.
    writer: Option<TensorBoardWriter>,
}

impl TensorBoard {
    /// Begins an event file in a folder, which is made if it is not there.
    ///
    /// # Errors
    /// A folder or file that cannot be made.
    pub fn new(folder: &Path) -> Result<TensorBoard> {
        let writer = TensorBoardWriter::start(folder).map_err(|error| Error::io(folder, error))?;
        Ok(TensorBoard { writer: Some(writer) })
    }

    fn write(&mut self, step: u64, values: &[(&str, f64)]) {
        if let Some(writer) = &mut self.writer
            && let Err(error) = writer.scalars(step, values)
        {
            log::warn!("nothing more is written for TensorBoard: {error}");
            self.writer = None;
        }
    }
}

impl Callback for TensorBoard {
    fn name(&self) -> &str {
        "tensorboard"
    }

    fn waits_for(&self, _step: u64) -> bool {
        false
    }

    fn on_step(&mut self, event: &StepEvent, _run: &mut Requests<'_>) -> Result<()> {
        let memory = &event.memory;
        let values = [
            ("loss", event.loss),
            ("learning_rate", event.learning_rate),
            ("ms", event.ms),
            ("memory/in_use_bytes", memory.in_use as f64),
            ("memory/peak_bytes", memory.peak as f64),
            ("memory/committed_bytes", memory.committed as f64),
        ];
        self.write(event.step, &values);
        Ok(())
    }

    fn on_epoch(&mut self, event: &EpochEvent, _run: &mut Requests<'_>) -> Result<()> {
        let names: Vec<(String, f64)> = event
            .names()
            .into_iter()
            .filter_map(|name| Some((format!("epoch/{name}"), event.value(&name)?)))
            .collect();
        let values: Vec<(&str, f64)> = names.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        self.write(event.step, &values);
        Ok(())
    }
}
