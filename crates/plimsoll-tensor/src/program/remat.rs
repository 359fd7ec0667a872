//! Rematerialisation: a program that frees values early and computes them again, or moves them out of the device's memory
//! and back, as a planner has decided.
//!
//! The new program is a program like any other: calls that are repeated are calls, copies are instructions, and lives are
//! where memory is taken and freed. Whoever plays or runs it need not know that anything was decided. A call that reads a
//! value which is not there is preceded by the calls that make it from what is, in their order, and by the copies that bring
//! back what was moved; what only they read is freed on the way. Repeated calls have the ops, attributes and draws of the
//! first time and the same inputs, so their results have the same bits.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use plimsoll_memory::{Label, LongList, Owner};
use plimsoll_plan::{Decisions, Trace};
use smallvec::SmallVec;

use super::trace::{Numbering, Part, Record, Work};
use super::{BlockSpec, Call, Instruction, Phase, Place, Program, Value, ValueView};
use crate::dtype::DType;
use crate::execute;
use crate::op::{Meta, OpRef};

/// Values by the position of the record at which something happens to them.
type AtPositions = BTreeMap<u32, Vec<u32>>;

impl Program {
    /// This program with values freed and computed again as decided about its trace; nothing if a value is wanted again
    /// that cannot be computed again.
    pub fn rematerialised(&self, trace: &Trace, decisions: &Decisions) -> Option<Program> {
        let mut held = BTreeSet::new();
        loop {
            let mut rewriter = Rewriter::new(self, trace, decisions, held.clone());
            if self.instructions().try_for_each(|instruction| rewriter.rewrite(instruction)).is_some() {
                return Some(rewriter.finish());
            }
            // An argument that is given away is held to the end if something is computed from it again.
            rewriter.missing.filter(|&value| held.insert(value))?;
        }
    }
}

/// What makes a value be there again.
#[derive(Clone, Copy)]
enum Link {
    /// Running a record again, with or without its auxiliary outputs.
    Repeat { record: Record, with_aux: bool },
    /// Bringing back the copy of a value.
    Fetch(u32),
}

struct Rewriter<'a> {
    from: &'a Program,
    decisions: &'a Decisions,
    numbering: Numbering,
    /// Values that go when the record at a position begins, before what it reads is computed again.
    dropped: AtPositions,
    /// Those that go then, after that,
    before: AtPositions,
    /// and those that go when it has ended.
    after: AtPositions,
    /// Values that begin to come back when it begins.
    prefetched: AtPositions,
    to: Program,
    /// For each old value, the new one that holds it now,
    current: LongList<Option<u32>>,
    /// and the one that held it first.
    firsts: LongList<Option<u32>>,
    /// The copies of values that were moved out of the device's memory,
    copies: HashMap<u32, u32>,
    /// and the values that are on their way back.
    arriving: HashSet<u32>,
    /// For each old block, the value that it holds,
    occupants: LongList<Option<u32>>,
    /// and the new block that was taken for it.
    blocks: LongList<Option<u32>>,
    /// The calls that have run.
    n_calls: u32,
    /// Whether what must precede the next call has been done.
    is_prepared: bool,
    /// Values that were computed again for the next call alone.
    passing: Vec<u32>,
    /// Arguments that are given away and not freed before the end,
    held: BTreeSet<u32>,
    /// and one that was wanted after it was freed.
    missing: Option<u32>,
}

impl<'a> Rewriter<'a> {
    fn new(from: &'a Program, trace: &Trace, decisions: &'a Decisions, held: BTreeSet<u32>) -> Rewriter<'a> {
        let numbering = Numbering::of(from);
        let old = |number: u32| numbering.values[number as usize];
        let by_position = |pairs: &HashSet<(u32, u32)>| {
            let mut places = AtPositions::new();
            pairs.iter().for_each(|&(at, number)| places.entry(at).or_default().push(old(number)));
            places.values_mut().for_each(|values| values.sort_unstable());
            places
        };
        let mut dropped = AtPositions::new();
        for ((number, is_dropped), value) in (0..).zip(&decisions.dropped).zip(&trace.values) {
            if let Some(position) = value.alone_from.filter(|_| *is_dropped) {
                dropped.entry(position).or_default().push(old(number));
            }
        }
        let (before, after) =
            (by_position(&decisions.released_before), by_position(&decisions.released_after));
        let mut prefetched = AtPositions::new();
        for &(position, number) in &decisions.prefetched {
            prefetched.entry(position).or_default().push(old(number));
        }
        let mut rewriter = Rewriter {
            from,
            decisions,
            dropped,
            before,
            after,
            prefetched,
            copies: HashMap::new(),
            arriving: HashSet::new(),
            to: from.without_calls(),
            current: LongList::default(),
            firsts: (0..from.n_values()).map(|_| None).collect(),
            occupants: (0..from.n_blocks()).map(|_| None).collect(),
            blocks: (0..from.n_blocks()).map(|_| None).collect(),
            n_calls: 0,
            is_prepared: false,
            passing: Vec::new(),
            held,
            missing: None,
            numbering,
        };
        for (number, value) in (0..).zip(from.values.iter()) {
            let input = value.call.is_none().then(|| rewriter.to.add_value(*value));
            rewriter.current.push(input);
            if let (Place::Block(block), true) = (value.place, from.is_donated(number)) {
                rewriter.occupants[block as usize] = Some(number);
            }
        }
        rewriter
    }

    fn rewrite(&mut self, instruction: &Instruction) -> Option<()> {
        match *instruction {
            Instruction::Acquire(block) => {
                self.prepare()?;
                let is_new_place = self.from.is_new_place(block);
                let taken = self.to.acquire(*self.from.block(block));
                self.blocks[block as usize] = Some(taken);
                if is_new_place {
                    self.to.new_places.push(taken);
                }
                if self.from.cleared.contains(&block) {
                    self.to.cleared.push(taken);
                }
            }
            Instruction::Release(block) => match self.occupants[block as usize].take() {
                Some(value) => self.free(value),
                None => self.release_block(block),
            },
            Instruction::Relabel(block, label) => {
                let place = match self.occupants[block as usize] {
                    Some(value) => self.current[value as usize].and_then(|value| self.to.block_of(value)),
                    None => self.blocks[block as usize],
                };
                if let Some(block) = place {
                    self.to.instructions.push(Instruction::Relabel(block, label));
                }
            }
            Instruction::Call(number) => {
                self.prepare()?;
                self.call(number);
            }
            Instruction::Mark(_) | Instruction::Commit => self.to.instructions.push(*instruction),
            Instruction::Offload(..)
            | Instruction::Fetch(..)
            | Instruction::Wait(_)
            | Instruction::Discard(_) => unreachable!("a program is rewritten as it was recorded"),
        }
        Some(())
    }

    /// Frees the block that was taken for an old one, if that has not happened.
    fn release_block(&mut self, block: u32) {
        if let Some(block) = self.blocks[block as usize].take() {
            self.to.instructions.push(Instruction::Release(block));
        }
    }

    /// Frees a value, if it is there.
    fn free(&mut self, value: u32) {
        if self.held.contains(&value) {
            return;
        }
        self.arriving.remove(&value);
        let block = self.current[value as usize].take().and_then(|value| self.to.block_of(value));
        if let Some(block) = block {
            self.to.instructions.push(Instruction::Release(block));
        }
    }

    fn free_all(&mut self, values: Option<Vec<u32>>) {
        values.into_iter().flatten().for_each(|value| self.free(value));
    }

    /// The records of the call that is next; none for an update.
    fn positions(&self, call: u32) -> SmallVec<[u32; 2]> {
        let Some(first) = self.numbering.positions[call as usize] else { return SmallVec::new() };
        let is_same = |at: &u32| {
            (*at as usize) < self.numbering.records.len() && self.numbering.records[*at as usize].call == call
        };
        (first..first + 2).filter(is_same).collect()
    }

    /// What happens before the next call takes its memory: values go, and what it reads comes back.
    fn prepare(&mut self) -> Option<()> {
        if std::mem::replace(&mut self.is_prepared, true) {
            return Some(());
        }
        let Some(&position) = self.positions(self.n_calls).first() else { return Some(()) };
        let dropped = self.dropped.remove(&position);
        self.free_all(dropped);
        let call = &self.from.calls[self.n_calls as usize];
        let mut absent: Vec<u32> = call.inputs.iter().map(|view| view.value).collect();
        absent.sort_unstable();
        absent.dedup();
        for value in absent {
            if self.current[value as usize].is_none() {
                self.bring_back(value, position)?;
            } else if self.wait_for(value) && !self.is_retained(value, position) {
                self.passing.push(value);
            }
        }
        for value in self.before.remove(&position).into_iter().flatten() {
            // What the call itself reads goes after it.
            match call.inputs.iter().any(|view| view.value == value) {
                true => self.passing.push(value),
                false => self.free(value),
            }
        }
        for value in self.prefetched.remove(&position).into_iter().flatten() {
            if self.current[value as usize].is_none() {
                self.fetch(value);
            }
        }
        Some(())
    }

    /// A call of the old program, on values as they are now.
    fn call(&mut self, number: u32) {
        let call = &self.from.calls[number as usize];
        let inputs: SmallVec<[ValueView; 2]> =
            call.inputs.iter().map(|view| self.view(view.value, &view.meta)).collect();
        let mut outputs = SmallVec::new();
        for view in &call.outputs {
            let place = self.place(view.value);
            let old = self.from.value(view.value);
            let call = Some(self.to.calls.len() as u32);
            let value = self.to.add_value(Value { place, call, ..*old });
            self.current[view.value as usize] = Some(value);
            self.firsts[view.value as usize] = Some(value);
            outputs.push(ValueView { value, meta: view.meta.clone() });
        }
        let workspace = call.workspace.and_then(|block| self.blocks[block as usize]);
        self.to.push_call(Call { inputs, outputs, workspace, ..call.clone() });
        if let Some(block) = call.workspace {
            self.release_block(block);
        }
        call.outputs.iter().for_each(|view| self.offload(view.value));
        let positions = self.positions(number);
        (self.n_calls, self.is_prepared) = (number + 1, false);
        for value in std::mem::take(&mut self.passing) {
            self.free(value);
        }
        for (nth, position) in positions.into_iter().enumerate() {
            if nth > 0 {
                let dropped = self.dropped.remove(&position);
                self.free_all(dropped);
            }
            let after = self.after.remove(&position);
            self.free_all(after);
        }
    }

    /// Where a value that is about to be made goes: where the old one went, or over the value that lay there.
    fn place(&mut self, value: u32) -> Place {
        let Place::Block(block) = self.from.value(value).place else { return self.from.value(value).place };
        let overwritten = self.occupants[block as usize].replace(value);
        let taken = match overwritten.and_then(|value| self.current[value as usize].take()) {
            Some(overwritten) => self.to.block_of(overwritten),
            None => self.blocks[block as usize].take(),
        };
        Place::Block(taken.unwrap_or_else(|| unreachable!("a call writes to memory that was taken")))
    }

    fn view(&self, value: u32, meta: &Meta) -> ValueView {
        let value = self.current[value as usize];
        let value = value.unwrap_or_else(|| unreachable!("a call reads values that are there"));
        ValueView { value, meta: Box::new(*meta) }
    }

    /// Moves a copy of a value that was just made out of the device's memory, if that is decided.
    fn offload(&mut self, value: u32) {
        let Some(number) = self.numbering.numbers[value as usize] else { return };
        if let Some(current) =
            self.current[value as usize].filter(|_| self.decisions.offloaded[number as usize])
        {
            self.copies.insert(value, self.to.n_copies);
            self.to.instructions.push(Instruction::Offload(current, self.to.n_copies));
            self.to.n_copies += 1;
        }
    }

    /// Begins to bring a copy of a value back.
    fn fetch(&mut self, value: u32) {
        let (old, copy) = (*self.from.value(value), self.copies[&value]);
        let Some(call) = old.call else { unreachable!("only what calls make is moved") };
        let label = Label::new(Owner::Temporary, self.from.calls[call as usize].site);
        let block = self.to.acquire(BlockSpec { n_bytes: old.n_bytes as u64, device: old.device, label });
        let first = self.firsts[value as usize];
        let call = first.and_then(|first| self.to.value(first).call);
        let place = Place::Block(block);
        let back = self.to.add_value(Value { place, call, first_fetch: None, repeats: first, ..old });
        self.to.instructions.push(Instruction::Fetch(copy, back));
        self.current[value as usize] = Some(back);
        self.arriving.insert(value);
    }

    /// Lets calls from here on read a value, if it is on its way back; whether it was.
    fn wait_for(&mut self, value: u32) -> bool {
        let is_arriving = self.arriving.remove(&value);
        if is_arriving {
            self.to.instructions.push(Instruction::Wait(self.copies[&value]));
        }
        is_arriving
    }

    /// Brings a value back before the record at a position: from its copy, or by computing it again.
    fn bring_back(&mut self, target: u32, position: u32) -> Option<()> {
        let chain = match self.chain(target) {
            Ok(chain) => chain,
            Err(value) => {
                self.missing = Some(value).filter(|&value| self.from.is_donated(value));
                return None;
            }
        };
        let mut last_reads: HashMap<u32, usize> = HashMap::new();
        for (at, link) in chain.iter().enumerate() {
            let Link::Repeat { record, .. } = link else { continue };
            last_reads.extend(self.from.work(*record).inputs.iter().map(|(value, _)| (*value, at)));
        }
        let mut made: Vec<u32> = Vec::new();
        for (at, link) in chain.iter().enumerate() {
            match *link {
                Link::Repeat { record, with_aux } => made.extend(self.repeat(record, with_aux)),
                Link::Fetch(value) => {
                    self.fetch(value);
                    made.push(value);
                }
            }
            made.retain(|&value| {
                let is_read = last_reads.get(&value).is_some_and(|&last| last > at);
                let stays = is_read || value == target || self.is_retained(value, position);
                if !stays {
                    let block = self.current[value as usize].take().and_then(|value| self.to.block_of(value));
                    self.to.instructions.extend(block.map(Instruction::Release));
                }
                stays
            });
        }
        self.wait_for(target);
        if !self.is_retained(target, position) {
            self.passing.push(target);
        }
        Some(())
    }

    fn is_retained(&self, value: u32, position: u32) -> bool {
        let number = self.numbering.numbers[value as usize];
        number.is_some_and(|number| self.decisions.retained.contains(&(position, number)))
    }

    /// What leads to a value from what is there, in the order in which the values were first made; or a value on the way that
    /// cannot be made.
    fn chain(&self, target: u32) -> Result<Vec<Link>, u32> {
        let mut chain: BTreeMap<(u32, bool, u32), Link> = BTreeMap::new();
        let mut open = vec![target];
        while let Some(value) = open.pop() {
            let position = self.maker(value).ok_or(value)?;
            if self.copies.contains_key(&value) {
                chain.insert((position, false, value), Link::Fetch(value));
                continue;
            }
            let record = self.numbering.records[position as usize];
            if !self.from.calls[record.call as usize].is_repeatable() {
                return Err(value);
            }
            let work = self.from.work(record);
            let n_outputs = work.makes.len() - work.n_aux;
            let is_aux = !work.makes[..n_outputs].iter().any(|(made, _)| *made == value);
            let at = (position, true, 0);
            if let Some(Link::Repeat { with_aux, .. }) = chain.get_mut(&at) {
                *with_aux |= is_aux;
                continue;
            }
            chain.insert(at, Link::Repeat { record, with_aux: is_aux });
            let absent = work.inputs.iter().map(|(value, _)| *value);
            open.extend(absent.filter(|&value| self.current[value as usize].is_none()));
        }
        Ok(chain.into_values().collect())
    }

    /// The record that makes a value.
    fn maker(&self, value: u32) -> Option<u32> {
        let call = self.from.value(value).call?;
        self.positions(call).into_iter().find(|&position| {
            let work = self.from.work(self.numbering.records[position as usize]);
            work.makes.iter().any(|(made, _)| *made == value)
        })
    }

    /// Takes memory for what a call makes once more.
    fn outputs_again(
        &mut self,
        op: &OpRef,
        makes: &[(u32, &Meta)],
        first: &Call,
    ) -> SmallVec<[ValueView; 1]> {
        let label = Label::new(Owner::Temporary, first.site);
        let number = self.to.calls.len() as u32;
        let mut outputs = SmallVec::new();
        for &(old, meta) in makes {
            let Value { n_bytes, device, .. } = *self.from.value(old);
            let block = self.to.acquire(BlockSpec { n_bytes: n_bytes as u64, device, label });
            if op.is_own() && meta.dtype == DType::Bool {
                self.to.cleared.push(block);
            }
            let value = Value {
                n_bytes,
                place: Place::Block(block),
                device,
                call: Some(number),
                first_fetch: None,
                repeats: self.firsts[old as usize],
            };
            outputs.push(ValueView { value: self.to.add_value(value), meta: Box::new(*meta) });
        }
        outputs
    }

    /// Runs a record again; returns the values that are there again.
    fn repeat(&mut self, record: Record, with_aux: bool) -> SmallVec<[u32; 2]> {
        let Work { op, inputs, mut makes, mut n_aux, unasked } = self.from.work(record);
        let first = &self.from.calls[record.call as usize];
        if !with_aux {
            makes.truncate(makes.len() - n_aux);
            n_aux = 0;
        }
        let n_asked = makes.len();
        makes.extend(unasked);
        inputs.iter().for_each(|(value, _)| _ = self.wait_for(*value));
        let views: SmallVec<[ValueView; 2]> =
            inputs.iter().map(|(value, meta)| self.view(*value, meta)).collect();
        let outputs = self.outputs_again(&op, &makes, first);
        let metas: SmallVec<[&Meta; 4]> = inputs.iter().map(|(_, meta)| *meta).collect();
        let device = first.device;
        let runs_on = &self.from.devices[usize::from(device)];
        let n_bytes = execute::workspace_bytes(&op, runs_on, &metas, first.order) as u64;
        let label = Label::new(Owner::Workspace, first.site);
        let workspace = (n_bytes > 0).then(|| self.to.acquire(BlockSpec { n_bytes, device, label }));
        let output_metas: SmallVec<[&Meta; 2]> =
            makes[..makes.len() - n_aux].iter().map(|(_, meta)| *meta).collect();
        let repeated_flops = Some(op.get().cost(&metas, &output_metas).flops);
        let values: SmallVec<[u32; 2]> = outputs.iter().map(|view: &ValueView| view.value).collect();
        let wanted = if record.part == Part::Second { SmallVec::new() } else { first.wanted.clone() };
        self.to.push_call(Call {
            op,
            inputs: views,
            outputs,
            n_aux: n_aux as u16,
            workspace,
            wanted,
            device,
            phase: Phase::Backward,
            site: first.site,
            order: first.order,
            repeated_flops,
            source: record.call,
            is_second: record.part == Part::Second,
        });
        self.to.instructions.extend(workspace.map(Instruction::Release));
        let mut back = SmallVec::new();
        for (nth, (&(old, _), value)) in makes.iter().zip(values).enumerate() {
            // What nobody asked for goes, and so does a second copy of what is there.
            if nth < n_asked && self.current[old as usize].is_none() {
                self.current[old as usize] = Some(value);
                back.push(old);
            } else {
                self.to.instructions.extend(self.to.block_of(value).map(Instruction::Release));
            }
        }
        back
    }

    fn finish(mut self) -> Program {
        let results = self.from.results.iter().map(|view| self.view(view.value, &view.meta)).collect();
        self.to.results = results;
        for value in std::mem::take(&mut self.held) {
            self.free(value);
        }
        self.discard_copies();
        self.to
    }

    /// Says where each copy is not wanted any more: where it has come back for the last time.
    fn discard_copies(&mut self) {
        let mut wanted: HashMap<u32, usize> = HashMap::new();
        for (at, instruction) in self.to.instructions.iter().enumerate() {
            if let Instruction::Offload(_, copy) | Instruction::Fetch(copy, _) | Instruction::Wait(copy) =
                *instruction
            {
                wanted.insert(copy, at);
            }
        }
        let instructions = std::mem::take(&mut self.to.instructions);
        for (at, instruction) in instructions.into_iter().enumerate() {
            self.to.instructions.push(instruction);
            if let Instruction::Offload(_, copy) | Instruction::Fetch(copy, _) | Instruction::Wait(copy) =
                instruction
                && wanted[&copy] == at
            {
                self.to.instructions.push(Instruction::Discard(copy));
            }
        }
    }
}
