//! A limit that changes in the middle of a run: from the next step on nothing is committed beyond it, no bit changes, and one that
//! is too low for a step keeps the run from going on until it is raised.

use std::sync::{Arc, Mutex};

use plimsoll_nn::plan::least_limit;
use plimsoll_nn::train::callbacks::LambdaCallback;
use plimsoll_nn::train::{Batch, Trainer, Until};
use plimsoll_tensor::{Bytes, Device, Error, ErrorKind, Result, Tensor};

use crate::models::{CNN, GPT, LSTM, Task};
use crate::run::{GRANULE, device, state};

/// The losses of a run's steps, as bits.
type Losses = Arc<Mutex<Vec<u64>>>;

/// A run of so many epochs with a change of the limit after some of its steps; the device may already have a limit.
fn run(
    device: &Device,
    task: &Task,
    n_epochs: u64,
    limits: &[Option<u64>],
) -> Result<(Vec<u64>, Vec<Vec<u64>>)> {
    let _on = device.enter();
    let (data, losses, limits) = (task.batches()?, Losses::default(), limits.to_vec());
    let (told, pool) = (losses.clone(), device.pool().clone());
    let change = LambdaCallback::new().steps(move |event, _| {
        told.lock().expect("nobody panics").push(event.loss.to_bits());
        let (stats, limit) = (pool.stats(), pool.limit().map_or(u64::MAX, Bytes::get));
        assert!(stats.peak_committed <= limit, "step {}: {} under {limit}", event.step, stats.peak_committed);
        if let Some(&limit) = limits.get(event.step as usize - 1) {
            pool.set_limit(limit.map(Bytes::new))?;
            // Free pages went back.
            assert!(
                pool.stats().committed <= limit.unwrap_or(u64::MAX),
                "{:?} under {limit:?}",
                pool.stats()
            );
            pool.reset_peaks();
        }
        Ok(())
    });
    let mut trainer = task.trainer()?.callback(change);
    trainer.fit(&data, Until::Epochs(n_epochs))?;
    let losses = losses.lock().expect("nobody panics").clone();
    Ok((losses, state(&trainer)?))
}

/// The natural committed bytes of a run, and the least limit that works.
fn range(task: &Task) -> Result<(u64, u64)> {
    let device = device();
    run(&device, task, 1, &[])?;
    let natural = device.stats().peak_committed;
    let least = least_limit(&self::device(), || {
        let data = task.batches()?;
        task.trainer()?.fit(&data, Until::Epochs(2)).map(drop)
    })?;
    assert!(least + 8 * GRANULE < natural, "{least} of {natural}");
    Ok((natural, least))
}

fn a_run_keeps_to_whatever_the_limit_is(task: &Task) -> Result<()> {
    const N_EPOCHS: u64 = 5;
    let (natural, least) = range(task)?;
    let at = |percent: u64| Some(least + (natural - least) * percent / 100);
    let limits = [
        at(100),
        at(60),
        at(30),
        at(0),
        at(0),
        None,
        at(0),
        at(90),
        at(20),
        None,
        at(50),
        at(0),
        at(100),
        at(10),
    ];
    let expected = run(&device(), task, N_EPOCHS, &[])?;
    let device = device();
    assert!(run(&device, task, N_EPOCHS, &limits)? == expected, "other bits");
    assert!(device.recomputed().ops > 0, "nothing was recomputed");
    Ok(())
}

#[test]
fn gpt_keeps_to_whatever_the_limit_is() -> Result<()> {
    a_run_keeps_to_whatever_the_limit_is(&GPT)
}

#[test]
fn a_cnn_keeps_to_whatever_the_limit_is() -> Result<()> {
    a_run_keeps_to_whatever_the_limit_is(&CNN)
}

#[test]
fn an_lstm_keeps_to_whatever_the_limit_is() -> Result<()> {
    a_run_keeps_to_whatever_the_limit_is(&LSTM)
}

#[test]
fn a_limit_that_is_too_low_for_the_next_step_only_holds_the_run_up() -> Result<()> {
    const N_STEPS: u64 = 5;
    // Full batches, all of one kind.
    let data = || Ok::<_, Error>(vec![GPT.batches()?.swap_remove(0)]);
    let loss = |trainer: &mut Trainer, data: &Vec<Batch>, step| {
        Ok::<_, Error>(trainer.fit(data, Until::Steps(step))?.loss.map(f64::to_bits))
    };
    let expected: Vec<Option<u64>> = {
        let device = device();
        let _on = device.enter();
        let (data, mut trainer) = (data()?, GPT.trainer()?);
        (1..=N_STEPS).map(|step| loss(&mut trainer, &data, step)).collect::<Result<_>>()?
    };
    let (_, least) = range(&GPT)?;
    let device = device();
    let _on = device.enter();
    let (data, mut trainer) = (data()?, GPT.trainer()?);
    for step in 1..=N_STEPS {
        device.set_limit(Some(Bytes::new(least / 4 * 3)))?;
        let before = (state(&trainer)?, device.stats().in_use);
        let refused = trainer.fit(&data, Until::Steps(step)).expect_err("it is too low");
        let ErrorKind::Limit { least: enough, .. } = *refused.kind() else { panic!("{refused}") };
        // The model was made while there was no limit, and may touch one granule more than under one.
        assert!(enough <= least + GRANULE, "step {step}: {enough} of {least}");
        if step > 1 {
            // The optimizer's state is made before the first step.
            assert_eq!((state(&trainer)?, device.stats().in_use), before, "step {step}");
        }
        device.set_limit(Some(Bytes::new(enough)))?;
        device.pool().reset_peaks();
        assert_eq!(loss(&mut trainer, &data, step)?, expected[step as usize - 1], "step {step}");
        assert!(device.stats().peak_committed <= enough, "step {step}");
        device.set_limit(None)?;
    }
    Ok(())
}

#[test]
fn a_refusal_is_not_remembered_once_what_was_in_the_way_is_gone() -> Result<()> {
    let data = || Ok::<_, Error>(vec![GPT.batches()?.swap_remove(0)]);
    let expected = {
        let device = device();
        let _on = device.enter();
        let (data, mut trainer) = (data()?, GPT.trainer()?);
        trainer.fit(&data, Until::Steps(3))?;
        state(&trainer)?
    };
    let (natural, least) = range(&GPT)?;
    let device = device();
    let _on = device.enter();
    let (data, mut trainer) = (data()?, GPT.trainer()?);
    device.set_limit(Some(Bytes::new(least + 8 * GRANULE)))?;
    let in_the_way = |bytes: u64| Tensor::zeros([bytes as usize / 4]);
    for step in 1..=3 {
        // Half of what a step needs, so that nothing fits.
        let block = in_the_way((least - device.stats().in_use) / 2)?;
        let refused = trainer.fit(&data, Until::Steps(step)).expect_err("there is something in the way");
        assert!(matches!(refused.kind(), ErrorKind::Limit { .. }), "step {step}: {refused}");
        drop(block);
        trainer.fit(&data, Until::Steps(step))?;
    }
    assert_eq!(state(&trainer)?, expected);
    // The other way round: with less room than when the step was planned, it takes a leaner way.
    device.set_limit(Some(Bytes::new(natural + 4 * GRANULE)))?;
    trainer.fit(&data, Until::Steps(4))?;
    let before = device.recomputed().ops;
    trainer.fit(&data, Until::Steps(5))?;
    assert_eq!(device.recomputed().ops, before, "everything fits");
    device.trim();
    let _block = in_the_way((natural - least) / 2)?;
    device.pool().reset_peaks();
    trainer.fit(&data, Until::Steps(6))?;
    assert!(device.recomputed().ops > before, "the step was planned for what is left");
    assert!(device.stats().peak_committed <= natural + 4 * GRANULE);
    Ok(())
}
