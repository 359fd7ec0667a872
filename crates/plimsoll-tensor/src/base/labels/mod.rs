//! Labels: the user's line, the layer, the op and the owner that bytes are for.
//!
//! Every block and every error says where it came from, so this part of a thread's context is known to the lowest modules of
//! the crate: it is made of strings, lines and scopes, and knows neither tensors nor devices. What else a thread has open
//! (tapes, steps, the device) is in `context`.

mod layers;

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::panic::Location;

use plimsoll_memory::{Label, Name, Owner, Site};

use crate::base::scopes::{Current, OpenScope, on_drop};

pub(crate) use layers::{LayerPath, current_layer, in_layer, in_layer_of, layer_site};
pub use layers::{current_scope, enter_layer, enter_scope, scope};

use layers::Layers;

struct Labels {
    line: Current<Option<SourceLine>>,
    /// The file that a line was entered of last.
    last_file: Cell<Name>,
    /// Where the op was called that runs now, if its call was recorded before.
    recorded_site: Cell<Option<Site>>,
    owner: Current<Owner>,
    layers: RefCell<Layers>,
    sites: RefCell<SiteCache>,
}

thread_local! {
    static LABELS: Labels = const { Labels {
        line: Current::new(None),
        last_file: Cell::new(Name::constant("")),
        recorded_site: Cell::new(None),
        owner: Current::new(Owner::Temporary),
        layers: RefCell::new(Layers::new()),
        sites: RefCell::new(SiteCache::new()),
    } };
}

/// Who owns the outputs of ops now: `temporary`, unless [`with_owner`] says otherwise.
pub(crate) fn output_owner() -> Owner {
    LABELS.with(|labels| labels.owner.get())
}

/// Lets the blocks of all new tensors belong to `owner` until the scope is dropped; parameters and optimizer state are made
/// so, in their own region of the pool.
pub fn enter_owner(owner: Owner) -> OpenScope {
    let number = LABELS.with(|labels| labels.owner.begin(owner));
    OpenScope::new(number, |number| _ = LABELS.try_with(|labels| labels.owner.end(number)))
}

/// Runs `f` with the blocks of all new tensors belonging to `owner`: see [`enter_owner`].
pub fn with_owner<R>(owner: Owner, f: impl FnOnce() -> R) -> R {
    let _owner = enter_owner(owner);
    f()
}

/// The user's line that the bytes of an op are labelled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SourceLine {
    file: &'static str,
    line: u32,
    /// Whether somebody who knows better than the compiler said so.
    is_entered: bool,
}

impl SourceLine {
    fn of(location: &Location<'static>) -> SourceLine {
        SourceLine { file: location.file(), line: location.line(), is_entered: false }
    }
}

/// Remembers the line of the outermost public call while it runs: a call's, not a scope to be kept open.
pub struct LineGuard {
    /// The number of the line scope that had no line before; none if there was one.
    fills: Option<u64>,
    stays_on_its_thread: PhantomData<*const ()>,
}

/// Called first in public functions of this crate and of those built on it: the caller's line labels all bytes until
/// the guard is dropped, unless an outer call has set one.
#[track_caller]
#[inline]
#[must_use = "the line holds until the guard is dropped"]
pub fn at_callers_line() -> LineGuard {
    let location = Location::caller();
    LABELS.with(|labels| {
        let fills = labels.line.get().is_none().then(|| {
            labels.line.set(Some(SourceLine::of(location)));
            labels.line.number()
        });
        LineGuard { fills, stays_on_its_thread: PhantomData }
    })
}

impl Drop for LineGuard {
    #[inline]
    fn drop(&mut self) {
        if let Some(number) = self.fills {
            LABELS.with(|labels| labels.line.set_in(number, None));
        }
    }
}

/// Labels all bytes as made at `file:line` until the scope is dropped: for bindings from other languages. The name of a
/// file is kept as long as the process lives, once: see [`Name`].
pub fn enter_line(file: &str, line: u32) -> OpenScope {
    // Most lines of a program follow one of the same file, which is then found without a lock.
    let last = LABELS.with(|labels| labels.last_file.get());
    let known = if last.as_str() == file { last } else { Name::intern(file) };
    LABELS.with(|labels| labels.last_file.set(known));
    begin(Some(SourceLine { file: known.as_str(), line, is_entered: true }))
}

fn begin(line: Option<SourceLine>) -> OpenScope {
    let number = LABELS.with(|labels| labels.line.begin(line));
    OpenScope::new(number, |number| _ = LABELS.try_with(|labels| labels.line.end(number)))
}

/// Runs `f` with all bytes labelled as made at `file:line`: for bindings from other languages.
pub fn at_line<R>(file: &str, line: u32, f: impl FnOnce() -> R) -> R {
    let _line = enter_line(file, line);
    f()
}

/// Runs a function of the user's, whose own lines count.
pub(crate) fn at_own_lines<R>(f: impl FnOnce() -> R) -> R {
    let _line = begin(None);
    f()
}

/// The place where a layer is described by whoever calls the caller: the line of [`enter_line`] where one is open, else
/// the caller's. For functions that take layers.
#[track_caller]
pub fn callers_place() -> Site {
    let caller = SourceLine::of(Location::caller());
    let entered = LABELS.with(|labels| labels.line.get()).filter(|line| line.is_entered);
    let SourceLine { file, line, .. } = entered.unwrap_or(caller);
    Site::place_at(file, line)
}

/// Runs `f`, the inside of a function, whose callers have places of their own: lines that were entered outside it still label
/// bytes, but describe nothing.
pub fn with_own_places<R>(f: impl FnOnce() -> R) -> R {
    let line = LABELS.with(|labels| labels.line.get());
    let _line = begin(line.map(|line| SourceLine { is_entered: false, ..line }));
    f()
}

/// The label of a block that `op` takes for `owner` now.
pub(crate) fn label(owner: Owner, op: &'static str) -> Label {
    LABELS.with(|labels| {
        if let Some(site) = labels.recorded_site.get() {
            return Label { owner, site };
        }
        let line = labels.line.get().unwrap_or(SourceLine { file: "", line: 0, is_entered: false });
        let layers = labels.layers.borrow();
        Label { owner, site: labels.sites.borrow_mut().site(line, &layers, op) }
    })
}

/// The line of the outermost public call, for errors and reports.
pub(crate) fn site(op: &'static str) -> Site {
    label(Owner::Temporary, op).site
}

/// The line of the outermost public call, for an error that may arise while the thread ends.
pub(crate) fn site_of_error() -> Site {
    LABELS.try_with(|_| ()).map_or(Site::UNKNOWN, |()| site(""))
}

/// Runs `f` on behalf of a call that was recorded there.
pub(crate) fn at_recorded_site<R>(site: Site, f: impl FnOnce() -> R) -> R {
    let before = LABELS.with(|labels| labels.recorded_site.replace(Some(site)));
    let _restore = on_drop(move || LABELS.with(|labels| labels.recorded_site.set(before)));
    f()
}

/// Finds the interned site of (line, scope, op) without hashing strings: a small direct-mapped table keyed by
/// addresses, in front of the interner.
struct SiteCache([Option<(SiteKey, Site)>; SiteCache::LEN]);

#[derive(Clone, Copy, PartialEq)]
struct SiteKey {
    file: usize,
    line: u32,
    described: Site,
    scope: u64,
    op: usize,
}

impl SiteCache {
    const LEN: usize = 256;

    const fn new() -> SiteCache {
        SiteCache([None; Self::LEN])
    }

    fn site(&mut self, line: SourceLine, layers: &Layers, op: &'static str) -> Site {
        let key = SiteKey {
            file: line.file.as_ptr() as usize,
            line: line.line,
            described: layers.described(),
            scope: layers.number(),
            op: op.as_ptr() as usize ^ op.len().rotate_right(8),
        };
        let mixed = (key.file ^ key.op.rotate_left(20)) as u64 ^ key.scope ^ u64::from(key.line) << 7;
        let slot = (mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 55) as usize % Self::LEN;
        match self.0[slot] {
            Some((known, site)) if known == key => site,
            _ => {
                let site = Site::intern_in_layer(line.file, line.line, layers.path(), op, key.described);
                self.0[slot] = Some((key, site));
                site
            }
        }
    }
}
