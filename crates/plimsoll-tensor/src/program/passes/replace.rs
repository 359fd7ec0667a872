//! Carrying changes out: values read in place of others, calls left out, and the memory between calls as that needs it.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::super::{Instruction, Place, Program, ValueView};
use super::Change;

impl Program {
    /// The program with some changes; draws keep their numbers.
    pub(super) fn replacing(&self, changes: &[Change]) -> Program {
        let mut instead: HashMap<u32, u32> = HashMap::new();
        for &(old, new) in changes.iter().flat_map(|change| &change.replaced) {
            // What it is replaced by may have been replaced before.
            let new = instead.get(&new).copied().unwrap_or(new);
            instead.insert(old, new);
        }
        let mut to = self.clone();
        let read = |view: &mut ValueView| {
            if let Some(&new) = instead.get(&view.value) {
                view.value = new;
            }
        };
        for at in 0..to.calls.len() {
            to.calls[at].inputs.iter_mut().for_each(read);
        }
        to.results.iter_mut().for_each(read);
        for (&old, &new) in &instead {
            let fetched = [to.value(old).first_fetch, to.value(new).first_fetch];
            to.values[new as usize].first_fetch = fetched.into_iter().flatten().min();
        }
        let mut olds: Vec<(u32, u32)> = instead.into_iter().collect();
        olds.sort_unstable();
        olds.into_iter().for_each(|(old, new)| to.extend_life(old, new));
        let removed: BTreeSet<u32> =
            changes.iter().flat_map(|change| change.removed.iter().copied()).collect();
        to.without_dead(&removed)
    }

    /// Lets the block of a value live as long as that of another one that it replaces.
    fn extend_life(&mut self, old: u32, new: u32) {
        let (Some(old), Some(new)) = (self.block_of(old), self.block_of(new)) else { return };
        let instructions: Vec<Instruction> = self.instructions.iter().copied().collect();
        let released = |block: u32| instructions.iter().position(|&one| one == Instruction::Release(block));
        let (old_end, new_end) = (released(old), released(new));
        let Some(new_end) = new_end else { return };
        if old_end.is_some_and(|old_end| old_end < new_end) {
            return;
        }
        self.instructions = instructions
            .into_iter()
            .enumerate()
            .filter_map(|(at, one)| match one {
                _ if at == new_end => None,
                // The old block goes; where it would have been freed, the new one is.
                _ if Some(at) == old_end => Some([one, Instruction::Release(new)].to_vec()),
                one => Some(vec![one]),
            })
            .flatten()
            .collect();
    }

    /// The blocks that hold one value each from when they are acquired to when they are freed: nothing is written over it.
    pub(super) fn single_blocks(&self) -> HashSet<u32> {
        let mut n_values = vec![0u32; self.n_blocks()];
        for view in self.calls.iter().flat_map(|call| &call.outputs) {
            if let Place::Block(block) = self.value(view.value).place {
                n_values[block as usize] += 1;
            }
        }
        let donated = self.donated.len();
        let is_single = |&block: &usize| block >= donated && n_values[block] == 1;
        (0..self.n_blocks()).filter(is_single).map(|block| block as u32).collect()
    }
}
