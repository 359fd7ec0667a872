//! Two threads that train on one device, with steps that always overlap: each has the bits that it has alone, and both
//! together take no more than twice what one takes.

use std::sync::Barrier;
use std::thread;

use plimsoll_memory::Stats;
use plimsoll_nn::layers::{Dense, Sequential};
use plimsoll_nn::losses::MeanSquaredError;
use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
use plimsoll_nn::train::{Batch, Trainer, Until};
use plimsoll_nn::{BuiltLayer, Layer};
use plimsoll_tensor::{Activation, Bytes, Device, Result, Shape, Tensor, set_seed};

use crate::run::{GRANULE, device, state};

const WIDTH: usize = 64;
const BATCH: usize = 2048;
const N_STEPS: u64 = 12;

/// The identity, at which the two threads wait for each other. Ghosts pass.
struct Meet(Option<&'static Barrier>);

impl Layer for Meet {
    fn name(&self) -> &str {
        "meet"
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let barrier = self.0;
        BuiltLayer::new(input, move |x, _| {
            if let Some(barrier) = barrier
                && !x.device().is_ghost()
            {
                barrier.wait();
            }
            Ok(x.clone())
        })
    }
}

/// Trains on a device and returns the bits of model and optimizer.
fn train(device: &Device, barrier: Option<&'static Barrier>) -> Result<Vec<Vec<u64>>> {
    let _on = device.enter();
    set_seed(5);
    let dense = || Dense::new(WIDTH).activation(Activation::Tanh);
    let model = (0..4).fold(Sequential::new(), |model, _| model.add(dense()));
    let model = model.add(Meet(barrier)).add(dense()).add(Dense::new(1)).build([WIDTH])?;
    let data = vec![Batch::new(Tensor::randn([BATCH, WIDTH])?, Tensor::randn([BATCH, 1])?)];
    let mut trainer = Trainer::new(model, Adam::new(1e-3).build(), MeanSquaredError);
    trainer.fit(&data, Until::Steps(N_STEPS))?;
    state(&trainer)
}

/// One run alone: its bits, and what it took.
fn alone() -> Result<(Vec<Vec<u64>>, Stats)> {
    let device = device();
    Ok((train(&device, None)?, device.stats()))
}

/// Two runs at once on one device.
fn together(limit: Option<u64>, expected: &[Vec<u64>]) -> Result<Stats> {
    let device = device();
    device.set_limit(limit.map(Bytes::new))?;
    let barrier: &'static Barrier = Box::leak(Box::new(Barrier::new(2)));
    let runs = [(); 2].map(|()| {
        let device = device.clone();
        thread::spawn(move || train(&device, Some(barrier)))
    });
    for run in runs {
        let bits = run.join().expect("it does not panic")?;
        assert!(bits == expected, "other bits");
    }
    assert_eq!(device.pool().verify(), Ok(()));
    assert_eq!((device.stats().in_use, device.stats().committed), (0, 0), "everything came back");
    Ok(device.stats())
}

#[test]
fn two_threads_take_no_more_than_both_alone() -> Result<()> {
    let (expected, one) = alone()?;
    let both = together(None, &expected)?;
    assert!(both.peak_in_use <= 2 * one.peak_in_use, "{} and {}", both.peak_in_use, one.peak_in_use);
    Ok(())
}

#[test]
fn two_threads_fit_a_limit_of_little_more_than_both_alone() -> Result<()> {
    let (expected, one) = alone()?;
    let limit = 2 * one.peak_committed + one.peak_committed / 11;
    assert!(one.peak_committed > 40 * GRANULE, "a limit has something to choose from");
    let both = together(Some(limit), &expected)?;
    assert!(both.peak_committed <= limit, "{} under {limit}", both.peak_committed);
    Ok(())
}
