//! Carrying fusion out: one call instead of several, and the memory between calls as that needs it.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_memory::LongList;

use super::super::super::{Call, Instruction, Place, Program, Value, ValueView};
use super::Fusion;

/// What happens to memory beside the call that a group becomes.
#[derive(Default)]
struct Moved {
    /// Before it: blocks that its first calls acquired.
    acquired: Vec<Instruction>,
    /// After it: other owners, then blocks that it reads and that were freed before.
    relabelled: Vec<Instruction>,
    released: Vec<Instruction>,
}

impl Program {
    /// The program with some groups of calls as one call each.
    pub(in super::super) fn fusing(&self, fusions: &[Fusion]) -> Program {
        let plan = Plan::new(self, fusions);
        let from = self.moved(&plan);
        let mut moved: BTreeMap<u32, Moved> = BTreeMap::new();
        // The call before which an instruction stands.
        let mut next = 0;
        let mut instructions = LongList::default();
        for &instruction in self.instructions() {
            let Some(now) = plan.now(self, instruction) else { continue };
            match instruction {
                Instruction::Acquire(block) => match plan.acquired_at.get(&block) {
                    _ if plan.gone.contains(&block) => {}
                    Some(&last) => moved.entry(last).or_default().acquired.push(now),
                    None => instructions.push(now),
                },
                Instruction::Relabel(block, _) => match plan.acquired_at.get(&block) {
                    _ if plan.gone.contains(&block) => {}
                    Some(&last) if last >= next => moved.entry(last).or_default().relabelled.push(now),
                    _ => instructions.push(now),
                },
                Instruction::Release(block) => match plan.read_until.get(&block) {
                    _ if plan.gone.contains(&block) => {}
                    Some(&last) if last >= next => moved.entry(last).or_default().released.push(now),
                    _ => instructions.push(now),
                },
                Instruction::Call(number) => {
                    next = number + 1;
                    if !plan.is_member.contains(&number) {
                        instructions.push(instruction);
                    } else if let Some(&fusion) = plan.at_last.get(&number) {
                        let beside = moved.remove(&number).unwrap_or_default();
                        instructions.extend(beside.acquired);
                        // Calls of groups are numbered after all others until the numbers are made anew.
                        instructions.push(Instruction::Call((self.calls.len() + fusion) as u32));
                        instructions.extend(beside.relabelled);
                        instructions.extend(beside.released);
                    }
                }
                other => instructions.push(other),
            }
        }
        let fused = |fusion: &Fusion| {
            let last = &self.calls[fusion.last() as usize];
            let wanted = fusion.inputs.iter().map(|_| false).collect();
            let (inputs, outputs) = (fusion.inputs.clone(), fusion.outputs.clone());
            Call { op: fusion.op.clone(), inputs, outputs, n_aux: 0, wanted, ..last.clone() }
        };
        let calls: LongList<Call> = self.calls.iter().cloned().chain(fusions.iter().map(fused)).collect();
        from.compacted(&calls, &instructions, &plan.at_last)
    }

    /// The program with values where blocks lie now.
    fn moved(&self, plan: &Plan) -> Program {
        let mut to = self.clone();
        if plan.reused.is_empty() {
            return to;
        }
        for number in 0..to.values.len() {
            if let Place::Block(block) = &mut to.values[number].place {
                *block = plan.lies_in(*block);
            }
        }
        to
    }

    /// A program of these instructions, whose numbers of calls, blocks and values have no gaps and follow the order of the
    /// instructions. The groups that calls end in are numbered after all calls.
    pub(in super::super::super) fn compacted(
        &self,
        calls: &LongList<Call>,
        instructions: &LongList<Instruction>,
        fused: &BTreeMap<u32, usize>,
    ) -> Program {
        let mut to = self.without_calls();
        (to.written, to.n_draws) = (self.written.clone(), self.n_draws);
        let (mut blocks, mut new_calls) = (BTreeMap::new(), BTreeMap::new());
        for instruction in instructions.iter() {
            match *instruction {
                Instruction::Acquire(block) => _ = blocks.insert(block, blocks.len() as u32),
                Instruction::Call(call) => _ = new_calls.insert(call, new_calls.len() as u32),
                _ => {}
            }
        }
        // Who makes each value now.
        let mut makers: BTreeMap<u32, u32> = BTreeMap::new();
        for (&call, &number) in &new_calls {
            calls[call as usize].outputs.iter().for_each(|view| _ = makers.insert(view.value, number));
        }
        let mut values = BTreeMap::new();
        for (number, value) in (0u32..).zip(self.values.iter()) {
            if value.call.is_some() && !makers.contains_key(&number) {
                continue;
            }
            let place = match value.place {
                Place::Block(block) => match blocks.get(&block) {
                    Some(&block) => Place::Block(block),
                    None => continue,
                },
                place => place,
            };
            values.insert(number, values.len() as u32);
            let call = value.call.and_then(|_| makers.get(&number).copied());
            to.values.push(Value { place, call, ..*value });
        }
        let renumbered = |views: &mut dyn Iterator<Item = &mut ValueView>| {
            views.for_each(|view| view.value = values[&view.value]);
        };
        let mut ordered: Vec<(u32, u32)> = new_calls.iter().map(|(&old, &new)| (new, old)).collect();
        ordered.sort_unstable();
        for (new, old) in ordered {
            let mut call = calls[old as usize].clone();
            renumbered(&mut call.inputs.iter_mut().chain(&mut call.outputs));
            (call.workspace, call.source) = (call.workspace.map(|block| blocks[&block]), new);
            to.calls.push(call);
        }
        to.results.clone_from(&self.results);
        renumbered(&mut to.results.iter_mut());
        let mut by_number: Vec<(u32, u32)> = blocks.iter().map(|(&old, &new)| (new, old)).collect();
        by_number.sort_unstable();
        to.blocks.extend(by_number.iter().map(|&(_, old)| self.blocks[old as usize]));
        let kept = |list: &[u32]| list.iter().filter_map(|block| blocks.get(block).copied()).collect();
        (to.new_places, to.cleared) = (kept(&self.new_places), kept(&self.cleared));
        to.instructions.extend(instructions.iter().map(|instruction| match *instruction {
            Instruction::Acquire(block) => Instruction::Acquire(blocks[&block]),
            Instruction::Release(block) => Instruction::Release(blocks[&block]),
            Instruction::Relabel(block, label) => Instruction::Relabel(blocks[&block], label),
            Instruction::Call(call) => Instruction::Call(new_calls[&call]),
            other => other,
        }));
        to.fetch_at_readers(self, fused, &new_calls);
        to
    }

    /// Says of each value before which call backward first fetches it, by numbers of the calls that there are now.
    fn fetch_at_readers(
        &mut self,
        from: &Program,
        fused: &BTreeMap<u32, usize>,
        new_calls: &BTreeMap<u32, u32>,
    ) {
        // For each old call, the first of the new ones that stands at its place or later.
        let (n_old, n_new) = (from.calls.len(), self.calls.len() as u32);
        let mut next = vec![n_new; n_old + 1];
        for old in (0..n_old as u32).rev() {
            let now = fused.get(&old).map_or(old, |group| (n_old + group) as u32);
            let later = next[old as usize + 1];
            next[old as usize] = new_calls.get(&now).map_or(later, |&new| new.min(later));
        }
        let mut readers: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (number, call) in (0u32..).zip(self.calls.iter()) {
            call.inputs.iter().for_each(|view| readers.entry(view.value).or_default().push(number));
        }
        for number in 0..self.values.len() {
            let Some(first) = self.values[number].first_fetch else { continue };
            let floor = next.get(first as usize).copied().unwrap_or(n_new);
            let reader = readers.get(&(number as u32)).and_then(|all| all.iter().find(|&&at| at >= floor));
            self.values[number].first_fetch = Some(reader.copied().unwrap_or(floor));
        }
    }
}

/// What becomes of calls and blocks.
struct Plan {
    is_member: BTreeSet<u32>,
    /// The group whose last call that is.
    at_last: BTreeMap<u32, usize>,
    /// Blocks that hold nothing any more.
    gone: BTreeSet<u32>,
    /// The last call of the group that writes to a block first.
    acquired_at: BTreeMap<u32, u32>,
    /// The last call of the last group that reads a block.
    read_until: BTreeMap<u32, u32>,
    /// Blocks, and the blocks whose memory they take.
    reused: BTreeMap<u32, u32>,
}

impl Plan {
    fn new(program: &Program, fusions: &[Fusion]) -> Plan {
        let mut plan = Plan {
            is_member: fusions.iter().flat_map(|fusion| fusion.members.iter().copied()).collect(),
            at_last: (0..).zip(fusions).map(|(number, fusion)| (fusion.last(), number)).collect(),
            gone: BTreeSet::new(),
            acquired_at: BTreeMap::new(),
            read_until: BTreeMap::new(),
            reused: BTreeMap::new(),
        };
        // Blocks that hold an output, or an input of the program's that is donated, stay.
        let mut held: BTreeSet<u32> = (0..program.donated.len() as u32).collect();
        let mut first_writer: BTreeMap<u32, u32> = BTreeMap::new();
        for (number, call) in (0u32..).zip(program.calls.iter()) {
            for block in call.outputs.iter().filter_map(|view| program.block_of(view.value)) {
                first_writer.entry(block).or_insert(number);
                if !plan.is_member.contains(&number) {
                    held.insert(block);
                }
            }
            held.extend(call.workspace);
        }
        for fusion in fusions {
            held.extend(fusion.outputs.iter().filter_map(|view| program.block_of(view.value)));
            for block in fusion.inputs.iter().filter_map(|view| program.block_of(view.value)) {
                let until = plan.read_until.entry(block).or_default();
                *until = (*until).max(fusion.last());
            }
        }
        for fusion in fusions {
            // Another group may read what is there later, too.
            let is_last = |&(_, other): &(u32, u32)| plan.read_until.get(&other) == Some(&fusion.last());
            plan.reused.extend(fusion.reused.filter(is_last));
        }
        for fusion in fusions {
            for &member in &fusion.members {
                let blocks = program.calls[member as usize].outputs.iter();
                for block in blocks.filter_map(|view| program.block_of(view.value)) {
                    if !held.contains(&block) {
                        plan.gone.insert(block);
                    } else if first_writer[&block] == member && block >= program.donated.len() as u32 {
                        plan.acquired_at.insert(block, fusion.last());
                    }
                }
            }
        }
        plan
    }

    /// The block whose memory a block takes: its own, or that of one that is freed when it is acquired.
    fn lies_in(&self, mut block: u32) -> u32 {
        while let Some(&other) = self.reused.get(&block) {
            block = other;
        }
        block
    }

    /// What becomes of an instruction where blocks take the memory of others: nothing of the freeing of these.
    fn now(&self, program: &Program, instruction: Instruction) -> Option<Instruction> {
        let is_taken = |block: u32| self.reused.values().any(|&other| other == block);
        Some(match instruction {
            Instruction::Release(block) if is_taken(block) => return None,
            Instruction::Release(block) => Instruction::Release(self.lies_in(block)),
            Instruction::Relabel(block, label) => Instruction::Relabel(self.lies_in(block), label),
            Instruction::Acquire(block) if self.reused.contains_key(&block) => {
                Instruction::Relabel(self.lies_in(block), program.block(block).label)
            }
            other => other,
        })
    }
}
