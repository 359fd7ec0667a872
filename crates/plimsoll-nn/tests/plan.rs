//! Plans against runs: what a ghost says is what the run takes, to the byte.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_data::Dataset;
use plimsoll_memory::{GRANULE, TraceEvent};
use plimsoll_nn::layers::{BatchNormalization, Conv2D, Dense, Dropout, Embedding, Flatten, LSTM, Sequential};
use plimsoll_nn::losses::SparseCategoricalCrossentropy;
use plimsoll_nn::metrics::SparseCategoricalAccuracy;
use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
use plimsoll_nn::plan::{Footprint, least_limit, plan, predict};
use plimsoll_nn::train::{Callback, Requests, StepEvent, Trainer, Until, callbacks::ModelCheckpoint};
use plimsoll_nn::{Layer, Policy, with_policy};
use plimsoll_tensor::{Activation, Bytes, DType, Device, Generator, Result, Tensor};

/// A small run with everything that runs have: dropout, batch norm, a short batch, an evaluation with a short batch of its
/// own, a metric.
#[derive(Clone, Copy)]
struct Run {
    model: fn() -> Sequential,
    shape: &'static [usize],
    /// Whether inputs are numbers of tokens.
    is_text: bool,
    policy: Policy,
    batch: usize,
    n_parts: usize,
    until: Until,
}

const RUN: Run = Run {
    model: perceptron,
    shape: &[40],
    is_text: false,
    policy: Policy::Float32,
    batch: 8,
    n_parts: 1,
    until: Until::Epochs(2),
};

fn perceptron() -> Sequential {
    Sequential::new()
        .add(Dense::new(300).activation(Activation::Relu))
        .add(Dropout::new(0.2))
        .add(Dense::new(90).activation(Activation::Tanh))
        .add(Dense::new(10))
}

fn convolutions() -> Sequential {
    Sequential::new()
        .add(Conv2D::new(12, 3).same())
        .add(BatchNormalization::new().activation(Activation::Relu))
        .add(Conv2D::new(20, 3).stride(2).same())
        .add(Flatten::new())
        .add(Dense::new(10))
}

fn recurrent() -> Sequential {
    Sequential::new().add(Embedding::new(50, 24)).add(LSTM::new(40)).add(Dense::new(10))
}

impl Run {
    fn examples(&self, n: usize) -> Result<Dataset> {
        let shape: Vec<usize> = [&[n], self.shape].concat();
        let inputs = match self.is_text {
            true => Tensor::randint(shape, 0, 50, DType::I64)?,
            false => Tensor::randn(shape)?,
        };
        Dataset::from_tensor_slices((inputs, Tensor::randint([n], 0, 10, DType::I64)?))
    }

    fn trainer(&self) -> Result<Trainer> {
        let model = with_policy(self.policy, || (self.model)().build(self.shape))?;
        let loss = SparseCategoricalCrossentropy::new().from_logits(true);
        Ok(Trainer::new(model, Adam::new(1e-3).build(), loss)
            .accumulate(self.n_parts)
            .metric(SparseCategoricalAccuracy::new())
            .held_out(self.examples(11)?.batch(self.batch.div_ceil(self.n_parts))?))
    }

    fn data(&self) -> Result<Dataset> {
        Ok(self.examples(5 * self.batch + 3)?.shuffle(100, 0).batch(self.batch)?.prefetch(1))
    }

    fn go(&self) -> Result<()> {
        let (mut trainer, data) = (self.trainer()?, self.data()?);
        trainer.fit(&data, self.until).map(drop)
    }

    /// The footprint of the run on a CPU with a pool of its own.
    fn measured(&self, limit: Option<u64>) -> Result<Footprint> {
        let device = Device::separate_cpu();
        device.set_limit(limit.map(Bytes::new))?;
        let _on = device.enter();
        self.go()?;
        Ok(footprint(&device))
    }
}

fn footprint(device: &Device) -> Footprint {
    let stats = device.stats();
    Footprint { peak: stats.peak_in_use, committed: stats.peak_committed, owners: stats.peak_rows }
}

#[test]
fn plans_are_the_runs_to_the_byte() -> Result<()> {
    let models = [
        RUN,
        Run { model: convolutions, shape: &[9, 9, 3], ..RUN },
        Run { model: recurrent, shape: &[13], is_text: true, ..RUN },
    ];
    for model in models {
        for policy in [Policy::Float32, Policy::MixedBfloat16, Policy::MixedFloat16] {
            for (batch, n_parts) in [(1, 1), (8, 1), (8, 4), (13, 3)] {
                let run = Run { policy, batch, n_parts, ..model };
                let planned = predict(&Device::separate_cpu(), || run.go())?;
                assert_eq!(planned, run.measured(None)?, "{:?} {policy:?} {batch} in {n_parts}", run.shape);
            }
        }
    }
    Ok(())
}

#[test]
fn plans_under_a_limit_are_the_runs_to_the_byte() -> Result<()> {
    let run = Run { model: convolutions, shape: &[40, 40, 3], batch: 6, ..RUN };
    let device = Device::separate_cpu();
    let natural = predict(&device, || run.go())?;
    let least = least_limit(&device, || run.go())?;
    assert!(least >= GRANULE && least <= natural.committed, "{least} of {natural:?}");
    for limit in (least..=natural.committed + GRANULE).step_by(GRANULE as usize) {
        let limited = Device::separate_cpu().limit(Bytes::new(limit))?;
        let planned = predict(&limited, || run.go())?;
        assert!(planned.committed <= limit);
        assert_eq!(planned, run.measured(Some(limit))?, "under {limit}");
    }
    let too_little = least - GRANULE;
    let error = run.measured(Some(too_little)).expect_err("one granule less than the least");
    assert!(error.is_out_of_memory(), "{error}");
    let refused = plan(&Device::separate_cpu().limit(Bytes::new(too_little))?, || run.go())?;
    assert!(!refused.fits() && refused.refusal.is_some_and(|why| why.contains("the limit")));
    assert_eq!((refused.peak_bytes, refused.committed_bytes), (natural.peak, natural.committed));
    assert_eq!(refused.limit, Some(too_little));
    Ok(())
}

/// Counts the steps that it is told of.
struct Counter(Arc<AtomicU64>);

impl Callback for Counter {
    fn name(&self) -> &str {
        "counter"
    }

    fn on_step(&mut self, _event: &StepEvent, _run: &mut Requests<'_>) -> Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn a_plan_does_not_go_through_a_million_steps_and_comes_to_the_same_end() -> Result<()> {
    for until in [Until::Epochs(1_000_000), Until::Steps(6_000_001), Until::Steps(6_000_000)] {
        let counter = Arc::new(AtomicU64::new(0));
        let state = Cell::new((0, 0, 0));
        let predicted = predict(&Device::separate_cpu(), || -> Result<()> {
            let run = Run { until, ..RUN };
            let (mut trainer, data) = (run.trainer()?.callback(Counter(counter.clone())), run.data()?);
            let history = trainer.fit(&data, until)?;
            let at = trainer.state();
            assert_eq!(history.steps, at.step);
            state.set((at.step, at.epoch, at.batch));
            Ok(())
        })?;
        let n_told = counter.load(Ordering::Relaxed);
        assert!(n_told < 60, "{n_told} steps");
        let expected = match until {
            Until::Steps(6_000_001) => (6_000_001, 1_000_000, 1),
            _ => (6_000_000, 1_000_000, 0),
        };
        assert_eq!(state.get(), expected, "{until:?}");
        assert_eq!(
            predicted,
            predict(&Device::separate_cpu(), || Run { until: Until::Epochs(20), ..RUN }.go())?
        );
    }
    Ok(())
}

#[test]
fn passing_over_repetitions_changes_nothing() -> Result<()> {
    for limit in [None, Some(4 * GRANULE)] {
        let run = Run { model: convolutions, shape: &[20, 20, 3], until: Until::Epochs(4), ..RUN };
        let device = Device::separate_cpu();
        device.set_limit(limit.map(Bytes::new))?;
        let planned = predict(&device, || run.go())?;
        let ghost = device.ghost();
        let _on = ghost.enter();
        run.go()?;
        assert_eq!(planned, footprint(&ghost));
    }
    Ok(())
}

#[test]
fn every_byte_of_the_peak_is_explained() -> Result<()> {
    let run = Run { model: convolutions, shape: &[16, 16, 3], ..RUN };
    let planned = plan(&Device::separate_cpu(), || run.go())?;
    let device = Device::separate_cpu();
    let _on = device.enter();
    run.go()?;
    assert!(planned.fits() && planned.limit.is_none());
    assert_eq!(planned.owners, device.stats().peak_rows);
    assert_eq!(planned.owners.total(), planned.peak_bytes);
    assert_eq!(planned.holders.iter().map(|holder| holder.bytes).sum::<u64>(), planned.peak_bytes);
    assert_eq!(planned.layers.iter().map(|(_, bytes)| bytes).sum::<u64>(), planned.peak_bytes);
    assert_eq!(planned.timeline.iter().map(|moment| moment.in_use).max(), Some(planned.peak_bytes));
    assert!(planned.timeline.iter().all(|moment| moment.in_use <= moment.committed));
    let phases: Vec<&str> = planned.timeline.iter().map(|moment| moment.phase).collect();
    assert!(
        phases.is_sorted_by_key(|phase| ["forward", "backward", "update"].iter().position(|p| p == phase))
    );
    let at = planned.peak_at;
    assert!(at.step > 0 && at.phase == "backward" && at.op == "conv2d_backward_weights", "{at:?}");
    assert!(at.layer.starts_with("conv2d"), "what backward takes belongs to the layer that it goes through");
    assert!(planned.step_nanoseconds > 0);
    let text = planned.to_string();
    for word in ["at most", "parameters", "there is no limit", "by layer", "backward", "conv2d", "ops"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    Ok(())
}

#[test]
fn a_plan_leaves_device_generator_and_files_alone_and_counts_what_is_there() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let held = Tensor::zeros([1_000_000])?;
    let (before, generator) = (device.stats(), Generator::current());
    let folder = std::env::temp_dir().join(format!("plimsoll-plan-{}", std::process::id()));
    let planned = predict(&device, || -> Result<()> {
        let mut trainer = RUN.trainer()?.callback(ModelCheckpoint::new(&folder));
        trainer.fit(&RUN.data()?, RUN.until).map(drop)
    })?;
    assert!(!folder.exists());
    assert_eq!((device.stats(), Generator::current()), (before, generator));
    RUN.go()?;
    assert_eq!(planned, footprint(&device));
    drop(held);
    Ok(())
}

/// The requests of a run, in order.
fn requests(device: &Device, run: &Run) -> Result<Vec<TraceEvent>> {
    let _on = device.enter();
    device.pool().start_trace();
    run.go()?;
    Ok(device.pool().take_trace().into_iter().filter(TraceEvent::is_request).collect())
}

/// The workspaces of a run, by the numbers of their requests.
fn n_workspaces(trace: &[TraceEvent]) -> u64 {
    let is_workspace = |event: &&TraceEvent| match event {
        TraceEvent::Acquire { label, .. } => label.owner == plimsoll_tensor::Owner::Workspace,
        _ => false,
    };
    trace.iter().filter(is_workspace).count() as u64
}

#[test]
fn a_workspace_that_a_ghost_forgets_is_noticed() -> Result<()> {
    let run = Run { model: convolutions, shape: &[9, 9, 3], until: Until::Steps(1), ..RUN };
    let real = requests(&Device::separate_cpu(), &run)?;
    assert_eq!(requests(&Device::ghost_cpu(), &run)?, real, "a ghost asks for what the run asks for");
    let n_workspaces = n_workspaces(&real);
    assert!(n_workspaces > 3, "{n_workspaces}");
    let measured = run.measured(None)?;
    let mut n_seen_in_the_peak = 0;
    for k in 1..=n_workspaces {
        let device = Device::separate_cpu();
        device.pool().forget_workspace(k);
        assert_ne!(requests(&device.ghost(), &run)?, real, "workspace {k}");
        n_seen_in_the_peak += u64::from(predict(&device, || run.go())? != measured);
    }
    assert!(n_seen_in_the_peak > 0, "the workspace at the peak is one of them");
    Ok(())
}

#[test]
fn a_run_that_cannot_be_made_is_an_error_and_not_a_plan() {
    let unfit = || Run { shape: &[7, 7], ..RUN }.go();
    let limited = Device::separate_cpu().limit(Bytes::mib(64)).expect("it is idle");
    for outcome in [plan(&limited, unfit).map(drop), least_limit(&limited, unfit).map(drop)] {
        let error = outcome.expect_err("images for a perceptron");
        assert!(!error.is_out_of_memory(), "{error}");
    }
}
