//! Values that are moved out of the device's memory, and back.
//!
//! A value is moved once; its copy stays in the depot until no slot names it any more, so that it can be let go and
//! brought back again without another journey out.

use std::sync::Arc;

use crate::context;
use crate::error::{Error, Result};
use crate::journal::Journal;
use crate::storage::Storage;

impl Journal {
    /// Puts a copy of a value into the depot, if there is none.
    pub(super) fn store(&self, number: u32, storage: &Storage) -> Result<()> {
        let site = {
            let state = self.lock();
            let value = &state.values[number as usize];
            if value.away.is_some() {
                return Ok(());
            }
            state.records[value.record as usize].site
        };
        let Some(depot) = storage.device().depot() else {
            return Err(Error::argument(
                "offload",
                "there is no place any more to which values can be moved",
            ));
        };
        let away = depot.store(storage, site)?;
        let (away, mut state) = (Arc::new(away), self.lock());
        let value = &mut state.values[number as usize];
        value.moved = Arc::downgrade(&away);
        value.away = Some(away);
        Ok(())
    }

    /// A value that was moved, in memory again.
    pub(super) fn bring(&self, number: u32) -> Result<Arc<Storage>> {
        let (away, op, site) = {
            let state = self.lock();
            let value = &state.values[number as usize];
            let record = &state.records[value.record as usize];
            (value.moved.upgrade(), record.op.clone(), record.site)
        };
        let away = away.unwrap_or_else(|| unreachable!("only what was moved is brought back"));
        let (storage, copied) = context::replay(|| away.bring(op.name()))?;
        if let (Some(copied), Some(gpu)) = (copied, storage.device().gpu()) {
            gpu.wait_for(&copied)?;
        }
        storage.set_site(site);
        storage.set_tag(self.tag(number));
        self.lock().values[number as usize].living = Arc::downgrade(&storage);
        self.verify(number, &storage)?;
        Ok(storage)
    }
}
