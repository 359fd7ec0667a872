//! ZeRO: the bits of a run in which every rank has everything, each rank's memory as planned.

use std::path::Path;

use plimsoll_dist::Strategy;
use plimsoll_dist::local::{Faults, alone, world, world_with};
use plimsoll_nn::checkpoint;
use plimsoll_nn::losses::SparseCategoricalCrossentropy;
use plimsoll_nn::optimizers::{Adafactor, OptimizerConfig};
use plimsoll_nn::plan::plan;
use plimsoll_nn::train::{Trainer, Until};
use plimsoll_tensor::{Device, Result};

use crate::networks::{NETWORKS, Network, UNTIL, as_planned, assert_same, on_all, outcome, run};

/// What a rank has at its peak falls from stage to stage, as long as one leaf is a rank's.
#[test]
fn every_stage_needs_less_than_the_one_before() -> Result<()> {
    let mut before = u64::MAX;
    for stage in 0..4 {
        let peaks = on_all(world(4), |communicator, device| {
            let run = || run((Network::Wide, stage), &communicator, None, UNTIL).map(drop);
            Ok(plan(&device, run)?.peak_bytes)
        });
        let most = peaks.into_iter().collect::<Result<Vec<u64>>>()?.into_iter().max().unwrap_or(0);
        assert!(most < before, "stage {stage} needs {most}, and the one before {before}");
        before = most;
    }
    Ok(())
}

/// Every stage, by two and by four ranks, has the bits of one rank without ZeRO; stages 1 and 2 under a limit, too. What reads
/// parameters of stage 3 is not recomputed, and in these networks that is everything that is saved.
#[test]
fn the_bits_do_not_depend_on_the_stage() -> Result<()> {
    for network in NETWORKS {
        let on = |n_ranks: usize, stage: usize, share: Option<u64>| {
            let run = (network, stage);
            on_all(world(n_ranks), |communicator, device| as_planned(run, &communicator, &device, share))
        };
        let expected = on(1, 0, None).remove(0)?;
        let runs = [(1, 3, None), (2, 1, None), (4, 1, Some(85)), (2, 2, Some(85)), (4, 2, None)];
        let runs = runs.into_iter().chain([(2, 3, None), (4, 3, None)]);
        for (n_ranks, stage, share) in runs {
            for (rank, outcome) in on(n_ranks, stage, share).into_iter().enumerate() {
                let what = format!("{network:?}, stage {stage}, rank {rank} of {n_ranks}, {share:?} %");
                assert_same(outcome?, &expected, &what);
            }
        }
    }
    Ok(())
}

/// What some ranks saved at one stage is resumed by others at another, with the bits of a run that never stopped.
#[test]
fn a_run_is_resumed_at_another_stage_by_another_number_of_ranks() -> Result<()> {
    let on = |network: Network, (n_ranks, stage): (usize, usize), folder: Option<&Path>| {
        on_all(world(n_ranks), |communicator, device| {
            let _on = device.enter();
            outcome(&run((network, stage), &communicator, folder, UNTIL)?)
        })
    };
    // Words are 16-bit with masters and a loss scale, norms have running statistics.
    let mut wrong = Vec::new();
    for (network, ways) in [
        (
            Network::Words,
            vec![((2, 2), vec![(4, 3), (1, 0)]), ((4, 3), vec![(1, 0), (2, 2)]), ((1, 0), vec![(2, 1)])],
        ),
        (Network::Norms, vec![((1, 0), vec![(2, 1)]), ((4, 1), vec![(2, 3), (4, 0)])]),
    ] {
        let expected = on(network, (1, 0), None).remove(0)?;
        for ((n_ranks, stage), resumed) in ways {
            let folder = tempfile::tempdir().expect("a folder");
            let saved = on_all(world(n_ranks), |communicator, device| {
                let _on = device.enter();
                let (mut trainer, _) = run((network, stage), &communicator, None, Until::Steps(1))?;
                trainer.save(folder.path())?;
                // The second save replaces the first.
                let (mut trainer, _) = run((network, stage), &communicator, None, Until::Steps(2))?;
                trainer.save(folder.path())
            });
            saved.into_iter().collect::<Result<Vec<()>>>()?;
            let files = std::fs::read_dir(folder.path()).expect("a folder").count();
            assert_eq!(files, if stage == 0 { 1 } else { n_ranks + 1 }, "files of before are gone");
            for resumed in resumed {
                for outcome in on(network, resumed, Some(folder.path())) {
                    let pairs = outcome?.0.into_iter().zip(&expected.0);
                    let names: Vec<String> =
                        pairs.filter(|(ours, theirs)| ours != *theirs).map(|(ours, _)| ours.0).collect();
                    if !names.is_empty() {
                        wrong.push(format!(
                            "{network:?}: {n_ranks} ranks, stage {stage}; {resumed:?}: {names:?}"
                        ));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

/// Messages of a step fail, at each stage: every other rank ends with an error that names the rank, and nothing is left.
#[test]
fn a_message_that_fails_ends_the_run_of_all_ranks() -> Result<()> {
    let train = |stage: usize, faults: Faults| {
        on_all(world_with(2, faults), |communicator, device| {
            let trained = {
                let _on = device.enter();
                run((Network::Wide, stage), &communicator, None, Until::Steps(1)).map(drop)
            };
            assert_eq!(device.stats().in_use, 0, "nothing is left");
            trained
        })
    };
    for (stage, rank) in [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)] {
        let mut n_faults = 0;
        // More and more are left out, so that it takes no minutes.
        for message in (0..).map(|power| 3u64.pow(power) - 1) {
            let outcomes = train(stage, Faults::default().failing(rank, message));
            if outcomes.iter().all(Result::is_ok) {
                break;
            }
            n_faults += 1;
            for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
                assert!(error.to_string().contains(&format!("rank {rank} failed")), "{error}");
            }
            assert!(outcomes[rank].is_err(), "it failed itself");
        }
        assert!(n_faults > 3, "stage {stage}: {n_faults}");
    }
    Ok(())
}

/// A shard that is damaged, missing or of another checkpoint is refused, and nothing is changed.
#[test]
fn damaged_shards_are_refused() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let saved = on_all(world(2), |communicator, device| {
        let _on = device.enter();
        let (mut trainer, _) = run((Network::Norms, 1), &communicator, None, Until::Steps(1))?;
        trainer.save(folder.path())
    });
    saved.into_iter().collect::<Result<Vec<()>>>()?;
    let refusal = || {
        let device = Device::separate_cpu();
        let _on = device.enter();
        let (mut trainer, _) = Network::Norms.trainer(&alone(), 0).expect("a trainer");
        trainer.resume(folder.path()).err().map(|error| error.to_string())
    };
    assert_eq!(refusal(), None);
    let shard = folder.path().join("checkpoint-000000-00002-of-00002.safetensors");
    let bytes = std::fs::read(&shard).expect("it is there");
    let mut damaged = bytes.clone();
    *damaged.last_mut().expect("it has values") ^= 1;
    std::fs::write(&shard, damaged).expect("written");
    assert!(refusal().is_some_and(|error| error.contains("damaged")));
    std::fs::remove_file(&shard).expect("removed");
    assert!(refusal().is_some_and(|error| error.contains("00002-of-00002")));
    std::fs::write(&shard, bytes).expect("written");
    let index = folder.path().join(checkpoint::INDEX_NAME);
    let text = std::fs::read_to_string(&index).expect("it is there");
    std::fs::write(&index, text.replacen("[[0,0,", "[[0,7,", 1)).expect("written");
    assert!(refusal().is_some_and(|error| error.contains("the index is damaged")));
    Ok(())
}

#[test]
fn what_cannot_be_cut_is_refused() {
    let refusal = |stage: usize, change: fn(Trainer) -> Trainer| -> Vec<String> {
        let refused = on_all(world(2), |communicator, device| -> Result<()> {
            let _on = device.enter();
            let (trainer, data) = Network::Perceptron.trainer(&communicator, stage)?;
            change(trainer).fit(&data, UNTIL).map(drop)
        });
        refused.into_iter().map(|outcome| outcome.expect_err("it is refused").to_string()).collect()
    };
    for error in refusal(4, |trainer| trainer) {
        assert!(error.contains("no stage 4"), "{error}");
    }
    let outcomes = on_all(world(2), |communicator, device| -> Result<()> {
        let _on = device.enter();
        let loss = SparseCategoricalCrossentropy::new().from_logits(true);
        let trainer = Trainer::new(Network::Perceptron.model()?, Adafactor::new(1e-2).build(), loss);
        let mut trainer = trainer.strategy(Strategy::data_parallel(communicator).zero(1));
        trainer.fit(&Network::Perceptron.data()?.batch(100)?, UNTIL).map(drop)
    });
    for outcome in outcomes {
        let error = outcome.expect_err("it is refused").to_string();
        assert!(error.contains("looks at whole variables"), "{error}");
    }
}
