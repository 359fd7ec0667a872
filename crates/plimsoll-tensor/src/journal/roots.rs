//! Roots: what a value is made from in the end, held while the value is away and somebody may want it.
//!
//! A plan has seen the whole step and knows that everything is still there when a value is made again. The guard knows
//! nothing of what comes: a batch may be dropped, a variable assigned, before backward asks. So when it lets a value go, it
//! takes hold of the tensors from outside that the value's records lead back to, in memory or where they were moved. A
//! variable that is held so moves to a new
//! block when it is assigned, as it does for every reader of its old value.

use std::collections::HashSet;
use std::sync::Arc;

use crate::depot::Away;
use crate::execute::Order;
use crate::journal::{Source, State, Value};
use crate::storage::Storage;

/// What a value is made from in the end.
#[derive(Default)]
pub(super) struct Roots {
    /// Those that are in memory.
    there: Vec<Arc<Storage>>,
    /// Those that have been moved since.
    away: Vec<Arc<Away>>,
}

impl State {
    /// For each record, whether it could be repeated, however many other values are let go meanwhile, once its roots are
    /// held.
    pub fn lasting(&self) -> Vec<bool> {
        let mut lasting = Vec::with_capacity(self.records.len());
        for record in self.records.iter() {
            let can_be_read = |source: &Source| match source {
                Source::Outside(outside) => outside.present().is_some(),
                Source::Value(number) => {
                    let value = &self.values[*number as usize];
                    lasting[value.record as usize]
                        || self.present(*number).is_some()
                        || value.moved.strong_count() > 0
                }
            };
            let is_exact = record.order == Order::Fixed && !record.op.has_effect();
            lasting.push(is_exact && record.inputs.iter().all(|input| can_be_read(&input.source)));
        }
        lasting
    }

    /// The roots of a value whose record is lasting: what comes from outside, and values that cannot be made again.
    pub fn roots(&self, number: u32, lasting: &[bool]) -> Roots {
        let (mut seen, mut open) = (HashSet::new(), vec![self.values[number as usize].record]);
        let (mut roots, mut away): (Vec<Arc<Storage>>, Vec<Arc<Away>>) = Default::default();
        while let Some(record) = open.pop() {
            if !seen.insert(record) {
                continue;
            }
            for input in &self.records[record as usize].inputs {
                match &input.source {
                    Source::Outside(outside) => roots.extend(outside.present()),
                    Source::Value(number) => {
                        let maker = self.values[*number as usize].record;
                        match lasting[maker as usize] {
                            true => open.push(maker),
                            false => match self.present(*number) {
                                Some(storage) => roots.push(storage),
                                None => away.extend(self.values[*number as usize].moved.upgrade()),
                            },
                        }
                    }
                }
            }
        }
        roots.sort_by_key(Arc::as_ptr);
        roots.dedup_by_key(|root| Arc::as_ptr(root));
        Roots { there: roots, away }
    }

    /// How often a storage is held as a root.
    pub fn n_holds_as_root(&self, storage: &Arc<Storage>) -> usize {
        let holds = |value: &&Value| value.roots.there.iter().any(|root| Arc::ptr_eq(root, storage));
        self.values.iter().filter(holds).count()
    }

    /// A value was moved: whoever holds it as a root holds it where it is now.
    pub fn move_root(&mut self, number: u32, storage: &Arc<Storage>) {
        let Some(away) = self.values[number as usize].moved.upgrade() else { return };
        for number in 0..self.values.len() {
            let roots = &mut self.values[number].roots;
            let before = roots.there.len();
            roots.there.retain(|root| !Arc::ptr_eq(root, storage));
            if roots.there.len() < before {
                roots.away.push(away.clone());
            }
        }
    }
}
