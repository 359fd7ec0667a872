//! The networks that ranks train here, their runs, and what comes of these.

use std::path::Path;
use std::sync::Arc;

use plimsoll_data::Dataset;
use plimsoll_dist::local::Local;
use plimsoll_dist::{Communicator, Strategy};
use plimsoll_nn::layers::{
    BatchNormalization, Conv2D, Dense, Dropout, Embedding, Flatten, MultiHeadAttention, Residual, Sequential,
};
use plimsoll_nn::losses::SparseCategoricalCrossentropy;
use plimsoll_nn::metrics::SparseCategoricalAccuracy;
use plimsoll_nn::optimizers::{Adam, LossScale, OptimizerConfig};
use plimsoll_nn::plan::{Plan, least_limit_of_ranks, plan_of_ranks};
use plimsoll_nn::train::{History, Trainer, Until};
use plimsoll_nn::{Layer, Model, Policy, with_policy};
use plimsoll_tensor::{Activation, Bytes, DType, Device, Result, Tensor, set_seed};

pub const N_LEAVES: usize = 4;
const N_CLASSES: usize = 7;

/// How many examples there are, how many of them are held out, and how many a batch has; the last batch is short.
#[derive(Clone, Copy)]
struct Size {
    n_examples: usize,
    n_held_out: usize,
    batch: usize,
}

impl Size {
    /// A third batch has but 26.
    const OF_CPU: Size = Size { n_examples: 6126, n_held_out: 100, batch: 3000 };
    /// GPUs that the host plays take their time.
    const OF_GPU: Size = Size { n_examples: 74, n_held_out: 10, batch: 24 };

    fn of_current_device() -> Size {
        if Device::current().is_host() { Size::OF_CPU } else { Size::OF_GPU }
    }
}

/// The networks: each has something that does not follow from the sums of gradients alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Dropout, an odd last batch, and gradients that are clipped together.
    Perceptron,
    /// Batch norm, with its running statistics.
    Norms,
    /// Words, attention and dropout, under a mixed policy with a loss scale.
    Words,
    /// Little but parameters.
    Wide,
}

pub const NETWORKS: [Network; 3] = [Network::Perceptron, Network::Norms, Network::Words];

impl Network {
    pub fn model(self) -> Result<Model> {
        match self {
            Network::Perceptron => (0..10)
                .fold(Sequential::new(), |layers, _| {
                    layers.add(Dense::new(128).activation(Activation::Tanh)).add(Dropout::new(0.2))
                })
                .add(Dense::new(N_CLASSES))
                .build([40]),
            Network::Wide => (0..4)
                .fold(Sequential::new(), |layers, _| layers.add(Dense::new(640).activation(Activation::Relu)))
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

    pub fn data(self) -> Result<Dataset> {
        let n = Size::of_current_device().n_examples;
        let inputs = match self {
            Network::Perceptron | Network::Wide => Tensor::randn([n, 40])?,
            Network::Norms => Tensor::randn([n, 6, 6, 3])?,
            Network::Words => Tensor::randn([n, 12])?.abs()?.mul(10.0)?.cast(DType::I64)?,
        };
        let labels = Tensor::randn([n, N_CLASSES])?.argmax(1)?;
        Dataset::from_tensor_slices((inputs, labels))
    }

    /// A run of an epoch and a bit; the last batch of an epoch is short.
    pub fn trainer(self, communicator: &Arc<dyn Communicator>, stage: usize) -> Result<(Trainer, Dataset)> {
        set_seed(5);
        let (data, size) = (self.data()?, Size::of_current_device());
        let held_out = data.take(size.n_held_out).batch(size.n_held_out / 2)?;
        let n_leaves = N_LEAVES.max(communicator.size());
        // As many examples for a leaf, whatever their number.
        let batch = if self == Network::Wide { 64 } else { size.batch * n_leaves / N_LEAVES };
        let data = data.skip(size.n_held_out).shuffle(size.n_examples, 3).batch(batch)?.prefetch(1);
        let optimizer = Adam::new(1e-2).build();
        let optimizer = match self {
            Network::Perceptron => optimizer.clip_norm(0.3),
            Network::Words => optimizer.loss_scale(LossScale::new()),
            Network::Norms | Network::Wide => optimizer,
        };
        let loss = SparseCategoricalCrossentropy::new().from_logits(true);
        let trainer = Trainer::new(self.model()?, optimizer, loss)
            .held_out(held_out)
            .metric(SparseCategoricalAccuracy::new())
            .strategy(Strategy::data_parallel(communicator.clone()).leaves(n_leaves).zero(stage));
        Ok((trainer, data))
    }
}

pub const UNTIL: Until = Until::Steps(4);

/// What comes of a run on one rank: all variables, the losses, and where the generator is.
pub type Outcome = (Vec<(String, Vec<u8>)>, Vec<f64>, u64);

/// A run from its beginning, or from where it was saved.
pub fn run(
    (network, stage): (Network, usize),
    communicator: &Arc<dyn Communicator>,
    resumed: Option<&Path>,
    until: Until,
) -> Result<(Trainer, History)> {
    let (mut trainer, data) = network.trainer(communicator, stage)?;
    if let Some(folder) = resumed {
        trainer.resume(folder)?;
    }
    let history = trainer.fit(&data, until)?;
    Ok((trainer, history))
}

pub fn outcome((trainer, history): &(Trainer, History)) -> Result<Outcome> {
    let variables = trainer.model().named_variables().into_iter();
    let bits = variables.map(|(name, variable)| {
        let mut bits = Vec::new();
        trainer.with_bytes_of(&variable, |bytes| bits.extend_from_slice(bytes))?;
        Ok((name, bits))
    });
    let losses = history.epochs.iter().map(|epoch| epoch.loss);
    let held_out = history.epochs.iter().filter_map(|epoch| Some(epoch.held_out.as_ref()?.loss));
    let losses = losses.chain(held_out).chain(history.loss).collect();
    Ok((bits.collect::<Result<_>>()?, losses, trainer.state().next_draw))
}

/// What each rank gets, each on a thread of its own and on a CPU of its own.
pub fn on_all<R: Send>(ranks: Vec<Local>, f: impl Fn(Arc<dyn Communicator>, Device) -> R + Sync) -> Vec<R> {
    let devices = ranks.iter().map(|_| Device::separate_cpu()).collect();
    on_devices(ranks, devices, f)
}

/// What each rank gets, each on a thread of its own and on one of these devices.
pub fn on_devices<R: Send>(
    ranks: Vec<Local>,
    devices: Vec<Device>,
    f: impl Fn(Arc<dyn Communicator>, Device) -> R + Sync,
) -> Vec<R> {
    std::thread::scope(|scope| {
        let f = &f;
        let run = |(rank, device): (Local, Device)| scope.spawn(move || f(Arc::new(rank), device));
        let threads: Vec<_> = ranks.into_iter().zip(devices).map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

/// A limit on each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    None,
    /// That part of what the rank commits without one, in percent.
    Share(u64),
    /// The least one with which all ranks can keep to it.
    Least,
}

/// What comes of a rank's run under a limit; its memory is as planned.
pub fn as_planned(
    network: (Network, usize),
    communicator: &Arc<dyn Communicator>,
    device: &Device,
    limit: Limit,
) -> Result<Outcome> {
    let go = || run(network, communicator, None, UNTIL).map(drop);
    let dry = || -> Result<Plan> { plan_of_ranks(communicator, device, go) };
    let natural = dry()?;
    let bytes = match limit {
        Limit::None => None,
        Limit::Share(share) => Some(natural.committed_bytes * share / 100),
        Limit::Least => Some(least_limit_of_ranks(communicator, device, go)?),
    };
    device.set_limit(bytes.map(Bytes::new))?;
    let planned = dry()?;
    assert!(planned.fits(), "{network:?}: {:?}", planned.refusal);
    let outcome = {
        let _on = device.enter();
        outcome(&run(network, communicator, None, UNTIL)?)?
    };
    let stats = device.stats();
    assert_eq!((stats.peak_in_use, stats.peak_committed), (planned.peak_bytes, planned.committed_bytes));
    assert_eq!(stats.peak_rows, planned.owners);
    assert!(bytes.is_none_or(|bytes| stats.peak_committed <= bytes), "{network:?}: the limit is kept");
    let matters = stats.peak_committed < natural.committed_bytes;
    assert!(limit == Limit::None || matters, "{network:?}, {limit:?}: a limit that matters");
    assert_eq!(stats.in_use, 0, "everything came back");
    Ok(outcome)
}

/// Asserts that two runs have the same bits, without printing all of them.
pub fn assert_same(ours: Outcome, theirs: &Outcome, what: &str) {
    assert_eq!((ours.1, ours.2), (theirs.1.clone(), theirs.2), "{what}");
    for (ours, theirs) in ours.0.iter().zip(&theirs.0) {
        assert!(ours == theirs, "{what}: {}", ours.0);
    }
}
