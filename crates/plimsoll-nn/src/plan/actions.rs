//! What would help: changes that lower the peak of a run, each with the bytes and the time that it changes.
//!
//! Nothing is guessed. Each action is planned as a run of its own, by a dry run on a ghost of the device, so whoever takes it
//! gets the peak that is said to the byte. Dry runs are cheap but not free: none is begun after the time that was given,
//! and the profile says whether all were tried. An action that does not lower the peak, or does not fit the limit, is
//! left out.
//!
//! What can be done to any run is known here: layers recomputed, a limit, a folder to offload to. Whoever knows more of a run, as
//! the program knows its options, adds that with [`ActionSearch::consider`].

use std::path::PathBuf;
use std::time::{Duration, Instant};

use plimsoll_report::{Action, Advice};
use plimsoll_tensor::{Bytes, Device, Offload, Owner};
use serde_json::Value;

use super::{Plan, RunError, least_limit, plan};
use crate::build::{BuiltPart, with_recomputed};

/// The most actions that are kept.
const MOST: usize = 10;
/// So many places whose layers could be recomputed are tried, those with the most saved bytes at the peak first.
const MOST_PLACES: usize = 4;

/// Looks for what lowers the peak of a run.
pub struct ActionSearch {
    device: Device,
    base: Plan,
    built: Vec<BuiltPart>,
    begun: Instant,
    budget: Duration,
    is_complete: bool,
    found: Vec<Action>,
}

/// What would help a run that is called as [`plan`] calls it, in a form that [`Profiler::add`](plimsoll_report::Profiler::add)
/// takes: lines of code to write. No action is tried after `budget`; nothing if the run itself does not fit its limit.
///
/// ```
/// use std::time::Duration;
/// use plimsoll_nn::layers::{Dense, Sequential};
/// use plimsoll_nn::losses::MeanSquaredError;
/// use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
/// use plimsoll_nn::plan::actions;
/// use plimsoll_nn::train::{Batch, Trainer, Until};
/// use plimsoll_nn::Layer;
/// use plimsoll_tensor::{Activation, Device, Result, Tensor};
///
/// fn run() -> Result<()> {
///     let block = || Sequential::new().add(Dense::new(256).activation(Activation::Tanh)).add(Dense::new(256));
///     let model = (0..4).fold(Sequential::new(), |model, _| model.add(block())).add(Dense::new(1)).build([256])?;
///     let batch = Batch::new(Tensor::ones([2048, 256])?, Tensor::ones([2048, 1])?);
///     Trainer::new(model, Adam::new(0.01).build(), MeanSquaredError).fit(&vec![batch], Until::Epochs(1)).map(drop)
/// }
///
/// let actions = actions(&Device::separate_cpu(), Duration::from_secs(60), run)?.expect("the run fits");
/// let rows = actions["actions"]["rows"].as_array().expect("a list");
/// assert!(rows.iter().any(|row| row["code"].as_str().is_some_and(|code| code.starts_with(".recompute()"))));
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// Those of the run.
pub fn actions<E: RunError>(
    device: &Device,
    budget: Duration,
    mut run: impl FnMut() -> Result<(), E>,
) -> Result<Option<Value>, E> {
    let Some(mut search) = ActionSearch::begin(device, budget, &mut run)? else { return Ok(None) };
    let set = |bytes: u64| format!("device.set_limit(Some(Bytes::new({bytes})))");
    search.consider_limits(&mut run, |limit| Advice::Code(set(limit)))?;
    search.consider_recomputing(&mut run);
    let offload = "device.set_offload(Some(&Offload::Folder(\".\".into())))";
    search.consider_spilling(&mut run, |limit| Advice::Code(format!("{offload}; {}", set(limit))))?;
    Ok(Some(search.into_json()))
}

impl ActionSearch {
    /// Begins with the run as it is; nothing if that does not fit its limit.
    ///
    /// # Errors
    /// Those of the run.
    pub fn begin<E: RunError>(
        device: &Device,
        budget: Duration,
        run: impl FnMut() -> Result<(), E>,
    ) -> Result<Option<ActionSearch>, E> {
        let begun = Instant::now();
        let (base, built) = with_recomputed(None, || plan(device, run));
        let (base, device) = (base?, device.clone());
        let fits = base.fits();
        Ok(fits.then(|| ActionSearch {
            device,
            base,
            built,
            begun,
            budget,
            is_complete: true,
            found: Vec::new(),
        }))
    }

    /// Plans an action: a run that is changed so. It is kept if it helps; an error means that it cannot be done.
    pub fn consider<E: RunError>(&mut self, advice: Advice, run: impl FnMut() -> Result<(), E>) {
        let device = self.device.clone();
        self.consider_on(&device, advice, run);
    }

    /// Whether there is time for another dry run; if not, the profile says so.
    fn has_time(&mut self) -> bool {
        let is_over = self.begun.elapsed() >= self.budget;
        self.is_complete &= !is_over;
        !is_over
    }

    fn consider_on<E: RunError>(
        &mut self,
        device: &Device,
        advice: Advice,
        run: impl FnMut() -> Result<(), E>,
    ) {
        if !self.has_time() {
            return;
        }
        let base = &self.base;
        let fits = |planned: &Plan| planned.fits() && planned.peak_bytes < base.peak_bytes;
        if let Some(planned) = plan(device, run).ok().filter(fits) {
            let ms = |plan: &Plan| plan.step_nanoseconds as f64 / 1e6;
            self.found.push(Action {
                advice,
                saved_bytes: base.peak_bytes - planned.peak_bytes,
                peak_bytes: planned.peak_bytes,
                more_ms: ms(&planned) - ms(base),
            });
        }
    }

    /// Limits under which values are recomputed: as few as may be, or as many as must be. `write` says how a limit is written, of
    /// so many bytes, which are whole MiB.
    ///
    /// # Errors
    /// Those of the run.
    pub fn consider_limits<E: RunError>(
        &mut self,
        mut run: impl FnMut() -> Result<(), E>,
        write: impl Fn(u64) -> Advice,
    ) -> Result<(), E> {
        if !self.has_time() {
            return Ok(());
        }
        let least = least_limit(&self.device, &mut run)?;
        let mut limits = [least.midpoint(self.base.committed_bytes), least].map(whole_mib).to_vec();
        limits.dedup();
        for limit in limits {
            let ghost = self.device.ghost();
            if ghost.set_limit(Some(Bytes::new(limit))).is_ok() {
                self.consider_on(&ghost, write(limit), &mut run);
            }
        }
        Ok(())
    }

    /// `.recompute()` on layers: on all of those that one line of the program describes.
    pub fn consider_recomputing<E: RunError>(&mut self, mut run: impl FnMut() -> Result<(), E>) {
        for (place, path) in self.places() {
            let (file, line) = place;
            let code = format!(".recompute() on the layer at {file}:{line} ({path})");
            let changed = || with_recomputed(Some(place), &mut run).0;
            self.consider(Advice::Code(code), changed);
        }
    }

    /// The lines that describe layers which could be recomputed, each with one of these, by the bytes that they save for
    /// backward at the peak.
    fn places(&self) -> Vec<((&'static str, u32), String)> {
        let mut places: Vec<((&'static str, u32), &str, u64)> = Vec::new();
        for part in self.built.iter().filter(|part| part.has_one_output && !part.path.is_empty()) {
            let Some(place) = part.described.place() else { continue };
            let is_inside = |scope: &str| {
                scope.strip_prefix(&*part.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            let saved = self.base.holders.iter().filter(|holder| holder.owner == Owner::Saved);
            let bytes: u64 =
                saved.filter(|holder| is_inside(holder.site.scope())).map(|holder| holder.bytes).sum();
            match places.iter_mut().find(|(known, ..)| *known == place) {
                Some(known) => known.2 += bytes,
                None => places.push((place, &part.path, bytes)),
            }
        }
        places.retain(|(_, _, bytes)| *bytes > 0);
        places.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
        places.truncate(MOST_PLACES);
        places.into_iter().map(|(place, path, _)| (place, path.to_owned())).collect()
    }

    /// On the CPU: a folder to offload to, and the least limit that then works, as `write` says.
    ///
    /// # Errors
    /// Those of the run.
    pub fn consider_spilling<E: RunError>(
        &mut self,
        mut run: impl FnMut() -> Result<(), E>,
        write: impl Fn(u64) -> Advice,
    ) -> Result<(), E> {
        let ghost = self.device.ghost();
        let folder = Offload::Folder(PathBuf::from("."));
        let may_offload = self.device.is_host() && !self.device.can_offload() && self.has_time();
        if !may_offload || ghost.set_offload(Some(&folder)).is_err() {
            return Ok(());
        }
        let limit = whole_mib(least_limit(&ghost, &mut run)?);
        if ghost.set_limit(Some(Bytes::new(limit))).is_ok() {
            self.consider_on(&ghost, write(limit), &mut run);
        }
        Ok(())
    }

    /// What was found, the lowest peak first, as a profile has it.
    pub fn into_json(self) -> Value {
        let ActionSearch { base, mut found, budget, is_complete, .. } = self;
        found.sort_by_key(|action| action.peak_bytes);
        found.truncate(MOST);
        let step_ms = base.step_nanoseconds as f64 / 1e6;
        Action::to_json(&found, base.peak_bytes, step_ms, budget.as_secs(), is_complete)
    }
}

/// The next whole number of MiB, as a person would write it.
fn whole_mib(bytes: u64) -> u64 {
    bytes.next_multiple_of(1 << 20)
}
