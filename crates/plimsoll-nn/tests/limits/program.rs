//! A step's program against the step itself: the same requests of the pool, the same bits, the same peaks.

use plimsoll_memory::TraceEvent;
use plimsoll_nn::losses::{Loss, SparseCategoricalCrossentropy};
use plimsoll_nn::optimizers::{Adam, Optimizer, OptimizerConfig};
use plimsoll_nn::train::Batch;
use plimsoll_nn::{Mode, Model, Policy, with_policy};
use plimsoll_tensor::{Device, Generator, GradientTape, Program, Result, Step, Tensor, Variable, set_seed};

use crate::models::{CNN, DENSENET, GPT, LSTM, RESNET, TREE, Task, UNET};
use crate::run::device;

/// A training step of one's own: a function of a batch, and what it changes.
pub struct OwnStep {
    pub model: Model,
    pub variables: Vec<Variable>,
    pub optimizer: Optimizer,
    pub batch: Batch,
}

impl OwnStep {
    pub fn new(task: &Task) -> Result<OwnStep> {
        set_seed(3);
        let model = with_policy(task.policy, task.model)?;
        let (variables, mut optimizer) = (model.trainable_variables(), Adam::new(1e-3).build());
        optimizer.prepare(&variables)?;
        let batch = task.batches()?.swap_remove(0);
        set_seed(5);
        Ok(OwnStep { model, variables, optimizer, batch })
    }

    /// The loss before the update.
    pub fn step(&mut self, inputs: &Tensor, labels: &Tensor) -> Result<Tensor> {
        let loss = SparseCategoricalCrossentropy::new().from_logits(true);
        let tape = GradientTape::new();
        let value = tape.record(|| loss.of(labels, self.model.prediction(inputs, Mode::Train)?))?;
        let gradients = tape.variable_gradients(&value, &self.variables)?;
        drop(tape);
        self.optimizer.apply_gradients(gradients, &self.variables)?;
        Ok(value.stop_gradient())
    }

    pub fn program(&mut self, device: &Device) -> Result<Program> {
        let (inputs, labels) = self.batch.input_and_label()?;
        Program::record(device, &[&inputs, &labels], |arguments| {
            Ok(vec![self.step(&arguments[0], &arguments[1])?])
        })
    }

    /// All variables, with those in full precision.
    fn all_variables(&self) -> Vec<Variable> {
        let variables = self.model.variables();
        let masters = variables.iter().filter_map(|variable| variable.master().cloned()).collect::<Vec<_>>();
        variables.into_iter().chain(masters).chain(self.optimizer.variables()).collect()
    }

    /// What they hold, copied.
    pub fn values(&self) -> Result<Vec<Tensor>> {
        self.all_variables().iter().map(|variable| variable.copied()).collect()
    }

    /// Gives the variables what they held before.
    pub fn restore(&self, values: &[Tensor]) -> Result<()> {
        // Copies that are computed with come first: assigning one writes its master as well.
        self.all_variables().iter().zip(values).try_for_each(|(variable, value)| variable.assign(value))
    }

    /// The bits of all that the model and the optimizer hold.
    pub fn state(&self) -> Result<Vec<Vec<u64>>> {
        let bits = |variable: &Variable| Ok(variable.to_f64_vec()?.into_iter().map(f64::to_bits).collect());
        self.all_variables().iter().map(bits).collect()
    }
}

/// What a pool was asked for, with blocks counted from the first that the step takes.
fn requests(device: &Device, step: impl FnOnce() -> Result<Tensor>) -> Result<(Tensor, Vec<String>)> {
    let first = device.stats().n_acquired;
    device.pool().start_trace();
    let loss = step()?;
    let trace = device.pool().take_trace();
    let request = |event: &TraceEvent| match *event {
        TraceEvent::Acquire { serial, region, offset, bytes, label } => {
            Some(format!("{} {region} {offset} {bytes} {label:?}", serial - first))
        }
        TraceEvent::Release { serial } => Some(format!("{} released", serial - first)),
        TraceEvent::Relabel { serial, label } => Some(format!("{} {label:?}", serial - first)),
        _ => None,
    };
    Ok((loss, trace.iter().filter_map(request).collect()))
}

fn runs_as_eager(name: &str, task: &Task) -> Result<()> {
    let (eager, recorded) = (device(), device());
    let mut expected = {
        let _on = eager.enter();
        OwnStep::new(task)?
    };
    let mut own = {
        let _on = recorded.enter();
        OwnStep::new(task)?
    };
    let generator = Generator::current();
    let before = recorded.stats();
    let program = own.program(&recorded)?;
    assert_eq!(recorded.stats().n_acquired, before.n_acquired, "{name}: recording takes no memory");
    assert_eq!(Generator::current(), generator, "{name}: recording takes no draws");
    for step in 0..3 {
        let (eager_loss, eager_requests) = requests(&eager, || {
            let _on = eager.enter();
            let (inputs, labels) = expected.batch.input_and_label()?;
            Step::run(&eager, || expected.step(&inputs, &labels))
        })?;
        let after = Generator::current();
        generator_before(&program, after).make_current();
        let (inputs, labels) = own.batch.input_and_label()?;
        let (loss, requests) =
            requests(&recorded, || Ok(program.run(&[&inputs, &labels], None)?.swap_remove(0)))?;
        assert_eq!(Generator::current(), after, "{name}: the program takes as many draws");
        assert_eq!(loss.to_f64_vec()?, eager_loss.to_f64_vec()?, "{name}: loss of step {step}");
        assert_eq!(requests.len(), eager_requests.len(), "{name}: requests of step {step}");
        for (position, (request, expected)) in requests.iter().zip(&eager_requests).enumerate() {
            assert_eq!(request, expected, "{name}: request {position} of step {step}");
        }
        assert_eq!(own.state()?, expected.state()?, "{name}: state after step {step}");
    }
    let stats = recorded.stats();
    recorded.pool().reset_peaks();
    let footprint = program.footprint(&recorded, None)?;
    let (inputs, labels) = own.batch.input_and_label()?;
    drop(program.run(&[&inputs, &labels], None)?);
    let run = recorded.stats();
    assert_eq!(stats.in_use, run.in_use, "{name}: a step leaves nothing behind");
    assert_eq!(
        (footprint.peak, footprint.committed, footprint.owners),
        (run.peak_in_use, run.peak_committed, run.peak_rows),
        "{name}: what playing says is what running takes"
    );
    Ok(())
}

/// The generator with which a run of the program began that ended here.
fn generator_before(program: &Program, after: Generator) -> Generator {
    Generator::at(after.seed(), after.next_draw() - program.n_draws())
}

#[test]
fn a_program_runs_as_eager_code_does() -> Result<()> {
    TASKS.iter().try_for_each(|(name, task)| runs_as_eager(name, task))
}

#[test]
fn a_program_prints_its_calls() -> Result<()> {
    let device = device();
    let _on = device.enter();
    let text = OwnStep::new(&GPT)?.program(&device)?.to_string();
    assert!(text.contains("attention") && text.contains("return %"), "{text}");
    assert!(text.contains("commit:") && text.contains("backward"), "{text}");
    Ok(())
}

/// Every way to run a program takes what playing it says and gives the same bits.
fn plans_keep_bits(name: &str, task: &Task) -> Result<()> {
    let device = device();
    let _on = device.enter();
    let mut own = OwnStep::new(task)?;
    let program = own.program(&device)?;
    let (start, before) = (Generator::current(), own.values()?);
    let plans = program.memory_plans(&device)?;
    let (inputs, labels) = own.batch.input_and_label()?;
    let mut expected = None;
    for plan in plans.candidates().iter().rev() {
        own.restore(&before)?;
        start.make_current();
        let planned = match &plan.decisions {
            Some(decisions) => program.planned(&device, decisions).expect("it was planned"),
            None => own.program(&device)?,
        };
        let (_, offsets) = planned.placed(&device)?;
        device.trim();
        device.pool().reset_peaks();
        let loss = planned.run(&[&inputs, &labels], Some(&offsets))?.swap_remove(0).to_f64_vec()?;
        let stats = device.stats();
        assert_eq!(
            (stats.peak_in_use, stats.peak_committed),
            (plan.peaks.peak, plan.peaks.committed),
            "{name}"
        );
        let outcome = (loss, own.state()?, Generator::current());
        match &expected {
            None => expected = Some(outcome),
            Some(expected) => assert!(*expected == outcome, "{name}: other bits at {}", plan.peaks.peak),
        }
    }
    let (least, natural) = (plans.least(), plans.candidates().last().map_or(0, |plan| plan.peaks.committed));
    eprintln!("{name}: {} plans from {least} to {natural}", plans.candidates().len());
    assert!(plans.candidates().len() > 3 && least * 10 < natural * 9, "{name}: {least} of {natural}");
    Ok(())
}

const TASKS: [(&str, Task); 8] = [
    ("gpt", GPT),
    ("gpt, mixed_bfloat16", Task { policy: Policy::MixedBfloat16, ..GPT }),
    ("cnn", CNN),
    ("lstm", LSTM),
    ("resnet", RESNET),
    ("unet", UNET),
    ("densenet", DENSENET),
    ("tree", TREE),
];

#[test]
fn plans_of_a_program_keep_its_bits() -> Result<()> {
    TASKS.iter().try_for_each(|(name, task)| plans_keep_bits(name, task))
}
