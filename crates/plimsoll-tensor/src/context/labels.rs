//! Labels: the user's line, the layer and the op that bytes are for.

use std::marker::PhantomData;
use std::panic::Location;

use plimsoll_memory::{Label, Name, Owner, Site};

use super::layers::Layers;
use super::{CONTEXT, on_drop};
use crate::scopes::OpenScope;

/// The user's line that the bytes of an op are labelled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SourceLine {
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
    CONTEXT.with(|context| {
        let fills = context.line.get().is_none().then(|| {
            context.line.set(Some(SourceLine::of(location)));
            context.line.number()
        });
        LineGuard { fills, stays_on_its_thread: PhantomData }
    })
}

impl Drop for LineGuard {
    #[inline]
    fn drop(&mut self) {
        if let Some(number) = self.fills {
            CONTEXT.with(|context| context.line.set_in(number, None));
        }
    }
}

/// Labels all bytes as made at `file:line` until the scope is dropped: for bindings from other languages. The name of a
/// file is kept as long as the process lives, once: see [`Name`].
pub fn enter_line(file: &str, line: u32) -> OpenScope {
    // Most lines of a program follow one of the same file, which is then found without a lock.
    let last = CONTEXT.with(|context| context.last_file.get());
    let known = if last.as_str() == file { last } else { Name::intern(file) };
    CONTEXT.with(|context| context.last_file.set(known));
    begin(Some(SourceLine { file: known.as_str(), line, is_entered: true }))
}

fn begin(line: Option<SourceLine>) -> OpenScope {
    let number = CONTEXT.with(|context| context.line.begin(line));
    OpenScope::new(number, |number| _ = CONTEXT.try_with(|context| context.line.end(number)))
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
    let entered = CONTEXT.with(|context| context.line.get()).filter(|line| line.is_entered);
    let SourceLine { file, line, .. } = entered.unwrap_or(caller);
    Site::place_at(file, line)
}

/// Runs `f`, the inside of a function, whose callers have places of their own: lines that were entered outside it still label
/// bytes, but describe nothing.
pub fn with_own_places<R>(f: impl FnOnce() -> R) -> R {
    let line = CONTEXT.with(|context| context.line.get());
    let _line = begin(line.map(|line| SourceLine { is_entered: false, ..line }));
    f()
}

/// The label of a block that `op` takes for `owner` now.
pub(crate) fn label(owner: Owner, op: &'static str) -> Label {
    CONTEXT.with(|context| {
        if let Some(site) = context.recorded_site.get() {
            return Label { owner, site };
        }
        let line = context.line.get().unwrap_or(SourceLine { file: "", line: 0, is_entered: false });
        let layers = context.layers.borrow();
        Label { owner, site: context.sites.borrow_mut().site(line, &layers, op) }
    })
}

/// The line of the outermost public call, for errors and reports.
pub(crate) fn site(op: &'static str) -> Site {
    label(Owner::Temporary, op).site
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

/// Finds the interned site of (line, scope, op) without hashing strings: a small direct-mapped table keyed by
/// addresses, in front of the interner.
pub(super) struct SiteCache([Option<(SiteKey, Site)>; SiteCache::LEN]);

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

    pub(super) const fn new() -> SiteCache {
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
