//! Ends of residual blocks: a norm, what is added to it, and relu of the sum become the one op that does all three.
//!
//! It runs where the norm did, whose statistics are read at once, so what is added must be there by then. What lay between the three
//! takes no memory any more.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_memory::LongList;
use smallvec::SmallVec;

use super::super::{Call, Instruction, Place, Program, ValueView};
use super::uses::{Uses, is_plain};
use crate::eager::op::OpRef;

/// Three calls, in order, and the call that takes their place.
#[derive(Clone)]
pub(super) struct BlockEnd {
    members: [u32; 3],
    call: Call,
    /// The blocks of what lay between them.
    left_out: SmallVec<[u32; 2]>,
}

/// All ends of blocks.
pub(super) fn all(program: &Program) -> Vec<BlockEnd> {
    let uses = Uses::of(program);
    let calls = (0u32..).zip(program.calls.iter());
    calls.filter(|(_, call)| is(call, "relu")).filter_map(|(relu, _)| end_at(program, &uses, relu)).collect()
}

fn is(call: &Call, name: &str) -> bool {
    call.op.name() == name && !call.op.is_own() && is_plain(call)
}

/// The three calls of which the last is this one, if they can be one.
fn end_at(program: &Program, uses: &Uses, relu: u32) -> Option<BlockEnd> {
    let call = |number: u32| &program.calls[number as usize];
    let maker = |view: &ValueView| program.value(view.value).call;
    let last = call(relu);
    let add = maker(&last.inputs[0]).filter(|&add| is(call(add), "add"))?;
    let with_norm = |at: usize| {
        let norm = maker(&call(add).inputs[at])?;
        let op = call(norm).op.with_add_relu().filter(|_| is_plain(call(norm)))?;
        Some((norm, op, at))
    };
    let (norm, op, at) = with_norm(0).or_else(|| with_norm(1))?;
    let (first, sum, added) = (call(norm), call(add), &call(add).inputs[1 - at]);
    // Each sees the whole of what the one before has made, and nobody else does.
    let passes_on = |from: &Call, to: &Call, input: usize| {
        let (made, read) = (&from.outputs[0], &to.inputs[input]);
        let readers = &uses.readers[made.value as usize];
        made == read && readers.len() == 1 && !uses.is_result[made.value as usize]
    };
    let is_alike = |one: &Call| (one.device, one.phase) == (first.device, first.phase);
    let has_shape = |view: &ValueView| {
        (view.meta.shape(), view.meta.dtype) == (first.outputs[0].meta.shape(), first.outputs[0].meta.dtype)
    };
    let fits = passes_on(first, sum, at) && passes_on(sum, last, 0) && is_alike(sum) && is_alike(last);
    if !fits || !has_shape(added) || !has_shape(&last.outputs[0]) {
        return None;
    }
    let end = End { program, uses, members: [norm, add, relu] };
    let left_out = end.left_out(added)?;
    Some(BlockEnd { members: end.members, call: joined(first, sum, last, (op, at)), left_out })
}

/// The call that takes the place of three.
fn joined(norm: &Call, add: &Call, relu: &Call, (op, at): (OpRef, usize)) -> Call {
    let (mut inputs, mut wanted) = (norm.inputs.clone(), norm.wanted.clone());
    inputs.push(add.inputs[1 - at].clone());
    wanted.push(add.wanted.get(1 - at).copied().unwrap_or(false));
    let mut outputs = norm.outputs.clone();
    outputs[0] = relu.outputs[0].clone();
    Call { op, inputs, outputs, wanted, ..norm.clone() }
}

/// Three calls that may become one.
struct End<'a> {
    program: &'a Program,
    uses: &'a Uses,
    members: [u32; 3],
}

impl End<'_> {
    /// The blocks of what lies between them; nothing if their work cannot be done at the place of the first.
    fn left_out(&self, added: &ValueView) -> Option<SmallVec<[u32; 2]>> {
        let (program, [norm, _, relu]) = (self.program, self.members);
        let output = |number: u32| program.block_of(program.calls[number as usize].outputs[0].value);
        let is_there = program.value(added.value).call.is_none_or(|made| made < norm);
        let is_kept = match program.value(added.value).place {
            Place::Block(block) => self.writers(block).all(|writer| !(norm..relu).contains(&writer)),
            Place::Argument(_) | Place::Captured(_) | Place::Variable(_) => true,
        };
        let result = output(relu)?;
        if !is_there || !is_kept || !self.is_own(result) {
            return None;
        }
        let between = self.members[..2].iter().filter_map(|&member| output(member));
        Some(between.filter(|&block| block != result && self.is_own(block)).collect())
    }

    /// The calls besides these that write to a block.
    fn writers(&self, block: u32) -> impl Iterator<Item = u32> {
        let writers = self.uses.writers[block as usize].iter().copied();
        writers.filter(|writer| !self.members.contains(writer))
    }

    /// Whether nothing but what these calls make lies in a block until the last of them is done.
    fn is_own(&self, block: u32) -> bool {
        let is_donated = (block as usize) < self.program.donated.len();
        !is_donated && self.writers(block).all(|writer| writer > self.members[2])
    }
}

impl Program {
    /// The program with the ends of some blocks as one call each.
    pub(super) fn joining(&self, ends: &[BlockEnd]) -> Program {
        let at_norm: BTreeMap<u32, usize> =
            (0..).zip(ends).map(|(number, end)| (end.members[0], number)).collect();
        let left_out: BTreeSet<u32> = ends.iter().flat_map(|end| end.left_out.iter().copied()).collect();
        let gone: BTreeSet<u32> = ends.iter().flat_map(|end| end.members).collect();
        let mut acquired: BTreeSet<u32> = BTreeSet::new();
        let mut instructions = LongList::default();
        for &instruction in self.instructions() {
            match instruction {
                Instruction::Acquire(block)
                | Instruction::Relabel(block, _)
                | Instruction::Release(block)
                    if left_out.contains(&block) => {}
                // Some were acquired for an end of a block, earlier than they had been.
                Instruction::Acquire(block) if !acquired.insert(block) => {}
                Instruction::Call(number) => match at_norm.get(&number) {
                    Some(&end) => {
                        let result = self.block_of(ends[end].call.outputs[0].value);
                        let missing = result.filter(|&block| acquired.insert(block));
                        instructions.extend(missing.map(Instruction::Acquire));
                        // Calls that take the place of others are numbered after all others until the numbers are made anew.
                        instructions.push(Instruction::Call((self.calls.len() + end) as u32));
                    }
                    None if gone.contains(&number) => {}
                    None => instructions.push(instruction),
                },
                other => instructions.push(other),
            }
        }
        let joined = ends.iter().map(|end| end.call.clone());
        let calls: LongList<Call> = self.calls.iter().cloned().chain(joined).collect();
        let at_relu = (0..).zip(ends).map(|(number, end)| (end.members[2], number)).collect();
        self.compacted(&calls, &instructions, &at_relu)
    }
}
