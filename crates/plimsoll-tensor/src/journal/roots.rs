//! Roots: what a value is made from in the end, held while the value is away and somebody may want it.
//!
//! A plan has seen the whole step and knows that everything is still there when a value is made again. The guard knows
//! nothing of what comes: a batch may be dropped, a variable assigned, before backward asks. So when it lets a value go, it
//! takes hold of the tensors from outside that the value's records lead back to. A variable that is held so moves to a new
//! block when it is assigned, as it does for every reader of its old value.

use std::collections::HashSet;
use std::sync::Arc;

use crate::journal::{Source, State};
use crate::storage::Storage;

/// The storages that a value is made from in the end.
pub(super) type Roots = Box<[Arc<Storage>]>;

impl State {
    /// For each record, whether it could be repeated, however many other values are let go meanwhile, once its roots are
    /// held.
    pub fn lasting(&self) -> Vec<bool> {
        let mut lasting = Vec::with_capacity(self.records.len());
        for record in self.records.iter() {
            let can_be_read = |source: &Source| match source {
                Source::Outside(outside) => outside.present().is_some(),
                Source::Value(number) => {
                    lasting[self.values[*number as usize].record as usize] || self.present(*number).is_some()
                }
            };
            lasting.push(record.inputs.iter().all(|input| can_be_read(&input.source)));
        }
        lasting
    }

    /// The roots of a value whose record is lasting: what comes from outside, and values that cannot be made again.
    pub fn roots(&self, number: u32, lasting: &[bool]) -> Roots {
        let (mut seen, mut open) = (HashSet::new(), vec![self.values[number as usize].record]);
        let mut roots: Vec<Arc<Storage>> = Vec::new();
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
                            false => roots.extend(self.present(*number)),
                        }
                    }
                }
            }
        }
        roots.sort_by_key(Arc::as_ptr);
        roots.dedup_by_key(|root| Arc::as_ptr(root));
        roots.into()
    }

    /// Takes hold of the roots of all values that are away and that somebody may want: from here on no plan says that they
    /// last.
    pub fn hold_roots_of_absent(&mut self) {
        let lasting = self.lasting();
        for number in 0..self.values.len() {
            let value = &self.values[number];
            if value.n_slots > 0 && value.kept.is_none() && lasting[value.record as usize] {
                self.values[number].roots = self.roots(number as u32, &lasting);
            }
        }
    }
}
