//! Playing a program: its memory, without its arithmetic and without the function.
//!
//! Every request that the function made of the pool is made again, in the same order and under the same labels, of the pool
//! of a ghost. So peak, committed bytes and owners are those of the real run, to the byte, on a device as it is now.

use plimsoll_memory::{Block, LongList, OffsetPlan, Rows, TraceEvent};

use super::copies::Copies;
use super::{Instruction, Program};
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

impl Program {
    /// What the program takes on a device as it is, with its blocks at planned offsets if there are any. The device is not
    /// touched, and its limit does not count.
    ///
    /// # Errors
    /// Memory beyond all addresses of the device.
    pub fn play(&self, device: &Device, offsets: Option<&OffsetPlan>) -> Result<Played> {
        let ghost = played_on(device)?;
        self.play_on(&ghost, offsets)?;
        let stats = ghost.stats();
        Ok(Played { peak: stats.peak_in_use, committed: stats.peak_committed, owners: stats.peak_rows })
    }

    /// What the pool is asked for when the program runs, in order.
    ///
    /// # Errors
    /// Memory beyond all addresses of the device.
    pub fn requests(&self, device: &Device) -> Result<LongList<TraceEvent>> {
        let ghost = played_on(device)?;
        let donated = self.take_donated(&ghost)?;
        ghost.pool().start_trace();
        self.play_from(donated, &ghost, None)?;
        Ok(ghost.pool().take_trace())
    }

    /// Makes the program's requests of a ghost's pool, as one step.
    ///
    /// # Errors
    /// Memory that is full.
    pub fn play_on(&self, ghost: &Device, offsets: Option<&OffsetPlan>) -> Result<()> {
        self.play_from(self.take_donated(ghost)?, ghost, offsets)
    }

    /// The memory of arguments that are given away, which is there before the program begins.
    fn take_donated(&self, ghost: &Device) -> Result<LongList<Option<Block>>> {
        let specs = (0..self.donated.len()).map(|number| &self.blocks[number]);
        specs.map(|spec| Ok(Some(ghost.pool().acquire(spec.n_bytes as usize, spec.label)?))).collect()
    }

    /// Like [`Program::play_on`], with the memory of arguments that are given away.
    fn play_from(
        &self,
        mut blocks: LongList<Option<Block>>,
        ghost: &Device,
        offsets: Option<&OffsetPlan>,
    ) -> Result<()> {
        let pool = ghost.pool();
        let _step = match offsets {
            Some(offsets) => pool.begin_planned_step(offsets),
            None => pool.begin_step(),
        };
        let mut copies = Copies::new(self, ghost)?;
        let is_traced = pool.is_traced();
        for instruction in self.instructions() {
            match *instruction {
                Instruction::Acquire(number) if self.donated_argument(number).is_some() => {}
                Instruction::Acquire(number) => {
                    let spec = self.block(number);
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
                    let call = &self.calls[number as usize];
                    let time = ghost.nanoseconds(&call.op, &call.input_metas(), &call.output_metas());
                    pool.mark_work(call.site, time);
                }
                Instruction::Call(_) | Instruction::Commit => {}
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
