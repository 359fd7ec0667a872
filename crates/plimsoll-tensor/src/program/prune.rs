//! Dead-code elimination of one kind: calls that only made the first values of variables that the function owns.
//!
//! Such calls run once, when the variables are made, and are not in the program; neither are their memory and their draws.
//! A call stays if anything else reads what it makes.

use std::cell::RefCell;
use std::collections::BTreeSet;

use plimsoll_memory::LongList;

use super::{Call, Instruction, Place, Program};
use crate::eager::op::Draw;

impl Program {
    /// This program without the calls that lead to these values and to nothing else.
    pub(super) fn without_initial(self, initial: &[u32]) -> Program {
        let dead = self.calls_only_for(initial);
        if dead.is_empty() {
            return self;
        }
        let drawn = self.draws_of(&dead);
        self.without(&dead, &drawn)
    }

    /// This program without some dead calls. Draws keep their numbers, and it takes as many as before.
    pub(super) fn without_dead(self, dead: &BTreeSet<u32>) -> Program {
        if dead.is_empty() { self } else { self.without(dead, &[]) }
    }

    /// The calls that lead to these values and to nothing else.
    fn calls_only_for(&self, initial: &[u32]) -> BTreeSet<u32> {
        let mut n_readers = vec![0u32; self.n_values()];
        let read = self.calls.iter().flat_map(|call| &call.inputs).chain(&self.results);
        read.for_each(|view| n_readers[view.value as usize] += 1);
        let mut dead = BTreeSet::new();
        let mut open: BTreeSet<u32> = initial.iter().filter_map(|&value| self.value(value).call).collect();
        // Readers come after what they read, so the last call is visited first.
        while let Some(number) = open.pop_last() {
            let call = &self.calls[number as usize];
            if call.outputs.iter().any(|view| n_readers[view.value as usize] > 0) {
                continue;
            }
            dead.insert(number);
            for view in &call.inputs {
                n_readers[view.value as usize] -= 1;
                open.extend(self.value(view.value).call);
            }
        }
        dead
    }

    /// This program without some dead calls and without these draws.
    fn without(self, dead: &BTreeSet<u32>, drawn: &[u64]) -> Program {
        let is_dead = |call: Option<u32>| call.is_some_and(|call| dead.contains(&call));
        let mut is_used = vec![false; self.n_blocks()];
        for value in self.values.iter().filter(|value| !is_dead(value.call)) {
            if let Place::Block(block) = value.place {
                is_used[block as usize] = true;
            }
        }
        let live = || (0..).zip(self.calls.iter()).filter(|(number, _)| !dead.contains(number));
        live().filter_map(|(_, call)| call.workspace).for_each(|block| is_used[block as usize] = true);
        let numbers = |used: &mut dyn Iterator<Item = bool>| {
            let mut next = 0;
            let number = |is_used| {
                next += u32::from(is_used);
                next.saturating_sub(1)
            };
            used.map(number).collect::<Vec<u32>>()
        };
        let blocks = numbers(&mut is_used.iter().copied());
        let calls = numbers(&mut (0..self.calls.len() as u32).map(|number| !dead.contains(&number)));
        let next_calls = self.next_calls(dead);
        let mut to = self.without_calls();
        (to.n_draws, to.results) = (self.n_draws - drawn.len() as u64, self.results.clone());
        for value in self.values.iter() {
            let place = match value.place {
                Place::Block(block) => Place::Block(blocks[block as usize]),
                place => place,
            };
            let call = value.call.map(|call| calls[call as usize]);
            // What was fetched before a dead call is fetched before the next one that is left.
            let first_fetch = value.first_fetch.map(|call| next_calls[call as usize]);
            to.values.push(super::Value { place, call, first_fetch, ..*value });
        }
        let kept = |list: &[u32]| -> Vec<u32> {
            list.iter()
                .filter(|&&block| is_used[block as usize])
                .map(|&block| blocks[block as usize])
                .collect()
        };
        (to.new_places, to.cleared) = (kept(&self.new_places), kept(&self.cleared));
        let later = |draw: Draw| {
            let before = drawn.iter().filter(|&&number| number < draw.number).count();
            Draw { number: draw.number - before as u64, ..draw }
        };
        for (_, call) in live() {
            let workspace = call.workspace.map(|block| blocks[block as usize]);
            let source = to.calls.len() as u32;
            to.calls.push(Call { op: call.op.redrawn(&later), workspace, source, ..call.clone() });
        }
        to.blocks.extend((0..self.n_blocks()).filter(|&at| is_used[at]).map(|at| self.blocks[at]));
        to.instructions = self.instructions_of(dead, &is_used, &blocks, &calls);
        to
    }

    /// For each call, and for the end, how many calls before it are left: the number of the next one.
    fn next_calls(&self, dead: &BTreeSet<u32>) -> Vec<u32> {
        let mut n_left = 0;
        let mut next = vec![0];
        next.extend((0..self.calls.len() as u32).map(|number| {
            n_left += u32::from(!dead.contains(&number));
            n_left
        }));
        next
    }

    /// The instructions that are left.
    fn instructions_of(
        &self,
        dead: &BTreeSet<u32>,
        is_used: &[bool],
        blocks: &[u32],
        calls: &[u32],
    ) -> LongList<Instruction> {
        let block = |number: u32| is_used[number as usize].then(|| blocks[number as usize]);
        let mut left = LongList::default();
        left.extend(self.instructions().filter_map(|instruction| match *instruction {
            Instruction::Acquire(number) => block(number).map(Instruction::Acquire),
            Instruction::Release(number) => block(number).map(Instruction::Release),
            Instruction::Relabel(number, label) => {
                block(number).map(|number| Instruction::Relabel(number, label))
            }
            Instruction::Call(number) if dead.contains(&number) => None,
            Instruction::Call(number) => Some(Instruction::Call(calls[number as usize])),
            other => Some(other),
        }));
        left
    }

    /// The numbers of the draws that some calls take.
    fn draws_of(&self, calls: &BTreeSet<u32>) -> Vec<u64> {
        let drawn = RefCell::new(Vec::new());
        let note = |draw: Draw| {
            drawn.borrow_mut().push(draw.number);
            draw
        };
        calls.iter().for_each(|&number| _ = self.calls[number as usize].op.redrawn(&note));
        drawn.into_inner()
    }
}
