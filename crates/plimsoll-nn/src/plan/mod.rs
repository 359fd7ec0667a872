//! Plans: what a run will need, found by a dry run on a ghost.
//!
//! A run is a function that trains: it makes its model, data and optimizer and calls [`Trainer::fit`](crate::Trainer::fit).
//! [`plan`] calls it on a ghost of a device, where nothing is computed and every request for memory is answered as the device
//! would; so peak and committed bytes are those of the real run, to the byte, and the plan says who holds them. The function is
//! called several times and must do the same each time; what it prints or writes itself, it does each time, but checkpoints
//! are not written. A ghost has no values: a run that depends on them cannot be planned.
//!
//! ```
//! use plimsoll_data::Dataset;
//! use plimsoll_nn::layers::Dense;
//! use plimsoll_nn::losses::MeanSquaredError;
//! use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
//! use plimsoll_nn::plan::plan;
//! use plimsoll_nn::train::{Trainer, Until};
//! use plimsoll_nn::Layer;
//! use plimsoll_tensor::{Device, Result, Tensor};
//!
//! fn run() -> Result<()> {
//!     let (inputs, labels) = (Tensor::randn([1000, 64])?, Tensor::randn([1000, 1])?);
//!     let data = Dataset::from_tensor_slices((inputs, labels))?.batch(32)?;
//!     let mut trainer = Trainer::new(Dense::new(1).build([64])?, Adam::new(0.01).build(), MeanSquaredError);
//!     trainer.fit(&data, Until::Epochs(3))?;
//!     Ok(())
//! }
//!
//! let device = Device::separate_cpu();
//! let planned = plan(&device, run)?;
//! let _on = device.enter();
//! run()?;
//! assert_eq!(planned.peak_bytes, device.stats().peak_in_use);
//! assert_eq!(planned.committed_bytes, device.stats().peak_committed);
//! println!("{planned}");
//! # Ok::<(), plimsoll_tensor::Error>(())
//! ```

mod actions;
mod largest;
mod peak_tracker;
mod ranks;
mod show;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_memory::{Holder, Levels, Owner, Rows, TraceEvent};
use plimsoll_tensor::{Bytes, Device, Error, ErrorKind, Generator, Recomputed};

pub use actions::{ActionSearch, actions};
pub use largest::{Fit, largest};
use peak_tracker::PeakTracker;
pub(crate) use peak_tracker::{EVALUATE, SAVE};
pub use peak_tracker::{Moment, PeakAt};
pub use plimsoll_tensor::program::Footprint;
pub use ranks::{agreed, least_limit_of_ranks, plan_of_ranks};

/// What a run will need.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The most bytes in use at a time.
    pub peak_bytes: u64,
    /// The most bytes that the pool takes from the device.
    pub committed_bytes: u64,
    /// The limit on these.
    pub limit: Option<u64>,
    /// Why the limit cannot be kept, if it cannot; the figures are then those of a run without one.
    pub refusal: Option<String>,
    /// Who owns the bytes at the peak; the rows add up to it.
    pub owners: Rows,
    /// The bytes at the peak by the layer that made them, largest first; together they are the peak.
    pub layers: Vec<(&'static str, u64)>,
    /// When the peak is reached first.
    pub peak_at: PeakAt,
    /// Who holds the bytes at the peak by owner, layer, op and line, largest first; together they are the peak.
    pub holders: Vec<Holder>,
    /// The step that needs most, op by op.
    pub timeline: Vec<Moment>,
    /// How long the longest step takes, by formula.
    pub step_nanoseconds: u64,
    /// What the whole run recomputes to keep the limit.
    pub repeated: Recomputed,
    /// What the whole run offloads to keep the limit.
    pub offloaded_bytes: u64,
}

impl Plan {
    /// Whether the run stays within its limit.
    pub fn fits(&self) -> bool {
        self.refusal.is_none()
    }
}

/// An error of a run, of which a plan must know one thing.
pub trait RunError: From<Error> + fmt::Display {
    /// Whether the run could not be kept within the device's memory.
    fn is_over_limit(&self) -> bool;

    /// The limit that would have done for the step at which the run ended, if the error knows it.
    fn enough(&self) -> Option<u64>;
}

impl RunError for Error {
    fn is_over_limit(&self) -> bool {
        self.is_out_of_memory()
    }

    fn enough(&self) -> Option<u64> {
        match self.kind() {
            ErrorKind::Limit { least, .. } => Some(*least),
            _ => None,
        }
    }
}

/// Plans a run on a device as it is, under its limit. Nothing of the device is touched, and the random generator is as
/// before.
///
/// # Errors
/// Those of the run, except for a limit that cannot be kept, which is in the plan.
pub fn plan<E: RunError>(device: &Device, mut run: impl FnMut() -> Result<(), E>) -> Result<Plan, E> {
    let mut plans = plan_on(std::slice::from_ref(device), |_| run())?;
    Ok(plans.swap_remove(0))
}

/// Plans a run on several devices as they are, each under its limit: a plan for each, in their order. The run is given ghosts
/// of them, which it is to put its layers on ([`Layer::on`](crate::Layer::on)); the first is the current device.
///
/// # Errors
/// Those of the run, except for limits that cannot be kept, which are in the plans.
pub fn plan_on<E: RunError>(
    devices: &[Device],
    mut run: impl FnMut(&[Device]) -> Result<(), E>,
) -> Result<Vec<Plan>, E> {
    let limits: Vec<Option<Bytes>> = devices.iter().map(|device| device.pool().limit()).collect();
    match tracked(devices, &limits, &mut run) {
        Err(error) if error.is_over_limit() && limits.iter().any(Option::is_some) => {
            let natural = tracked(devices, &vec![None; devices.len()], &mut run)?;
            let refused = |(plan, limit): (Plan, &Option<Bytes>)| Plan {
                limit: limit.map(Bytes::get),
                refusal: Some(error.to_string()),
                ..plan
            };
            Ok(natural.into_iter().zip(&limits).map(refused).collect())
        }
        other => other,
    }
}

/// The footprint of a run on a device as it is, under its limit: what [`plan`] says, without the details.
///
/// # Errors
/// Those of the run, a limit that cannot be kept among them.
pub fn predict<E: RunError>(device: &Device, run: impl FnOnce() -> Result<(), E>) -> Result<Footprint, E> {
    one(dry_run(&[device.ghost()], &[device.pool().limit()], |_| run()))
}

/// The least limit under which a run works on a device as it is, in whole granules: with one granule less it is refused.
///
/// # Errors
/// Those of the run without a limit.
pub fn least_limit<E: RunError>(device: &Device, mut run: impl FnMut() -> Result<(), E>) -> Result<u64, E> {
    let granule = device.pool().granule();
    // Steps are planned once for all limits: a ghost shares what it knows of them with its own ghosts.
    let device = device.ghost();
    let natural = one(dry_run(&[device.ghost()], &[None], |_| run()))?;
    // A run that commits so much never meets that limit, and nothing runs without memory.
    let never_met = device.pool().limit_for(natural.committed);
    let (mut works, mut fails) = (never_met.div_ceil(granule), 0);
    // A refusal that knows what would have been enough narrows the search by more than bisection, and so does one granule less
    // where that worked. A run with room for little more than what persists from step to step can be set up, and its first
    // step is refused.
    let persistent =
        [Owner::Parameters, Owner::Optimizer, Owner::Data].map(|owner| natural.owners.get(owner));
    let persistent: u64 = persistent.iter().sum();
    let mut promising = Some((persistent + persistent / 8).div_ceil(granule) + 4);
    let mut enough = None;
    while works > fails + 1 {
        let tried = promising.unwrap_or(fails + (works - fails) / 2).clamp(fails + 1, works - 1);
        match dry_run(&[device.ghost()], &[Some(Bytes::new(tried * granule))], |_| run()) {
            Ok(_) => (works, promising) = (tried, (enough == Some(tried)).then(|| tried - 1)),
            Err(error) if error.is_over_limit() => {
                fails = tried;
                enough = error.enough().map(|bytes| bytes.div_ceil(granule));
                promising = enough;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(works * granule)
}

/// A dry run under limits, with all details.
fn tracked<E: RunError>(
    devices: &[Device],
    limits: &[Option<Bytes>],
    run: impl FnOnce(&[Device]) -> Result<(), E>,
) -> Result<Vec<Plan>, E> {
    let ghosts: Vec<Device> = devices.iter().map(Device::ghost).collect();
    let trackers: Vec<Arc<Mutex<PeakTracker>>> = ghosts.iter().map(track).collect();
    let footprints = dry_run(&ghosts, limits, run);
    ghosts.iter().for_each(|ghost| ghost.pool().set_trace_sink(None));
    let planned = footprints?.into_iter().zip(&ghosts).zip(trackers).zip(limits);
    let mut plans = Vec::new();
    for (((footprint, ghost), tracker), limit) in planned {
        let mut tracker = std::mem::take(&mut *tracker.lock().unwrap_or_else(PoisonError::into_inner));
        tracker.end_segment();
        plans.push(describe(footprint, ghost, tracker, *limit));
    }
    Ok(plans)
}

/// Follows the events of a ghost's pool.
fn track(ghost: &Device) -> Arc<Mutex<PeakTracker>> {
    let tracker = Arc::new(Mutex::new(PeakTracker::new(&ghost.snapshot())));
    let sink = tracker.clone();
    let note = move |event: &TraceEvent, _: &Levels<'_>| {
        sink.lock().unwrap_or_else(PoisonError::into_inner).note(event);
    };
    ghost.pool().set_trace_sink(Some(Box::new(note)));
    tracker
}

/// The plan for a device, from its dry run.
fn describe(footprint: Footprint, ghost: &Device, tracker: PeakTracker, limit: Option<Bytes>) -> Plan {
    Plan {
        peak_bytes: footprint.peak,
        committed_bytes: footprint.committed,
        limit: limit.map(Bytes::get),
        refusal: None,
        owners: footprint.owners,
        layers: tracker.layers(),
        peak_at: tracker.peak_at(),
        holders: tracker.holders(),
        step_nanoseconds: tracker.step_nanoseconds(),
        repeated: ghost.recomputed(),
        offloaded_bytes: ghost.offloaded().get(),
        timeline: tracker.into_timeline(),
    }
}

/// Makes a run on ghosts, each under its limit; what it takes of each.
fn dry_run<E: RunError>(
    ghosts: &[Device],
    limits: &[Option<Bytes>],
    run: impl FnOnce(&[Device]) -> Result<(), E>,
) -> Result<Vec<Footprint>, E> {
    /// Puts this thread's generator back where it was, also if the run panics: a dry run takes no draws.
    struct Restore(Generator);
    impl Drop for Restore {
        fn drop(&mut self) {
            self.0.make_current();
        }
    }
    let Some(first) = ghosts.first() else {
        return Err(Error::argument("plan", "no device; a run is planned for at least one").into());
    };
    for (ghost, limit) in ghosts.iter().zip(limits) {
        ghost.set_limit(*limit)?;
        ghost.pool().reset_peaks();
    }
    let restore = Restore(Generator::current());
    let _on = first.enter();
    let result = run(ghosts);
    drop(restore);
    result?;
    let footprint = |ghost: &Device| {
        let stats = ghost.stats();
        Footprint { peak: stats.peak_in_use, committed: stats.peak_committed, owners: stats.peak_rows }
    };
    Ok(ghosts.iter().map(footprint).collect())
}

/// The footprint on the only device.
fn one<E>(footprints: Result<Vec<Footprint>, E>) -> Result<Footprint, E> {
    footprints.map(|mut footprints| footprints.swap_remove(0))
}
