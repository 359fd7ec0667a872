//! Values that are moved out of the device's memory, and back.
//!
//! A value is moved once; its copy stays in the depot until no slot names it any more, so that it can be let go and
//! brought back again without another journey out.

use std::sync::Arc;

use crate::context;
use crate::error::{Error, Result};
use crate::journal::{Coming, Journal};
use crate::storage::Storage;

impl Journal {
    /// Moves a value that was just made; if it is kept, it goes when the plan says so. What cannot be moved is kept, and
    /// the next op fails.
    pub(super) fn send_away(&self, number: u32, storage: &Arc<Storage>) {
        if let Err(failure) = self.store(number, storage) {
            let mut state = self.lock();
            state.failure = Some(failure);
            let value = &mut state.values[number as usize];
            if value.kept.is_none() {
                value.kept = Some(storage.clone());
                storage.keep();
            }
        }
    }

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

    /// Lets a value go that is kept, as the plan says: moved, or to be made again.
    pub(super) fn release(&self, number: u32) -> Result<()> {
        let (kept, moves) = {
            let state = self.lock();
            let moves = state.following.as_ref().is_some_and(|following| following.moves(number));
            (state.values[number as usize].kept.clone(), moves)
        };
        let Some(kept) = kept else { return Ok(()) };
        if moves {
            self.store(number, &kept)?;
        }
        self.lock().values[number as usize].kept = None;
        kept.unkeep();
        Ok(())
    }

    /// Begins to bring a value back that backward is about to ask for.
    pub(super) fn prefetch(&self, number: u32) -> Result<()> {
        let is_wanted = {
            let value = &self.lock().values[number as usize];
            value.away.is_some() && value.kept.is_none() && value.living.strong_count() == 0
        };
        if !is_wanted {
            return Ok(());
        }
        let coming = self.begin_to_bring(number)?;
        coming.0.keep();
        self.lock().values[number as usize].coming = Some(coming);
        Ok(())
    }

    /// A value that was moved, in memory again.
    pub(super) fn bring(&self, number: u32) -> Result<Arc<Storage>> {
        let storage = arrived(self.begin_to_bring(number)?)?;
        self.verify(number, &storage)?;
        Ok(storage)
    }

    /// A value that was brought back before backward asked for it; nothing if it was not.
    pub(super) fn take_coming(&self, number: u32) -> Result<Option<Arc<Storage>>> {
        let Some(coming) = self.lock().values[number as usize].coming.take() else { return Ok(None) };
        let storage = arrived(coming)?;
        self.verify(number, &storage)?;
        Ok(Some(storage))
    }

    /// Makes the work that follows wait for a value that is on its way back, if it is.
    pub(super) fn wait_for(&self, number: u32) -> Result<()> {
        let coming = match &mut self.lock().values[number as usize].coming {
            Some((storage, copied)) => copied.take().map(|copied| (storage.clone(), Some(copied))),
            None => None,
        };
        coming.map(arrived).transpose().map(drop)
    }

    fn begin_to_bring(&self, number: u32) -> Result<Coming> {
        let (away, op, site) = {
            let state = self.lock();
            let value = &state.values[number as usize];
            let record = &state.records[value.record as usize];
            (value.moved.upgrade(), record.op.clone(), record.site)
        };
        let away = away.unwrap_or_else(|| unreachable!("only what was moved is brought back"));
        let (storage, copied) = context::replay(|| away.bring(op.name()))?;
        storage.set_site(site);
        storage.set_tag(self.tag(number));
        self.lock().values[number as usize].living = Arc::downgrade(&storage);
        Ok((storage, copied))
    }
}

/// A value that the work from here on may read.
fn arrived((storage, copied): Coming) -> Result<Arc<Storage>> {
    if let (Some(copied), Some(gpu)) = (copied, storage.device().gpu()) {
        gpu.wait_for(&copied)?;
    }
    Ok(storage)
}
