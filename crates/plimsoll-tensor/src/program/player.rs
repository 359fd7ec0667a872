//! Playing a program: its memory, without its arithmetic and without the function.
//!
//! Every request that the function made of the pool is made again, in the same order and under the same labels, of the pool
//! of a ghost. So peak, committed bytes and owners are those of the real run, to the byte, on a device as it is now.

use plimsoll_memory::{Block, LongList, OffsetPlan, Rows, TraceEvent};
use smallvec::SmallVec;

use super::copies::Copies;
use super::{BlockSpec, Instruction, Program};
use crate::device::Device;
use crate::error::Result;

/// What playing a program showed.
#[derive(Clone, Debug)]
pub struct Played {
    /// The most bytes in use.
    pub peak: u64,
    /// The most bytes committed.
    pub committed: u64,
    /// Who owned the bytes in use at the peak.
    pub owners: Rows,
}

/// A program as one of its devices sees it: what it takes there, whatever happens on the others.
#[derive(Clone, Copy)]
pub(super) struct OnDevice<'a> {
    pub program: &'a Program,
    /// The number of the device.
    pub number: u8,
}

impl Program {
    /// What the program takes of its first device as that is, with its blocks at planned offsets if there are any. The device
    /// is not touched, and its limit does not count.
    ///
    /// # Errors
    /// Memory beyond all addresses of the device.
    pub fn play(&self, device: &Device, offsets: Option<&OffsetPlan>) -> Result<Played> {
        self.on(0).play(device, offsets)
    }

    /// What the program takes of each of its devices, as they are, in their order.
    ///
    /// # Errors
    /// Memory beyond all addresses of a device.
    pub fn play_all(&self) -> Result<Vec<Played>> {
        (0..).zip(&self.devices).map(|(number, device)| self.on(number).play(device, None)).collect()
    }

    /// The program as one of its devices sees it.
    pub(super) fn on(&self, number: u8) -> OnDevice<'_> {
        OnDevice { program: self, number }
    }
}

impl OnDevice<'_> {
    /// What the program takes of the device as it is, with its blocks at planned offsets if there are any.
    pub fn play(self, device: &Device, offsets: Option<&OffsetPlan>) -> Result<Played> {
        let ghost = played_on(device)?;
        self.play_from(self.take_donated(&ghost)?, &ghost, offsets)?;
        let stats = ghost.stats();
        Ok(Played { peak: stats.peak_in_use, committed: stats.peak_committed, owners: stats.peak_rows })
    }

    /// What the pool is asked for when the program runs, in order.
    pub fn requests(self, device: &Device) -> Result<LongList<TraceEvent>> {
        let ghost = played_on(device)?;
        let donated = self.take_donated(&ghost)?;
        ghost.pool().start_trace();
        self.play_from(donated, &ghost, None)?;
        Ok(ghost.pool().take_trace())
    }

    /// Whether a block is of this device.
    fn has(self, block: u32) -> bool {
        self.program.block(block).device == self.number
    }

    /// The memory of arguments that are given away, which is there before the program begins. It is of the first device.
    fn take_donated(self, ghost: &Device) -> Result<LongList<Option<Block>>> {
        let specs = (0..self.program.donated.len()).map(|number| &self.program.blocks[number]);
        let block = |spec: &BlockSpec| match spec.device == self.number {
            true => Ok(Some(ghost.pool().acquire(spec.n_bytes as usize, spec.label)?)),
            false => Ok(None),
        };
        specs.map(block).collect()
    }

    /// Makes the program's requests of a ghost's pool, as one step, with the memory of arguments that are given away.
    fn play_from(
        self,
        mut blocks: LongList<Option<Block>>,
        ghost: &Device,
        offsets: Option<&OffsetPlan>,
    ) -> Result<()> {
        let (program, pool) = (self.program, ghost.pool());
        let _step = match offsets {
            Some(offsets) => pool.begin_planned_step(offsets),
            None => pool.begin_step(),
        };
        let ghosts: SmallVec<[Device; 1]> = program.devices.iter().map(|_| ghost.clone()).collect();
        let mut copies = Copies::new(program, &ghosts)?;
        let is_traced = pool.is_traced();
        for instruction in program.instructions() {
            match *instruction {
                Instruction::Acquire(number) if program.donated_argument(number).is_some() => {}
                Instruction::Acquire(number) if !self.has(number) => blocks.push(None),
                Instruction::Acquire(number) => {
                    let spec = program.block(number);
                    debug_assert_eq!(blocks.len(), number as usize, "blocks are numbered as they are taken");
                    blocks.push(Some(pool.acquire(spec.n_bytes as usize, spec.label)?));
                }
                Instruction::Release(number) => drop(blocks[number as usize].take()),
                Instruction::Relabel(number, label) => {
                    if let Some(block) = &blocks[number as usize] {
                        block.relabel(label.owner);
                        block.set_site(label.site);
                    }
                }
                Instruction::Mark(name) => pool.mark(name, 0),
                Instruction::Call(number) if is_traced => {
                    let call = &program.calls[number as usize];
                    if call.device == self.number {
                        let time = ghost.nanoseconds(&call.op, &call.input_metas(), &call.output_metas());
                        pool.mark_work(call.site, time);
                    }
                }
                Instruction::Call(_) | Instruction::Commit => {}
                Instruction::Offload(value, _) | Instruction::Fetch(_, value)
                    if program.value(value).device != self.number => {}
                Instruction::Offload(..)
                | Instruction::Fetch(..)
                | Instruction::Wait(_)
                | Instruction::Discard(_) => {
                    copies.follow(instruction, |block| &mut blocks[block as usize])?;
                }
            }
        }
        Ok(())
    }
}

/// A ghost of a device as it is, with no limit.
fn played_on(device: &Device) -> Result<Device> {
    let ghost = device.ghost();
    ghost.set_limit(None)?;
    // Under the limit, free pages would go back before the step failed for want of them.
    ghost.trim();
    ghost.pool().reset_peaks();
    Ok(ghost)
}
