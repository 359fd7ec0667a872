//! The context of a thread: open tapes, current device, layer scope, user's line, generator, saving mode.
//!
//! Each thread has its own, so a new thread starts with no tape. What people can begin and end (device, layer, line, owner,
//! saving mode, tapes, placement log, step) is a list of [scopes](crate::scopes), each of which ends by itself, in whatever
//! order guards are dropped. What only this crate sets is set for the length of a closure. Either way an early return or a
//! panic cannot leave anything open.

mod labels;
mod layers;
mod placements;
mod tapes;

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;

use plimsoll_memory::{Name, Owner, Site};

use crate::device::Device;
use crate::execute::StorageView;
use crate::program::Tracer;
use crate::random::Generator;
use crate::remat::StepLog;
use crate::scopes::{Current, OpenScope, Scopes};
use crate::step::StepState;

pub use labels::{LineGuard, at_callers_line, at_line, callers_place, enter_line, with_own_places};
pub(crate) use labels::{at_own_lines, at_recorded_site, label, site, site_of_error};
pub(crate) use layers::{LayerPath, current_layer, in_layer, in_layer_of, layer_site};
pub use layers::{current_scope, enter_layer, enter_scope, scope};
pub(crate) use placements::log_placement;
pub use placements::{Placement, PlacementLog, log_placements};
pub use tapes::is_recording;
pub(crate) use tapes::{is_sealed, sealed, start_tape, stop_tape, with_tapes, without_tapes};

use labels::{SiteCache, SourceLine};
use layers::Layers;
use tapes::Tapes;

/// How much a tape saves for backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Saving {
    /// A value that a chain of at most four cheap ops rebuilds from values saved anyway is not saved.
    #[default]
    Lean,
    /// Such values are saved, and backward does not rebuild them.
    Fast,
}

struct Context {
    line: Current<Option<SourceLine>>,
    /// The file that a line was entered of last.
    last_file: Cell<Name>,
    /// Where the op was called that runs now, if its call was recorded before.
    recorded_site: Cell<Option<Site>>,
    owner: Current<Owner>,
    saving: Current<Saving>,
    replaying: Cell<bool>,
    in_backward: Cell<bool>,
    generator: Cell<Generator>,
    devices: RefCell<Scopes<Device>>,
    tapes: Tapes,
    /// What variables read as, sorted by their numbers; boxed, because a model has many.
    pins: RefCell<Vec<(usize, Box<StorageView>)>>,
    layers: RefCell<Layers>,
    sites: RefCell<SiteCache>,
    placements: RefCell<Scopes<Vec<Placement>>>,
    /// The open step; none where it is as if none were open.
    steps: RefCell<Scopes<Option<StepState>>>,
    /// Whether a function is being recorded; asked by every op, so it is no look into the tracer.
    tracing: Cell<bool>,
    /// What notes the functions and graphs that are being recorded; the innermost one is told.
    tracers: RefCell<Scopes<Tracer>>,
}

thread_local! {
    static CONTEXT: Context = const { Context {
        line: Current::new(None),
        last_file: Cell::new(Name::constant("")),
        recorded_site: Cell::new(None),
        owner: Current::new(Owner::Temporary),
        saving: Current::new(Saving::Lean),
        replaying: Cell::new(false),
        in_backward: Cell::new(false),
        generator: Cell::new(Generator::new(0)),
        devices: RefCell::new(Scopes::new()),
        tapes: Tapes::new(),
        pins: RefCell::new(Vec::new()),
        layers: RefCell::new(Layers::new()),
        sites: RefCell::new(SiteCache::new()),
        placements: RefCell::new(Scopes::new()),
        steps: RefCell::new(Scopes::new()),
        tracing: Cell::new(false),
        tracers: RefCell::new(Scopes::new()),
    } };
}

/// Who owns the outputs of ops now: `temporary`, unless [`with_owner`] says otherwise.
pub(crate) fn output_owner() -> Owner {
    CONTEXT.with(|context| context.owner.get())
}

/// Lets the blocks of all new tensors belong to `owner` until the scope is dropped; parameters and optimizer state are made
/// so, in their own region of the pool.
pub fn enter_owner(owner: Owner) -> OpenScope {
    let number = CONTEXT.with(|context| context.owner.begin(owner));
    OpenScope::new(number, |number| _ = CONTEXT.try_with(|context| context.owner.end(number)))
}

/// Runs `f` with the blocks of all new tensors belonging to `owner`: see [`enter_owner`].
pub fn with_owner<R>(owner: Owner, f: impl FnOnce() -> R) -> R {
    let _owner = enter_owner(owner);
    f()
}

/// Lets tapes save as much as `saving` says until the scope is dropped.
pub fn enter_saving(saving: Saving) -> OpenScope {
    let number = CONTEXT.with(|context| context.saving.begin(saving));
    OpenScope::new(number, |number| _ = CONTEXT.try_with(|context| context.saving.end(number)))
}

/// Runs `f` with tapes saving as much as `saving` says.
pub fn with_saving<R>(saving: Saving, f: impl FnOnce() -> R) -> R {
    let _saving = enter_saving(saving);
    f()
}

pub(crate) fn saving() -> Saving {
    CONTEXT.with(|context| context.saving.get())
}

/// The device of ops that have no inputs. While a function is recorded, it is the ghost that stands for it.
pub(crate) fn device() -> Device {
    recording_device(&entered_device())
}

/// The device of the innermost scope, else the CPU.
fn entered_device() -> Device {
    CONTEXT.with(|context| context.devices.borrow().innermost().cloned()).unwrap_or_else(Device::cpu)
}

/// The device that the user means by the current one: the real one, also while a function is recorded. Values of the host
/// are brought there.
pub(crate) fn current_device() -> Device {
    real_device(&entered_device())
}

/// The ghost that stands for a device while a function is recorded; else the device itself.
pub(crate) fn recording_device(device: &Device) -> Device {
    with_tracer(|tracer| tracer.ghost_of(device)).unwrap_or_else(|| device.clone())
}

/// The device that a ghost stands for while a function is recorded; else the device itself.
pub(crate) fn real_device(device: &Device) -> Device {
    with_tracer(|tracer| tracer.real_of(device)).flatten().unwrap_or_else(|| device.clone())
}

/// Makes a device the current one until the scope is dropped.
pub(crate) fn enter_device(device: Device) -> OpenScope {
    let number = CONTEXT.with(|context| context.devices.borrow_mut().begin(device));
    OpenScope::new(number, |number| {
        // A device whose last handle this is ends when the list is not borrowed any more.
        drop(CONTEXT.try_with(|context| context.devices.borrow_mut().end(number)));
    })
}

pub(crate) fn generator() -> Generator {
    CONTEXT.with(|context| context.generator.get())
}

pub(crate) fn set_generator(generator: Generator) {
    _ = CONTEXT.try_with(|context| context.generator.set(generator));
}

/// Runs `f` with variables reading as `values`, cell by cell: a replay sees them as they were.
pub(crate) fn with_pins<R>(mut pins: Vec<(usize, Box<StorageView>)>, f: impl FnOnce() -> R) -> R {
    pins.sort_unstable_by_key(|(cell, _)| *cell);
    let before = CONTEXT.with(|context| context.pins.replace(pins));
    let _restore = on_drop(move || CONTEXT.with(|context| drop(context.pins.replace(before))));
    f()
}

/// The value that a variable is pinned to, if it is.
pub(crate) fn pinned(cell: usize) -> Option<StorageView> {
    CONTEXT.with(|context| {
        let pins = context.pins.borrow();
        let at = pins.binary_search_by_key(&cell, |(pinned, _)| *pinned).ok()?;
        Some((*pins[at].1).clone())
    })
}

/// Runs `f` as a replay: no tape records it, and it leaves nothing in the step that is open.
pub(crate) fn replay<R>(f: impl FnOnce() -> R) -> R {
    without_effects(|| without_tapes(f))
}

/// Runs `f`, which has run before, for its result alone: it leaves no records in the step that is open, and what it
/// assigns to variables, such as running statistics, is dropped.
pub(crate) fn without_effects<R>(f: impl FnOnce() -> R) -> R {
    let before = CONTEXT.with(|context| context.replaying.replace(true));
    let _restore = on_drop(move || CONTEXT.with(|context| context.replaying.set(before)));
    f()
}

/// Whether what runs now has run before.
pub(crate) fn is_replaying() -> bool {
    CONTEXT.with(|context| context.replaying.get())
}

/// Runs `f`, the backward of an op.
pub(crate) fn in_backward<R>(f: impl FnOnce() -> R) -> R {
    let before = CONTEXT.with(|context| context.in_backward.replace(true));
    let _restore = on_drop(move || CONTEXT.with(|context| context.in_backward.set(before)));
    f()
}

/// Whether the backward of an op runs now.
pub(crate) fn is_in_backward() -> bool {
    CONTEXT.with(|context| context.in_backward.get())
}

/// Whether what runs now is part of a backward that no tape records and has not run before. Nobody asks for its bits a second
/// time, so it is the one place where sums may be made in any order.
pub(crate) fn runs_once() -> bool {
    CONTEXT.with(|context| {
        context.in_backward.get() && !context.replaying.get() && context.tapes.n_recording() == 0
    })
}

/// Calls `f` with the state of the step that is open on this thread, if there is one; a replay sees none.
pub(crate) fn with_step<R>(f: impl FnOnce(&mut StepState) -> R) -> Option<R> {
    CONTEXT.with(|context| match context.replaying.get() {
        true => None,
        false => context.steps.borrow_mut().innermost_mut().and_then(Option::as_mut).map(f),
    })
}

/// The log that ops are recorded in, if there is one: that of the open step, or of the outermost tape. A replay sees none.
pub(crate) fn step_log() -> Option<Arc<StepLog>> {
    CONTEXT.with(|context| {
        if context.replaying.get() {
            return None;
        }
        match context.steps.borrow().innermost() {
            Some(Some(step)) => step.step_log.clone(),
            _ if context.tapes.n_recording() > 0 => context.tapes.outermost()?.step_log(),
            _ => None,
        }
    })
}

/// Opens a step on this thread; returns its number.
pub(crate) fn begin_step(state: StepState) -> u64 {
    CONTEXT.with(|context| context.steps.borrow_mut().begin(Some(state)))
}

/// Closes the step of that number; returns what it was, if it was open.
pub(crate) fn end_step(number: u64) -> Option<StepState> {
    CONTEXT.try_with(|context| context.steps.borrow_mut().end(number)).ok().flatten().flatten()
}

/// Runs `f` while `tracer` notes what it does; returns the tracer, too. A function that is recorded inside another has a
/// program of its own: the outer one goes on where it was.
pub(crate) fn with_tracing<R>(tracer: Tracer, f: impl FnOnce() -> R) -> (R, Tracer) {
    let before = is_tracing();
    let number = begin_tracing(tracer);
    let mut ended = None;
    let result = {
        let _restore = on_drop(|| {
            ended = end_tracing(number);
            CONTEXT.with(|context| context.tracing.set(before));
        });
        f()
    };
    let tracer = ended.unwrap_or_else(|| unreachable!("nobody else takes the tracer"));
    (result, tracer)
}

/// Lets `tracer` note what the thread does; returns the number of that scope.
pub(crate) fn begin_tracing(tracer: Tracer) -> u64 {
    CONTEXT.with(|context| {
        context.tracing.set(true);
        context.tracers.borrow_mut().begin(tracer)
    })
}

/// Ends the scope of that number; returns its tracer, if it was open. What is around it is told again.
pub(crate) fn end_tracing(number: u64) -> Option<Tracer> {
    let ended = CONTEXT.try_with(|context| {
        let mut tracers = context.tracers.borrow_mut();
        let ended = tracers.end(number);
        context.tracing.set(tracers.number() > 0);
        ended
    });
    ended.ok().flatten()
}

/// Calls `f` with the first open tracer of this thread for which `is_meant` holds, and whether it is the innermost one.
pub(crate) fn with_open_tracer<R>(
    is_meant: impl Fn(&Tracer) -> bool,
    f: impl FnOnce(&mut Tracer, bool) -> R,
) -> Option<R> {
    CONTEXT.with(|context| {
        let mut tracers = context.tracers.borrow_mut();
        let n = tracers.iter().count();
        let at = tracers.iter().position(is_meant)?;
        tracers.iter_mut().nth(at).map(|tracer| f(tracer, at + 1 == n))
    })
}

/// Runs `f` as if no function were being recorded, no step open and no tape recording.
pub(crate) fn without_tracing<R>(f: impl FnOnce() -> R) -> R {
    let before = CONTEXT.with(|context| context.tracing.replace(false));
    let no_step = CONTEXT.with(|context| context.steps.borrow_mut().begin(None));
    let _restore = on_drop(move || {
        CONTEXT.with(|context| context.tracing.set(before));
        end_step(no_step);
    });
    without_tapes(f)
}

/// Whether a function is being recorded on this thread.
#[inline]
pub(crate) fn is_tracing() -> bool {
    CONTEXT.with(|context| context.tracing.get())
}

/// Calls `f` with what notes the function that is being recorded, if one is.
#[inline]
pub(crate) fn with_tracer<R>(f: impl FnOnce(&mut Tracer) -> R) -> Option<R> {
    if !is_tracing() {
        return None;
    }
    CONTEXT.with(|context| context.tracers.borrow_mut().innermost_mut().map(f))
}

/// A guard that calls `f` when it is dropped.
pub(crate) fn on_drop(f: impl FnOnce()) -> impl Drop {
    struct OnDrop<F: FnOnce()>(Option<F>, PhantomData<*const ()>);
    impl<F: FnOnce()> Drop for OnDrop<F> {
        fn drop(&mut self) {
            if let Some(f) = self.0.take() {
                f();
            }
        }
    }
    OnDrop(Some(f), PhantomData)
}
