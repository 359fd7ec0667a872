//! The programs of a run's steps.
//!
//! A step of a pure model is a function of its batch: it is recorded once per signature (how the batch lies in memory, and
//! what else decides about the ops) and from then on run from its program, without calling layers and without a tape. Its
//! bits are those of the step itself. Under a limit the program is planned before it first runs: the fastest way that fits
//! is taken, and one that cannot be made to fit is refused with the least limit that works.
//!
//! A model that is not declared pure is called at every step; `line.rs` keeps that under the limit.

use plimsoll_plan::Family;
use plimsoll_tensor::{
    Device, Error, ErrorKind, Generator, PlannedProgram, Program, Result, Tensor, op::Meta,
};

use super::examples::Pair;
use super::pending::Numbers;
use super::rehearsal;
use super::step::Stepper;

/// The most bytes of the heap for programs and what is planned of them, roughly; the least recently used go first.
const MOST_BYTES: usize = 8 << 20;

/// The programs of a run's steps by signature, the latest last.
#[derive(Default)]
pub(super) struct StepPrograms {
    known: Vec<(Signature, Option<PlannedProgram>)>,
}

/// What decides about the ops of a step.
#[derive(Clone, PartialEq)]
struct Signature {
    inputs: Meta,
    labels: Meta,
    device: Device,
    n_parts: usize,
    is_deterministic: bool,
    can_offload: bool,
    /// Which variables are trained.
    trained: Vec<bool>,
}

impl Stepper {
    /// Whether a step does the same for batches that are alike, so that its program need not be recorded again.
    pub fn is_pure(&self) -> bool {
        self.model.is_pure() && self.loss.is_pure() && !self.check_gradients
    }

    /// The ways in which a step with this batch can be made.
    pub fn memory_plans(&mut self, device: &Device, pair: &Pair) -> Result<Family> {
        match self.is_pure() {
            true => self.record(pair)?.memory_plans(device),
            false => self.family(device, pair),
        }
    }

    /// Makes a step by running its program; nothing if it has none, because a value is read.
    pub fn step_by_program(&mut self, pair: &Pair, names: &[String; 2]) -> Result<Option<Numbers>> {
        let device = pair.inputs.device();
        let signature = self.signature(pair);
        let known = match self.programs.take(&signature) {
            Some(known) => known,
            None => match self.record(pair) {
                Ok(program) => Some(PlannedProgram::new(program)),
                Err(error) if reads_values(&error) => None,
                Err(error) => return Err(error),
            },
        };
        let Some(mut known) = known else {
            self.programs.put(signature, None);
            return Ok(None);
        };
        let generator = Generator::current();
        let ran = run(&mut known, pair);
        self.programs.put(signature, Some(known));
        let loss = ran?.swap_remove(0);
        if device.is_ghost() {
            return Ok(Some(Numbers::Here { loss: f64::NAN, control: None }));
        }
        if !device.is_host() {
            let (loss, control) = (loss.to_f64_later()?, self.optimizer.control_later()?);
            return Ok(Some(Numbers::OnTheirWay { loss, control }));
        }
        let loss = loss.to_f64_vec()?[0];
        if !loss.is_finite() {
            generator.make_current();
            self.optimizer.release()?;
            return Err(self.explained(loss, pair, names)?);
        }
        Ok(Some(Numbers::Here { loss, control: Some(self.optimizer.control()?) }))
    }

    /// Records a step: forward, backward and the update, which is committed only if the loss is finite.
    fn record(&mut self, pair: &Pair) -> Result<Program> {
        let device = pair.inputs.device();
        Program::record(&device, &[&pair.inputs, &pair.labels], |arguments| {
            let pair = Pair { inputs: arguments[0].clone(), labels: arguments[1].clone() };
            Ok(vec![self.judged(&pair)?])
        })
    }

    fn signature(&self, pair: &Pair) -> Signature {
        let device = pair.inputs.device();
        Signature {
            inputs: *pair.inputs.meta(),
            labels: *pair.labels.meta(),
            n_parts: self.n_parts,
            is_deterministic: device.is_deterministic(),
            can_offload: device.can_offload(),
            trained: self.model.variables().iter().map(|variable| variable.is_trainable()).collect(),
            device,
        }
    }
}

impl StepPrograms {
    fn take(&mut self, signature: &Signature) -> Option<Option<PlannedProgram>> {
        let at = self.known.iter().position(|(known, _)| known == signature)?;
        Some(self.known.remove(at).1)
    }

    fn put(&mut self, signature: Signature, program: Option<PlannedProgram>) {
        self.known.push((signature, program));
        let bytes = |known: &Option<PlannedProgram>| known.as_ref().map_or(0, PlannedProgram::heap_bytes);
        let mut all: usize = self.known.iter().map(|(_, known)| bytes(known)).sum();
        while all > MOST_BYTES && self.known.len() > 1 {
            all -= bytes(&self.known.remove(0).1);
        }
    }
}

/// Runs the program of a step with a batch.
fn run(known: &mut PlannedProgram, pair: &Pair) -> Result<Vec<Tensor>> {
    let arguments = [&pair.inputs, &pair.labels];
    match known.prepare_with(|trace, natural| rehearsal::candidates(trace.clone(), natural))? {
        Some((program, offsets)) => program.run(&arguments, Some(offsets)),
        None => known.program().run(&arguments, None),
    }
}

/// Whether a step could not be recorded because it reads a value.
fn reads_values(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::ReadsValue { .. } | ErrorKind::Ghost { .. })
}
