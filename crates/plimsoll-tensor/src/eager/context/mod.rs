//! The context of a thread: open tapes, current device, step, generator, saving mode; and its labels (line, layer, owner), which
//! are kept below in `labels` and can be reached here, too.
//!
//! Each thread has its own, so a new thread starts with no tape. What people can begin and end (device, layer, line, owner,
//! saving mode, tapes, placement log, step) is a list of [scopes](crate::base::scopes), each of which ends by itself, in whatever
//! order guards are dropped. What only this crate sets is set for the length of a closure. Either way an early return or a
//! panic cannot leave anything open.

mod devices;
mod placements;
mod tapes;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::base::scopes::{Current, OpenScope, Scopes};
use crate::device::Device;
use crate::eager::execute::StorageView;
use crate::eager::op_log::OpLog;
use crate::eager::random::Generator;
use crate::eager::recorder::Recorder;
use crate::eager::step_state::StepState;

pub(crate) use crate::base::labels::{
    LayerPath, at_callers_line, at_own_lines, at_recorded_site, current_layer, in_layer, in_layer_of, label,
    layer_site, site, with_owner,
};
pub(crate) use crate::base::scopes::on_drop;
pub(crate) use devices::{current_device, device, real_device, recording_device};
pub(crate) use placements::log_placement;
pub use placements::{Placement, PlacementLog, log_placements};
pub use tapes::{is_recording, without_tapes};
pub(crate) use tapes::{is_sealed, sealed, start_tape, stop_tape, with_tapes};

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
    saving: Current<Saving>,
    replaying: Cell<bool>,
    in_backward: Cell<bool>,
    generator: Cell<Generator>,
    devices: RefCell<Scopes<Device>>,
    tapes: Tapes,
    /// What variables read as, sorted by their numbers; boxed, because a model has many.
    pins: RefCell<Vec<(usize, Box<StorageView>)>>,
    placements: RefCell<Scopes<Vec<Placement>>>,
    /// The open step; none where it is as if none were open.
    steps: RefCell<Scopes<Option<StepState>>>,
    /// Whether a function is being recorded; asked by every op, so it is no look into the tracer.
    tracing: Cell<bool>,
    /// What notes the functions and graphs that are being recorded; the innermost one is told.
    tracers: RefCell<Scopes<Box<dyn Recorder>>>,
}

thread_local! {
    static CONTEXT: Context = const { Context {
        saving: Current::new(Saving::Lean),
        replaying: Cell::new(false),
        in_backward: Cell::new(false),
        generator: Cell::new(Generator::new(0)),
        devices: RefCell::new(Scopes::new()),
        tapes: Tapes::new(),
        pins: RefCell::new(Vec::new()),
        placements: RefCell::new(Scopes::new()),
        steps: RefCell::new(Scopes::new()),
        tracing: Cell::new(false),
        tracers: RefCell::new(Scopes::new()),
    } };
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
pub(crate) fn step_log() -> Option<Arc<dyn OpLog>> {
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
pub(crate) fn with_tracing<T: Recorder, R>(tracer: T, f: impl FnOnce() -> R) -> (R, T) {
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
pub(crate) fn begin_tracing(tracer: impl Recorder) -> u64 {
    CONTEXT.with(|context| {
        context.tracing.set(true);
        context.tracers.borrow_mut().begin(Box::new(tracer))
    })
}

/// Ends the scope of that number; returns its tracer, if it was open. What is around it is told again.
pub(crate) fn end_tracing<T: Recorder>(number: u64) -> Option<T> {
    let ended = CONTEXT.try_with(|context| {
        let mut tracers = context.tracers.borrow_mut();
        let ended = tracers.end(number);
        context.tracing.set(tracers.number() > 0);
        ended
    });
    let ended: Box<dyn Any> = ended.ok().flatten()?;
    ended.downcast().ok().map(|tracer| *tracer)
}

/// Calls `f` with the first open tracer of this thread for which `is_meant` holds, and whether it is the innermost one.
pub(crate) fn with_open_tracer<T: Recorder, R>(
    is_meant: impl Fn(&T) -> bool,
    f: impl FnOnce(&mut T, bool) -> R,
) -> Option<R> {
    let is_meant = |tracer: &dyn Recorder| {
        let tracer: &dyn Any = tracer;
        tracer.downcast_ref().is_some_and(&is_meant)
    };
    CONTEXT.with(|context| {
        let mut tracers = context.tracers.borrow_mut();
        let n = tracers.iter().count();
        let at = tracers.iter().position(|tracer| is_meant(&**tracer))?;
        let tracer: &mut dyn Any = &mut **tracers.iter_mut().nth(at)?;
        tracer.downcast_mut().map(|tracer| f(tracer, at + 1 == n))
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

/// Whether a function is being recorded on this thread, or a graph described: tensors have shapes then, and no values.
#[doc(alias("inside_function", "executing_eagerly", "is_compiling"))]
#[inline]
pub fn is_tracing() -> bool {
    CONTEXT.with(|context| context.tracing.get())
}

/// Calls `f` with what notes the function that is being recorded, if one is.
#[inline]
pub(crate) fn with_tracer<R>(f: impl FnOnce(&mut dyn Recorder) -> R) -> Option<R> {
    if !is_tracing() {
        return None;
    }
    CONTEXT.with(|context| context.tracers.borrow_mut().innermost_mut().map(|tracer| f(&mut **tracer)))
}
