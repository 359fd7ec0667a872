//! What knows how the values of a step were computed, as `execute` and tapes see it.
//!
//! Where values may be evicted, under a limit, each op is told to the open [`OpLog`], and a tape slot names a value of the log
//! instead of holding it: the log retains the value, or recomputes or reloads it when backward asks. The one there is, the
//! `StepLog` of `remat`, is opened with a step or by a tape outside steps.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::base::error::Result;
use crate::device::Device;
use crate::device::storage::Storage;
use crate::eager::execute::{Arg, Order};
use crate::eager::op::{AuxOutput, OpRef, Tensors};

/// Opens a log on a device: none where there is no limit, so that nothing is ever evicted.
pub(crate) type OpenLog = fn(&Device) -> Option<Arc<dyn OpLog>>;

/// The log of one step, or of one tape outside a step.
pub(crate) trait OpLog: Send + Sync {
    /// Leaves the record of an op and numbers what it made. An op that does the work of two leaves the records of both, so that
    /// what the second makes can be recomputed alone.
    ///
    /// # Errors
    /// An op that says of itself what cannot be.
    fn record(
        &self,
        op: &OpRef,
        args: &[Arg<'_>],
        outputs: &Tensors,
        aux_outputs: &[(AuxOutput, Arc<Storage>)],
        wanted: SmallVec<[bool; 4]>,
        order: Order,
    ) -> Result<()>;

    /// The tag of a value, which no value of another log has.
    fn tag(&self, number: u32) -> u64;

    /// The number that a storage's tag stands for, if it is this log's.
    fn number_of(&self, tag: u64) -> Option<u32>;

    /// A tape slot names a value; the first time, it is retained for backward.
    fn retain_for_slot(&self, number: u32, storage: &Arc<Storage>);

    /// One more slot names a value that slots name already.
    fn add_slot(&self, number: u32);

    /// Whether slots name a value, wherever it is.
    fn has_slots(&self, number: u32) -> bool;

    /// A tape slot no longer names a value; the last one frees it.
    fn drop_slot(&self, number: u32);

    /// The storage of a value, if anybody holds it.
    fn storage(&self, number: u32) -> Option<Arc<Storage>>;

    /// Whether the log alone holds a value.
    fn is_own(&self, number: u32) -> bool;

    /// A value that backward asks for: as it is in memory, reloaded, or recomputed.
    ///
    /// # Errors
    /// Memory that is full; an input from outside that is gone or was assigned since; with `PLIMSOLL_VERIFY=1`, a value that
    /// is not what it was.
    fn fetch(&self, number: u32) -> Result<Arc<Storage>>;

    /// The number of a storage's value, if this log knows it.
    fn number(&self, storage: &Storage) -> Option<u32> {
        self.number_of(storage.tag())
    }
}
