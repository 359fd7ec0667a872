//! Values that are offloaded from the device's memory and reloaded.
//!
//! A value is offloaded once; its copy stays in the device's offload store until no slot names it any more, so that it can be
//! evicted and reloaded again without a second copy out.

use std::sync::Arc;

use crate::base::error::{Error, Result};
use crate::device::storage::Storage;
use crate::eager::context;
use crate::eager::op_log::OpLog;
use crate::remat::StepLog;

impl StepLog {
    /// Puts a copy of a value into the offload store, if there is none.
    pub(super) fn offload(&self, number: u32, storage: &Storage) -> Result<()> {
        let site = {
            let state = self.lock();
            let value = &state.values[number as usize];
            if value.offloaded.is_some() {
                return Ok(());
            }
            state.records[value.record as usize].site
        };
        let Some(offload_store) = storage.device().offload_store() else {
            return Err(Error::argument(
                "offload",
                "there is no place any more to which values can be offloaded",
            ));
        };
        let offloaded = offload_store.store(storage, site)?;
        let (offloaded, mut state) = (Arc::new(offloaded), self.lock());
        let value = &mut state.values[number as usize];
        value.weak_offloaded = Arc::downgrade(&offloaded);
        value.offloaded = Some(offloaded);
        Ok(())
    }

    /// An offloaded value, in memory again.
    pub(super) fn reload(&self, number: u32) -> Result<Arc<Storage>> {
        let (offloaded, op, site) = {
            let state = self.lock();
            let value = &state.values[number as usize];
            let record = &state.records[value.record as usize];
            (value.weak_offloaded.upgrade(), record.op.clone(), record.site)
        };
        let offloaded = offloaded.unwrap_or_else(|| unreachable!("only what was offloaded is reloaded"));
        let (storage, copied) = context::replay(|| offloaded.reload(op.name()))?;
        if let (Some(copied), Some(gpu)) = (copied, storage.device().gpu()) {
            gpu.wait_for(&copied)?;
        }
        storage.set_site(site);
        storage.set_tag(self.tag(number));
        self.lock().values[number as usize].weak = Arc::downgrade(&storage);
        self.verify(number, &storage)?;
        Ok(storage)
    }
}
