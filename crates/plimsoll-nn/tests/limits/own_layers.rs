//! Layers of one's own that do something else at each step: trained with the bits that they have without a limit, and planned
//! all the same.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll_nn::layers::{Dense, Sequential};
use plimsoll_nn::losses::{Loss, SparseCategoricalCrossentropy};
use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
use plimsoll_nn::train::callbacks::LambdaCallback;
use plimsoll_nn::train::{Batch, Trainer, Until};
use plimsoll_nn::{BuiltLayer, Layer, Mode};
use plimsoll_tensor::{
    Activation, Bytes, DType, ErrorKind, Recomputed, Result, Shape, Tensor, Unconnected, set_seed,
};

use crate::run::{device, state};

const WIDTH: usize = 64;
const BATCH: usize = 512;

/// A number that the host changes between steps.
#[derive(Clone, Default)]
struct Number(Arc<AtomicU64>);

impl Number {
    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }
}

/// What a layer of this file does with its input, after two dense layers of its own.
#[derive(Clone, Copy)]
enum Kind {
    /// Multiplies it by the number of the moment.
    Annealed,
    /// Leaves the dense layers out as a generator of the host decides.
    StochasticDepth,
    /// Takes another function once the number is 3.
    Changing,
    /// Adds a tensor that it captures, another one once the number is 3.
    Capturing,
}

struct Own {
    kind: Kind,
    number: Number,
}

impl Layer for Own {
    fn name(&self) -> &str {
        "own"
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let inner = Sequential::new()
            .add(Dense::new(WIDTH).activation(Activation::Gelu))
            .add(Dense::new(WIDTH).activation(Activation::Tanh))
            .build(*input)?;
        let (kind, number, seed) = (self.kind, self.number.clone(), Mutex::new(7u64));
        let captured = [Tensor::ones([WIDTH])?, Tensor::full([WIDTH], 0.5)?];
        BuiltLayer::new(*inner.output_shape(), move |x, mode| match kind {
            Kind::Annealed => inner.forward(x, mode)?.affine(number.get(), 0.0)?.add(x),
            Kind::StochasticDepth => {
                let mut seed = seed.lock().expect("nobody panics");
                *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                match mode == Mode::Train && *seed >> 62 == 0 {
                    true => Ok(x.clone()),
                    false => inner.forward(x, mode)?.add(x),
                }
            }
            Kind::Changing if number.get() < 3.0 => inner.forward(x, mode)?.sigmoid()?.add(x),
            Kind::Changing => inner.forward(x, mode)?.square()?.tanh()?.add(x),
            Kind::Capturing => {
                inner.forward(x, mode)?.add(&captured[usize::from(number.get() >= 3.0)])?.tanh()
            }
        })
    }
}

struct Outcome {
    losses: Vec<u64>,
    state: Vec<Vec<u64>>,
    committed: u64,
    repeated: Recomputed,
}

/// Trains for 5 epochs of 3 steps under a limit; the number counts the epochs, in steps.
fn run(kind: Kind, limit: Option<u64>) -> Result<Outcome> {
    let device = device();
    device.set_limit(limit.map(Bytes::new))?;
    let _on = device.enter();
    set_seed(3);
    let number = Number::default();
    let own = || Own { kind, number: number.clone() };
    let model = Sequential::new()
        .add(Dense::new(WIDTH))
        .add(own().named("first"))
        .add(own().named("second"))
        .add(own().named("third"))
        .add(Dense::new(10))
        .build([16])?;
    let batches: Vec<Batch> = (0..3)
        .map(|_| {
            let labels = Tensor::uniform([BATCH], 0.0, 10.0, DType::F32)?.cast(DType::I64)?;
            Ok(Batch::new(Tensor::randn([BATCH, 16])?, labels))
        })
        .collect::<Result<_>>()?;
    let (losses, anneal) = (Arc::new(Mutex::new(Vec::new())), number.clone());
    let told = losses.clone();
    let loss = SparseCategoricalCrossentropy::new().from_logits(true);
    let anneal = LambdaCallback::new().steps(move |event, _| {
        told.lock().expect("nobody panics").push(event.loss.to_bits());
        anneal.set(event.step as f64 / 3.0);
        Ok(())
    });
    let trainer = Trainer::new(model, Adam::new(1e-3).build(), loss);
    let mut trainer = trainer.unconnected_gradients(Unconnected::Zeros).callback(anneal);
    trainer.fit(&batches, Until::Epochs(5))?;
    let (stats, losses) = (device.stats(), losses.lock().expect("nobody panics").clone());
    let state = state(&trainer)?;
    Ok(Outcome { losses, state, committed: stats.peak_committed, repeated: device.recomputed() })
}

fn is_trained_under_limits(kind: Kind) -> Result<()> {
    let natural = run(kind, None)?;
    let mut n_fit = 0;
    let least = loop {
        let limit = natural.committed * (90 - 10 * n_fit) / 100;
        match run(kind, Some(limit)) {
            Ok(outcome) => {
                assert!(outcome.losses == natural.losses && outcome.state == natural.state, "{limit}");
                assert!(outcome.committed <= limit, "{} under {limit}", outcome.committed);
                assert!(outcome.repeated.ops > 0, "nothing was recomputed under {limit}");
                n_fit += 1;
            }
            Err(error) => match *error.kind() {
                ErrorKind::Limit { least, .. } => break least,
                _ => panic!("{limit} of {}: {error}", natural.committed),
            },
        }
    };
    assert!(n_fit >= 2, "{n_fit} limits, the least is {least} of {}", natural.committed);
    Ok(())
}

#[test]
fn a_layer_whose_number_is_annealed_every_step() -> Result<()> {
    is_trained_under_limits(Kind::Annealed)
}

#[test]
fn a_layer_that_draws_its_depth_on_the_host() -> Result<()> {
    is_trained_under_limits(Kind::StochasticDepth)
}

#[test]
fn a_layer_that_changes_at_its_third_epoch() -> Result<()> {
    is_trained_under_limits(Kind::Changing)
}

#[test]
fn a_layer_with_tensors_from_outside() -> Result<()> {
    is_trained_under_limits(Kind::Capturing)
}

/// A loss of one's own with weights for the classes.
struct Weighted(Tensor);

impl Loss for Weighted {
    fn name(&self) -> &str {
        "weighted"
    }

    fn losses(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
        let right = labels.one_hot(10, DType::F32)?;
        predictions.log_softmax(-1)?.mul(&right)?.mul(&self.0)?.sum(-1)?.neg()
    }
}

#[test]
fn a_loss_with_a_tensor_from_outside() -> Result<()> {
    let run = |limit: Option<u64>| -> Result<(Vec<Vec<u64>>, u64)> {
        let device = device();
        device.set_limit(limit.map(Bytes::new))?;
        let _on = device.enter();
        set_seed(5);
        let dense = || Dense::new(WIDTH).activation(Activation::Gelu);
        let model =
            Sequential::new().add(dense()).add(dense()).add(dense()).add(Dense::new(10)).build([16])?;
        let weights = Tensor::uniform([10], 0.5, 2.0, DType::F32)?;
        let labels = Tensor::uniform([BATCH], 0.0, 10.0, DType::F32)?.cast(DType::I64)?;
        let data = vec![Batch::new(Tensor::randn([BATCH, 16])?, labels)];
        let mut trainer = Trainer::new(model, Adam::new(1e-3).build(), Weighted(weights));
        trainer.fit(&data, Until::Steps(4))?;
        Ok((state(&trainer)?, device.stats().peak_committed))
    };
    let (expected, natural) = run(None)?;
    for share in [100, 95, 90] {
        let limit = natural * share / 100;
        let (state, committed) = run(Some(limit))?;
        assert!(state == expected && committed <= limit, "{share} %: {committed} under {limit}");
    }
    Ok(())
}
