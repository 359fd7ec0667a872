//! The programs of a run: those of its steps, and those of its evaluations.
//!
//! What a batch does is a function of it, recorded on a ghost and run from its program, with the bits of the function itself,
//! without a tape. Of a pure model (see `Layer::is_pure`) a program is recorded once per signature: how the batch lies in
//! memory, and what else decides about the ops. Under a limit it is planned before it first runs: the fastest way that fits
//! is taken, and one that cannot be made to fit is refused with the least limit that works.
//!
//! A model that is not declared pure may do something else at each step, so it is called at each step, once. Without a limit
//! that is all. Under a limit it is called on a ghost, to be recorded, and then its program runs; what is planned of one
//! recording holds for those that are alike, whatever numbers they compute with. A model that reads values while it is recorded
//! has no program: it runs eagerly, and the device's guard keeps it under the limit.

use std::sync::Arc;

use plimsoll_dist::Strategy;
use plimsoll_tensor::program::Peers;
use plimsoll_tensor::{
    Device, Error, GatheredVariable, Nested, OwnedVariables, PlannedProgram, Program, ProgramCache,
    ProgramKey, Recording, Result, Step, Tensor, op::Meta,
};

use super::data_parallel::with_draws_of_rank;
use super::examples::Batch;

/// The most bytes of the heap for programs and what is planned of them, as for a function; the least recently used go first.
const MOST_BYTES: usize = 64 << 20;

/// The programs of what a run does with its batches, by signature.
pub(super) struct Programs {
    cache: ProgramCache<Signature, ()>,
}

impl Default for Programs {
    fn default() -> Programs {
        Programs { cache: ProgramCache::new(MOST_BYTES) }
    }
}

/// What decides about the ops of a batch.
#[derive(Clone, PartialEq)]
struct Signature {
    /// How the tensors of the batch lie, and how they are arranged.
    batch: Vec<Meta>,
    arrangement: [Nested<()>; 3],
    /// The devices: the batch's, and those that the model is spread over.
    devices: Vec<DeviceState>,
    n_parts: usize,
    /// Which variables are trained.
    trained: Vec<bool>,
    /// What else has been set otherwise since.
    version: u64,
}

/// What of a device decides about the ops and how they are planned.
#[derive(Clone, PartialEq)]
struct DeviceState {
    device: Device,
    is_deterministic: bool,
    can_offload: bool,
}

impl DeviceState {
    fn of(device: Device) -> DeviceState {
        let (is_deterministic, can_offload) = (device.is_deterministic(), device.can_offload());
        DeviceState { device, is_deterministic, can_offload }
    }
}

impl ProgramKey for Signature {
    fn heap_bytes(&self) -> usize {
        let of_devices = self.devices.capacity() * size_of::<DeviceState>();
        self.batch.heap_bytes() + self.trained.capacity() + of_devices
    }
}

/// What is done with a batch.
pub(super) trait Work {
    /// Does it; returns what is to be known of it.
    fn run(&mut self, batch: &Batch) -> Result<Vec<Tensor>>;

    /// Whether it does the same for all batches that are alike.
    fn is_pure(&self) -> bool;

    /// In how many parts a batch is worked through.
    fn n_parts(&self) -> usize;

    /// Which variables are trained.
    fn trained(&self) -> Vec<bool>;

    /// The devices that it uses, if these are several.
    fn devices(&self) -> Vec<Device>;

    /// How several ranks do it together, if they do.
    fn strategy(&self) -> Option<&Strategy> {
        None
    }

    /// The variables that have no value of their own, and how its programs make it.
    fn gathered(&self) -> Vec<GatheredVariable> {
        Vec::new()
    }

    /// The ranks with which the plans of its programs are agreed upon.
    fn peers(&self) -> Option<Arc<dyn Peers>> {
        None
    }

    /// Does what `f` does as if this were the first rank, if that works through another number of examples of such a batch.
    fn as_first_rank(
        &mut self,
        _batch: &Batch,
        _f: &mut dyn FnMut(&mut dyn Work) -> Result<Program>,
    ) -> Result<Option<Program>> {
        Ok(None)
    }

    /// A number that is another one when something has been set that decides about the ops.
    fn version(&self) -> u64 {
        0
    }
}

impl Programs {
    /// Works through a batch, all or nothing, under its device's limit.
    ///
    /// # Errors
    /// Those of the work; a limit that it cannot be kept under, before anything runs; memory that is full.
    pub fn run(&mut self, work: &mut dyn Work, batch: &Batch) -> Result<Vec<Tensor>> {
        let strategy = work.strategy().cloned();
        let tensors: Vec<&Tensor> = batch.tensors().collect();
        match (self.find(work, batch)?, strategy) {
            (Some(program), None) => program.run(&tensors),
            (Some(program), Some(strategy)) => {
                with_draws_of_rank(&strategy, program.program().n_draws(), || program.run(&tensors))
            }
            (None, None) => Step::run(&batch.device(), || work.run(batch)),
            (None, Some(_)) => Err(Error::argument(
                "strategy",
                "the step reads values while it runs, so that it has no program, and ranks cannot agree on its draws; return what is \
                 to be read as a result",
            )),
        }
    }

    /// The program for a batch; nothing if the work is to be called.
    fn find(&mut self, work: &mut dyn Work, batch: &Batch) -> Result<Option<&mut PlannedProgram>> {
        let (device, others) = (batch.device(), work.devices());
        let recording = match (work.is_pure(), device.pool().limit()) {
            (true, _) => Recording::Once,
            (false, Some(_)) => Recording::EachCall,
            // A step that is not recorded is one of a single device and of a single rank.
            (false, None)
                if !others.is_empty() || work.strategy().is_some() || !work.gathered().is_empty() =>
            {
                Recording::EachCall
            }
            (false, None) => return Ok(None),
        };
        let others = others.into_iter().filter(|other| *other != device);
        let devices = std::iter::once(device.clone()).chain(others).map(DeviceState::of).collect();
        let signature = Signature {
            batch: batch.tensors().map(Program::argument_meta).collect(),
            arrangement: batch.arrangement(),
            n_parts: work.n_parts(),
            devices,
            trained: work.trained(),
            version: work.version(),
        };
        let found = self.cache.find(signature, recording, |owned| Ok((record(work, batch, owned)?, ())))?;
        Ok(found.map(|(program, ())| program))
    }
}

/// Records what is done with a batch.
pub(super) fn record(work: &mut dyn Work, batch: &Batch, owned: &mut OwnedVariables) -> Result<Program> {
    let program = record_here(work, batch, owned)?;
    let Some(peers) = work.peers() else { return Ok(program) };
    let program = program.agreeing(peers.clone());
    if !peers.share_plans() {
        return Ok(program);
    }
    let basis = work.as_first_rank(batch, &mut |work| record_here(work, batch, owned))?;
    Ok(match basis {
        Some(basis) => program.planned_as(basis),
        None => program,
    })
}

/// Records what this rank does with a batch.
fn record_here(work: &mut dyn Work, batch: &Batch, owned: &mut OwnedVariables) -> Result<Program> {
    let device = batch.device();
    let tensors: Vec<&Tensor> = batch.tensors().collect();
    let recorded = Program::record_owning(&device, &tensors, &[], owned, |arguments| {
        work.run(&batch.rebuilt(arguments)?)
    });
    let gathered = work.gathered();
    if gathered.is_empty() { recorded } else { recorded?.gathering(&gathered) }
}
