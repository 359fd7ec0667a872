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

use plimsoll_tensor::{
    Device, Nested, OwnedVariables, PlannedProgram, Program, ProgramCache, ProgramKey, Recording, Result,
    Step, Tensor, op::Meta,
};

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
    device: Device,
    n_parts: usize,
    is_deterministic: bool,
    can_offload: bool,
    /// Which variables are trained.
    trained: Vec<bool>,
    /// What else has been set otherwise since.
    version: u64,
}

impl ProgramKey for Signature {
    fn heap_bytes(&self) -> usize {
        self.batch.heap_bytes() + self.trained.capacity()
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
        match self.find(work, batch)? {
            Some(program) => program.run(&batch.tensors().collect::<Vec<_>>()),
            None => Step::run(&batch.device(), || work.run(batch)),
        }
    }

    /// The program for a batch; nothing if the work is to be called.
    fn find(&mut self, work: &mut dyn Work, batch: &Batch) -> Result<Option<&mut PlannedProgram>> {
        let device = batch.device();
        let recording = match (work.is_pure(), device.pool().limit()) {
            (true, _) => Recording::Once,
            (false, Some(_)) => Recording::EachCall,
            (false, None) => return Ok(None),
        };
        let signature = Signature {
            batch: batch.tensors().map(Program::argument_meta).collect(),
            arrangement: batch.arrangement(),
            n_parts: work.n_parts(),
            is_deterministic: device.is_deterministic(),
            can_offload: device.can_offload(),
            trained: work.trained(),
            version: work.version(),
            device,
        };
        let found = self.cache.find(signature, recording, |owned| Ok((record(work, batch, owned)?, ())))?;
        Ok(found.map(|(program, ())| program))
    }
}

/// Records what is done with a batch.
pub(super) fn record(work: &mut dyn Work, batch: &Batch, owned: &mut OwnedVariables) -> Result<Program> {
    let device = batch.device();
    Program::record_owning(&device, &batch.tensors().collect::<Vec<_>>(), &[], owned, |arguments| {
        work.run(&batch.rebuilt(arguments)?)
    })
}
