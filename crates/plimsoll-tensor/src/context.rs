//! The context of a thread: open tapes, current device, layer scope, user's line, generator, saving mode.
//!
//! Each thread has its own, so a new thread starts with no tape. Everything here is restored by guards, so an
//! early return or a panic cannot leave a scope open.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use plimsoll_memory::{Label, Owner, Site};

use crate::device::Device;
use crate::execute::Part;
use crate::journal::Journal;
use crate::program::Tracer;
use crate::random::Generator;
use crate::step::StepState;
use crate::tape::TapeCore;
use crate::tensor::Tensor;

/// How much a tape keeps for backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Saving {
    /// A value that a chain of at most four cheap ops rebuilds from values kept anyway is not kept.
    #[default]
    Lean,
    /// Such values are kept, and backward does not rebuild them.
    Fast,
}

/// The user's line that the bytes of an op are labelled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub file: &'static str,
    pub line: u32,
}

/// A path of layer names, and the number by which labels are found again quickly.
struct Scope {
    path: String,
    number: u64,
}

struct Context {
    line: Cell<Option<Line>>,
    /// Where the op was called that runs now, if its call was recorded before.
    recorded_site: Cell<Option<Site>>,
    owner: Cell<Option<Owner>>,
    saving: Cell<Saving>,
    replaying: Cell<bool>,
    walking_back: Cell<bool>,
    generator: Cell<Generator>,
    devices: RefCell<Vec<Device>>,
    tapes: RefCell<Vec<Arc<TapeCore>>>,
    n_tapes: Cell<usize>,
    sealed: RefCell<Vec<Arc<TapeCore>>>,
    /// What variables read as, sorted by their numbers; boxed, because a model has many.
    pins: RefCell<Vec<(usize, Box<Part>)>>,
    scope: RefCell<Scope>,
    sites: RefCell<SiteCache>,
    placements: RefCell<Option<Vec<Placement>>>,
    step: RefCell<Option<StepState>>,
    /// Whether a function is being recorded; asked by every op, so it is no look into the tracer.
    tracing: Cell<bool>,
    tracer: RefCell<Option<Tracer>>,
}

thread_local! {
    static CONTEXT: Context = const { Context {
        line: Cell::new(None),
        recorded_site: Cell::new(None),
        owner: Cell::new(None),
        saving: Cell::new(Saving::Lean),
        replaying: Cell::new(false),
        walking_back: Cell::new(false),
        generator: Cell::new(Generator::new(0)),
        devices: RefCell::new(Vec::new()),
        tapes: RefCell::new(Vec::new()),
        n_tapes: Cell::new(0),
        sealed: RefCell::new(Vec::new()),
        pins: RefCell::new(Vec::new()),
        scope: RefCell::new(Scope { path: String::new(), number: 0 }),
        sites: RefCell::new(SiteCache::new()),
        placements: RefCell::new(None),
        step: RefCell::new(None),
        tracing: Cell::new(false),
        tracer: RefCell::new(None),
    } };
}

/// Remembers the line of the outermost public call while it runs.
pub struct LineGuard {
    outermost: bool,
}

/// Called first in public functions of this crate and of those built on it: the caller's line labels all bytes until
/// the guard is dropped, unless an outer call has set one.
#[track_caller]
#[inline]
#[must_use = "the line holds until the guard is dropped"]
pub fn at_callers_line() -> LineGuard {
    let location = Location::caller();
    CONTEXT.with(|context| {
        let outermost = context.line.get().is_none();
        if outermost {
            context.line.set(Some(Line { file: location.file(), line: location.line() }));
        }
        LineGuard { outermost }
    })
}

impl Drop for LineGuard {
    #[inline]
    fn drop(&mut self) {
        if self.outermost {
            CONTEXT.with(|context| context.line.set(None));
        }
    }
}

/// Runs `f` with all bytes labelled as made at `file:line`: for bindings from other languages.
pub fn at_line<R>(file: &'static str, line: u32, f: impl FnOnce() -> R) -> R {
    let before = CONTEXT.with(|context| context.line.replace(Some(Line { file, line })));
    let _restore = on_drop(move || CONTEXT.with(|context| context.line.set(before)));
    f()
}

/// Runs a function of the user's, whose own lines count.
pub(crate) fn at_own_lines<R>(f: impl FnOnce() -> R) -> R {
    let before = CONTEXT.with(|context| context.line.take());
    let _restore = on_drop(move || CONTEXT.with(|context| context.line.set(before)));
    f()
}

/// The label of a block that `op` takes for `owner` now.
pub(crate) fn label(owner: Owner, op: &'static str) -> Label {
    CONTEXT.with(|context| {
        let line = context.line.get().unwrap_or(Line { file: "", line: 0 });
        let scope = context.scope.borrow();
        Label { owner, site: context.sites.borrow_mut().site(line, &scope, op) }
    })
}

/// The line of the outermost public call, for errors and reports.
pub(crate) fn site(op: &'static str) -> Site {
    let recorded = CONTEXT.with(|context| context.recorded_site.get());
    recorded.unwrap_or_else(|| label(Owner::Temporary, op).site)
}

/// The line of the outermost public call, for an error that may arise while the thread ends.
pub(crate) fn site_of_error() -> Site {
    CONTEXT.try_with(|_| ()).map_or(Site::UNKNOWN, |()| site(""))
}

/// Runs `f` on behalf of a call that was recorded there.
pub(crate) fn at_recorded_site<R>(site: Site, f: impl FnOnce() -> R) -> R {
    let before = CONTEXT.with(|context| context.recorded_site.replace(Some(site)));
    let _restore = on_drop(move || CONTEXT.with(|context| context.recorded_site.set(before)));
    f()
}

/// Who owns the outputs of ops now: `temporary`, unless [`with_owner`] says otherwise.
pub(crate) fn output_owner() -> Owner {
    CONTEXT.with(|context| context.owner.get()).unwrap_or(Owner::Temporary)
}

/// Runs `f` with the blocks of all new tensors belonging to `owner`; parameters and optimizer state are made so,
/// in their own region of the pool.
pub fn with_owner<R>(owner: Owner, f: impl FnOnce() -> R) -> R {
    let before = CONTEXT.with(|context| context.owner.replace(Some(owner)));
    let _restore = on_drop(move || CONTEXT.with(|context| context.owner.set(before)));
    f()
}

/// Runs `f` inside the layer scope `name`; scopes nest to a path such as `encoder.0.attention`.
pub fn scope<R>(name: &str, f: impl FnOnce() -> R) -> R {
    let before = CONTEXT.with(|context| {
        let mut scope = context.scope.borrow_mut();
        let before = (scope.path.len(), scope.number);
        if !scope.path.is_empty() {
            scope.path.push('.');
        }
        scope.path.push_str(name);
        scope.number = fnv(&scope.path);
        before
    });
    let _restore = on_drop(move || {
        CONTEXT.with(|context| {
            let mut scope = context.scope.borrow_mut();
            scope.path.truncate(before.0);
            scope.number = before.1;
        });
    });
    f()
}

/// The path of layer names that is open on this thread, such as `encoder.0.attention`; empty outside.
pub fn current_scope() -> String {
    CONTEXT.with(|context| context.scope.borrow().path.clone())
}

/// The same as a name that lasts, for an op that runs now.
pub(crate) fn scope_name(op: &'static str) -> &'static str {
    let is_outside = CONTEXT.with(|context| context.scope.borrow().path.is_empty());
    if is_outside { "" } else { site(op).scope() }
}

/// Runs `f` with `path` in place of the layer scope that is open: for what runs later on behalf of a layer.
pub(crate) fn in_scope<R>(path: &str, f: impl FnOnce() -> R) -> R {
    let scope = Scope { path: path.to_owned(), number: if path.is_empty() { 0 } else { fnv(path) } };
    let before = CONTEXT.with(|context| context.scope.replace(scope));
    let _restore = on_drop(move || CONTEXT.with(|context| drop(context.scope.replace(before))));
    f()
}

/// Runs `f` with tapes keeping as much as `saving` says.
pub fn with_saving<R>(saving: Saving, f: impl FnOnce() -> R) -> R {
    let before = CONTEXT.with(|context| context.saving.replace(saving));
    let _restore = on_drop(move || CONTEXT.with(|context| context.saving.set(before)));
    f()
}

pub(crate) fn saving() -> Saving {
    CONTEXT.with(|context| context.saving.get())
}

/// The device of ops that have no inputs. While a function is recorded, its device means the ghost that stands for it.
pub(crate) fn device() -> Device {
    let device = CONTEXT.with(|context| context.devices.borrow().last().cloned()).unwrap_or_else(Device::cpu);
    let ghost = with_tracer(|tracer| (*tracer.device() == device).then(|| tracer.ghost().clone()));
    ghost.flatten().unwrap_or(device)
}

/// The device that values of the host are brought to: the real one, also while a function is recorded.
pub(crate) fn host_data_device() -> Device {
    let device = device();
    let real = with_tracer(|tracer| (*tracer.ghost() == device).then(|| tracer.device().clone()));
    real.flatten().unwrap_or(device)
}

pub(crate) fn push_device(device: Device) {
    CONTEXT.with(|context| context.devices.borrow_mut().push(device));
}

pub(crate) fn pop_device() {
    CONTEXT.with(|context| context.devices.borrow_mut().pop());
}

pub(crate) fn generator() -> Generator {
    CONTEXT.with(|context| context.generator.get())
}

pub(crate) fn set_generator(generator: Generator) {
    CONTEXT.with(|context| context.generator.set(generator));
}

/// Whether any tape is recording on this thread.
#[inline]
pub fn is_recording() -> bool {
    CONTEXT.with(|context| context.n_tapes.get() > 0)
}

/// Calls `f` with the tapes that record on this thread, outermost first.
pub(crate) fn with_tapes<R>(f: impl FnOnce(&[Arc<TapeCore>]) -> R) -> R {
    CONTEXT.with(|context| f(&context.tapes.borrow()))
}

/// Runs `f` with `change` applied to the list of recording tapes, which is restored afterwards.
pub(crate) fn with_changed_tapes<R>(
    change: impl FnOnce(&mut Vec<Arc<TapeCore>>),
    f: impl FnOnce() -> R,
) -> R {
    let before = CONTEXT.with(|context| {
        let mut tapes = context.tapes.borrow_mut();
        let before = tapes.clone();
        change(&mut tapes);
        context.n_tapes.set(tapes.len());
        before
    });
    let _restore = on_drop(move || {
        CONTEXT.with(|context| {
            context.n_tapes.set(before.len());
            context.tapes.replace(before);
        });
    });
    f()
}

/// Runs `f` with only `scout` recording; the tapes that recorded until now are sealed: a tensor that they know
/// must not be used inside, because its gradient would be lost.
pub(crate) fn sealed<R>(scout: Arc<TapeCore>, f: impl FnOnce() -> R) -> R {
    let before = CONTEXT.with(|context| {
        let mut sealed = context.sealed.borrow_mut();
        let before = sealed.clone();
        sealed.extend(context.tapes.borrow().iter().cloned());
        before
    });
    let _restore = on_drop(move || CONTEXT.with(|context| drop(context.sealed.replace(before))));
    with_changed_tapes(
        |tapes| {
            tapes.clear();
            tapes.push(scout);
        },
        f,
    )
}

/// Whether a sealed tape knows a tensor.
pub(crate) fn is_sealed(tensor: &Tensor) -> bool {
    CONTEXT.with(|context| context.sealed.borrow().iter().any(|tape| tape.knows(tensor)))
}

/// Runs `f` with variables reading as `values`, cell by cell: a replay sees them as they were.
pub(crate) fn with_pins<R>(mut pins: Vec<(usize, Box<Part>)>, f: impl FnOnce() -> R) -> R {
    pins.sort_unstable_by_key(|(cell, _)| *cell);
    let before = CONTEXT.with(|context| context.pins.replace(pins));
    let _restore = on_drop(move || CONTEXT.with(|context| drop(context.pins.replace(before))));
    f()
}

/// The value that a variable is pinned to, if it is.
pub(crate) fn pinned(cell: usize) -> Option<Part> {
    CONTEXT.with(|context| {
        let pins = context.pins.borrow();
        let at = pins.binary_search_by_key(&cell, |(pinned, _)| *pinned).ok()?;
        Some((*pins[at].1).clone())
    })
}

/// Runs `f` as a replay: no tape records it, and it leaves nothing in the step that is open.
pub(crate) fn replay<R>(f: impl FnOnce() -> R) -> R {
    without_effects(|| with_changed_tapes(Vec::clear, f))
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
pub(crate) fn walking_back<R>(f: impl FnOnce() -> R) -> R {
    let before = CONTEXT.with(|context| context.walking_back.replace(true));
    let _restore = on_drop(move || CONTEXT.with(|context| context.walking_back.set(before)));
    f()
}

/// Whether the backward of an op runs now.
pub(crate) fn is_walking_back() -> bool {
    CONTEXT.with(|context| context.walking_back.get())
}

/// Whether what runs now is part of a backward that no tape records and has not run before. Nobody asks for its bits a second
/// time, so it is the one place where sums may be made in any order.
pub(crate) fn runs_once() -> bool {
    CONTEXT
        .with(|context| context.walking_back.get() && !context.replaying.get() && context.n_tapes.get() == 0)
}

/// Calls `f` with the state of the step that is open on this thread, if there is one; a replay sees none.
pub(crate) fn with_step<R>(f: impl FnOnce(&mut StepState) -> R) -> Option<R> {
    CONTEXT.with(|context| match context.replaying.get() {
        true => None,
        false => context.step.borrow_mut().as_mut().map(f),
    })
}

/// Calls `f` with the journal that ops are recorded in, if there is one: that of the open step, or of the outermost tape. A
/// replay sees none.
#[inline]
pub(crate) fn with_journal<R>(f: impl FnOnce(&Arc<Journal>) -> R) -> Option<R> {
    journal().map(|journal| f(&journal))
}

/// The journal that ops are recorded in, if there is one.
pub(crate) fn journal() -> Option<Arc<Journal>> {
    CONTEXT.with(|context| {
        if context.replaying.get() {
            return None;
        }
        match &*context.step.borrow() {
            Some(step) => step.journal.clone(),
            None if context.n_tapes.get() > 0 => {
                context.tapes.borrow().first().and_then(|tape| tape.journal())
            }
            None => None,
        }
    })
}

/// Opens or closes the step of this thread; returns what was there.
pub(crate) fn replace_step(step: Option<StepState>) -> Option<StepState> {
    CONTEXT.with(|context| context.step.replace(step))
}

/// Runs `f` while `tracer` notes what it does; returns the tracer, too. A function that is recorded inside another has a
/// program of its own: the outer one goes on where it was.
pub(crate) fn with_tracing<R>(tracer: Tracer, f: impl FnOnce() -> R) -> (R, Tracer) {
    let replace = |tracer: Option<Tracer>| {
        CONTEXT.with(|context| {
            context.tracing.set(tracer.is_some());
            context.tracer.replace(tracer)
        })
    };
    let before = replace(Some(tracer));
    let mut restored = None;
    let result = {
        let _restore = on_drop(|| restored = replace(before));
        f()
    };
    let tracer = restored.unwrap_or_else(|| unreachable!("nobody else takes the tracer"));
    (result, tracer)
}

/// Runs `f` as if no function were being recorded, no step open and no tape recording.
pub(crate) fn without_tracing<R>(f: impl FnOnce() -> R) -> R {
    let before = CONTEXT.with(|context| context.tracing.replace(false));
    let step = replace_step(None);
    let _restore = on_drop(move || {
        CONTEXT.with(|context| context.tracing.set(before));
        replace_step(step);
    });
    with_changed_tapes(Vec::clear, f)
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
    CONTEXT.with(|context| context.tracer.borrow_mut().as_mut().map(f))
}

/// One line of the placement log: which op ran where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The op.
    pub op: &'static str,
    /// The name of the device.
    pub device: String,
    /// The user's line and layer.
    pub site: Site,
}

/// Runs `f` and lists which op ran on which device.
pub fn log_placements<R>(f: impl FnOnce() -> R) -> (R, Vec<Placement>) {
    let before = CONTEXT.with(|context| context.placements.replace(Some(Vec::new())));
    let result = f();
    let log = CONTEXT.with(|context| context.placements.replace(before));
    (result, log.unwrap_or_default())
}

pub(crate) fn log_placement(op: &'static str, device: &Device) {
    CONTEXT.with(|context| {
        if context.placements.borrow().is_none() {
            return;
        }
        let placement = Placement { op, device: device.name().to_owned(), site: site(op) };
        if let Some(log) = context.placements.borrow_mut().as_mut() {
            log.push(placement);
        }
    });
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

/// Finds the interned site of (line, scope, op) without hashing strings: a small direct-mapped table keyed by
/// addresses, in front of the interner.
struct SiteCache([Option<(SiteKey, Site)>; SiteCache::LEN]);

#[derive(Clone, Copy, PartialEq)]
struct SiteKey {
    file: usize,
    line: u32,
    scope: u64,
    op: usize,
}

impl SiteCache {
    const LEN: usize = 256;

    const fn new() -> SiteCache {
        SiteCache([None; Self::LEN])
    }

    fn site(&mut self, line: Line, scope: &Scope, op: &'static str) -> Site {
        let key = SiteKey {
            file: line.file.as_ptr() as usize,
            line: line.line,
            scope: scope.number,
            op: op.as_ptr() as usize ^ op.len().rotate_right(8),
        };
        let mixed = (key.file ^ key.op.rotate_left(20)) as u64 ^ key.scope ^ u64::from(key.line) << 7;
        let slot = (mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 55) as usize % Self::LEN;
        match self.0[slot] {
            Some((known, site)) if known == key => site,
            _ => {
                let site = Site::intern(line.file, line.line, &scope.path, op);
                self.0[slot] = Some((key, site));
                site
            }
        }
    }
}

/// A number that stands for a scope's path.
fn fnv(path: &str) -> u64 {
    path.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}
