//! Data parallelism over ranks of this process: the same bits for every number of ranks, with and without a limit, each rank's
//! memory as planned; and what ranks refuse.

#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::Arc;

use plimsoll_data::Dataset;
use plimsoll_dist::local::{Faults, Local, alone, world, world_with};
use plimsoll_dist::{Communicator, Strategy};
use plimsoll_nn::layers::{
    BatchNormalization, Conv2D, Dense, Dropout, Embedding, Flatten, MultiHeadAttention, Residual, Sequential,
};
use plimsoll_nn::losses::SparseCategoricalCrossentropy;
use plimsoll_nn::metrics::SparseCategoricalAccuracy;
use plimsoll_nn::optimizers::{Adam, LossScale, OptimizerConfig};
use plimsoll_nn::plan::{Plan, plan};
use plimsoll_nn::train::{History, Trainer, Until};
use plimsoll_nn::{Layer, Model, Policy, with_policy};
use plimsoll_tensor::{Activation, Bytes, DType, Device, Result, Tensor, set_seed};

const N_LEAVES: usize = 4;
const N_CLASSES: usize = 7;
const BATCH: usize = 3000;
/// Held out are 100; of the others, a third batch has but 26.
const N_EXAMPLES: usize = 6126;

/// The networks: each has something that does not follow from the sums of gradients alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    /// Dropout, an odd last batch, and gradients that are clipped together.
    Perceptron,
    /// Batch norm, with its running statistics.
    Norms,
    /// Words, attention and dropout, under a mixed policy with a loss scale.
    Words,
}

const NETWORKS: [Network; 3] = [Network::Perceptron, Network::Norms, Network::Words];

impl Network {
    fn model(self) -> Result<Model> {
        match self {
            Network::Perceptron => (0..10)
                .fold(Sequential::new(), |layers, _| {
                    layers.add(Dense::new(128).activation(Activation::Tanh)).add(Dropout::new(0.2))
                })
                .add(Dense::new(N_CLASSES))
                .build([40]),
            Network::Norms => (0..4)
                .fold(Sequential::new(), |layers, _| {
                    let layers = layers.add(Conv2D::new(16, 3).same());
                    layers.add(BatchNormalization::new().activation(Activation::Relu))
                })
                .add(Flatten::new())
                .add(Dense::new(N_CLASSES))
                .build([6, 6, 3]),
            Network::Words => with_policy(Policy::MixedFloat16, || {
                (0..4)
                    .fold(Sequential::new().add(Embedding::new(50, 32)), |layers, _| {
                        layers.add(Residual::new(MultiHeadAttention::new(4))).add(Dropout::new(0.1))
                    })
                    .add(Flatten::new())
                    .add(Dense::new(N_CLASSES))
                    .build([12])
            }),
        }
    }

    fn data(self) -> Result<Dataset> {
        let n = N_EXAMPLES;
        let inputs = match self {
            Network::Perceptron => Tensor::randn([n, 40])?,
            Network::Norms => Tensor::randn([n, 6, 6, 3])?,
            Network::Words => Tensor::randn([n, 12])?.abs()?.mul(10.0)?.cast(DType::I64)?,
        };
        let labels = Tensor::randn([n, N_CLASSES])?.argmax(1)?;
        Dataset::from_tensor_slices((inputs, labels))
    }

    /// A run of an epoch and a bit; the last batch of an epoch is short.
    fn trainer(self, communicator: &Arc<dyn Communicator>) -> Result<(Trainer, Dataset)> {
        set_seed(5);
        let data = self.data()?;
        let held_out = data.take(100).batch(50)?;
        let data = data.skip(100).shuffle(N_EXAMPLES, 3).batch(BATCH)?.prefetch(1);
        let optimizer = Adam::new(1e-2).build();
        let optimizer = match self {
            Network::Perceptron => optimizer.clip_norm(0.3),
            Network::Words => optimizer.loss_scale(LossScale::new()),
            Network::Norms => optimizer,
        };
        let loss = SparseCategoricalCrossentropy::new().from_logits(true);
        let trainer = Trainer::new(self.model()?, optimizer, loss)
            .held_out(held_out)
            .metric(SparseCategoricalAccuracy::new())
            .strategy(Strategy::data_parallel(communicator.clone()).leaves(N_LEAVES));
        Ok((trainer, data))
    }
}

const UNTIL: Until = Until::Steps(4);

/// What comes of a run on one rank: all variables, the losses, and where the generator is.
type Outcome = (Vec<(String, Vec<f32>)>, Vec<f64>, u64);

/// A run from its beginning, or from where it was saved.
fn run(
    network: Network,
    communicator: &Arc<dyn Communicator>,
    resumed: Option<&Path>,
    until: Until,
) -> Result<(Trainer, History)> {
    let (mut trainer, data) = network.trainer(communicator)?;
    if let Some(folder) = resumed {
        trainer.resume(folder)?;
    }
    let history = trainer.fit(&data, until)?;
    Ok((trainer, history))
}

fn outcome((trainer, history): &(Trainer, History)) -> Result<Outcome> {
    let variables = trainer.model().named_variables().into_iter();
    let bits = variables.map(|(name, variable)| {
        let master = variable.master().unwrap_or(&variable).value();
        Ok((name, master.to_vec::<f32>()?))
    });
    let losses = history.epochs.iter().map(|epoch| epoch.loss);
    let held_out = history.epochs.iter().filter_map(|epoch| Some(epoch.held_out.as_ref()?.loss));
    let losses = losses.chain(held_out).chain(history.loss).collect();
    Ok((bits.collect::<Result<_>>()?, losses, trainer.state().next_draw))
}

/// What each rank gets, each on a thread of its own and on a device of its own.
fn on_all<R: Send>(ranks: Vec<Local>, f: impl Fn(Arc<dyn Communicator>, Device) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let run = |rank: Local| scope.spawn(|| f(Arc::new(rank), Device::separate_cpu()));
        let threads: Vec<_> = ranks.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

/// What comes of a rank's run, under a limit of a share of what it would commit; its memory is as planned.
fn as_planned(
    network: Network,
    communicator: &Arc<dyn Communicator>,
    device: &Device,
    share: Option<u64>,
) -> Result<Outcome> {
    let dry = || -> Result<Plan> { plan(device, || run(network, communicator, None, UNTIL).map(drop)) };
    let natural = dry()?;
    device.set_limit(share.map(|share| Bytes::new(natural.committed_bytes * share / 100)))?;
    let planned = dry()?;
    assert!(planned.fits(), "{network:?}: {:?}", planned.refusal);
    let outcome = {
        let _on = device.enter();
        outcome(&run(network, communicator, None, UNTIL)?)?
    };
    let stats = device.stats();
    assert_eq!((stats.peak_in_use, stats.peak_committed), (planned.peak_bytes, planned.committed_bytes));
    assert_eq!(stats.peak_rows, planned.owners);
    assert!(share.is_none() || stats.peak_committed < natural.committed_bytes, "a limit that matters");
    assert_eq!(stats.in_use, 0, "everything came back");
    Ok(outcome)
}

/// Asserts that two runs have the same bits, without printing all of them.
fn assert_same(ours: Outcome, theirs: &Outcome, what: &str) {
    assert_eq!((ours.1, ours.2), (theirs.1.clone(), theirs.2), "{what}");
    for (ours, theirs) in ours.0.iter().zip(&theirs.0) {
        assert!(ours == theirs, "{what}: {}", ours.0);
    }
}

#[test]
fn the_bits_do_not_depend_on_the_number_of_ranks_nor_on_a_limit() -> Result<()> {
    for network in NETWORKS {
        let on = |n_ranks: usize, share: Option<u64>| {
            on_all(world(n_ranks), |communicator, device| as_planned(network, &communicator, &device, share))
        };
        let expected = on(1, None).remove(0)?;
        assert!(expected.1.iter().all(|loss| loss.is_finite()), "{:?}", expected.1);
        for (n_ranks, share) in [(1, Some(85)), (2, None), (2, Some(85)), (4, None), (4, Some(85))] {
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
        let (trainer, data) = Network::Perceptron.trainer(&alone())?;
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
        outcome(&run(Network::Norms, &communicator, None, UNTIL)?)
    });
    let expected = expected.into_iter().next().expect("one rank")?;
    on_all(world(2), |communicator, device| {
        let _on = device.enter();
        let (mut trainer, _) = run(Network::Norms, &communicator, None, Until::Steps(2))?;
        trainer.save(folder.path())
    })
    .into_iter()
    .collect::<Result<Vec<()>>>()?;
    for n_ranks in [1, 4] {
        let outcomes = on_all(world(n_ranks), |communicator, device| {
            let _on = device.enter();
            outcome(&run(Network::Norms, &communicator, Some(folder.path()), UNTIL)?)
        });
        for resumed in outcomes {
            assert!(resumed?.0 == expected.0, "resumed by {n_ranks} ranks");
        }
    }
    // With other leaves it would be another run.
    let device = Device::separate_cpu();
    let _on = device.enter();
    let (trainer, data) = Network::Norms.trainer(&alone())?;
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
            let (trainer, data) = Network::Perceptron.trainer(&communicator)?;
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
        let (trainer, data) = Network::Perceptron.trainer(&alone())?;
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
                let trained = run(Network::Perceptron, &communicator, None, Until::Steps(1)).map(drop);
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
        run(Network::Norms, &communicator, None, UNTIL).map(drop)
    });
    let [first, second] = outcomes.try_into().expect("two ranks");
    let second: plimsoll_tensor::Error = second.expect_err("2 MiB are not enough");
    assert!(second.is_out_of_memory(), "{second}");
    let first = first.expect_err("rank 1 failed").to_string();
    assert!(first.contains("rank 1 failed"), "{first}");
}
