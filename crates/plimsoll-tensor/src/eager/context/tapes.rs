//! The tapes that record on a thread: those that were started and not stopped by a scope that began later.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::CONTEXT;
use crate::base::scopes::{OpenScope, Scopes};
use crate::eager::tape::TapeCore;
use crate::eager::tensor::Tensor;

/// The open scopes that start and stop tapes, and what follows from them.
pub(super) struct Tapes {
    open: RefCell<Scopes<Change>>,
    /// The tapes that record, outermost first.
    recording: RefCell<Vec<Arc<TapeCore>>>,
    /// Their number: asked by every op.
    n_recording: Cell<usize>,
    /// The tapes that may not meet a tensor that they know.
    sealed: RefCell<Vec<Arc<TapeCore>>>,
}

/// What a scope does to the tapes that record, as the scopes around it left them.
enum Change {
    /// The tape records.
    Start(Arc<TapeCore>),
    /// The tape does not record.
    Stop(Arc<TapeCore>),
    /// No tape records.
    StopAll,
    /// The tape alone records, and the others are sealed.
    Seal(Arc<TapeCore>),
}

impl Change {
    fn apply(&self, recording: &mut Vec<Arc<TapeCore>>, sealed: &mut Vec<Arc<TapeCore>>) {
        match self {
            Change::Start(tape) => {
                if !recording.iter().any(|other| Arc::ptr_eq(other, tape)) {
                    recording.push(tape.clone());
                }
            }
            Change::Stop(tape) => recording.retain(|other| !Arc::ptr_eq(other, tape)),
            Change::StopAll => recording.clear(),
            Change::Seal(scout) => {
                sealed.append(recording);
                recording.push(scout.clone());
            }
        }
    }
}

impl Tapes {
    pub(super) const fn new() -> Tapes {
        Tapes {
            open: RefCell::new(Scopes::new()),
            recording: RefCell::new(Vec::new()),
            n_recording: Cell::new(0),
            sealed: RefCell::new(Vec::new()),
        }
    }

    /// How many tapes record.
    #[inline]
    pub(super) fn n_recording(&self) -> usize {
        self.n_recording.get()
    }

    /// The outermost tape that records.
    pub(super) fn outermost(&self) -> Option<Arc<TapeCore>> {
        self.recording.borrow().first().cloned()
    }

    fn begin(&self, change: Change) -> u64 {
        let mut recording = self.recording.borrow_mut();
        change.apply(&mut recording, &mut self.sealed.borrow_mut());
        self.n_recording.set(recording.len());
        self.open.borrow_mut().begin(change)
    }

    /// Ends a scope: what is left follows from those that are still open.
    fn end(&self, number: u64) {
        let ended = self.open.borrow_mut().end(number);
        {
            let (mut recording, mut sealed) = (self.recording.borrow_mut(), self.sealed.borrow_mut());
            recording.clear();
            sealed.clear();
            self.open.borrow().iter().for_each(|change| change.apply(&mut recording, &mut sealed));
            self.n_recording.set(recording.len());
        }
        // This may be the last handle of a tape, whose end may look at the context.
        drop(ended);
    }
}

fn begin(change: Change) -> OpenScope {
    let number = CONTEXT.with(|context| context.tapes.begin(change));
    OpenScope::new(number, |number| _ = CONTEXT.try_with(|context| context.tapes.end(number)))
}

/// Whether any tape is recording on this thread.
#[inline]
pub fn is_recording() -> bool {
    CONTEXT.with(|context| context.tapes.n_recording() > 0)
}

/// Calls `f` with the tapes that record on this thread, outermost first.
pub(crate) fn with_tapes<R>(f: impl FnOnce(&[Arc<TapeCore>]) -> R) -> R {
    CONTEXT.with(|context| f(&context.tapes.recording.borrow()))
}

/// Lets a tape record until the scope is dropped.
pub(crate) fn start_tape(tape: Arc<TapeCore>) -> OpenScope {
    begin(Change::Start(tape))
}

/// Keeps a tape from recording until the scope is dropped.
pub(crate) fn stop_tape(tape: Arc<TapeCore>) -> OpenScope {
    begin(Change::Stop(tape))
}

/// Runs `f` with no tape recording.
#[doc(alias("no_grad", "stop_recording"))]
pub fn without_tapes<R>(f: impl FnOnce() -> R) -> R {
    let _stopped = begin(Change::StopAll);
    f()
}

/// Runs `f` with only `scout` recording; the tapes that recorded until now are sealed: a tensor that they know
/// must not be used inside, because its gradient would be lost.
pub(crate) fn sealed<R>(scout: Arc<TapeCore>, f: impl FnOnce() -> R) -> R {
    let _sealed = begin(Change::Seal(scout));
    f()
}

/// Whether a sealed tape knows a tensor.
pub(crate) fn is_sealed(tensor: &Tensor) -> bool {
    CONTEXT.with(|context| context.tapes.sealed.borrow().iter().any(|tape| tape.knows(tensor)))
}
