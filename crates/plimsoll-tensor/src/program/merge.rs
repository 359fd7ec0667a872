//! The memory requests of all devices while a function was recorded, merged into one list of instructions.
//!
//! Each device's pool has a trace of its own, with a mark for every call. What lies between two marks is merged device by
//! device: pools know nothing of each other, so no other order could be distinguished from this one.

use plimsoll_memory::{LongList, Name, TraceEvent};

use super::{BlockSpec, Instruction};

/// The name of the marks that put calls into the order of a pool's trace.
pub(super) const CALL: Name = Name::constant(":call");
/// The name of the marks where variables are first read, each with the variable's number.
pub(super) const READ: Name = Name::constant(":read");
/// The name of the mark where the new values of variables begin to be written.
pub(super) const COMMIT: Name = Name::constant(":commit");

/// The memory of a function.
pub(super) struct Merged {
    pub blocks: LongList<BlockSpec>,
    pub instructions: LongList<Instruction>,
    /// For each device, the numbers of its blocks among all.
    numbers: Vec<Vec<u32>>,
}

impl Merged {
    /// Merges the traces of a function's devices, in their order: each with the first acquisition that belongs to it, and the
    /// call before which the device was first used.
    pub fn of(traces: Vec<(LongList<TraceEvent>, u64, u32)>, n_calls: usize) -> Merged {
        let mut merged = Merged {
            blocks: LongList::default(),
            instructions: LongList::default(),
            numbers: vec![Vec::new(); traces.len()],
        };
        let mut rest: Vec<_> = traces.iter().map(|(trace, ..)| trace.iter()).collect();
        let is_call = |event: &TraceEvent| matches!(event, TraceEvent::Mark { name: CALL, .. });
        for call in 0..=n_calls as u32 {
            for (device, &(_, first_block, first_call)) in traces.iter().enumerate() {
                if first_call <= call {
                    for event in rest[device].by_ref().take_while(|event| !is_call(event)) {
                        merged.add(device, first_block, event);
                    }
                }
            }
            if (call as usize) < n_calls {
                merged.instructions.push(Instruction::Call(call));
            }
        }
        merged
    }

    /// The number of a device's block among those of all.
    pub fn number(&self, device: usize, block: u32) -> u32 {
        self.numbers[device][block as usize]
    }

    fn add(&mut self, device: usize, first_block: u64, event: &TraceEvent) {
        let number = |merged: &Merged, serial: u64| merged.number(device, (serial - first_block) as u32);
        let instruction = match *event {
            TraceEvent::Acquire { bytes, label, .. } => {
                let block = self.blocks.len() as u32;
                self.blocks.push(BlockSpec { n_bytes: bytes, device: device as u8, label });
                self.numbers[device].push(block);
                Instruction::Acquire(block)
            }
            TraceEvent::Release { serial } => Instruction::Release(number(self, serial)),
            TraceEvent::Relabel { serial, label } => Instruction::Relabel(number(self, serial), label),
            TraceEvent::Mark { name: COMMIT, .. } => Instruction::Commit,
            TraceEvent::Mark { name: READ, number } => Instruction::Read(number as u32),
            TraceEvent::Mark { name, .. } => Instruction::Mark(name),
            _ => return,
        };
        self.instructions.push(instruction);
    }
}
