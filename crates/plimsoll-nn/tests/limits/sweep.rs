//! Limits from just below the natural peak down to the least that works: never above, both peaks monotone, the same bits,
//! and one below the least is refused before the first step.

use plimsoll_nn::Policy;
use plimsoll_nn::train::Until;
use plimsoll_tensor::{Bytes, ErrorKind, Result};

use crate::models::{CNN, DENSENET, GPT, LSTM, RESNET, TREE, Task, UNET};
use crate::run::{GRANULE, Taken, device, run, state};

/// Runs a task under every limit, and compares.
fn sweep(name: &str, task: &Task) -> Result<()> {
    let (expected, natural) = run(task, None, false)?;
    let mut taken: Vec<(u64, Taken)> = Vec::new();
    let least = loop {
        let share = 95 - 5 * taken.len() as u64;
        let limit = natural.peak_committed * share / 100;
        match run(task, Some(limit), false) {
            Ok((outcome, used)) => {
                assert_eq!(outcome, expected, "{name} at {share} %");
                taken.push((limit, used));
            }
            Err(error) => match *error.kind() {
                ErrorKind::Limit { limit: refused, least, .. } if refused == limit => break least,
                _ => panic!("{name} at {share} %, {limit} bytes: {error}"),
            },
        }
    };
    let (outcome, used) = run(task, Some(least), true)?;
    assert_eq!(outcome, expected, "{name} at the least limit, {least}");
    taken.push((least, used));
    let share = |bytes: u64| bytes as f64 / natural.peak_committed as f64;
    eprintln!(
        "{name}: natural {}, least {least} ({:.3}), {} limits",
        natural.peak_committed,
        share(least),
        taken.len()
    );
    for (limit, used) in &taken {
        eprintln!("   {limit:>9} {:.3}: {used:?}", share(*limit));
        assert!(used.peak_committed <= *limit, "{name}: {used:?} under {limit}");
    }
    for pair in taken.windows(2) {
        let [(above, more), (below, less)] = [pair[0], pair[1]];
        assert!(above >= below, "{name}: {above} works, and {below} was called the least");
        assert!(less.peak_committed <= more.peak_committed, "{name}: committed at {below} and {above}");
        assert!(less.peak_in_use <= more.peak_in_use, "{name}: in use at {below} and {above}");
    }
    assert!(taken.len() >= 8, "{name}: {} limits", taken.len());
    assert!(used.repeated.ops > 0, "{name}: nothing was recomputed");
    refused(name, task, least, least - (least * 3 / 100).max(GRANULE))
}

/// A limit that is too low is refused before the first step, with the least that works.
fn refused(name: &str, task: &Task, least: u64, limit: u64) -> Result<()> {
    let device = device();
    device.set_limit(Some(Bytes::new(limit)))?;
    let _on = device.enter();
    let data = task.batches()?;
    let mut trainer = task.trainer()?;
    let before = state(&trainer)?;
    let error = trainer.fit(&data, Until::Steps(1)).unwrap_err();
    match *error.kind() {
        ErrorKind::Limit { least: told, .. } => assert_eq!(told, least, "{name}: {error}"),
        _ => panic!("{name}: {error}"),
    }
    let after = state(&trainer)?;
    assert_eq!(after[..before.len()], before, "{name}: the refused run changed something");
    assert_eq!(trainer.state().step, 0);
    Ok(())
}

#[test]
fn gpt_with_dropout() -> Result<()> {
    sweep("gpt", &GPT)
}

#[test]
fn a_cnn_with_batch_norm() -> Result<()> {
    sweep("cnn", &CNN)
}

#[test]
fn an_lstm() -> Result<()> {
    sweep("lstm", &LSTM)
}

#[test]
fn a_residual_network() -> Result<()> {
    sweep("resnet", &RESNET)
}

#[test]
fn a_u_net() -> Result<()> {
    sweep("unet", &UNET)
}

#[test]
fn a_densely_connected_network() -> Result<()> {
    sweep("densenet", &DENSENET)
}

#[test]
fn a_tree() -> Result<()> {
    sweep("tree", &TREE)
}

#[test]
fn mixed_precision() -> Result<()> {
    sweep("gpt, mixed_bfloat16", &Task { policy: Policy::MixedBfloat16, batch: 48, ..GPT })
}

#[test]
fn four_parts() -> Result<()> {
    sweep("resnet in four parts", &Task { n_parts: 4, batch: 96, ..RESNET })
}
