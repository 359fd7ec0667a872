//! gpt2-124m under limits: the same bits, never a byte above, and how much longer a step takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use plimsoll::nn::Policy;
use plimsoll::{Bytes, DType, Device, Error, Offload, Result};

use super::Outcome;
use super::workload::{Training, recipe};

/// Steps before the timed ones, and the timed ones.
const WARM_UP: u64 = 4;
const TIMED: u64 = 12;

/// A limit in MiB, how many times the unlimited step it may take, and whether values may be offloaded to the host.
struct Setting(&'static str, u64, f64, bool);

const SETTINGS: [Setting; 8] = [
    Setting("gpt2-124m under 5 GiB", 5 << 10, 1.03, false),
    Setting("gpt2-124m under 4 GiB", 4 << 10, 1.10, false),
    Setting("gpt2-124m under 3.5 GiB", 3584, 1.20, false),
    Setting("gpt2-124m under 3 GiB", 3 << 10, 1.40, false),
    Setting("gpt2-124m under 2.5 GiB", 2560, f64::INFINITY, false),
    Setting("gpt2-124m under 4 GiB, with offload", 4 << 10, 1.10, true),
    Setting("gpt2-124m under 3 GiB, with offload", 3 << 10, 1.40, true),
    Setting("gpt2-124m under 2.5 GiB, with offload", 2560, f64::INFINITY, true),
];

/// What a run showed.
struct Ran {
    ms: f64,
    /// The parameters, by their sums.
    parameters: Vec<f64>,
    committed: u64,
    /// The most that the driver counted beyond what it did before the run.
    driver: u64,
    /// How many ops a step recomputes, and how many bytes it offloads to the host.
    n_recomputed: u64,
    offloaded: u64,
}

/// One line per limit, and one for a batch that is four times what fits.
pub fn checks() -> impl Iterator<Item = (&'static str, Outcome)> {
    let natural = run(None, false);
    let limited = SETTINGS.into_iter().map(move |Setting(name, mib, most, offloads)| {
        let outcome = match &natural {
            Ok(natural) => {
                run(Some(Bytes::mib(mib)), offloads).map(|ran| compare(&ran, natural, mib << 20, most))
            }
            Err(error) => Err(Error::argument("limits", error.to_string())),
        };
        (name, outcome.unwrap_or_else(|error| Err(error.to_string())))
    });
    limited.chain([("four times the batch that fits 24 GiB, under 24 GiB", larger_batch())])
}

fn compare(ran: &Ran, natural: &Ran, limit: u64, most: f64) -> Outcome {
    let ratio = ran.ms / natural.ms;
    let text = format!(
        "{:.2} ms against {:.2}: {ratio:.3}x; committed {} MiB; {} ops recomputed and {} MiB offloaded per step; \
         the driver counted {} MiB",
        ran.ms,
        natural.ms,
        ran.committed >> 20,
        ran.n_recomputed,
        ran.offloaded >> 20,
        ran.driver >> 20
    );
    if ran.parameters != natural.parameters {
        return Err(format!("other bits than without a limit; {text}"));
    }
    if ran.committed > limit || ran.driver > limit || ratio > most {
        return Err(format!("{text}; {most} was the aim"));
    }
    Ok(text)
}

fn run(limit: Option<Bytes>, offloads: bool) -> Result<Ran> {
    let device = Device::separate_cuda(0)?;
    device.set_limit(limit)?;
    device.set_offload(offloads.then_some(&Offload::Host(Bytes::mib(8 << 10))))?;
    let watch = Watch::start(&device)?;
    let mut training = Training::start("gpt2-124m", &device)?;
    training.steps(WARM_UP)?;
    device.synchronize()?;
    let before = (device.recomputed(), device.offloaded().get(), Instant::now());
    training.steps(TIMED)?;
    device.synchronize()?;
    let ms = before.2.elapsed().as_secs_f64() * 1e3 / TIMED as f64;
    let n_recomputed = (device.recomputed().ops - before.0.ops) / TIMED;
    let offloaded = (device.offloaded().get() - before.1) / TIMED;
    let mut parameters = Vec::new();
    let _on = device.enter();
    for variable in training.trainer.model().trainable_variables() {
        parameters.extend(variable.cast(DType::F32)?.sum(..)?.to_f64_vec()?);
    }
    let committed = device.stats().peak_committed;
    Ok(Ran { ms, parameters, committed, driver: watch.end(), n_recomputed, offloaded })
}

/// The natural batch of 24 GiB, four times, under 24 GiB.
fn larger_batch() -> Outcome {
    let run = || -> Result<Outcome> {
        let recipe = recipe("gpt2-124m");
        let limit = Bytes::mib(24 << 10);
        let fits = |batch: usize| -> Result<bool> {
            let ghost = Device::ghost_cuda(plimsoll::hardware::Profile::h200());
            let mut training = Training::of(&recipe, Policy::MixedBfloat16, batch, &ghost)?;
            training.steps(2)?;
            Ok(ghost.stats().peak_committed <= limit.get())
        };
        let (mut works, mut fails) = (16, 512);
        while fails > works + 1 {
            let between = works + (fails - works) / 2;
            if fits(between)? { works = between } else { fails = between }
        }
        let device = Device::separate_cuda(0)?.limit(limit)?;
        let mut training = Training::of(&recipe, Policy::MixedBfloat16, 4 * works, &device)?;
        let started = Instant::now();
        training.steps(2)?;
        device.synchronize()?;
        let committed = device.stats().peak_committed >> 20;
        let ms = started.elapsed().as_millis() / 2;
        Ok(Ok(format!("{works} fit, {} ran: committed {committed} MiB, {ms} ms a step", 4 * works)))
    };
    run().unwrap_or_else(|error| Err(error.to_string()))
}

/// Asks the driver from another thread how much is used.
struct Watch {
    most: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    before: u64,
    thread: thread::JoinHandle<()>,
}

impl Watch {
    fn start(device: &Device) -> Result<Watch> {
        let Some(gpu) = device.gpu().cloned() else { return Err(Error::device("limits", "there is no GPU")) };
        let memory = gpu.memory()?;
        let (most, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (seen, asked) = (most.clone(), stop.clone());
        let thread = thread::spawn(move || {
            while !asked.load(Ordering::Relaxed) {
                if let Ok(memory) = gpu.memory() {
                    seen.fetch_max(memory.total - memory.free, Ordering::Relaxed);
                }
                thread::yield_now();
            }
        });
        Ok(Watch { most, stop, before: memory.total - memory.free, thread })
    }

    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        // A thread that failed has seen what it has seen.
        let _ = self.thread.join();
        self.most.load(Ordering::Relaxed).saturating_sub(self.before)
    }
}
