//! Failures on demand and a check of the pool's inside, for tests of whatever stands on a pool.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::map::Refusal;
use crate::{HostPages, Owner, Pool, Region, Source, SourceError};

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
    /// The n-th from now on, counted from 1, and all after it.
    From(u64),
}

/// A series of calls, some of which fail.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Series {
    fail: Fail,
    n_calls: u64,
}

impl Series {
    fn new(fail: Fail) -> Self {
        Self { fail, n_calls: 0 }
    }

    /// Counts a call and says whether it fails.
    fn next_fails(&mut self) -> bool {
        self.n_calls += 1;
        match self.fail {
            Fail::Never => false,
            Fail::Nth(n) => self.n_calls == n,
            Fail::Every(n) => n > 0 && self.n_calls.is_multiple_of(n),
            Fail::From(n) => self.n_calls >= n,
        }
    }

    /// Counts an acquisition and refuses it if it is one of those that fail.
    pub(crate) fn next_acquisition(&mut self) -> Result<(), Refusal> {
        if self.next_fails() {
            return Err(Refusal::Source(SourceError::new("the test asked for this acquisition to fail")));
        }
        Ok(())
    }

    /// The bytes that a request is for: none if it is for a workspace that is to be forgotten.
    pub(crate) fn remembered(&mut self, bytes: u64, owner: Owner) -> u64 {
        if owner == Owner::Workspace && self.next_fails() { 0 } else { bytes }
    }
}

/// A source that passes calls on to another one and fails when told to.
#[derive(Debug)]
pub struct FailingPages<S> {
    inner: S,
    switch: Arc<FailSwitch>,
}

/// Tells a [`FailingPages`] when to fail, from outside the pool that owns it.
#[derive(Debug, Default)]
pub struct FailSwitch {
    commits: Mutex<Series>,
    decommits: Mutex<Series>,
}

impl FailSwitch {
    /// Says which calls of `commit` fail, and begins to count them anew.
    pub fn set(&self, fail: Fail) {
        *series(&self.commits) = Series::new(fail);
    }

    /// Says which calls of `decommit` fail, and begins to count them anew.
    pub fn set_decommit(&self, fail: Fail) {
        *series(&self.decommits) = Series::new(fail);
    }

    /// Calls of `commit` since the rule was set, failed ones included.
    pub fn n_calls(&self) -> u64 {
        series(&self.commits).n_calls
    }
}

fn series(mutex: &Mutex<Series>) -> MutexGuard<'_, Series> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What fails of the reading and writing of spill files, by folder.
static SPILLING: Mutex<Vec<(PathBuf, Series)>> = Mutex::new(Vec::new());

/// Makes reads and writes of spill files in a folder fail by a rule from now on.
pub fn fail_spilling(folder: &Path, fail: Fail) {
    let mut known = SPILLING.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(of, _)| of != folder);
    known.push((folder.to_owned(), Series::new(fail)));
}

/// Counts a read or a write of a spill file, and refuses it if it is one of those that fail.
pub(crate) fn next_spilling(folder: &Path) -> io::Result<()> {
    let mut known = SPILLING.lock().unwrap_or_else(PoisonError::into_inner);
    match known.iter_mut().find(|(of, _)| of == folder).is_some_and(|(_, series)| series.next_fails()) {
        true => Err(io::Error::other("the test asked for this to fail")),
        false => Ok(()),
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
        if series(&self.switch.commits).next_fails() {
            return Err(SourceError::new("the test asked for this commit to fail"));
        }
        self.inner.commit(region, range)
    }

    fn decommit(&self, region: Region, range: Range<u64>) -> Result<(), SourceError> {
        if series(&self.switch.decommits).next_fails() {
            return Err(SourceError::new("the test asked for this decommit to fail"));
        }
        self.inner.decommit(region, range)
    }

    fn is_ghost(&self) -> bool {
        self.inner.is_ghost()
    }
}

/// Pages of the host in granules of 64 KiB, the least that a pool takes: small models then have as many different limits
/// as large ones have on a real device.
#[derive(Debug)]
pub struct FinePages(HostPages);

impl FinePages {
    /// As many addresses as the host's pages have.
    ///
    /// # Errors
    ///
    /// When the operating system does not grant the addresses.
    pub fn new() -> Result<Self, SourceError> {
        HostPages::new().map(Self)
    }
}

// SAFETY: the host's pages are committed and decommitted in any multiple of the system's page, of which 64 KiB is one on
// every system that the host's pages support; all else is their promise.
unsafe impl Source for FinePages {
    fn granule(&self) -> u64 {
        64 << 10
    }

    fn region_bytes(&self, region: Region) -> u64 {
        self.0.region_bytes(region)
    }

    fn base(&self, region: Region) -> *mut u8 {
        self.0.base(region)
    }

    fn commit(&self, region: Region, range: Range<u64>) -> Result<(), SourceError> {
        self.0.commit(region, range)
    }

    fn decommit(&self, region: Region, range: Range<u64>) -> Result<(), SourceError> {
        self.0.decommit(region, range)
    }
}

impl Pool {
    /// Makes acquisitions from now on fail by a rule; attempts after a reclaim count, too.
    pub fn fail_acquisitions(&self, fail: Fail) {
        self.lock().acquisitions = Series::new(fail);
    }

    /// Makes the k-th acquisition from now on fail, counted from 1.
    pub fn fail_acquisition(&self, k: u64) {
        self.fail_acquisitions(Fail::Nth(k));
    }

    /// Makes this pool's ghosts forget the k-th workspace that is asked for, counted from 1: they count nothing for it, as a
    /// plan would whose formula were wrong. The pool itself does so, too, so it should be a ghost or idle.
    pub fn forget_workspace(&self, k: u64) {
        self.lock().forgotten = Series::new(Fail::Nth(k));
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
