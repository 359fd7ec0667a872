//! Memory that fails in a step under a limit, at each acquisition in turn: once, so that the evictor may come to the rescue,
//! and for good. The step then happens as ever, or not at all, with an error that names the holders; nothing leaks, and
//! training goes on with the same bits.

use plimsoll_memory::testing::Fail;
use plimsoll_nn::Layer;
use plimsoll_nn::layers::{BatchNormalization, Conv2D, Dense, Dropout, Flatten, Sequential};
use plimsoll_nn::losses::SparseCategoricalCrossentropy;
use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
use plimsoll_nn::train::{Batch, Trainer, Until};
use plimsoll_tensor::{
    Activation, Bytes, DType, Device, ErrorKind, Generator, Owner, Result, Tensor, set_seed,
};

use crate::run::{device, state};

fn trainer() -> Result<Trainer> {
    set_seed(3);
    let mut layers = Sequential::new();
    for _ in 0..5 {
        layers = layers
            .add(Conv2D::new(8, 3).same().no_bias())
            .add(BatchNormalization::new().activation(Activation::Relu))
            .add(Dropout::new(0.1));
    }
    let model = layers.add(Flatten::new()).add(Dense::new(4)).build([8, 8, 2])?;
    let loss = SparseCategoricalCrossentropy::new().from_logits(true);
    Ok(Trainer::new(model, Adam::new(1e-3).build(), loss))
}

fn batch() -> Result<Vec<Batch>> {
    let labels = Tensor::from_vec((0..32i64).map(|at| at % 4).collect())?.owned_by(Owner::Data);
    let inputs = Tensor::uniform([32, 8, 8, 2], -1.0, 1.0, DType::F32)?.owned_by(Owner::Data);
    Ok(vec![Batch::new(inputs, labels)])
}

/// The bits of each of the first `n` steps' losses, without a limit.
fn expected(n: u64) -> Result<(Vec<u64>, u64)> {
    let device = device();
    let _on = device.enter();
    let mut trainer = trainer()?;
    let data = batch()?;
    let losses = (1..=n).map(|step| loss(&mut trainer, &data, step)).collect::<Result<_>>()?;
    Ok((losses, device.stats().peak_committed))
}

/// Goes on to a step; the bits of its loss.
fn loss(trainer: &mut Trainer, data: &Vec<Batch>, step: u64) -> Result<u64> {
    Ok(trainer.fit(data, Until::Steps(step))?.loss.unwrap_or(f64::NAN).to_bits())
}

/// A run under the least limit, at its second step.
fn limited(natural: u64) -> Result<(Device, Trainer, Vec<Batch>)> {
    let device = device().limit(Bytes::new(natural / 2))?;
    let on = device.enter();
    let mut trainer = trainer()?;
    let data = batch()?;
    let error = loss(&mut trainer, &data, 1).unwrap_err();
    let ErrorKind::Limit { least, .. } = *error.kind() else { panic!("{error}") };
    device.set_limit(Some(Bytes::new(least)))?;
    loss(&mut trainer, &data, 1)?;
    assert!(device.recomputed().ops > 0, "the limit makes values be recomputed");
    drop(on);
    Ok((device, trainer, data))
}

/// Steps in whose acquisitions `fail` strikes, the n-th in the n-th step, until one is reached that has fewer; returns how
/// many failed.
fn strike(fail: impl Fn(u64) -> Fail) -> Result<(u64, u64)> {
    const MOST: u64 = 600;
    let (expected, natural) = expected(MOST)?;
    let (device, mut trainer, data) = limited(natural)?;
    let _on = device.enter();
    let mut n_failed = 0;
    for step in 2..MOST {
        let before = (state(&trainer)?, Generator::current(), device.stats().in_use);
        let rule = fail(step - 1);
        device.pool().fail_acquisitions(rule);
        let outcome = loss(&mut trainer, &data, step);
        device.pool().fail_acquisitions(Fail::Never);
        assert_eq!(device.pool().verify(), Ok(()));
        let bits = match outcome {
            Ok(bits) => bits,
            Err(error) => {
                let ErrorKind::OutOfMemory(report) = error.kind() else { panic!("{rule:?}: {error}") };
                assert!(!report.holders.is_empty(), "{rule:?}: {error}");
                assert!(error.to_string().contains("largest holders"), "{rule:?}: {error}");
                let after = (state(&trainer)?, Generator::current(), device.stats().in_use);
                assert_eq!(after, before, "{rule:?}: a step that failed changed something");
                n_failed += 1;
                loss(&mut trainer, &data, step)?
            }
        };
        assert_eq!(bits, expected[step as usize - 1], "{rule:?}");
        if matches!(rule, Fail::From(_)) && n_failed < step - 1 {
            return Ok((n_failed, step - 1));
        }
        if matches!(rule, Fail::Nth(_)) && step == 200 {
            return Ok((n_failed, step - 1));
        }
    }
    panic!("a step has at most {MOST} acquisitions");
}

#[test]
fn every_acquisition_failing_for_good() -> Result<()> {
    let (n_failed, n_steps) = strike(Fail::From)?;
    assert_eq!(n_failed + 1, n_steps, "every step but the last one failed");
    assert!(n_failed > 60, "a step takes memory {n_failed} times");
    Ok(())
}

#[test]
fn every_acquisition_failing_once() -> Result<()> {
    let (n_failed, n_steps) = strike(Fail::Nth)?;
    assert!(n_failed < n_steps, "the evictor came to no step's rescue");
    Ok(())
}
