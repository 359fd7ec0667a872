//! A value that a kernel of a GPU refuses in a training step: the step did not happen. The error is its, with the batch and
//! the CPU's words; the run's count, its generator and its bits are those of the CPU's run that does the same, also after it
//! goes on.
//!
//! The GPU is the one that `PLIMSOLL_TEST_DEVICE` names, or else the emulated one.

use std::sync::{Arc, Mutex};

use plimsoll_nn::layers::{BatchNormalization, Dense, Dropout, Embedding, Flatten, Lambda, Sequential};
use plimsoll_nn::losses::{Loss, SparseCategoricalCrossentropy};
use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
use plimsoll_nn::train::{Batch, Callback, Requests, StepEvent, Trainer, Until};
use plimsoll_nn::{Layer, Policy, with_policy};
use plimsoll_tensor::{Bytes, Device, Generator, Result, Tensor, Variable, set_seed};
use plimsoll_testkit::device_under_test;

fn gpu() -> Result<Device> {
    match std::env::var("PLIMSOLL_TEST_DEVICE").is_ok_and(|name| name != "cpu") {
        true => Ok(device_under_test()),
        false => Device::emulated(),
    }
}

/// A loss that is called at every step, because it does not say that it is pure.
struct Called(SparseCategoricalCrossentropy);

impl Loss for Called {
    fn name(&self) -> &str {
        "called"
    }

    fn losses(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
        self.0.losses(labels, predictions)
    }
}

/// How a run makes its steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Setup {
    Program,
    PlannedProgram,
    Called,
    InParts,
    CheckedGradients,
    LossScaled,
    ToldInTime,
}

const SETUPS: [Setup; 7] = [
    Setup::Program,
    Setup::PlannedProgram,
    Setup::Called,
    Setup::InParts,
    Setup::CheckedGradients,
    Setup::LossScaled,
    Setup::ToldInTime,
];

/// Notes which steps it was told of.
#[derive(Clone)]
struct Told {
    steps: Arc<Mutex<Vec<u64>>>,
    waits: bool,
    /// How often the model was called, where it counts that itself.
    counter: Variable,
}

impl Callback for Told {
    fn name(&self) -> &str {
        "told"
    }

    fn waits_for(&self, _step: u64) -> bool {
        self.waits
    }

    fn on_step(&mut self, event: &StepEvent, run: &mut Requests<'_>) -> Result<()> {
        // What somebody reads between the steps is not the business of a step that is on its setup.
        run.optimizer().learning_rate()?;
        self.steps.lock().expect("nobody panics").push(event.step);
        Ok(())
    }
}

fn trainer(setup: Setup) -> Result<(Trainer, Told)> {
    set_seed(5);
    let counter = Variable::new(Tensor::zeros([])?);
    let counting = {
        let counter = counter.clone();
        move |x: &Tensor| counter.assign_add(&Tensor::ones([])?).map(|()| x.clone())
    };
    // The steps of a model that changes something by itself are not run from programs.
    let first = match setup {
        Setup::Called => Sequential::new().add(Lambda::new(counting).named("counting")),
        _ => Sequential::new(),
    };
    let layers = first
        .add(Embedding::new(7, 4))
        .add(Flatten::new())
        .add(Dense::new(8))
        .add(BatchNormalization::new())
        .add(Dropout::new(0.25))
        .add(Dense::new(3));
    let policy = if setup == Setup::LossScaled { Policy::MixedFloat16 } else { Policy::Float32 };
    let (model, adam) = (with_policy(policy, || layers.build([2]))?, Adam::new(0.01).build());
    let loss = SparseCategoricalCrossentropy::new().from_logits(true);
    let told = Told { steps: Arc::default(), waits: setup == Setup::ToldInTime, counter };
    let trainer = match setup {
        Setup::Called => Trainer::new(model, adam, Called(loss)),
        Setup::InParts => Trainer::new(model, adam, loss).accumulate(2),
        Setup::CheckedGradients => Trainer::new(model, adam, loss).check_gradients(),
        _ => Trainer::new(model, adam, loss),
    };
    Ok((trainer.callback(told.clone()), told))
}

/// Five batches; the third holds these.
fn batches(id: i64, label: i64) -> Result<Vec<Batch>> {
    let batch = |number: i64| {
        let mut ids: Vec<i64> = (0..8).map(|at| (at * 3 + number) % 7).collect();
        let mut labels: Vec<i64> = (0..4).map(|at| (at + number) % 3).collect();
        if number == 2 {
            (ids[5], labels[3]) = (id, label);
        }
        Ok(Batch::new(Tensor::from_slice(&ids, [4, 2])?, Tensor::from_vec(labels)?))
    };
    (0..5).map(batch).collect()
}

/// The bits of the model and of the optimizer, the run's count, and the generator.
type State = (Vec<Vec<u64>>, [u64; 4], u64, Generator);

fn state(trainer: &Trainer, told: &Told) -> Result<State> {
    let bits = |variable: &Variable| Ok(variable.to_f64_vec()?.into_iter().map(f64::to_bits).collect());
    let (model, optimizer) = (trainer.model().variables(), trainer.optimizer().variables());
    let all = model.iter().chain(&optimizer).chain([&told.counter]);
    let bits: Vec<Vec<u64>> = all.map(bits).collect::<Result<_>>()?;
    let state = trainer.state();
    let count = [state.step, state.epoch, state.batch, state.n_losses];
    Ok((bits, count, state.loss_sum.to_bits(), Generator::current()))
}

/// What came of a run with a batch that holds a value that is refused, and that went on with a good one.
fn run(
    device: &Device,
    setup: Setup,
    (id, label): (i64, i64),
) -> Result<(String, [u64; 4], Vec<u64>, Generator)> {
    let _on = device.enter();
    let (good, bad) = (batches(1, 1)?, batches(id, label)?);
    let until = |n_steps: u64| {
        let (mut trainer, told) = trainer(setup)?;
        trainer.fit(&good, Until::Steps(n_steps))?;
        state(&trainer, &told)
    };
    let (after_two, after_five, after_eight) = (until(2)?, until(5)?, until(8)?);
    let (mut trainer, told) = trainer(setup)?;
    let error = trainer.fit(&bad, Until::Steps(5)).expect_err("a value is refused").to_string();
    assert_eq!(state(&trainer, &told)?, after_two, "{setup:?}");
    // The same batch is refused again, with the same words, and again nothing has changed.
    for _ in 0..2 {
        let again = trainer.fit(&bad, Until::Steps(5)).expect_err("a value is refused").to_string();
        assert_eq!((again, state(&trainer, &told)?), (error.clone(), after_two.clone()), "{setup:?}");
    }
    trainer.fit(&good, Until::Steps(5))?;
    assert_eq!(state(&trainer, &told)?, after_five, "{setup:?}");
    trainer.fit(&good, Until::Steps(8))?;
    assert_eq!(state(&trainer, &told)?, after_eight, "{setup:?}");
    let (_, count, _, generator) = after_eight;
    Ok((error, count, told.steps.lock().expect("nobody panics").clone(), generator))
}

#[test]
fn a_step_in_which_a_value_is_refused_did_not_happen() -> Result<()> {
    for setup in SETUPS {
        for values in [(7, 1), (1, -1), (-3, 9)] {
            let gpu = gpu()?;
            let limit = (setup == Setup::PlannedProgram).then(|| Bytes::mib(16));
            gpu.set_limit(limit)?;
            let on_cpu = run(&Device::separate_cpu(), setup, values)?;
            assert_eq!(run(&gpu, setup, values)?, on_cpu, "{setup:?} {values:?}");
            assert_eq!(on_cpu.2, [1, 2, 3, 4, 5, 6, 7, 8], "each step is told of once");
        }
    }
    Ok(())
}

#[test]
fn the_error_names_op_layer_place_and_batch() -> Result<()> {
    let gpu = gpu()?;
    let (error, ..) = run(&gpu, Setup::Program, (7, 1))?;
    let layer = format!("embedding: in layer `embedding` ({}:", file!());
    assert!(error.starts_with(&layer), "{error}");
    let (_, detail) = error.split_once("): ").expect("the place of the layer is said");
    assert_eq!(
        detail,
        "index 7 at [2, 1] is out of range for axis 0 of extent 7; indices go from 0 to 6 (batch 3 of epoch 1: \
         \"inputs\" is int64 [4, 2], \"labels\" is int64 [4])"
    );
    let (error, ..) = run(&gpu, Setup::Called, (1, 5))?;
    assert_eq!(
        error,
        "sparse_cross_entropy: label 5 at [3] is not one of the 3 classes; they go from 0 to 2 (batch 3 of epoch 1: \
         \"inputs\" is int64 [4, 2], \"labels\" is int64 [4])"
    );
    Ok(())
}
