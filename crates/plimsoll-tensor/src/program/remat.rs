//! Rematerialisation: a program that evicts values early and recomputes them, or offloads and reloads them, as a planner
//! has decided.
//!
//! The new program is a program like any other: recomputations are calls, transfers are instructions, and lifetimes are
//! where memory is acquired and released. Whoever dry-runs or runs it need not know that anything was decided. A call that
//! reads an evicted value is preceded by the calls that recompute it from what is resident, in their order, and by the
//! reloads of what was offloaded; what only they read is freed on the way. Recomputed calls have the ops, attributes, draws
//! and inputs of the first time, so their results have the same bits.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use plimsoll_memory::{Label, LongList, Owner};
use plimsoll_plan::recompute_chain::{self, Link, Maker, Records};
use plimsoll_plan::{Decisions, Trace};
use smallvec::SmallVec;

use super::trace::{CallPart, Numbering, Record, Work};
use super::{BlockSpec, Call, Instruction, Phase, Place, Program, Value, ValueView};
use crate::base::dtype::DType;
use crate::eager::execute;
use crate::eager::op::{Meta, OpRef};

/// Values by the position of the record at which something happens to them.
type AtPositions = BTreeMap<u32, Vec<u32>>;

impl Program {
    /// This program with values evicted, recomputed and offloaded as decided about its trace; nothing if a value is needed
    /// that cannot be recomputed.
    pub fn rematerialised(&self, trace: &Trace, decisions: &Decisions) -> Option<Program> {
        let mut held = BTreeSet::new();
        loop {
            let mut rewriter = Rewriter::new(self, trace, decisions, held.clone());
            if self.instructions().try_for_each(|instruction| rewriter.rewrite(instruction)).is_some() {
                return Some(rewriter.finish());
            }
            // A donated argument is held to the end if something is recomputed from it.
            rewriter.missing.filter(|&value| held.insert(value))?;
        }
    }
}

struct Rewriter<'a> {
    from: &'a Program,
    decisions: &'a Decisions,
    numbering: Numbering,
    /// Values that are evicted when the record at a position begins, before what it reads is restored,
    evicted: AtPositions,
    /// those that are evicted then, after that,
    before: AtPositions,
    /// and those that are evicted when it has ended.
    after: AtPositions,
    /// Values whose reload begins when it begins.
    prefetched: AtPositions,
    to: Program,
    /// For each old value, the new one that holds it now,
    current: LongList<Option<u32>>,
    /// and the one that held it first.
    firsts: LongList<Option<u32>>,
    /// The copies of offloaded values,
    copies: HashMap<u32, u32>,
    /// and the values whose reload is in flight.
    in_flight: HashSet<u32>,
    /// For each old block, the value that it holds,
    occupants: LongList<Option<u32>>,
    /// and the new block that was acquired for it.
    blocks: LongList<Option<u32>>,
    /// The calls that have run.
    n_calls: u32,
    /// Whether what must precede the next call has been done.
    is_prepared: bool,
    /// Values that were restored for the next call alone.
    transient: Vec<u32>,
    /// Donated arguments that are not freed before the end,
    held: BTreeSet<u32>,
    /// and one that was needed after it was freed.
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
        let mut evicted = AtPositions::new();
        for ((number, is_evicted), value) in (0..).zip(&decisions.evicted).zip(&trace.values) {
            if let Some(position) = value.backward_only_from.filter(|_| *is_evicted) {
                evicted.entry(position).or_default().push(old(number));
            }
        }
        let (before, after) = (by_position(&decisions.evicted_before), by_position(&decisions.evicted_after));
        let mut prefetched = AtPositions::new();
        for &(position, number) in &decisions.prefetched {
            prefetched.entry(position).or_default().push(old(number));
        }
        let mut rewriter = Rewriter {
            from,
            decisions,
            evicted,
            before,
            after,
            prefetched,
            copies: HashMap::new(),
            in_flight: HashSet::new(),
            to: from.without_calls(),
            current: LongList::default(),
            firsts: (0..from.n_values()).map(|_| None).collect(),
            occupants: (0..from.n_blocks()).map(|_| None).collect(),
            blocks: (0..from.n_blocks()).map(|_| None).collect(),
            n_calls: 0,
            is_prepared: false,
            transient: Vec::new(),
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
            Instruction::Mark(_) | Instruction::Read(_) | Instruction::Commit => {
                self.to.instructions.push(*instruction)
            }
            Instruction::Offload(..)
            | Instruction::Fetch(..)
            | Instruction::Wait(_)
            | Instruction::Discard(_) => unreachable!("a program is rewritten as it was recorded"),
        }
        Some(())
    }

    /// Frees the block that was acquired for an old one, if that has not happened.
    fn release_block(&mut self, block: u32) {
        if let Some(block) = self.blocks[block as usize].take() {
            self.to.instructions.push(Instruction::Release(block));
        }
    }

    /// Frees a value, if it is resident.
    fn free(&mut self, value: u32) {
        if self.held.contains(&value) {
            return;
        }
        self.in_flight.remove(&value);
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

    /// What happens before the next call acquires its memory: values are evicted, and what it reads is restored.
    fn prepare(&mut self) -> Option<()> {
        if std::mem::replace(&mut self.is_prepared, true) {
            return Some(());
        }
        let Some(&position) = self.positions(self.n_calls).first() else { return Some(()) };
        let evicted = self.evicted.remove(&position);
        self.free_all(evicted);
        let call = &self.from.calls[self.n_calls as usize];
        let mut inputs: Vec<u32> = call.inputs.iter().map(|view| view.value).collect();
        inputs.sort_unstable();
        inputs.dedup();
        for value in inputs {
            if self.current[value as usize].is_none() {
                self.restore(value, position)?;
            } else if self.wait_for(value) && !self.is_retained(value, position) {
                self.transient.push(value);
            }
        }
        for value in self.before.remove(&position).into_iter().flatten() {
            // What the call itself reads is evicted after it.
            match call.inputs.iter().any(|view| view.value == value) {
                true => self.transient.push(value),
                false => self.free(value),
            }
        }
        for value in self.prefetched.remove(&position).into_iter().flatten() {
            if self.current[value as usize].is_none() {
                self.reload(value);
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
        for value in std::mem::take(&mut self.transient) {
            self.free(value);
        }
        for (nth, position) in positions.into_iter().enumerate() {
            if nth > 0 {
                let evicted = self.evicted.remove(&position);
                self.free_all(evicted);
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
        Place::Block(taken.unwrap_or_else(|| unreachable!("a call writes to memory that was acquired")))
    }

    fn view(&self, value: u32, meta: &Meta) -> ValueView {
        let value = self.current[value as usize];
        let value = value.unwrap_or_else(|| unreachable!("a call reads resident values"));
        ValueView { value, meta: Box::new(*meta) }
    }

    /// Offloads a value that was just made, if that is decided.
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

    /// Begins to reload a value.
    fn reload(&mut self, value: u32) {
        let (old, copy) = (*self.from.value(value), self.copies[&value]);
        let Some(call) = old.call else { unreachable!("only what calls make is offloaded") };
        let label = Label::new(Owner::Temporary, self.from.calls[call as usize].site);
        let block = self.to.acquire(BlockSpec { n_bytes: old.n_bytes as u64, device: old.device, label });
        let first = self.firsts[value as usize];
        let call = first.and_then(|first| self.to.value(first).call);
        let place = Place::Block(block);
        let reloaded = self.to.add_value(Value { place, call, first_fetch: None, repeats: first, ..old });
        self.to.instructions.push(Instruction::Fetch(copy, reloaded));
        self.current[value as usize] = Some(reloaded);
        self.in_flight.insert(value);
    }

    /// Lets calls from here on read a value, if its reload is in flight; whether it was.
    fn wait_for(&mut self, value: u32) -> bool {
        let is_in_flight = self.in_flight.remove(&value);
        if is_in_flight {
            self.to.instructions.push(Instruction::Wait(self.copies[&value]));
        }
        is_in_flight
    }

    /// Restores a value before the record at a position: by a reload, or by recomputation.
    fn restore(&mut self, target: u32, position: u32) -> Option<()> {
        let chain = match recompute_chain::chain(self, target) {
            Ok(chain) => chain,
            Err(value) => {
                self.missing = Some(value).filter(|&value| self.from.is_donated(value));
                return None;
            }
        };
        let last_reads = recompute_chain::last_reads(self, &chain);
        let mut made: Vec<u32> = Vec::new();
        for (at, link) in chain.iter().enumerate() {
            match *link {
                Link::Recompute { record, with_aux } => {
                    let record = self.numbering.records[record as usize];
                    made.extend(self.recompute(record, with_aux));
                }
                Link::Reload(value) => {
                    self.reload(value);
                    made.push(value);
                }
            }
            made.retain(|&value| {
                let is_read = last_reads.get(&value).is_some_and(|&last| last > at);
                let is_needed = is_read || value == target || self.is_retained(value, position);
                if !is_needed {
                    let block = self.current[value as usize].take().and_then(|value| self.to.block_of(value));
                    self.to.instructions.extend(block.map(Instruction::Release));
                }
                is_needed
            });
        }
        self.wait_for(target);
        if !self.is_retained(target, position) {
            self.transient.push(target);
        }
        Some(())
    }

    fn is_retained(&self, value: u32, position: u32) -> bool {
        let number = self.numbering.numbers[value as usize];
        number.is_some_and(|number| self.decisions.retained.contains(&(position, number)))
    }

    /// Recomputes a record; returns the values that this restores.
    fn recomputed_outputs(
        &mut self,
        op: &OpRef,
        makes: &[(u32, &Meta)],
        first: &Call,
    ) -> SmallVec<[ValueView; 1]> {
        // What is brought together again is what it was; else it is a copy that nobody asked for.
        let gathers = first.op.has_effect();
        let number = self.to.calls.len() as u32;
        let mut outputs = SmallVec::new();
        for &(old, meta) in makes {
            let Value { n_bytes, device, .. } = *self.from.value(old);
            let first_owner = self.from.block_of(old).map(|block| self.from.block(block).label.owner);
            let owner = first_owner.filter(|_| gathers).unwrap_or(Owner::Temporary);
            let label = Label::new(owner, first.site);
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
    fn recompute(&mut self, record: Record, with_aux: bool) -> SmallVec<[u32; 2]> {
        let Work { op, inputs, mut makes, mut n_aux, unwanted } = self.from.work(record);
        let first = &self.from.calls[record.call as usize];
        if !with_aux {
            makes.truncate(makes.len() - n_aux);
            n_aux = 0;
        }
        let n_wanted = makes.len();
        makes.extend(unwanted);
        inputs.iter().for_each(|(value, _)| _ = self.wait_for(*value));
        let views: SmallVec<[ValueView; 2]> =
            inputs.iter().map(|(value, meta)| self.view(*value, meta)).collect();
        let outputs = self.recomputed_outputs(&op, &makes, first);
        let metas: SmallVec<[&Meta; 4]> = inputs.iter().map(|(_, meta)| *meta).collect();
        let device = first.device;
        let runs_on = &self.from.devices[usize::from(device)];
        let n_bytes = execute::workspace_bytes(&op, runs_on, &metas, first.order) as u64;
        let label = Label::new(Owner::Workspace, first.site);
        let workspace = (n_bytes > 0).then(|| self.to.acquire(BlockSpec { n_bytes, device, label }));
        let output_metas: SmallVec<[&Meta; 2]> =
            makes[..makes.len() - n_aux].iter().map(|(_, meta)| *meta).collect();
        let recomputed_flops = Some(op.get().cost(&metas, &output_metas).flops);
        let values: SmallVec<[u32; 2]> = outputs.iter().map(|view: &ValueView| view.value).collect();
        let wanted = if record.part == CallPart::Second { SmallVec::new() } else { first.wanted.clone() };
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
            recomputed_flops,
            source: record.call,
            is_second: record.part == CallPart::Second,
        });
        self.to.instructions.extend(workspace.map(Instruction::Release));
        let mut restored = SmallVec::new();
        for (nth, (&(old, _), value)) in makes.iter().zip(values).enumerate() {
            // What nothing needs is freed, and so is a second copy of what is resident.
            if nth < n_wanted && self.current[old as usize].is_none() {
                self.current[old as usize] = Some(value);
                restored.push(old);
            } else {
                self.to.instructions.extend(self.to.block_of(value).map(Instruction::Release));
            }
        }
        restored
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

    /// Discards each copy after its last reload.
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

impl Records for Rewriter<'_> {
    fn maker(&self, value: u32) -> Option<Maker> {
        let call = self.from.value(value).call?;
        self.positions(call).into_iter().find_map(|record| {
            let work = self.from.work(self.numbering.records[record as usize]);
            let place = work.makes.iter().position(|(made, _)| *made == value)?;
            Some(Maker { record, is_aux: place >= work.makes.len() - work.n_aux })
        })
    }

    fn inputs(&self, record: u32) -> impl Iterator<Item = u32> {
        let work = self.from.work(self.numbering.records[record as usize]);
        work.inputs.into_iter().map(|(value, _)| value)
    }

    fn is_resident(&self, value: u32) -> bool {
        self.current[value as usize].is_some()
    }

    fn is_offloaded(&self, value: u32) -> bool {
        self.copies.contains_key(&value)
    }

    fn is_recomputable(&self, record: u32) -> bool {
        self.from.calls[self.numbering.records[record as usize].call as usize].is_recomputable()
    }
}
