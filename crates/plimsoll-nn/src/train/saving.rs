//! What a run saves and loads: everything in one file, which the first rank writes, or each rank its shards.

use std::path::Path;

use plimsoll_tensor::{Error, Result, Variable};

use super::Trainer;
use crate::checkpoint::{self, RunState, Saved};
use crate::shards::Zero;

impl Trainer {
    /// Saves all values: the first rank in one file, or each rank its shard.
    pub(super) fn save_values(&self, folder: &Path) -> Result<()> {
        let (others, state) = (self.stepper.other_variables(), self.state());
        if let Some(zero) = &self.stepper.zero {
            let (communicator, shards) = zero.ranks();
            return checkpoint::save_shards(folder, &**communicator, shards, &self.saved(), &state);
        }
        if self.writes_files() {
            checkpoint::save_all(folder, self.model(), &others, &state)?;
            checkpoint::remove_before(folder);
        }
        self.wait_for_ranks()
    }

    /// Loads all values, or this rank's pieces of them; returns how far the run had come.
    pub(super) fn load_values(&self, folder: &Path) -> Result<RunState> {
        let (zero, settings) = (&self.stepper.zero, &self.state.settings);
        if zero.is_none() && !checkpoint::is_sharded(folder)? {
            let others = self.stepper.other_variables();
            return checkpoint::load_alike(folder, self.model(), &others, settings);
        }
        let ranks = zero.as_ref().map(Zero::ranks);
        let rank = ranks.map_or(0, |(communicator, _)| communicator.rank());
        let shards = ranks.map(|(_, shards)| shards);
        let policy = self.model().policy();
        let state =
            checkpoint::Source::open(folder)?.load((shards, rank), &self.saved(), policy, settings)?;
        self.fill_variables()?;
        Ok(state)
    }

    /// Refuses what is only possible with weights that are whole.
    pub(super) fn check_whole(&self, what: &str) -> Result<()> {
        match &self.stepper.zero {
            None => Ok(()),
            Some(_) => {
                let detail = format!(
                    "{what} needs variables that are not cut into shards; resume from the folder instead"
                );
                Err(Error::argument("zero", detail))
            }
        }
    }

    /// Makes the optimizer's state for variables that a checkpoint has some of.
    pub(super) fn keep_for(&mut self, kept: &[Variable]) -> Result<()> {
        let Some(zero) = &mut self.stepper.zero else { return self.stepper.optimizer.keep_for(kept) };
        zero.cover(kept)?;
        let pieces = zero.pieces(kept);
        self.stepper.optimizer.keep_for(&pieces)
    }

    /// All tensors of a checkpoint, each with what this rank has of it.
    fn saved(&self) -> Vec<Saved> {
        let weights = self.model().named_variables().into_iter();
        let weights = weights.map(|(name, variable)| (format!("{}{name}", checkpoint::WEIGHTS), variable));
        let saved = |(name, variable): (String, Variable)| match &self.stepper.zero {
            Some(zero) => of_shards(zero, name, &variable),
            None => whole(name, &variable),
        };
        weights.chain(self.stepper.other_variables()).map(saved).collect()
    }

    /// Fills the variables that are computed with from what was loaded: from the pieces of all ranks, or from their masters.
    fn fill_variables(&self) -> Result<()> {
        if let Some(zero) = &self.stepper.zero {
            return zero.fill();
        }
        let variables = self.stepper.all_variables.iter();
        for (variable, master) in variables.filter_map(|variable| Some((variable, variable.master()?))) {
            // That rounds it for the variable, and gives the master its own value.
            variable.assign(&master.value())?;
        }
        Ok(())
    }
}

/// A tensor that every rank has.
fn whole(name: String, variable: &Variable) -> Saved {
    let (variable, shape) = (variable.master().unwrap_or(variable).clone(), *variable.shape());
    Saved { name, variable, shape, number: None }
}

/// A variable of the model, or what the optimizer keeps for one, of which this rank may have a piece.
fn of_shards(zero: &Zero, name: String, variable: &Variable) -> Saved {
    if let Some((number, piece)) = zero.piece(variable) {
        return Saved { name, variable: piece.clone(), shape: *variable.shape(), number: Some(number) };
    }
    let of_optimizer = name.strip_prefix("optimizer.").and_then(|rest| Some(rest.split_once('.')?.1));
    match of_optimizer.and_then(|name| zero.named(name)) {
        Some((number, shape)) => Saved { name, variable: variable.clone(), shape, number: Some(number) },
        None => whole(name, variable),
    }
}
