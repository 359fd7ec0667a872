//! Data parallelism over ranks of this process: the same bits for every number of ranks, with and without a limit, each rank's
//! memory as planned; and what ranks refuse.

use std::sync::Arc;

use plimsoll_dist::Strategy;
use plimsoll_dist::local::{Faults, alone, world, world_with};
use plimsoll_nn::metrics::SparseCategoricalAccuracy;
use plimsoll_nn::train::{Trainer, Until};
use plimsoll_tensor::{Bytes, Device, Result};

use crate::networks::{Limit, NETWORKS, Network, UNTIL, as_planned, assert_same, on_all, outcome, run};

#[test]
fn the_bits_do_not_depend_on_the_number_of_ranks_nor_on_a_limit() -> Result<()> {
    for network in NETWORKS {
        let on = |n_ranks: usize, share: Limit| {
            on_all(world(n_ranks), |communicator, device| {
                as_planned((network, 0), &communicator, &device, share)
            })
        };
        let expected = on(1, Limit::None).remove(0)?;
        assert!(expected.1.iter().all(|loss| loss.is_finite()), "{:?}", expected.1);
        let shares = [Limit::None, Limit::Share(85)];
        for (n_ranks, share) in [1, 2, 4].into_iter().flat_map(|n_ranks| shares.map(|share| (n_ranks, share)))
        {
            for (rank, outcome) in on(n_ranks, share).into_iter().enumerate() {
                assert_same(
                    outcome?,
                    &expected,
                    &format!("{network:?}, rank {rank} of {n_ranks}, {share:?} %"),
                );
            }
        }
    }
    Ok(())
}

#[test]
fn leaves_are_what_the_bits_depend_on() -> Result<()> {
    let losses = |n_leaves: usize| -> Result<Option<f64>> {
        let device = Device::separate_cpu();
        let _on = device.enter();
        let (trainer, data) = Network::Perceptron.trainer(&alone(), 0)?;
        let mut trainer = trainer.strategy(Strategy::data_parallel(alone()).leaves(n_leaves));
        Ok(trainer.fit(&data, UNTIL)?.loss)
    };
    assert_ne!(losses(1)?, losses(2)?);
    Ok(())
}

#[test]
fn a_run_is_resumed_by_another_number_of_ranks() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let expected = on_all(world(1), |communicator, device| {
        let _on = device.enter();
        outcome(&run((Network::Norms, 0), &communicator, None, UNTIL)?)
    });
    let expected = expected.into_iter().next().expect("one rank")?;
    on_all(world(2), |communicator, device| {
        let _on = device.enter();
        let (mut trainer, _) = run((Network::Norms, 0), &communicator, None, Until::Steps(2))?;
        trainer.save(folder.path())
    })
    .into_iter()
    .collect::<Result<Vec<()>>>()?;
    for n_ranks in [1, 4] {
        let outcomes = on_all(world(n_ranks), |communicator, device| {
            let _on = device.enter();
            outcome(&run((Network::Norms, 0), &communicator, Some(folder.path()), UNTIL)?)
        });
        for resumed in outcomes {
            assert!(resumed?.0 == expected.0, "resumed by {n_ranks} ranks");
        }
    }
    // With other leaves it would be another run.
    let device = Device::separate_cpu();
    let _on = device.enter();
    let (trainer, data) = Network::Norms.trainer(&alone(), 0)?;
    let mut trainer = trainer.strategy(Strategy::data_parallel(alone()).leaves(2));
    let error = match trainer.resume(folder.path()) {
        Err(error) => error,
        Ok(()) => trainer.fit(&data, UNTIL).expect_err("the leaves differ"),
    };
    assert!(error.to_string().contains("leaves"), "{error}");
    Ok(())
}

#[test]
fn what_ranks_cannot_do_together_is_refused() -> Result<()> {
    let refusal = |n_ranks: usize, change: fn(usize, Trainer) -> Trainer| -> Vec<String> {
        on_all(world(n_ranks), |communicator, device| {
            let _on = device.enter();
            let (trainer, data) = Network::Perceptron.trainer(&communicator, 0)?;
            change(communicator.rank(), trainer).fit(&data, UNTIL).map(drop)
        })
        .into_iter()
        .map(|outcome: Result<()>| outcome.expect_err("it is refused").to_string())
        .collect()
    };
    for error in refusal(3, |_, trainer| trainer) {
        assert!(error.contains("4 leaves") && error.contains("3 ranks") && error.contains("is 6"), "{error}");
    }
    for error in refusal(2, |_, trainer| trainer.training_metric(SparseCategoricalAccuracy::new())) {
        assert!(error.contains("training metrics"), "{error}");
    }
    for error in refusal(2, |rank, trainer| trainer.setting("recipe", rank)) {
        assert!(error.contains("rank 1 does something else: recipe is \"1\" there"), "{error}");
    }
    let error = {
        let device = Device::separate_cpu();
        let _on = device.enter();
        let (trainer, data) = Network::Perceptron.trainer(&alone(), 0)?;
        let mut trainer = trainer.strategy(Strategy::data_parallel(alone()).leaves(27));
        trainer.fit(&data, UNTIL).expect_err("the last batch has 26").to_string()
    };
    assert!(error.contains("26 examples") && error.contains("27 leaves"), "{error}");
    Ok(())
}

/// Each message of each rank fails once: every other rank ends with an error that names it, and nothing is left.
#[test]
fn a_rank_that_fails_ends_the_run_of_all() -> Result<()> {
    let train = |faults: Faults| {
        on_all(world_with(4, faults), |communicator, device| {
            let trained = {
                let _on = device.enter();
                let weak = Arc::downgrade(&communicator);
                let trained = run((Network::Perceptron, 0), &communicator, None, Until::Steps(1)).map(drop);
                drop(communicator);
                assert_eq!(weak.strong_count(), 0, "nobody keeps the rank");
                trained
            };
            assert_eq!(device.stats().in_use, 0, "nothing is left");
            trained
        })
    };
    // Every fifth message, so that it takes no minutes.
    let (mut n_faults, stride) = (0, 5);
    for rank in 0..4 {
        for message in (0..).step_by(stride) {
            let outcomes = train(Faults::default().failing(rank, message));
            if outcomes.iter().all(Result::is_ok) {
                break;
            }
            n_faults += 1;
            for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
                assert!(error.to_string().contains(&format!("rank {rank} failed")), "{error}");
            }
            assert!(outcomes[rank].is_err(), "it failed itself");
        }
    }
    assert!(n_faults > 12, "{n_faults}");
    Ok(())
}

/// An error of one rank's own, such as memory that is full, is told to the others with its cause.
#[test]
fn an_error_of_one_rank_is_told_to_the_others() {
    let outcomes = on_all(world(2), |communicator, device| {
        if communicator.rank() == 1 {
            device.set_limit(Some(Bytes::mib(2)))?;
        }
        let _on = device.enter();
        run((Network::Norms, 0), &communicator, None, UNTIL).map(drop)
    });
    let [first, second] = outcomes.try_into().expect("two ranks");
    let second: plimsoll_tensor::Error = second.expect_err("2 MiB are not enough");
    assert!(second.is_out_of_memory(), "{second}");
    let first = first.expect_err("rank 1 failed").to_string();
    assert!(first.contains("rank 1 failed"), "{first}");
}
