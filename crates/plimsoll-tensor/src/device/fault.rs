//! Values that kernels refuse: whose error it is, and what it says.
//!
//! On the host a kernel returns its refusal. On a GPU the host has gone on by then, so each call that may refuse a value is
//! noted here before it is launched ([`may_refuse`]), with what an error needs to say (op, layer, shape), and its kernel
//! notes the fault itself in a cell that the device and the host see. A [`Log`] is one such cell with its calls. It belongs to
//! the thread that issues them and to the device, so nobody else is told:
//!
//! - Eager code is told by the thread's next wait for that device: a value that is read, a synchronization.
//! - A step, and the run of a program, waits and looks before it changes a variable, if a call in it may refuse at all. It
//!   returns the error and has changed nothing.
//! - A step that is committed only if its loss is finite ([`Step::commit_if_finite`](crate::Step::commit_if_finite)) does not
//!   wait: the device looks into the cell itself, and changes nothing if it holds a fault. The host is told by the
//!   [`PendingValue`](crate::PendingValue) that was asked for next.
//!
//! Both devices say the same, because both make the error here ([`Refusal::error`]), and because a cell tells the fault of
//! the first call at the lowest position, where the host would have stopped. Nothing is done for calls that refuse nothing:
//! where no log is open, looking is one look at an empty list.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_cuda::FaultCell;
use plimsoll_memory::Site;
use smallvec::SmallVec;

use crate::base::error::{Error, Result};
use crate::base::labels;
use crate::base::shape::Shape;
use crate::device::{Device, WeakDevice};

/// What a kernel may refuse: elements of a tensor of that shape, in row-major order.
#[derive(Clone, Copy, Debug)]
pub struct Refusal {
    /// The shape of the tensor whose elements may be refused.
    pub of: Shape,
    /// What the text says of the axis, if anything.
    pub axis: usize,
    /// What the text says of the bound that a value breaks.
    pub bound: usize,
    /// The text for a person.
    pub text: fn(&Refused<'_>) -> String,
}

/// A value that was refused, for the text of the error.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    /// The value.
    pub value: i64,
    /// Its place in the tensor.
    pub place: &'a [usize],
    /// As in [`Refusal`].
    pub axis: usize,
    /// As in [`Refusal`].
    pub bound: usize,
}

impl Refusal {
    /// The error that an op refuses element number `position` of the tensor.
    pub fn error(&self, op: &'static str, position: usize, value: i64) -> Error {
        let place = self.of.place(position);
        let refused = Refused { value, place: &place, axis: self.axis, bound: self.bound };
        Error::argument(op, (self.text)(&refused))
    }
}

/// Calls that may refuse values, and the cell in which their kernels note it.
#[derive(Debug)]
pub(crate) struct Log {
    device: WeakDevice,
    cell: FaultCell,
    calls: SmallVec<[(Site, &'static str, Refusal); 2]>,
    /// Whether somebody has waited for the calls and looked: a fault is told once.
    is_told: AtomicBool,
}

/// The logs of a thread about which nobody was told yet.
#[derive(Default)]
struct Logs {
    /// Those to which calls are added, one for each device.
    open: Vec<Log>,
    /// Those of eager code that a `PendingValue` will look into, if no wait comes first.
    shared: Vec<Arc<Log>>,
    /// Those of steps with a conditional commit that nobody has asked for yet.
    of_steps: Vec<Arc<Log>>,
}

/// The most steps with a conditional commit that a thread may have made without asking how one ended.
const MAX_UNASKED: usize = 64;

thread_local! {
    static LOGS: RefCell<Logs> = const { RefCell::new(Logs { open: vec![], shared: vec![], of_steps: vec![] }) };
}

fn with_logs<R>(f: impl FnOnce(&mut Logs) -> R) -> R {
    LOGS.with(|logs| f(&mut logs.borrow_mut()))
}

impl Log {
    /// The error of the first call that has refused a value, after the device has been waited for.
    fn look(&self) -> Result<()> {
        if self.is_told.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let Some(fault) = self.cell.take() else { return Ok(()) };
        let Some(&(site, op, refusal)) = self.calls.get(fault.call as usize - 1) else {
            unreachable!("kernels note calls that were added")
        };
        Err(refusal.error(op, fault.position as usize, fault.value).in_layer(site.scope(), site.described()))
    }
}

impl Logs {
    fn open(&self, device: &Device) -> Option<&Log> {
        self.open.iter().find(|log| log.device.is(device))
    }

    /// Takes the open log of a device.
    fn close(&mut self, device: &Device) -> Option<Log> {
        let at = self.open.iter().position(|log| log.device.is(device))?;
        Some(self.open.swap_remove(at))
    }

    /// Forgets what somebody has been told of, and devices that are gone.
    fn prune(&mut self) {
        let matters = |log: &Log| !log.is_told.load(Ordering::Relaxed) && log.device.is_there();
        self.open.retain(matters);
        self.shared.retain(|log| matters(log));
        self.of_steps.retain(|log| matters(log));
    }
}

/// Notes that the kernel which this thread launches next on a device may refuse values; returns what the kernel is to be
/// given: the address of a cell and the number of the call.
pub(crate) fn may_refuse(device: &Device, op: &'static str, refusal: Refusal) -> Result<(*mut u8, u64)> {
    let Some(gpu) = device.gpu() else {
        return Err(Error::device(op, format!("{device} is no GPU; kernels of the host return their error")));
    };
    let is_full = |log: &Log| log.calls.len() as u64 >= FaultCell::MAX_CALLS;
    if with_logs(|logs| logs.open(device).is_some_and(is_full)) {
        device.synchronize()?;
    }
    let site = labels::site(op);
    with_logs(|logs| {
        let at = match logs.open.iter().position(|log| log.device.is(device)) {
            Some(at) => at,
            None => {
                logs.prune();
                logs.open.push(Log {
                    device: device.downgrade(),
                    cell: gpu.fault_cell()?,
                    calls: SmallVec::new(),
                    is_told: AtomicBool::new(false),
                });
                logs.open.len() - 1
            }
        };
        let log = &mut logs.open[at];
        log.calls.push((site, op, refusal));
        Ok((log.cell.address(), log.calls.len() as u64))
    })
}

/// The address of the cell in which kernels of this thread on a device have noted faults that nobody was told of; null if
/// none may have. For kernels that decide by it.
pub(crate) fn cell(device: &Device) -> *mut u8 {
    with_logs(|logs| logs.open(device).map_or(std::ptr::null_mut(), |log| log.cell.address()))
}

/// How many calls of this thread on a device may have refused a value.
pub(crate) fn n_calls(device: &Device) -> usize {
    with_logs(|logs| logs.open(device).map_or(0, |log| log.calls.len()))
}

/// Looks into all logs that this thread has of a device, after it has been waited for.
pub(crate) fn look(device: &Device) -> Result<()> {
    let logs = for_later(device);
    if !logs.is_empty() {
        with_logs(|logs| logs.shared.retain(|log| !log.device.is(device)));
    }
    look_into(&logs)
}

/// Looks into logs whose calls have been waited for; the first fault is the error.
pub(crate) fn look_into(logs: &[Arc<Log>]) -> Result<()> {
    logs.iter().map(|log| log.look()).fold(Ok(()), Result::and)
}

/// Waits for a device and looks, if a call of this thread on it may have refused a value.
pub(crate) fn wait_and_look(device: &Device) -> Result<()> {
    match n_calls(device) {
        0 => Ok(()),
        _ => device.synchronize(),
    }
}

/// The end of a step or of a program's run on a device. If it failed, a value that was refused before is what went wrong
/// first. If its commit was conditional, the fault that it may have belongs to whoever asks for its loss.
pub(crate) fn end_step<T>(device: &Device, ended: Result<T>, is_conditional: bool) -> Result<T> {
    match ended {
        Err(error) => {
            let may_have_refused = n_calls(device) > 0;
            let waited = device.gpu().is_some_and(|gpu| may_have_refused && gpu.synchronize().is_ok());
            Err(if waited { look(device).err().unwrap_or(error) } else { error })
        }
        Ok(value) => {
            if is_conditional && hand_over(device) > MAX_UNASKED {
                device.synchronize()?;
            }
            Ok(value)
        }
    }
}

/// Closes the log of a step with a conditional commit; returns how many such wait for somebody who asks.
fn hand_over(device: &Device) -> usize {
    with_logs(|logs| {
        let Some(log) = logs.close(device) else { return 0 };
        logs.of_steps.push(Arc::new(log));
        logs.of_steps.len()
    })
}

/// Forgets the calls of a step that nobody will hear of.
pub(crate) fn forget(device: &Device) {
    with_logs(|logs| drop(logs.close(device)));
}

/// The logs that whoever reads a value of this moment later looks into: those of steps with a conditional commit become his
/// alone.
pub(crate) fn for_later(device: &Device) -> SmallVec<[Arc<Log>; 1]> {
    with_logs(|logs| {
        if logs.open.is_empty() && logs.shared.is_empty() && logs.of_steps.is_empty() {
            return SmallVec::new();
        }
        logs.prune();
        let open = logs.close(device).map(Arc::new);
        logs.shared.extend(open);
        let is_here = |log: &Arc<Log>| log.device.is(device);
        let all = logs.of_steps.iter().chain(&logs.shared);
        let here = all.filter(|log| is_here(log)).cloned().collect();
        logs.of_steps.retain(|log| !is_here(log));
        here
    })
}
