//! Each network is trained in at most 40 lines, under limits from the natural peak to the least, with the bytes of its plan
//! and the bits of a loop that somebody would write without `Trainer`.

use plimsoll_memory::Pool;
use plimsoll_memory::testing::FinePages;
use plimsoll_nn::losses::LossContext;
use plimsoll_nn::plan::plan;
use plimsoll_nn::train::{Trainer, Until};
use plimsoll_nn::{Mode, Model, Optimizer};
use plimsoll_tensor::{Bytes, Device, ErrorKind, GradientTape, Result, Step, Variable, set_seed};

use crate::networks::{ALL, Network};

/// A CPU with a pool of its own in small granules.
fn device() -> Device {
    Device::over("cpu", Pool::new(FinePages::new().expect("the system has addresses to spare")))
}

/// Trains for two epochs, on the current device.
fn train(network: &Network) -> Result<Trainer> {
    set_seed(7);
    let data = (network.data)()?;
    let mut trainer = Trainer::new((network.model)()?, (network.optimizer)(), (network.loss)());
    trainer.fit(&data, Until::Epochs(1))?;
    (network.between)(trainer.model())?;
    trainer.fit(&data, Until::Epochs(2))?;
    Ok(trainer)
}

/// The bits of all that a model and its optimizer hold, by name.
fn state(model: &Model, optimizer: &Optimizer) -> Result<Vec<(String, Vec<u64>)>> {
    let optimizer = optimizer.variables().into_iter().map(|variable| (variable.name(), variable));
    let all = model.named_variables().into_iter().chain(optimizer);
    let bits = |(name, variable): (String, Variable)| {
        Ok((name, variable.to_f64_vec()?.into_iter().map(f64::to_bits).collect()))
    };
    let mut state: Vec<(String, Vec<u64>)> = all.map(bits).collect::<Result<_>>()?;
    state.sort_unstable();
    Ok(state)
}

fn state_of(trainer: &Trainer) -> Result<Vec<(String, Vec<u64>)>> {
    state(trainer.model(), trainer.optimizer())
}

/// The same training as a loop of one's own.
fn loop_by_hand(network: &Network) -> Result<Vec<(String, Vec<u64>)>> {
    set_seed(7);
    let (data, model) = ((network.data)()?, (network.model)()?);
    let (mut optimizer, loss) = ((network.optimizer)(), (network.loss)());
    for epoch in 0..2 {
        let variables = model.trainable_variables();
        optimizer.select(&variables)?;
        for batch in data.iterate_from(epoch, 0) {
            let batch = batch?.nested();
            let [inputs, labels, rest @ ..] = &*batch.parts() else { unreachable!("inputs and labels") };
            let context =
                LossContext { inputs, labels, sample_weights: rest.first().copied(), model: &model };
            Step::run(&Device::current(), || {
                let tape = GradientTape::new();
                let value =
                    tape.record(|| loss.of_batch(&context, model.prediction(*inputs, Mode::Train)?))?;
                optimizer.apply_gradients(tape.variable_gradients(&value, &variables)?, &variables)
            })?;
        }
        (network.between)(&model)?;
    }
    state(&model, &optimizer)
}

#[test]
fn each_is_at_most_40_lines() {
    for network in ALL {
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
        let n_lines = network.source.lines().filter(is_code).count();
        assert!(n_lines <= 40, "{}: {n_lines} lines", network.name);
    }
}

#[test]
fn a_loop_by_hand_has_the_same_bits() -> Result<()> {
    for network in ALL {
        let _on = device().enter();
        let trained = state_of(&train(&network)?)?;
        let by_hand = loop_by_hand(&network)?;
        assert_eq!(trained.len(), by_hand.len(), "{}", network.name);
        for (ours, theirs) in trained.iter().zip(&by_hand) {
            assert!(ours == theirs, "{}: {} and {}", network.name, ours.0, theirs.0);
        }
    }
    Ok(())
}

#[test]
fn a_plan_says_the_bytes_and_limits_change_no_bit() -> Result<()> {
    for network in ALL {
        let name = network.name;
        let run = |limit: Option<u64>| -> Result<_> {
            let device = device();
            device.set_limit(limit.map(Bytes::new))?;
            let planned = plan(&device, || train(&network).map(drop))?;
            let _on = device.enter();
            let trained = train(&network)?;
            let stats = device.stats();
            assert_eq!(planned.peak_bytes, stats.peak_in_use, "{name} under {limit:?}");
            assert_eq!(planned.committed_bytes, stats.peak_committed, "{name} under {limit:?}");
            Ok((state_of(&trained)?, stats.peak_committed))
        };
        let (expected, natural) = run(None)?;
        let mut n_limits = 0;
        let least = loop {
            let limit = natural * (96 - 8 * n_limits) / 100;
            match run(Some(limit)) {
                Ok((found, committed)) => {
                    assert!(found == expected && committed <= limit, "{name} under {limit}");
                    n_limits += 1;
                }
                Err(error) => match *error.kind() {
                    ErrorKind::Limit { least, .. } => break least,
                    _ => panic!("{name} under {limit}: {error}"),
                },
            }
        };
        let (found, committed) = run(Some(least))?;
        assert!(found == expected && committed <= least, "{name} at the least limit, {least}");
        eprintln!("{name}: natural {natural}, least {least}, {n_limits} limits");
        assert!(n_limits > 0 && least < natural * 9 / 10, "{name}: {least} of {natural}");
    }
    Ok(())
}

#[test]
fn what_was_saved_is_loaded_by_name() -> Result<()> {
    for network in ALL {
        let _on = device().enter();
        let mut trained = train(&network)?;
        let folder = std::env::temp_dir().join(format!("plimsoll-several-{}", std::process::id()));
        let weights_file = folder.join("weights.safetensors");
        trained.save(&folder)?;
        trained.model().save_weights(&weights_file)?;

        set_seed(8);
        let mut other = Trainer::new((network.model)()?, (network.optimizer)(), (network.loss)());
        (network.between)(other.model())?;
        other.resume(&folder)?;
        assert!(state_of(&other)? == state_of(&trained)?, "{}", network.name);

        let model = (network.model)()?;
        model.load_weights(&weights_file)?;
        let weights = |model: &Model| state(model, &(network.optimizer)());
        assert!(weights(&model)? == weights(trained.model())?, "{}", network.name);
        std::fs::remove_dir_all(&folder).expect("the folder is there");
    }
    Ok(())
}
