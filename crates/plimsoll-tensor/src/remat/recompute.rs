//! Recomputing evicted values.
//!
//! The records that lead to a value from what is in memory are run once more, in their order, and values on the way that were
//! offloaded are reloaded; what only the chain reads is freed as the chain goes on. Values on the way that backward will
//! read, too, are retained while there is room.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_plan::recompute_chain::{self, Link, Maker, Records};
use smallvec::SmallVec;

use crate::base::error::{Error, Result};
use crate::device::Device;
use crate::device::storage::Storage;
use crate::eager::check;
use crate::eager::context;
use crate::eager::execute::{Arg, Args, Order, recompute_op};
use crate::eager::op::{Meta, OpRef, Output};
use crate::eager::op_log::OpLog;
use crate::eager::tensor::{Nodes, Tensor};
use crate::remat::{Input, Source, StepLog, StepLogState};

/// The values that a chain makes and still needs, by number, with the place of the last link that reads each.
type Made = HashMap<u32, (Option<Arc<Storage>>, usize)>;

impl StepLog {
    /// A value that backward asks for: as it is in memory, reloaded, or recomputed.
    ///
    /// # Errors
    /// Memory that is full; an input from outside that is gone or was assigned since; with `PLIMSOLL_VERIFY=1`, a value that
    /// is not what it was.
    pub(super) fn value(&self, number: u32) -> Result<Arc<Storage>> {
        let present = self.lock().present(number);
        match present {
            Some(storage) => Ok(storage),
            None => self.recompute(number),
        }
    }

    fn recompute(&self, target: u32) -> Result<Arc<Storage>> {
        let (chain, mut made) = {
            let state = self.lock();
            let chain = recompute_chain::chain(&*state, target)
                .map_err(|_| Error::tape("a value cannot be recomputed: nothing says how it was made"))?;
            let made = state.needs(&chain, target);
            (chain, made)
        };
        for (at, link) in chain.iter().enumerate() {
            match *link {
                Link::Recompute { record, with_aux } => self.rerun(record, with_aux, &mut made)?,
                Link::Reload(number) => {
                    let storage = self.reload(number)?;
                    self.restore(number, storage, &mut made);
                }
            }
            made.retain(|&number, (_, last)| *last > at || number == target);
        }
        match made.remove(&target) {
            Some((Some(storage), _)) => Ok(storage),
            _ => Err(Error::tape(
                "a value cannot be recomputed: the op that made it gives fewer outputs than before",
            )),
        }
    }

    /// Runs one record once more and takes what is needed of it.
    fn rerun(&self, record: u32, with_aux: bool, made: &mut Made) -> Result<()> {
        let (op, inputs, wanted, first, site) = {
            let mut state = self.lock();
            state.recomputed += state.records[record as usize].work;
            let record = &state.records[record as usize];
            (record.op.clone(), record.inputs.clone(), record.wanted.clone(), record.first_value, record.site)
        };
        let args: Args<'_> =
            inputs.iter().map(|input| self.recompute_arg(input, made)).collect::<Result<_>>()?;
        let metas: SmallVec<[&Meta; 3]> = inputs.iter().map(|input| &*input.meta).collect();
        let device = args.first().map_or_else(context::device, |arg| arg.storage().device().clone());
        count(&device, &op, &metas);
        let wanted = with_aux.then_some(&*wanted);
        let storages = context::replay(|| recompute_op(op.clone(), args, wanted, Order::Fixed))?;
        for (number, storage) in (first..).zip(storages) {
            let is_known = {
                let values = &self.lock().values;
                let form = (storage.n_bytes(), storage.dtype());
                (number as usize) < values.len() && values[number as usize].form == form
            };
            if !is_known {
                return Err(check::changed(&op));
            }
            self.verify(number, &storage)?;
            storage.set_site(site);
            storage.set_tag(self.tag(number));
            self.restore(number, storage, made);
        }
        Ok(())
    }

    /// Takes a value that is in memory again: for the chain, and for later if slots name it.
    fn restore(&self, number: u32, storage: Arc<Storage>, made: &mut Made) {
        self.retain(number, &storage);
        if let Some((place, _)) = made.get_mut(&number) {
            *place = Some(storage);
        }
    }

    /// Retains a value that is in memory again, if slots name it.
    fn retain(&self, number: u32, storage: &Arc<Storage>) {
        let mut state = self.lock();
        let value = &mut state.values[number as usize];
        value.weak = Arc::downgrade(storage);
        if value.n_slots > 0 && value.retained.is_none() {
            value.retained = Some(storage.clone());
            let recompute_inputs = std::mem::take(&mut value.recompute_inputs);
            drop(state);
            drop(recompute_inputs);
            storage.add_slot();
        }
    }

    /// An input of a record that is run once more.
    fn recompute_arg(&self, input: &Input, made: &Made) -> Result<Arg<'static>> {
        let gone = |what: &str| Error::tape(format!("a value cannot be recomputed: {what}"));
        let storage = match &input.source {
            Source::Value(number) => match made.get(number) {
                Some((Some(storage), _)) => storage.clone(),
                _ => self.lock().present(*number).ok_or_else(|| gone("what it is computed from is gone"))?,
            },
            Source::Outside(outside) => outside.present().ok_or_else(|| {
                gone("a tensor from outside that it is computed from was dropped or assigned since")
            })?,
        };
        Ok(Arg::Given(Tensor::over(storage, *input.meta, Nodes::new())))
    }
}

impl StepLogState {
    /// The value, if anybody holds it.
    pub(super) fn present(&self, number: u32) -> Option<Arc<Storage>> {
        let value = &self.values[number as usize];
        value.retained.clone().or_else(|| value.weak.upgrade())
    }

    /// The values that a chain makes and reads, with the last link that reads each. What is there is held as well, so that
    /// the evictor cannot free it before it is read.
    fn needs(&self, chain: &[Link], target: u32) -> Made {
        let read = recompute_chain::last_reads(self, chain).into_iter();
        let mut made: Made = read.map(|(number, at)| (number, (self.present(number), at))).collect();
        made.entry(target).or_insert((None, chain.len())).1 = chain.len();
        made
    }
}

impl Records for StepLogState {
    fn maker(&self, value: u32) -> Option<Maker> {
        let record = self.values[value as usize].record;
        let made = &self.records[record as usize];
        Some(Maker { record, is_aux: value - made.first_value >= u32::from(made.n_outputs) })
    }

    fn inputs(&self, record: u32) -> impl Iterator<Item = u32> {
        self.records[record as usize].inputs.iter().filter_map(|input| match input.source {
            Source::Value(number) => Some(number),
            Source::Outside(_) => None,
        })
    }

    fn is_resident(&self, value: u32) -> bool {
        self.present(value).is_some()
    }

    fn is_offloaded(&self, value: u32) -> bool {
        self.values[value as usize].weak_offloaded.strong_count() > 0
    }

    fn is_recomputable(&self, _record: u32) -> bool {
        // The evictor frees nothing else.
        true
    }
}

/// Adds a recomputed op to the figures of its device.
fn count(device: &Device, op: &OpRef, inputs: &[&Meta]) {
    let Ok(outputs) = op.get().infer(inputs) else { return };
    let outputs: SmallVec<[Meta; 2]> = outputs.iter().filter_map(Output::fresh_meta).collect();
    let outputs: SmallVec<[&Meta; 2]> = outputs.iter().collect();
    device.count_recompute(op.get().cost(inputs, &outputs).flops);
}
