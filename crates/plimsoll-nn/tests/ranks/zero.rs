//! ZeRO: the bits of a run in which every rank has everything, each rank's memory as planned.

use plimsoll_dist::Strategy;
use plimsoll_dist::local::world;
use plimsoll_nn::losses::SparseCategoricalCrossentropy;
use plimsoll_nn::optimizers::{Adafactor, OptimizerConfig};
use plimsoll_nn::plan::plan;
use plimsoll_nn::train::Trainer;
use plimsoll_tensor::Result;

use crate::networks::{NETWORKS, Network, UNTIL, as_planned, assert_same, on_all, run};

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
