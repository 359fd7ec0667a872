//! A train step of one's own inside a run: two optimizers, with checkpoints, plan and limit.

use plimsoll_nn::layers::{Dense, Sequential};
use plimsoll_nn::losses::{BinaryCrossentropy, Loss};
use plimsoll_nn::optimizers::{Adam, Optimizer, OptimizerConfig};
use plimsoll_nn::plan::plan;
use plimsoll_nn::train::{Batch, StepParts, TrainStep, Trainer, Until};
use plimsoll_nn::{Layer, Mode, Model};
use plimsoll_tensor::{
    Activation, Bytes, Device, ErrorKind, GradientTape, Result, Tensor, Variable, set_seed,
};

use crate::run::{device, state};

const BATCH: usize = 512;

/// A discriminator beside the run's model, which is the generator.
struct Gan {
    discriminator: Model,
    optimizer: Optimizer,
    /// The step at which the loss is no number, counted from one.
    breaks_at: u64,
    n_steps: u64,
}

impl Gan {
    fn new(breaks_at: u64) -> Result<Gan> {
        let discriminator = network(1)?(32)?;
        let mut optimizer = Adam::new(1e-3).build();
        optimizer.prepare(&discriminator.trainable_variables())?;
        Ok(Gan { discriminator, optimizer, breaks_at, n_steps: 0 })
    }
}

/// Dense layers to some outputs.
fn network(outputs: usize) -> Result<impl Fn(usize) -> Result<Model>> {
    Ok(move |inputs: usize| {
        let dense = || Dense::new(64).activation(Activation::Gelu);
        Sequential::new().add(dense()).add(dense()).add(Dense::new(outputs)).build([inputs])
    })
}

impl TrainStep for Gan {
    fn step(&mut self, run: &mut StepParts<'_>, batch: &Batch) -> Result<Tensor> {
        self.n_steps += 1;
        let loss = BinaryCrossentropy::new().from_logits(true);
        let (ones, zeros) = (Tensor::ones([BATCH, 1])?, Tensor::zeros([BATCH, 1])?);
        let noise = Tensor::randn([BATCH, 16])?;
        let tape = GradientTape::new();
        let critic_loss = tape.record(|| {
            let fake = run.model.forward(&noise, Mode::Train)?.stop_gradient();
            let real = loss.call(&ones, &self.discriminator.forward(&batch.labels, Mode::Train)?)?;
            real.add(&loss.call(&zeros, &self.discriminator.forward(&fake, Mode::Train)?)?)
        })?;
        let variables = self.discriminator.trainable_variables();
        self.optimizer.apply_gradients(tape.variable_gradients(&critic_loss, &variables)?, &variables)?;
        let tape = GradientTape::new();
        let fooled = tape.record(|| {
            let fake = run.model.forward(&noise, Mode::Train)?;
            loss.call(&ones, &self.discriminator.forward(&fake, Mode::Train)?)
        })?;
        let gradients = tape.variable_gradients(&fooled, run.variables)?;
        run.optimizer.apply_gradients(gradients, run.variables)?;
        let told = if self.n_steps == self.breaks_at { f64::NAN } else { 1.0 };
        critic_loss.add(&fooled)?.mul(told)
    }

    fn variables(&self) -> Vec<(String, Variable)> {
        let named = |variable: Variable| (variable.name(), variable);
        let variables = self.discriminator.variables().into_iter().chain(self.optimizer.variables());
        variables.map(named).collect()
    }
}

struct Run {
    trainer: Trainer,
    data: Vec<Batch>,
    /// What the step changes by itself.
    own: Vec<Variable>,
}

impl Run {
    fn new(breaks_at: u64) -> Result<Run> {
        set_seed(5);
        let (generator, gan) = (network(32)?(16)?, Gan::new(breaks_at)?);
        let own = gan.variables().into_iter().map(|(_, variable)| variable).collect();
        let pair = || Ok(Batch::new(Tensor::randn([BATCH, 16])?, Tensor::randn([BATCH, 32])?));
        let data = (0..3).map(|_| pair()).collect::<Result<_>>()?;
        let loss = BinaryCrossentropy::new().from_logits(true);
        Ok(Run { trainer: Trainer::new(generator, Adam::new(1e-3).build(), loss).train_step(gan), data, own })
    }

    fn fit(&mut self, steps: u64) -> Result<()> {
        self.trainer.fit(&self.data, Until::Steps(steps)).map(drop)
    }

    fn state(&self) -> Result<Vec<Vec<u64>>> {
        let mut all = state(&self.trainer)?;
        for variable in &self.own {
            all.push(variable.to_f64_vec()?.into_iter().map(f64::to_bits).collect());
        }
        Ok(all)
    }
}

/// The state after six steps on a device, and what they took.
fn run(device: &Device) -> Result<(Vec<Vec<u64>>, u64)> {
    let _on = device.enter();
    let mut run = Run::new(0)?;
    run.fit(6)?;
    Ok((run.state()?, device.stats().peak_committed))
}

#[test]
fn a_gan_is_trained_under_limits() -> Result<()> {
    let (expected, natural) = run(&device())?;
    let mut n_fit = 0;
    loop {
        let limit = natural * (95 - 10 * n_fit) / 100;
        let device = device();
        device.set_limit(Some(Bytes::new(limit)))?;
        match run(&device) {
            Ok((state, committed)) => {
                assert!(state == expected && committed <= limit, "{committed} under {limit}");
                n_fit += 1;
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Limit { .. }), "{error}");
                break;
            }
        }
    }
    assert!(n_fit >= 2, "{n_fit} limits of {natural}");
    Ok(())
}

#[test]
fn its_plan_is_its_run() -> Result<()> {
    let device = device();
    let planned = plan(&device, || Run::new(0)?.fit(6))?;
    run(&device)?;
    let stats = device.stats();
    assert_eq!((planned.peak_bytes, planned.committed_bytes), (stats.peak_in_use, stats.peak_committed));
    Ok(())
}

#[test]
fn it_goes_on_from_a_checkpoint() -> Result<()> {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("own_step");
    let device = device();
    let _on = device.enter();
    let (expected, _) = run(&self::device())?;
    let mut first = Run::new(0)?;
    first.fit(4)?;
    first.trainer.save(&folder)?;
    let mut second = Run::new(0)?;
    second.trainer.resume(&folder)?;
    second.fit(6)?;
    assert!(second.state()? == expected, "other bits after going on");
    Ok(())
}

#[test]
fn a_loss_that_is_no_number_changes_nothing() -> Result<()> {
    let device = device();
    let _on = device.enter();
    let mut run = Run::new(4)?;
    run.fit(3)?;
    let before = run.state()?;
    let error = run.fit(6).expect_err("the loss is no number").to_string();
    assert!(error.contains("the loss is NaN"), "{error}");
    assert!(run.state()? == before, "a step whose loss is no number changed something");
    assert_eq!(run.trainer.state().step, 3);
    run.fit(6)
}
