//! Failures on demand and a check of the pool's inside, for tests of whatever stands on a pool.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::map::Refusal;
use crate::{Pool, Region, Source, SourceError};

/// Which calls of a numbered series fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fail {
    /// None.
    #[default]
    Never,
    /// The n-th from now on, counted from 1, and no other.
    Nth(u64),
    /// Every n-th from now on.
    Every(u64),
}

impl Fail {
    fn hits(self, n_calls: u64) -> bool {
        match self {
            Fail::Never => false,
            Fail::Nth(n) => n_calls == n,
            Fail::Every(n) => n > 0 && n_calls.is_multiple_of(n),
        }
    }
}

/// A source that passes calls on to another one and fails to commit when told to.
#[derive(Debug)]
pub struct FailingPages<S> {
    inner: S,
    switch: Arc<FailSwitch>,
}

/// Tells a [`FailingPages`] when to fail, from outside the pool that owns it.
#[derive(Debug, Default)]
pub struct FailSwitch {
    /// The rule as two numbers: 0 never, 1 n-th, 2 every; and n.
    rule: AtomicU64,
    n: AtomicU64,
    n_calls: AtomicU64,
}

impl FailSwitch {
    /// Sets the rule and begins to count anew.
    pub fn set(&self, fail: Fail) {
        let (rule, n) = match fail {
            Fail::Never => (0, 0),
            Fail::Nth(n) => (1, n),
            Fail::Every(n) => (2, n),
        };
        self.n_calls.store(0, Ordering::SeqCst);
        self.n.store(n, Ordering::SeqCst);
        self.rule.store(rule, Ordering::SeqCst);
    }

    /// Calls of `commit` since the rule was set, failed ones included.
    pub fn n_calls(&self) -> u64 {
        self.n_calls.load(Ordering::SeqCst)
    }

    fn next_fails(&self) -> bool {
        let n_calls = self.n_calls.fetch_add(1, Ordering::SeqCst) + 1;
        let n = self.n.load(Ordering::SeqCst);
        let fail = match self.rule.load(Ordering::SeqCst) {
            1 => Fail::Nth(n),
            2 => Fail::Every(n),
            _ => Fail::Never,
        };
        fail.hits(n_calls)
    }
}

impl<S: Source> FailingPages<S> {
    /// Wraps a source; it does not fail until the switch says so.
    pub fn new(inner: S) -> (Self, Arc<FailSwitch>) {
        let switch = Arc::new(FailSwitch::default());
        (Self { inner, switch: switch.clone() }, switch)
    }
}

// SAFETY: whatever is committed is committed by the inner source, whose promise this is.
unsafe impl<S: Source> Source for FailingPages<S> {
    fn granule(&self) -> u64 {
        self.inner.granule()
    }

    fn region_bytes(&self, region: Region) -> u64 {
        self.inner.region_bytes(region)
    }

    fn base(&self, region: Region) -> *mut u8 {
        self.inner.base(region)
    }

    fn commit(&self, region: Region, range: Range<u64>) -> Result<(), SourceError> {
        if self.switch.next_fails() {
            return Err(SourceError::new("the test asked for this commit to fail"));
        }
        self.inner.commit(region, range)
    }

    fn decommit(&self, region: Region, range: Range<u64>) -> Result<(), SourceError> {
        self.inner.decommit(region, range)
    }

    fn is_ghost(&self) -> bool {
        self.inner.is_ghost()
    }
}

/// Which acquisitions of a pool fail.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Failing {
    fail: Fail,
    n_calls: u64,
}

impl Failing {
    /// Counts an acquisition and refuses it if it is one of those.
    pub(crate) fn next_acquisition(&mut self) -> Result<(), Refusal> {
        if self.fail == Fail::Never {
            return Ok(());
        }
        self.n_calls += 1;
        if self.fail.hits(self.n_calls) {
            return Err(Refusal::Source(SourceError::new("the test asked for this acquisition to fail")));
        }
        Ok(())
    }
}

impl Pool {
    /// Makes acquisitions from now on fail by a rule; attempts after a reclaim count, too.
    pub fn fail_acquisitions(&self, fail: Fail) {
        self.lock().failing = Failing { fail, n_calls: 0 };
    }

    /// Makes the k-th acquisition from now on fail, counted from 1.
    pub fn fail_acquisition(&self, k: u64) {
        self.fail_acquisitions(Fail::Nth(k));
    }

    /// Checks that map, live blocks and counters agree.
    ///
    /// # Errors
    ///
    /// A sentence that names the first contradiction.
    pub fn verify(&self) -> Result<(), String> {
        self.lock().verify(self.source())
    }
}
