//! A check for debugging: what is recomputed is compared, by checksum, with what was first computed.
//!
//! Ops are functions of their inputs, so the two never differ; unless an op of somebody's own is none, reads memory that it
//! was not given, or leaves bytes of its output unwritten. Then training under a limit would silently be another training.
//! `PLIMSOLL_VERIFY=1`, or [`Device::set_verify`](crate::Device::set_verify), makes it an error that names the op.

use std::sync::Arc;

use plimsoll_memory::LongList;

use crate::base::error::{Error, Result};
use crate::device::checksum::checksum;
use crate::device::storage::Storage;
use crate::remat::StepLog;

/// The checksums of a log's values, by number.
#[derive(Default)]
pub(super) struct Sums(LongList<u64>);

impl Sums {
    /// Notes the next value. One that cannot be read is an error of the device, which the next call that waits tells.
    pub fn note(&mut self, storage: &Storage) {
        self.0.push(checksum(storage).unwrap_or_default());
    }
}

impl StepLog {
    /// Compares a value that was recomputed or reloaded with what it first was.
    ///
    /// # Errors
    /// It differs; a GPU that cannot be read.
    pub(super) fn verify(&self, number: u32, storage: &Arc<Storage>) -> Result<()> {
        let Some(first) = self.lock().sums.as_ref().map(|sums| sums.0[number as usize]) else {
            return Ok(());
        };
        if checksum(storage)? == first {
            return Ok(());
        }
        let state = self.lock();
        let record = &state.records[state.values[number as usize].record as usize];
        Err(Error::tape(format!(
            "a recomputed value is not what it was: {} at {} gave other bytes for the same inputs; an op must be a function \
             of its inputs and attributes, and write all of its outputs",
            record.op.name(),
            record.site
        )))
    }
}
