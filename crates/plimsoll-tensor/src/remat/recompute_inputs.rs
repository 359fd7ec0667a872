//! Recompute inputs: what an evicted value is recomputed from, held as long as somebody may ask for the value.
//!
//! A plan has seen the whole step and knows that everything is still there when a value is recomputed. The evictor knows
//! nothing of what comes: a batch may be dropped, a variable assigned, before backward asks. So when it evicts a value, it
//! takes hold of the tensors from outside that the value's records lead back to, in memory or offloaded. A variable that is
//! held so moves to a new block when it is assigned, as it does for every reader of its old value.

use std::collections::HashSet;
use std::sync::Arc;

use crate::device::holders::{Held, Holder};
use crate::device::offload_store::Offloaded;
use crate::device::storage::Storage;
use crate::eager::execute::Order;
use crate::remat::{Source, StepLogState, Value};

/// What a value is recomputed from.
#[derive(Default)]
pub(super) struct RecomputeInputs {
    /// Those that are in memory.
    in_memory: Vec<Held>,
    /// Those that have been offloaded since.
    offloaded: Vec<Arc<Offloaded>>,
}

impl RecomputeInputs {
    /// Those that are in memory.
    pub fn in_memory(&self) -> &[Held] {
        &self.in_memory
    }
}

impl StepLogState {
    /// For each record, whether it could be recomputed, however many other values are evicted meanwhile, once its recompute
    /// inputs are held.
    pub fn recomputable(&self) -> Vec<bool> {
        let mut recomputable = Vec::with_capacity(self.records.len());
        for record in self.records.iter() {
            let can_be_read = |source: &Source| match source {
                Source::Outside(outside) => outside.present().is_some(),
                Source::Value(number) => {
                    let value = &self.values[*number as usize];
                    recomputable[value.record as usize]
                        || self.present(*number).is_some()
                        || value.weak_offloaded.strong_count() > 0
                }
            };
            let is_exact = record.order == Order::Fixed && !record.op.has_effect();
            recomputable.push(is_exact && record.inputs.iter().all(|input| can_be_read(&input.source)));
        }
        recomputable
    }

    /// The recompute inputs of a value whose record is recomputable: what comes from outside, and values that cannot be
    /// recomputed.
    pub fn recompute_inputs(&self, number: u32, recomputable: &[bool]) -> RecomputeInputs {
        let (mut seen, mut open) = (HashSet::new(), vec![self.values[number as usize].record]);
        let (mut recompute_inputs, mut offloaded): (Vec<Arc<Storage>>, Vec<Arc<Offloaded>>) =
            Default::default();
        while let Some(record) = open.pop() {
            if !seen.insert(record) {
                continue;
            }
            for input in &self.records[record as usize].inputs {
                match &input.source {
                    Source::Outside(outside) => recompute_inputs.extend(outside.present()),
                    Source::Value(number) => {
                        let maker = self.values[*number as usize].record;
                        match recomputable[maker as usize] {
                            true => open.push(maker),
                            false => match self.present(*number) {
                                Some(storage) => recompute_inputs.push(storage),
                                None => {
                                    offloaded.extend(self.values[*number as usize].weak_offloaded.upgrade())
                                }
                            },
                        }
                    }
                }
            }
        }
        recompute_inputs.sort_by_key(Arc::as_ptr);
        recompute_inputs.dedup_by_key(|input| Arc::as_ptr(input));
        let in_memory = recompute_inputs.into_iter().map(|input| Held::new(input, Holder::Evictor)).collect();
        RecomputeInputs { in_memory, offloaded }
    }

    /// How often a storage is held as a recompute input.
    pub fn n_uses_as_recompute_input(&self, storage: &Arc<Storage>) -> usize {
        let holds =
            |value: &&Value| value.recompute_inputs.in_memory.iter().any(|input| Arc::ptr_eq(input, storage));
        self.values.iter().filter(holds).count()
    }

    /// A value was offloaded: whoever holds it as a recompute input holds the copy from now on.
    pub fn offload_recompute_input(&mut self, number: u32, storage: &Arc<Storage>) {
        let Some(offloaded) = self.values[number as usize].weak_offloaded.upgrade() else { return };
        for number in 0..self.values.len() {
            let recompute_inputs = &mut self.values[number].recompute_inputs;
            let before = recompute_inputs.in_memory.len();
            recompute_inputs.in_memory.retain(|input| !Arc::ptr_eq(input, storage));
            if recompute_inputs.in_memory.len() < before {
                recompute_inputs.offloaded.push(offloaded.clone());
            }
        }
    }
}
