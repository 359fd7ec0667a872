//! What runs beside the training: callbacks are told of steps and epochs, and may ask for something to be done.
//!
//! They ask and the trainer does it, after all of them have been told: so what is saved holds what every one of them
//! knows by then, whatever their order.

use std::path::{Path, PathBuf};

use plimsoll_tensor::Result;

use super::event::{EpochEvent, StepEvent};
use super::history::History;
use crate::model::Model;
use crate::optimizers::Optimizer;

/// Something that is told how a run goes on.
pub trait Callback: Send {
    /// The name, under which checkpoints keep its state.
    fn name(&self) -> &str;

    /// Whether it must be told of this step before the next one begins, because it may want something done: saving,
    /// stopping, another learning rate. One that only looks need not be; then a GPU goes on meanwhile, and
    /// [`Callback::on_step`] is called one step later.
    fn waits_for(&self, _step: u64) -> bool {
        true
    }

    /// A step has ended.
    ///
    /// # Errors
    /// Those of the callback; they end the run.
    fn on_step(&mut self, _event: &StepEvent, _run: &mut Requests<'_>) -> Result<()> {
        Ok(())
    }

    /// An epoch has ended.
    ///
    /// # Errors
    /// Those of the callback; they end the run.
    fn on_epoch(&mut self, _event: &EpochEvent, _run: &mut Requests<'_>) -> Result<()> {
        Ok(())
    }

    /// The run has ended, in time or before.
    ///
    /// # Errors
    /// Those of the callback.
    fn on_end(&mut self, _history: &History, _run: &mut Requests<'_>) -> Result<()> {
        Ok(())
    }

    /// What it must know again when the run is resumed.
    fn state(&self) -> Option<String> {
        None
    }

    /// Takes up again what [`Callback::state`] said.
    ///
    /// # Errors
    /// Something that it never said.
    fn restore(&mut self, _state: &str) -> Result<()> {
        Ok(())
    }
}

/// What a callback sees of a run, and may ask for.
pub struct Requests<'a> {
    pub(super) model: &'a Model,
    pub(super) optimizer: &'a mut Optimizer,
    pub(super) wanted: &'a mut Wanted,
}

/// What callbacks have asked for.
#[derive(Default)]
pub(super) struct Wanted {
    pub stop: Option<String>,
    pub saves: Vec<PathBuf>,
    pub weights: Option<PathBuf>,
}

impl Requests<'_> {
    /// The model.
    pub fn model(&self) -> &Model {
        self.model
    }

    /// The optimizer.
    pub fn optimizer(&mut self) -> &mut Optimizer {
        self.optimizer
    }

    /// Ends the run when all callbacks have been told.
    pub fn stop(&mut self, why: impl Into<String>) {
        self.wanted.stop.get_or_insert(why.into());
    }

    /// Saves the run in a folder when all callbacks have been told.
    pub fn save(&mut self, folder: &Path) {
        if !self.wanted.saves.iter().any(|known| known == folder) {
            self.wanted.saves.push(folder.to_owned());
        }
    }

    /// Gives the model the weights of the run that was saved in a folder, when all callbacks have been told and what
    /// they wanted saved is.
    pub fn load_weights(&mut self, folder: &Path) {
        self.wanted.weights = Some(folder.to_owned());
    }
}
