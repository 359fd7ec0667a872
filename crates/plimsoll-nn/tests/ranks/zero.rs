//! ZeRO: the bits of a run in which every rank has everything, each rank's memory as planned.

use std::path::Path;
use std::sync::Arc;

use plimsoll_dist::local::{Faults, Local, alone, world, world_with};
use plimsoll_dist::{Communicator, Strategy};
use plimsoll_nn::checkpoint;
use plimsoll_nn::losses::SparseCategoricalCrossentropy;
use plimsoll_nn::optimizers::{Adafactor, OptimizerConfig};
use plimsoll_nn::plan::{least_limit, least_limit_of_ranks, plan, plan_of_ranks};
use plimsoll_nn::train::{Trainer, Until};
use plimsoll_tensor::{Bytes, Device, Result};

use crate::networks::{Limit, NETWORKS, Network, UNTIL, as_planned, assert_same, on_all, outcome, run};

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

/// Every stage, by two and by four ranks, with and without a limit of 85 %, has the bits of one rank without ZeRO; at the least
/// limit, too, where ranks have one plan.
#[test]
fn the_bits_do_not_depend_on_the_stage() -> Result<()> {
    for network in NETWORKS {
        let on = |n_ranks: usize, stage: usize, limit: Limit| {
            let run = (network, stage);
            on_all(world(n_ranks), |communicator, device| as_planned(run, &communicator, &device, limit))
        };
        let expected = on(1, 0, Limit::None).remove(0)?;
        let free = [(2, 1), (4, 2), (2, 3), (4, 3)].map(|run| (run, Limit::None));
        let limited = [(2, 1), (4, 1), (2, 2), (4, 2), (2, 3), (4, 3)].map(|run| (run, Limit::Share(85)));
        let least = [(2, 2), (4, 3)].map(|run| (run, Limit::Least));
        for ((n_ranks, stage), limit) in free.into_iter().chain(limited).chain(least) {
            for (rank, outcome) in on(n_ranks, stage, limit).into_iter().enumerate() {
                let what = format!("{network:?}, stage {stage}, rank {rank} of {n_ranks}, {limit:?}");
                assert_same(outcome?, &expected, &what);
            }
        }
    }
    Ok(())
}

/// Eight ranks, a leaf each, at stage 3 without a limit and at the least one, have the bits of eight without ZeRO. Each of them has
/// whole batches, so that in some networks 85 % would be too little.
#[test]
fn eight_ranks_share_parameters_under_a_limit() -> Result<()> {
    for network in NETWORKS {
        let on = |stage: usize, limit: Limit| {
            on_all(world(8), |communicator, device| {
                as_planned((network, stage), &communicator, &device, limit)
            })
        };
        let expected = on(0, Limit::None).remove(0)?;
        for limit in [Limit::None, Limit::Least] {
            for (rank, outcome) in on(3, limit).into_iter().enumerate() {
                assert_same(outcome?, &expected, &format!("{network:?}, rank {rank} of 8, {limit:?}"));
            }
        }
    }
    Ok(())
}

/// Under a limit, parameters are brought together again for what is recomputed, which takes more messages; on all ranks by the same
/// plan, though the second rank alone has a limit.
#[test]
fn a_plan_gathers_parameters_again_on_all_ranks() -> Result<()> {
    let steps = |share: Option<u64>| {
        let of_rank = |rank: Arc<Local>| -> Result<[u64; 3]> {
            let (communicator, device): (Arc<dyn Communicator>, _) = (rank.clone(), Device::separate_cpu());
            let go = || run((Network::Perceptron, 3), &communicator, None, Until::Steps(1)).map(drop);
            let natural = plan(&device, go)?.committed_bytes;
            if communicator.rank() == 1 {
                device.set_limit(share.map(|share| Bytes::new(natural * share / 100)))?;
            }
            let planned = plan_of_ranks(&communicator, &device, go)?;
            assert!(planned.fits(), "{:?}", planned.refusal);
            let _on = device.enter();
            let before = rank.n_messages();
            go()?;
            let (n_messages, stats) = (rank.n_messages() - before, device.stats());
            assert_eq!(
                (stats.peak_in_use, stats.peak_committed),
                (planned.peak_bytes, planned.committed_bytes)
            );
            assert_eq!(device.recomputed(), planned.repeated);
            Ok([device.recomputed().ops, n_messages, stats.peak_committed])
        };
        std::thread::scope(|scope| {
            let run = |rank: Local| scope.spawn(|| of_rank(Arc::new(rank)));
            let threads: Vec<_> = world(2).into_iter().map(run).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<_>>>()
        })
    };
    let (free, limited) = (steps(None)?, steps(Some(75))?);
    for ([free_ops, free_messages, free_bytes], [ops, messages, bytes]) in
        free.into_iter().zip(limited.clone())
    {
        assert!(free_ops == 0 && ops > 0 && ops == limited[0][0], "{limited:?}");
        assert!(messages > free_messages, "{messages} messages, and {free_messages} without a limit");
        assert!(bytes < free_bytes, "the first rank runs the plan that the second one needs");
    }
    Ok(())
}

/// One granule below the least limit of all ranks a plan refuses all of them. In a run, a limit that the second rank alone has, one
/// granule below its own least, is refused on both before the first step, with that least one.
#[test]
fn a_limit_that_one_rank_cannot_keep_is_refused_on_all() -> Result<()> {
    for stage in [0, 1, 3] {
        let outcomes = on_all(world(2), |communicator, device| -> Result<()> {
            let go = || run((Network::Norms, stage), &communicator, None, Until::Steps(1)).map(drop);
            let least = least_limit_of_ranks(&communicator, &device, go)?;
            let short = Bytes::new(least - device.pool().granule());
            device.set_limit(Some(short))?;
            let planned = plan_of_ranks(&communicator, &device, go)?;
            assert!(planned.refusal.is_some(), "stage {stage}: {short} is one granule short");
            device.set_limit(None)?;
            if communicator.rank() == 1 {
                let own = least_limit(&device, go)?;
                device.set_limit(Some(Bytes::new(own - device.pool().granule())))?;
            }
            let _on = device.enter();
            let (mut trainer, data) = Network::Norms.trainer(&communicator, stage)?;
            let error = trainer.fit(&data, Until::Steps(1)).expect_err("one rank cannot keep its limit");
            assert!(
                error.is_out_of_memory() && error.to_string().contains("kept under the limit"),
                "{error}"
            );
            let is_named = error.to_string().contains("rank 1 failed");
            assert_eq!(is_named, communicator.rank() == 0, "{error}");
            assert_eq!(trainer.state().step, 0, "before the first step");
            Ok(())
        });
        for outcome in outcomes {
            outcome?;
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
