//! A program as a planner sees it: sizes, uses and costs of the values that its calls make.
//!
//! The planner knows records and values, each numbered in the order of the calls; updates are not among them, because
//! nothing is decided about what they write. A call that does the work of two ops is two records, so that the output of the
//! second can be recomputed alone.

use plimsoll_memory::{LongList, rounded_size};
use plimsoll_plan::{Input, Position, Trace};
use smallvec::SmallVec;

use super::agreement::{Averages, Share};
use super::{Instruction, Phase, Place, Program, Value};
use crate::base::shape::Shape;
use crate::device::Device;
use crate::eager::execute;
use crate::eager::op::{Meta, OpRef, SavedRef};

/// One record of a program's trace: a call, or one of the two ops whose work a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub call: u32,
    pub part: CallPart,
}

/// Which part of a call a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallPart {
    Whole,
    /// The first of two ops; the call makes the output of the second, too.
    First,
    /// The second, which can run alone.
    Second,
}

/// What a record runs, reads and makes, with values by their numbers in the program.
pub(super) struct Work<'a> {
    pub op: OpRef,
    pub inputs: SmallVec<[(u32, &'a Meta); 4]>,
    /// Outputs, then auxiliary ones.
    pub makes: SmallVec<[(u32, &'a Meta); 2]>,
    pub n_aux: usize,
    /// What its call makes in addition.
    pub unwanted: Option<(u32, &'a Meta)>,
}

/// The records and values of a program, by their numbers in its trace.
pub(super) struct Numbering {
    pub records: LongList<Record>,
    /// The program's number of each value of the trace.
    pub values: LongList<u32>,
    /// The trace's number of each value of the program, if it has one.
    pub numbers: LongList<Option<u32>>,
    /// The first record of each call.
    pub positions: LongList<Option<u32>>,
}

impl Numbering {
    pub fn of(program: &Program) -> Numbering {
        let mut numbering = Numbering {
            records: LongList::default(),
            values: LongList::default(),
            numbers: (0..program.n_values()).map(|_| None).collect(),
            positions: LongList::default(),
        };
        for (number, call) in (0..).zip(program.calls()) {
            if call.phase == Phase::Update {
                numbering.positions.push(None);
                continue;
            }
            numbering.positions.push(Some(numbering.records.len() as u32));
            let is_two = call.op.second(&call.input_metas()).is_some();
            let parts: &[CallPart] =
                if is_two { &[CallPart::First, CallPart::Second] } else { &[CallPart::Whole] };
            numbering.records.extend(parts.iter().map(|&part| Record { call: number, part }));
            for view in &call.outputs {
                numbering.numbers[view.value as usize] = Some(numbering.values.len() as u32);
                numbering.values.push(view.value);
            }
        }
        numbering
    }
}

impl Program {
    /// What a record runs, reads and makes.
    pub(super) fn work(&self, record: Record) -> Work<'_> {
        let call = &self.calls[record.call as usize];
        let inputs: SmallVec<[(u32, &Meta); 4]> =
            call.inputs.iter().map(|view| (view.value, &*view.meta)).collect();
        let mut makes: SmallVec<[(u32, &Meta); 2]> =
            call.outputs.iter().map(|view| (view.value, &*view.meta)).collect();
        let n_aux = usize::from(call.n_aux);
        let last = makes.len() - n_aux - 1;
        match (record.part, call.op.second(&call.input_metas())) {
            (CallPart::First, _) => {
                let unwanted = Some(makes[last]);
                makes.truncate(last);
                Work { op: call.op.clone(), inputs, makes, n_aux: 0, unwanted }
            }
            (CallPart::Second, Some(second)) => {
                let read = |keep: &SavedRef| match *keep {
                    SavedRef::Input(idx) => inputs[idx],
                    SavedRef::Output(idx) => makes[idx],
                    SavedRef::Aux(_) => unreachable!("the second makes the auxiliary outputs"),
                };
                let inputs = second.reads.iter().map(read).collect();
                let makes = makes[last..].iter().copied().collect();
                Work { op: second.op, inputs, makes, n_aux, unwanted: None }
            }
            _ => Work { op: call.op.clone(), inputs, makes, n_aux, unwanted: None },
        }
    }

    /// What a planner needs to know of the program's first device, where so many bytes are in use when it begins.
    pub fn trace(&self, device: &Device, in_use: u64) -> Trace {
        self.trace_of(0, device, in_use)
    }

    /// What a planner needs to know of the device of that number: nothing is decided about what is on others.
    pub(super) fn trace_of(&self, number: u8, device: &Device, in_use: u64) -> Trace {
        self.trace_with(number, device, in_use, &self.own_sizes())
    }

    /// The same, with parts that differ from rank to rank as large as these say.
    pub(super) fn trace_with(&self, number: u8, device: &Device, in_use: u64, sizes: &Averages) -> Trace {
        let numbering = Numbering::of(self);
        let mut trace = Trace::default();
        for position in 0..numbering.records.len() {
            let share = sizes.calls[numbering.records[position].call as usize];
            trace.records.push(self.traced_record(&numbering, position, device, share));
        }
        for &value in numbering.values.iter() {
            let Value { n_bytes, device, .. } = *self.value(value);
            let bytes = match self.block_of(value).filter(|_| sizes.is_part[value as usize]) {
                _ if device != number => 0,
                Some(block) => sizes.blocks[block as usize],
                None => rounded_size(n_bytes as u64),
            };
            trace.values.push(plimsoll_plan::Value { bytes, dead_from: u32::MAX, ..Default::default() });
        }
        self.note_uses(&numbering, &mut trace, number);
        self.note_memory(&numbering, &mut trace, in_use, number, &sizes.blocks);
        trace.offload_store = device.offload_store().map(|store| store.known());
        trace
    }

    fn traced_record(
        &self,
        numbering: &Numbering,
        position: usize,
        device: &Device,
        share: Share,
    ) -> plimsoll_plan::Record {
        let record = numbering.records[position];
        let (call, work) = (&self.calls[record.call as usize], self.work(record));
        let metas: SmallVec<[&Meta; 4]> = work.inputs.iter().map(|(_, meta)| *meta).collect();
        let n_outputs = work.makes.len() - work.n_aux;
        let outputs: SmallVec<[&Meta; 2]> = work.makes[..n_outputs].iter().map(|(_, meta)| *meta).collect();
        let input = |&(value, _): &(u32, &Meta)| match numbering.numbers[value as usize] {
            Some(number) => Input::Value(number),
            // Also a donated argument: it is held for longer where something is recomputed from it.
            None => Input::Persistent,
        };
        // What cannot be recomputed counts as made from something transient.
        let inputs = work.inputs.iter().map(input);
        let inputs = inputs.chain((!call.is_recomputable()).then_some(Input::Transient)).collect();
        let device = if self.devices.len() > 1 { &self.devices[usize::from(call.device)] } else { device };
        let workspace = execute::workspace_bytes(&work.op, device, &metas, call.order) as u64;
        let unwanted = work.unwanted.map_or(0, |(_, meta)| rounded_size(meta.n_bytes() as u64));
        let first = work.makes.first().and_then(|&(value, _)| numbering.numbers[value as usize]);
        // Of what differs from rank to rank nothing is known but which op it is.
        let (fingerprint, workspace, time) = match share {
            Share::None => (
                fingerprint(&work.op, &metas),
                rounded_size(workspace) + unwanted,
                work.op.nanoseconds(device, &metas, &outputs),
            ),
            Share::Exchanges => {
                (fingerprint(&work.op, &[]), 0, work.op.nanoseconds(device, &metas, &outputs))
            }
            Share::OfPart => (fingerprint(&work.op, &[]), 0, 0),
        };
        plimsoll_plan::Record {
            fingerprint,
            inputs,
            first_value: first.unwrap_or(0),
            n_values: work.makes.len() as u32,
            n_outputs: n_outputs as u32,
            workspace,
            time,
            at: Position::default(),
            site: Some(call.site),
        }
    }

    /// Fills in who makes each value, where backward fetches it, and from where on only backward references it.
    fn note_uses(&self, numbering: &Numbering, trace: &mut Trace, device: u8) {
        let Trace { records, values, .. } = trace;
        for (position, record) in (0u32..).zip(records.iter()) {
            for value in &mut values[record.first_value as usize..][..record.n_values as usize] {
                (value.record, value.backward_only_from) = (position, Some(position + 1));
            }
        }
        for (position, record) in (0u32..).zip(records.iter()) {
            for &input in &record.inputs {
                let Input::Value(number) = input else { continue };
                let value = &mut values[number as usize];
                match self.first_fetch(numbering, number) {
                    Some(first) if first <= position => {
                        if value.fetches.last() != Some(&position) {
                            value.fetches.push(position);
                        }
                    }
                    _ => value.backward_only_from = Some(position + 1),
                }
            }
        }
        for (number, value) in (0u32..).zip(values.iter_mut()) {
            let is_elsewhere = self.value(numbering.values[number as usize]).device != device;
            if is_elsewhere || self.first_fetch(numbering, number).is_none() {
                value.backward_only_from = None;
            }
        }
        // What effects read and what is returned lives until the end.
        let updates = self.calls.iter().filter(|call| call.phase == Phase::Update);
        let read_last = updates.flat_map(|call| &call.inputs).chain(&self.results);
        for view in read_last {
            if let Some(number) = numbering.numbers[view.value as usize] {
                values[number as usize].backward_only_from = None;
            }
        }
    }

    /// The record before which backward first fetches a value of the trace.
    fn first_fetch(&self, numbering: &Numbering, number: u32) -> Option<u32> {
        let call = self.value(numbering.values[number as usize]).first_fetch?;
        // A call that is no record, or none at all: nothing reads the value any more.
        (call as usize..numbering.positions.len()).find_map(|at| numbering.positions[at])
    }

    /// Fills in the bytes in use around each record, and from where on values are dead.
    fn note_memory(
        &self,
        numbering: &Numbering,
        trace: &mut Trace,
        mut in_use: u64,
        device: u8,
        sizes: &[u64],
    ) {
        let bytes = |block: u32| if self.block(block).device == device { sizes[block as usize] } else { 0 };
        let mut occupants: LongList<Option<u32>> = (0..self.n_blocks()).map(|_| None).collect();
        // The records that have run, the most since the last of them, and what was in use when the next began.
        let (mut done, mut peak, mut start) = (0u32, in_use, None);
        for instruction in self.instructions() {
            match *instruction {
                Instruction::Acquire(block) => {
                    start.get_or_insert(in_use);
                    in_use += bytes(block);
                    peak = peak.max(in_use);
                }
                Instruction::Release(block) => {
                    in_use -= bytes(block);
                    if let Some(number) = occupants[block as usize].take() {
                        trace.values[number as usize].dead_from = done;
                    }
                }
                Instruction::Call(number) => {
                    let call = &self.calls[number as usize];
                    if call.phase == Phase::Update {
                        break;
                    }
                    // Scratch memory is freed before anything else happens.
                    let after = in_use - call.workspace.map_or(0, bytes);
                    let record = &mut trace.records[done as usize];
                    record.at = Position { start: start.take().unwrap_or(in_use), peak };
                    for view in &call.outputs {
                        let Place::Block(block) = self.value(view.value).place else { continue };
                        let number = numbering.numbers[view.value as usize];
                        if let Some(before) = std::mem::replace(&mut occupants[block as usize], number) {
                            trace.values[before as usize].dead_from = done + 1;
                        }
                    }
                    done += 1;
                    if numbering.records.len() > done as usize
                        && numbering.records[done as usize].call == number
                    {
                        trace.records[done as usize].at = Position { start: after, peak: after };
                        done += 1;
                    }
                    peak = after;
                }
                _ => {}
            }
        }
    }
}

/// Stands for an op and the shapes that it sees: equal for equal ones, on every machine.
fn fingerprint(op: &OpRef, inputs: &[&Meta]) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325u64;
    let mut mix = |word: u64| hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
    op.name().bytes().for_each(|byte| mix(u64::from(byte)));
    for meta in inputs {
        mix(meta.dtype as u64 + 1);
        let shape: &Shape = meta.shape();
        shape.iter().for_each(|&extent| mix(extent as u64 + 7));
    }
    hash
}
