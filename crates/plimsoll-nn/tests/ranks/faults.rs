//! What goes wrong between ranks that train, on a network so small that each message can fail once.

use std::sync::Arc;

use plimsoll_dist::local::{Faults, Local, world_with};
use plimsoll_dist::{Communicator, Strategy};
use plimsoll_nn::Layer;
use plimsoll_nn::layers::{Dense, Sequential};
use plimsoll_nn::losses::MeanSquaredError;
use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
use plimsoll_nn::train::{Batch, Trainer, Until};
use plimsoll_tensor::{Device, Result, Tensor, set_seed};

use crate::networks::on_all;

/// Two steps of a small network; the bits of its variables.
pub fn train(
    communicator: &Arc<dyn Communicator>,
    stage: usize,
    change: impl FnOnce(Trainer) -> Trainer,
) -> Result<Vec<Vec<u8>>> {
    set_seed(3);
    let model = Sequential::new().add(Dense::new(3)).add(Dense::new(1)).build([2])?;
    let data = vec![Batch::new(Tensor::randn([4, 2])?, Tensor::randn([4, 1])?)];
    let strategy = Strategy::data_parallel(communicator.clone()).leaves(2).zero(stage);
    let optimizer = Adam::new(0.1).build().clip_norm(0.5);
    let mut trainer = change(Trainer::new(model, optimizer, MeanSquaredError).strategy(strategy));
    trainer.fit(&data, Until::Steps(2))?;
    let variables = trainer.model().named_variables().into_iter();
    let bits = variables.map(|(_, variable)| {
        let mut bits = Vec::new();
        trainer.with_bytes_of(&variable, |bytes| bits.extend_from_slice(bytes))?;
        Ok(bits)
    });
    bits.collect()
}

/// Both ranks' runs; nothing is left of either on its device, and nobody keeps its rank.
fn outcomes(stage: usize, faults: Faults) -> Vec<Result<Vec<Vec<u8>>>> {
    on_all(world_with(2, faults), |communicator, device| {
        let trained = {
            let _on = device.enter();
            train(&communicator, stage, |trainer| trainer)
        };
        assert_eq!(device.stats().in_use, 0, "nothing is left");
        assert_eq!(Arc::strong_count(&communicator), 1, "nobody keeps the rank");
        trained
    })
}

/// How many messages each rank has in a run in which nothing goes wrong.
fn n_messages(stage: usize) -> Vec<u64> {
    std::thread::scope(|scope| {
        let run = |rank: Local| {
            scope.spawn(move || {
                let rank = Arc::new(rank);
                let communicator: Arc<dyn Communicator> = rank.clone();
                let _on = Device::separate_cpu().enter();
                train(&communicator, stage, |trainer| trainer).expect("nothing goes wrong");
                rank.n_messages()
            })
        };
        let threads: Vec<_> = world_with(2, Faults::default()).into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

/// Each send and each receive of a run fails once, at every stage: the rank itself ends with an error, and the other one with one that
/// names the rank and the cause, unless it needed nothing more.
#[test]
fn each_message_fails_once() {
    for stage in 0..4 {
        for (rank, n_messages) in n_messages(stage).into_iter().enumerate() {
            assert!(n_messages >= 20, "stage {stage}, rank {rank}: {n_messages}");
            for message in 0..n_messages {
                let outcomes = outcomes(stage, Faults::default().failing(rank, message));
                assert!(outcomes[rank].is_err(), "stage {stage}, rank {rank}, message {message}");
                for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
                    let text = error.to_string();
                    let is_told = text.contains(&format!("rank {rank} failed: it could not"));
                    assert!(is_told, "stage {stage}, rank {rank}, message {message}: {text}");
                }
            }
        }
    }
}

/// A rank that is slow in simulated time makes the same run; one that is later than the others wait ends it, and both say who.
#[test]
fn a_slow_rank_is_waited_for_as_long_as_was_said() -> Result<()> {
    for stage in [0, 1, 3] {
        let expected = outcomes(stage, Faults::default()).remove(0)?;
        for slow in 0..2 {
            let faults = Faults::default().slow(slow, 1000);
            for outcome in outcomes(stage, faults.clone()) {
                assert!(outcome? == expected, "stage {stage}, rank {slow} is slow");
            }
            for outcome in outcomes(stage, faults.most_wait(500)) {
                let error = outcome.expect_err("nobody waits that long").to_string();
                let names = error.contains(&format!("rank {slow} failed: it was"));
                assert!(names && error.contains("ticks late"), "stage {stage}: {error}");
            }
        }
    }
    Ok(())
}

/// Two ranks with other recipes or generators: an error on both that names the rank and what differs.
#[test]
fn ranks_with_other_runs_are_named_on_both() {
    let change = |what: &'static str| {
        on_all(world_with(2, Faults::default()), |communicator, device| {
            let is_other = communicator.rank() == 1;
            let trained = {
                let _on = device.enter();
                train(&communicator, 3, |trainer| match what {
                    _ if !is_other => trainer,
                    "generator" => {
                        set_seed(77);
                        trainer
                    }
                    _ => trainer.setting("recipe", "digits"),
                })
            };
            assert_eq!(device.stats().in_use, 0, "nothing is left");
            trained.expect_err("they differ").to_string()
        })
    };
    for (what, said) in
        [("generator", "generator is \"seed 77"), ("recipe", "its run is described otherwise")]
    {
        for error in change(what) {
            assert!(error.contains("rank 1 does something else") && error.contains(said), "{error}");
        }
    }
}
