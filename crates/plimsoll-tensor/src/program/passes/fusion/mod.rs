//! Fusion: calls of pointwise ops that read each other's results become one call, so that what is between them takes neither
//! memory nor time; and with them the op that reads what they make, if it takes elements where they are made: a reduction, a softmax,
//! a norm, a cross entropy, or the gradient of one.
//!
//! Calls are joined in the order of the program: each with those that made its inputs, as long as the whole can run at the
//! place of its last call. So nobody else may read a result before that place, nothing that is read may be overwritten before
//! it, and what is held longer for it may not take more memory than what is left out. A group belongs to one phase: what forward
//! saves for backward stays a value of its own.

mod rewrite;

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use super::super::{Call, Place, Program, ValueView};
use super::uses::{Uses, is_plain};
use crate::base::dtype::DType;
use crate::base::layout::Layout;
use crate::eager::op::{OpRef, TakesMade};
use crate::ops::fused::{Fused, FusedFold, FusedInput, FusedStep, Memory, Taker};

/// Calls that become one.
#[derive(Clone)]
pub(super) struct Fusion {
    /// The calls, in order.
    members: Vec<u32>,
    /// What does their work,
    op: OpRef,
    /// what it reads,
    inputs: SmallVec<[ValueView; 2]>,
    /// and what others read of what it makes.
    outputs: SmallVec<[ValueView; 1]>,
    /// The block of its first output, and that of an input whose memory it takes instead, because that is freed then.
    reused: Option<(u32, u32)>,
}

/// How many calls may lie between those of a group that holds more than it leaves out: what each finds is looked at.
const LONGEST_WINDOW: u32 = 64;

/// How long what is read may be held for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holding {
    /// As long as no call from the group's first to its last finds more bytes in use than one of them does without it.
    WithinPeaks,
    /// As long as no more bytes are held than left out. Where groups are next to each other, that raises a peak less easily.
    WithinSavings,
}

/// All groups of calls that can be fused.
pub(super) fn groups(program: &Program, holding: Holding) -> Vec<Fusion> {
    let scene = Scene { program, uses: Uses::of(program), holding };
    // The group of each call; a group is known by its first call.
    let mut group_of: BTreeMap<u32, u32> = BTreeMap::new();
    let mut groups: BTreeMap<u32, Fusion> = BTreeMap::new();
    let mut members: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (number, call) in (0u32..).zip(program.calls.iter()) {
        if !is_pointwise(program, call) {
            continue;
        }
        let producers = call.inputs.iter().filter_map(|view| program.value(view.value).call);
        let known: BTreeSet<u32> = producers.filter_map(|call| group_of.get(&call).copied()).collect();
        let joined = |with: &[u32]| {
            let mut all: Vec<u32> = with.iter().flat_map(|group| members[group].clone()).collect();
            all.push(number);
            all.sort_unstable();
            Fusion::new(&scene, all).map(|fusion| (with.to_vec(), fusion))
        };
        let all: Vec<u32> = known.iter().copied().collect();
        let taken = match all.len() {
            0 => None,
            1 => joined(&all),
            _ => joined(&all).or_else(|| all.iter().rev().find_map(|&one| joined(&[one]))),
        };
        let (with, fusion) = taken.map_or((Vec::new(), None), |(with, fusion)| (with, Some(fusion)));
        let into = with.first().copied().unwrap_or(number);
        for group in with {
            groups.remove(&group);
            let moved = members.remove(&group).unwrap_or_default();
            moved.iter().for_each(|&call| _ = group_of.insert(call, into));
            members.entry(into).or_default().extend(moved);
        }
        members.entry(into).or_default().push(number);
        group_of.insert(number, into);
        groups.extend(fusion.map(|fusion| (into, fusion)));
    }
    for (number, call) in (0u32..).zip(program.calls.iter()).filter(|(_, call)| folds(program, call)) {
        let producer = program.value(call.inputs[0].value).call;
        let Some(group) = producer.and_then(|producer| group_of.get(&producer).copied()) else { continue };
        // The members go, so that no other reduction takes them.
        let Some(fusion) = members.get(&group).and_then(|all| Fusion::folding(&scene, all, number)) else {
            continue;
        };
        members.remove(&group);
        groups.insert(group, fusion);
    }
    groups.into_values().collect()
}

/// Whether a call can take in what makes its first input.
fn folds(program: &Program, call: &Call) -> bool {
    let is_block = |view: &ValueView| program.block_of(view.value).is_some() && view.meta.n_elems() > 0;
    is_plain(call)
        && call.op.takes_made(&call.input_metas()).is_some()
        && call.outputs.iter().all(is_block)
        && call.inputs[0].meta.n_elems() > 0
}

/// Whether a call can be part of a group.
fn is_pointwise(program: &Program, call: &Call) -> bool {
    let [output] = &call.outputs[..] else { return false };
    let shape = output.meta.shape();
    let is_whole = output.meta.layout == Layout::contiguous(*shape) && output.meta.n_elems() > 0;
    let is_block = program.block_of(output.value).is_some();
    let fits = |view: &ValueView| view.meta.layout.broadcast_to(shape).is_some();
    let reads = is_plain(call) && call.workspace.is_none() && call.inputs.iter().all(fits);
    reads && is_whole && is_block && call.op.pointwise().is_some()
}

/// What groups are found in.
struct Scene<'a> {
    program: &'a Program,
    uses: Uses,
    holding: Holding,
}

impl Fusion {
    /// These calls as one, if they can be.
    fn new(scene: &Scene<'_>, members: Vec<u32>) -> Option<Fusion> {
        let (program, uses) = (scene.program, &scene.uses);
        let calls: Vec<&Call> = members.iter().map(|&number| &program.calls[number as usize]).collect();
        let (&last, end) = (members.last()?, calls.last()?);
        let layout = |call: &Call| call.outputs[0].meta.layout;
        let is_alike = |call: &&Call| {
            layout(call) == layout(end) && (call.device, call.phase) == (end.device, end.phase)
        };
        if !calls.iter().all(is_alike) {
            return None;
        }
        let shape = *layout(end).shape();
        let group = Group {
            program,
            uses,
            holding: scene.holding,
            members: &members,
            calls,
            last,
            fold: None,
            is_over: false,
        };
        let (made, read) = group.safe()?;
        let dtypes: SmallVec<[DType; 4]> = read.inputs.iter().map(|view| view.meta.dtype).collect();
        let fused = Fused::new(shape, &dtypes, read.steps, made.steps)?;
        let (op, inputs, outputs) = (OpRef::shipped(fused), read.inputs, made.outputs);
        Some(Fusion { members, op, inputs, outputs, reused: None })
    }

    /// These calls and one that takes in what one of them makes as one, if they can be.
    fn folding(scene: &Scene<'_>, members: &[u32], fold: u32) -> Option<Fusion> {
        let (program, uses) = (scene.program, &scene.uses);
        let calls: Vec<&Call> = members.iter().map(|&number| &program.calls[number as usize]).collect();
        let (end, taker) = (calls.last()?, &program.calls[fold as usize]);
        let is_alike = (end.device, end.phase) == (taker.device, taker.phase);
        if !is_alike || members.last().is_some_and(|&last| last > fold) {
            return None;
        }
        let shape = *end.outputs[0].meta.shape();
        let mut group = Group {
            program,
            uses,
            holding: scene.holding,
            members,
            calls,
            last: fold,
            fold: Some(taker),
            is_over: false,
        };
        let input = &taker.inputs[0];
        let reduced = group.step_of(input.value)?;
        let whole = *group.calls[usize::from(reduced)].outputs[0].meta;
        let is_whole = input.meta.layout == Layout::contiguous(*input.meta.shape())
            && (input.meta.n_elems(), input.meta.dtype) == (whole.n_elems(), whole.dtype);
        // The other inputs are not made here.
        let is_made = |view: &ValueView| group.step_of(view.value).is_some();
        if !is_whole || taker.inputs[1..].iter().any(is_made) {
            return None;
        }
        let memory = group.memory(taker, reduced)?;
        group.is_over = memory == Memory::FirstOutput;
        let (mut made, mut read) = group.safe()?;
        let reused = group.reused(&made, &read);
        let n_outputs = taker.outputs.len() - usize::from(taker.n_aux);
        let aux_outputs = taker.outputs[n_outputs..].iter().map(|view| *view.meta).collect();
        let dtypes: SmallVec<[DType; 4]> = read.inputs.iter().map(|view| view.meta.dtype).collect();
        let taken = Taker { op: taker.op.clone(), input: *input.meta, aux_outputs, memory };
        let fused = FusedFold::new(taken, shape, &dtypes, read.steps, (&made.steps, reduced))?;
        let mut outputs = taker.outputs.clone();
        outputs.append(&mut made.outputs);
        read.inputs.extend(taker.inputs[1..].iter().cloned());
        let members = members.iter().copied().chain([fold]).collect();
        Some(Fusion { members, op: OpRef::shipped(fused), inputs: read.inputs, outputs, reused })
    }

    /// The call at whose place it runs.
    fn last(&self) -> u32 {
        self.members.last().copied().unwrap_or_default()
    }
}

/// Calls that may become one.
struct Group<'a> {
    program: &'a Program,
    uses: &'a Uses,
    holding: Holding,
    members: &'a [u32],
    calls: Vec<&'a Call>,
    /// The call at whose place they run: their last one, or the reduction of what they make.
    last: u32,
    fold: Option<&'a Call>,
    /// Whether what that reads is made in the memory of its first output.
    is_over: bool,
}

/// What a group reads.
struct Read {
    steps: Vec<FusedStep>,
    inputs: SmallVec<[ValueView; 2]>,
    /// The blocks that the inputs lie in.
    blocks: BTreeSet<u32>,
}

/// What a group makes.
struct Made {
    outputs: SmallVec<[ValueView; 1]>,
    /// The steps that make the outputs.
    steps: SmallVec<[u16; 4]>,
    /// The blocks of what only the group itself reads.
    left_out: BTreeSet<u32>,
}

impl Group<'_> {
    fn is_member(&self, call: u32) -> bool {
        self.members.binary_search(&call).is_ok() || (self.fold.is_some() && call == self.last)
    }

    /// What they make and read, if their work can be done at the place of the last one.
    fn safe(&self) -> Option<(Made, Read)> {
        let (made, read) = (self.made()?, self.read()?);
        let is_alone = |view: &ValueView| is_alone(self.program, view, &made.outputs, &read.inputs);
        let folded = self.fold.iter().flat_map(|fold| &fold.outputs).skip(usize::from(self.is_over));
        let is_apart = |view: &ValueView| {
            let others = || made.outputs.iter().chain(&read.inputs);
            others().all(|other| self.program.block_of(other.value) != self.program.block_of(view.value))
        };
        let over = self.fold.filter(|_| self.is_over).map(|fold| self.is_written_over(fold, &made, &read));
        let is_safe =
            made.outputs.iter().all(is_alone) && folded.clone().all(is_apart) && over != Some(false);
        (is_safe && !self.holds_more(&made, &read)).then_some((made, read))
    }

    /// Where what the last call takes in lies when that reads it again; nothing if there is no memory for it.
    fn memory(&self, taker: &Call, reduced: u16) -> Option<Memory> {
        let takes = taker.op.takes_made(&taker.input_metas())?;
        let TakesMade::Written { over_output } = takes else {
            return (taker.inputs.len() == 1).then_some(Memory::None);
        };
        if let Some(number) = self.made()?.steps.iter().position(|&step| step == reduced) {
            return Some(Memory::Written(number as u16));
        }
        let (input, output) = (&taker.inputs[0].meta, &taker.outputs[0].meta);
        let is_alike = (input.shape(), input.dtype) == (output.shape(), output.dtype);
        (over_output && is_alike).then_some(Memory::FirstOutput)
    }

    /// Whether the first output of the last call may hold what that takes in before: nothing else lies there, but for inputs that are
    /// read element for element as it is made.
    fn is_written_over(&self, fold: &Call, made: &Made, read: &Read) -> bool {
        let output = &fold.outputs[0];
        let block = |view: &ValueView| self.program.block_of(view.value);
        let others = made.outputs.iter().chain(&fold.inputs[1..]);
        let is_free = others.clone().all(|view| block(view) != block(output));
        let mut same = read.inputs.iter().filter(|view| block(view) == block(output));
        // The op may see it in another shape than the ops that make it do.
        let first = &self.calls[0].outputs[0].meta;
        let fits = |view: &ValueView| {
            view.meta.layout == first.layout && view.meta.dtype.size() == output.meta.dtype.size()
        };
        is_free && same.all(fits)
    }

    /// The member that makes a value.
    fn step_of(&self, value: u32) -> Option<u16> {
        let call = self.program.value(value).call?;
        self.members.binary_search(&call).ok().map(|step| step as u16)
    }

    /// What the members read; nothing if it is not there any more at the place of the last one.
    fn read(&self) -> Option<Read> {
        let mut read = Read { steps: Vec::new(), inputs: SmallVec::new(), blocks: BTreeSet::new() };
        for (&number, call) in self.members.iter().zip(&self.calls) {
            let mut inputs = SmallVec::new();
            for view in &call.inputs {
                let Some(step) = self.step_of(view.value) else {
                    inputs.push(FusedInput::Outer(number_of(&mut read.inputs, view)));
                    let Some(block) = self.program.block_of(view.value) else { continue };
                    let is_between =
                        |writer: &u32| (number..self.last).contains(writer) && !self.is_member(*writer);
                    if self.uses.writers[block as usize].iter().any(is_between) {
                        return None;
                    }
                    read.blocks.insert(block);
                    continue;
                };
                // A member's result is seen as it was made.
                if view.meta != self.calls[usize::from(step)].outputs[0].meta {
                    return None;
                }
                inputs.push(FusedInput::Step(step));
            }
            let dtype = call.outputs[0].meta.dtype;
            read.steps.push(FusedStep { op: call.op.clone(), inputs, dtype });
        }
        Some(read)
    }

    /// What others read of what the members make; nothing if they do so before the last one.
    fn made(&self) -> Option<Made> {
        let (outputs, steps) = (SmallVec::new(), SmallVec::new());
        let mut made = Made { outputs, steps, left_out: BTreeSet::new() };
        for (step, call) in (0u16..).zip(&self.calls) {
            let view = &call.outputs[0];
            let readers = &self.uses.readers[view.value as usize];
            let mut others = readers.iter().filter(|&&reader| !self.is_member(reader));
            if others.clone().any(|&reader| reader < self.last) {
                return None;
            }
            if others.next().is_some() || self.uses.is_result[view.value as usize] {
                made.steps.push(step);
                made.outputs.push(view.clone());
            } else {
                made.left_out.extend(self.program.block_of(view.value));
            }
        }
        Some(made)
    }

    /// The block of the last call's first output, and that of an input which would be held longer for the group alone: the output may
    /// be written over it, because it is read element for element as the output is made, and read first.
    fn reused(&self, made: &Made, read: &Read) -> Option<(u32, u32)> {
        let fold = self.fold.filter(|fold| !self.is_over && fold.outputs.len() > usize::from(fold.n_aux))?;
        let (program, output) = (self.program, &fold.outputs[0]);
        let block = |view: &ValueView| program.block_of(view.value);
        let own = block(output)?;
        let is_fresh = self.uses.writers[own as usize].first() == Some(&self.last)
            && own as usize >= program.donated.len()
            && !program.new_places.contains(&own)
            && !program.cleared.contains(&own);
        let is_free = |other: u32| {
            let spec = |number: u32| (program.block(number).n_bytes, program.block(number).device);
            let is_alone = |view: &ValueView| block(view) != Some(other);
            self.uses.freed[other as usize] <= self.last
                && other as usize >= program.donated.len()
                && spec(other) == spec(own)
                && made.outputs.iter().chain(&fold.inputs).chain(&fold.outputs).all(is_alone)
        };
        let whole = Layout::contiguous(*self.calls[0].outputs[0].meta.shape());
        let fits = |view: &ValueView| {
            view.meta.layout == whole && view.meta.dtype.size() == output.meta.dtype.size()
        };
        let is_whole = |other: &u32| read.inputs.iter().filter(|view| block(view) == Some(*other)).all(fits);
        let takes = fold.op.takes_made(&fold.input_metas());
        let is_alike = output.meta.n_elems() == whole.n_elems();
        let can = is_fresh && is_alike && matches!(takes, Some(TakesMade::Written { .. }));
        let freed = read.blocks.iter().copied().find(|other| is_free(*other) && is_whole(other));
        freed.filter(|_| can).map(|other| (own, other))
    }

    /// Whether what is held longer for the group takes more memory than what it leaves out.
    fn holds_more(&self, made: &Made, read: &Read) -> bool {
        let over = self.fold.filter(|_| self.is_over).map(|fold| &fold.outputs[0]);
        let outputs = made.outputs.iter().chain(over);
        let written: BTreeSet<u32> = outputs.filter_map(|view| self.program.block_of(view.value)).collect();
        let bytes = |blocks: &BTreeSet<u32>, counts: &dyn Fn(u32) -> bool| -> u64 {
            let counted = blocks.iter().filter(|&&block| !written.contains(&block) && counts(block));
            counted.map(|&block| self.program.block(block).n_bytes).sum()
        };
        let reused = self.reused(made, read);
        let is_held = |block: u32| self.uses.freed[block as usize] <= self.last;
        let is_more = |block: u32| is_held(block) && reused.is_none_or(|(_, other)| other != block);
        let held = bytes(&read.blocks, &is_more);
        let saved = bytes(&made.left_out, &|block| !read.blocks.contains(&block));
        held > saved && (self.holding == Holding::WithinSavings || self.raises_a_peak(&read.blocks, reused))
    }

    /// Whether a call between the first and the last finds more bytes in use than any of them does without the group.
    fn raises_a_peak(&self, read: &BTreeSet<u32>, reused: Option<(u32, u32)>) -> bool {
        let first = self.members.first().copied().unwrap_or(self.last);
        if self.last - first > LONGEST_WINDOW {
            return true;
        }
        let before = &self.uses.in_use[first as usize..=self.last as usize];
        let most = before.iter().max().copied().unwrap_or(0);
        let bytes = |block: u32| self.program.block(block).n_bytes;
        let found = |call: u32| {
            let is_held = |block: &&u32| self.uses.freed[**block as usize] <= call;
            let held: u64 = read.iter().filter(is_held).map(|&block| bytes(block)).sum();
            let spared = reused.filter(|_| call == self.last).map_or(0, |(own, _)| bytes(own));
            self.uses.in_use[call as usize] + held - spared
        };
        (first..=self.last).any(|call| found(call) > most)
    }
}

/// Whether an output lies where no other does, and every input that lies there is read element for element as it is written.
fn is_alone(program: &Program, output: &ValueView, outputs: &[ValueView], inputs: &[ValueView]) -> bool {
    let place = |view: &ValueView| match program.value(view.value).place {
        Place::Block(block) => Some(block),
        _ => None,
    };
    let is_same = |view: &&ValueView| place(view) == place(output);
    let fits = |input: &ValueView| {
        input.meta.layout == output.meta.layout && input.meta.dtype.size() == output.meta.dtype.size()
    };
    outputs.iter().filter(is_same).count() == 1 && inputs.iter().filter(is_same).all(fits)
}

/// The number of an input among those that there are, which it joins if it is new.
fn number_of(inputs: &mut SmallVec<[ValueView; 2]>, view: &ValueView) -> u16 {
    let known = inputs.iter().position(|input| input == view);
    known.unwrap_or_else(|| {
        inputs.push(view.clone());
        inputs.len() - 1
    }) as u16
}
