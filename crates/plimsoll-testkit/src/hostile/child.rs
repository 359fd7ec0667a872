//! The child process of a sweep: it makes calls and says how each went.

use std::io::Write;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use plimsoll_cuda::Profile;
use plimsoll_memory::Pool;
use plimsoll_tensor::ops::registry::{OpInfo, composed, registry};
use plimsoll_tensor::{Bytes, Device, Generator, GradientTape, Result, Step, Tensor, Unconnected};

use super::draw::Hostile;
use super::methods::{HostileCall, methods};
use super::updates::updates;

/// The variable of the environment that makes a process a child, and tells it what to do.
pub const CHILD: &str = "PLIMSOLL_SWEEP_CHILD";

/// The limit of the device.
const LIMIT: Bytes = Bytes::mib(64);

/// Outputs of up to so many elements are read.
const MOST_READ: usize = 1 << 16;

/// A call that takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The status of a child that was ended because a call took too long.
pub(super) const HANG: i32 = 3;

/// Which calls a child makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    /// What arguments are drawn from, with a call's number.
    pub seed: u64,
    /// The first call.
    pub from: u64,
    /// The call before which it ends.
    pub to: u64,
    /// The element visits, by the ops' formulas, up to which a call is made on the device.
    pub most_visits: u64,
}

impl std::fmt::Display for Child {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} {}", self.seed, self.from, self.to, self.most_visits)
    }
}

impl FromStr for Child {
    type Err = String;

    fn from_str(text: &str) -> Result<Child, String> {
        let numbers: Vec<u64> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [seed, from, to, most_visits] => Ok(Child { seed, from, to, most_visits }),
            _ => Err(format!("`{text}` is no seed, first call, end and number of visits")),
        }
    }
}

/// What is called.
pub enum Target {
    /// An op or a function made of ops, by its samples.
    Op(&'static OpInfo),
    /// A public function.
    Call(HostileCall),
}

/// Where calls are made.
struct Devices {
    ghost: Device,
    ghost_gpu: Device,
    device: Device,
}

/// What the first panic of a call said, on whichever thread: one that a pipeline catches and passes on is one, too.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

/// The number of the call that is being made, for whoever watches over it.
static CURRENT: AtomicU64 = AtomicU64::new(0);

impl Child {
    /// Makes the calls. Before each, its number and name go to `out`; a panic is a line more. The last line tells how many calls
    /// were made on the device, and how many gave results.
    ///
    /// # Errors
    /// A device that cannot be made; an output that is closed.
    pub fn run(
        &self,
        targets: &[Target],
        mut out: impl Write,
    ) -> std::result::Result<(), Box<dyn std::error::Error>> {
        std::panic::set_hook(Box::new(|info: &PanicHookInfo<'_>| {
            panicked().get_or_insert_with(|| info.to_string().replace('\n', " "));
        }));
        std::thread::spawn(watch);
        let devices = Devices {
            ghost: Device::ghost_cpu(),
            ghost_gpu: Device::ghost_cuda(Profile::h200()),
            device: Device::over("cpu", Pool::fenced()?).limit(LIMIT)?,
        };
        let (mut n_real, mut n_results) = (0, 0);
        for number in self.from..self.to {
            let name = targets[(number % targets.len() as u64) as usize].name();
            writeln!(out, "call {number} {name}")?;
            out.flush()?;
            CURRENT.store(number, Ordering::Relaxed);
            let made = catch_unwind(AssertUnwindSafe(|| self.call(targets, number, &devices)));
            let (is_real, has_result) = made.unwrap_or_default();
            n_real += u64::from(is_real);
            n_results += u64::from(has_result);
            if let Some(panic) = panicked().take() {
                writeln!(out, "panic {number} {name}: {panic}")?;
            }
        }
        writeln!(out, "done {n_real} {n_results}")?;
        Ok(out.flush()?)
    }

    /// Makes one call: on a ghost, and on the device if it is cheap. Whether that was so, and whether there was a result.
    fn call(&self, targets: &[Target], number: u64, devices: &Devices) -> (bool, bool) {
        let target = &targets[(number % targets.len() as u64) as usize];
        let hostile = Hostile::new(self.seed, number);
        let on = |device: &Device| {
            let _there = device.enter();
            Generator::new(7).make_current();
            // What costs little is made outside a step, too, where nothing is staged and there is no log of the step.
            if !device.is_ghost() && number.is_multiple_of(2) {
                return (target.call(&mut hostile.clone()), 0);
            }
            let mut visits = 0u64;
            let made = Step::traced(device, || Ok(target.call(&mut hostile.clone())));
            let result = made.and_then(|(result, records)| {
                for record in records {
                    visits = visits.saturating_add(record.cost.flops).saturating_add(record.cost.bytes);
                }
                result
            });
            (result, visits)
        };
        if number.is_multiple_of(3) {
            drop(on(&devices.ghost_gpu));
        }
        let (foreseen, visits) = on(&devices.ghost);
        if visits > self.most_visits {
            return (false, foreseen.is_ok());
        }
        let (result, _) = on(&devices.device);
        if let Ok(outputs) = &result {
            outputs.iter().for_each(read);
        }
        (true, result.is_ok())
    }
}

/// Ends the process if a call takes too long.
fn watch() {
    let mut last = CURRENT.load(Ordering::Relaxed);
    loop {
        std::thread::sleep(TIMEOUT);
        let now = CURRENT.load(Ordering::Relaxed);
        if now == last {
            // The output is the calling thread's; the parent knows which call it was, and what the status means.
            std::process::exit(HANG);
        }
        last = now;
    }
}

/// What the last panic said.
fn panicked() -> MutexGuard<'static, Option<String>> {
    PANIC.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Everything of plimsoll-tensor that is called.
pub fn of_tensors() -> Vec<Target> {
    let ops = registry().into_iter().chain(composed()).map(Target::Op);
    ops.chain([methods(), updates()].concat().into_iter().map(Target::Call)).collect()
}

/// Layers, losses, metrics, optimizers and datasets.
#[cfg(feature = "whole")]
pub fn of_networks() -> Vec<Target> {
    let all = [super::networks::networks(), super::datasets::datasets()].concat();
    all.into_iter().map(Target::Call).collect()
}

impl Target {
    fn name(&self) -> &'static str {
        match self {
            Target::Op(op) => op.name,
            Target::Call((name, _)) => name,
        }
    }

    fn call(&self, hostile: &mut Hostile) -> Result<Vec<Tensor>> {
        match self {
            Target::Call((_, call)) => call(hostile),
            Target::Op(op) => {
                let samples = (op.samples)();
                let sample = &samples[hostile.below(samples.len())];
                let shapes = hostile.changed(&sample.inputs);
                let inputs = hostile.inputs(&sample.inputs, &shapes)?;
                // What is recorded as its composite takes as long as a sequence has steps: a cell under two tapes, and its
                // backward under one.
                let is_short = shapes.iter().flatten().all(|&dim| dim <= 4096);
                let is_composite = op.name.ends_with("_backward");
                if hostile.chance(60) || (is_composite && !is_short) {
                    return (sample.call)(&inputs);
                }
                with_gradients(&inputs, || (sample.call)(&inputs), is_short && hostile.chance(20))
            }
        }
    }
}

/// The results of a call, and the gradients of its inputs, by one tape or by the inner of two.
fn with_gradients(
    inputs: &[Tensor],
    call: impl Fn() -> Result<Vec<Tensor>>,
    is_nested: bool,
) -> Result<Vec<Tensor>> {
    let (outer, tape) = (GradientTape::new(), GradientTape::new());
    let sources: Vec<&Tensor> = inputs.iter().filter(|input| input.dtype().is_float()).collect();
    for source in &sources {
        tape.watch(source)?;
        if is_nested {
            outer.watch(source)?;
        }
    }
    let recorded = || {
        let mut outputs = tape.record(&call)?;
        let targets: Vec<&Tensor> = outputs.iter().filter(|output| output.dtype().is_float()).collect();
        let gradients = tape.gradients(&targets, None, &sources, Unconnected::None)?;
        outputs.extend(gradients.into_iter().flatten());
        Ok(outputs)
    };
    if is_nested { outer.record(recorded) } else { recorded() }
}

/// Reads what a call gave: its values if they are few, and a print of it, which lists a few values along every axis.
fn read(output: &Tensor) {
    if output.rank() <= 4 {
        drop(output.to_string());
    }
    if output.n_elems() <= MOST_READ {
        drop(output.to_f64_vec());
        drop(output.to_vec::<bool>());
    }
}
