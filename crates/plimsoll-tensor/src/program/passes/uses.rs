//! Who reads and writes what in a program: what passes ask before they move or leave out calls.

use plimsoll_memory::LongList;
use smallvec::SmallVec;

use super::super::{Call, Instruction, Phase, Program};
use crate::eager::execute::Order;

/// Who reads and writes what, and when memory is freed.
pub(super) struct Uses {
    /// The calls that read each value, in order.
    pub readers: LongList<SmallVec<[u32; 2]>>,
    pub is_result: Vec<bool>,
    /// The calls that write to each block, in order.
    pub writers: LongList<SmallVec<[u32; 2]>>,
    /// The call before which each block is freed; beyond the last if it is not.
    pub freed: Vec<u32>,
    /// The bytes of all blocks that are there during each call.
    pub in_use: Vec<u64>,
}

impl Uses {
    pub fn of(program: &Program) -> Uses {
        let mut uses = Uses {
            readers: (0..program.n_values()).map(|_| SmallVec::new()).collect(),
            is_result: vec![false; program.n_values()],
            writers: (0..program.n_blocks()).map(|_| SmallVec::new()).collect(),
            freed: vec![u32::MAX; program.n_blocks()],
            in_use: Vec::with_capacity(program.calls.len()),
        };
        for (number, call) in (0..).zip(program.calls.iter()) {
            call.inputs.iter().for_each(|view| uses.readers[view.value as usize].push(number));
            let blocks = call.outputs.iter().filter_map(|view| program.block_of(view.value));
            blocks.for_each(|block| uses.writers[block as usize].push(number));
        }
        program.results.iter().for_each(|view| uses.is_result[view.value as usize] = true);
        let (mut next, mut in_use) = (0, 0u64);
        for instruction in program.instructions() {
            match *instruction {
                Instruction::Call(number) => {
                    next = number + 1;
                    uses.in_use.push(in_use);
                }
                Instruction::Acquire(block) => in_use += program.block(block).n_bytes,
                Instruction::Release(block) => {
                    uses.freed[block as usize] = next;
                    in_use = in_use.saturating_sub(program.block(block).n_bytes);
                }
                _ => {}
            }
        }
        uses
    }
}

/// Whether a call does what it does at any place in its phase.
pub(super) fn is_plain(call: &Call) -> bool {
    call.order == Order::Fixed
        && call.phase != Phase::Update
        && call.recomputed_flops.is_none()
        && !call.op.has_effect()
}
