//! The footprint of a program: a dry run of its memory, without its arithmetic and without the function.
//!
//! Every request that the function made of the pool is made once more, in the same order and under the same labels, of the
//! pool of a ghost. So peak, committed bytes and owners are those of the real run, to the byte, on a device as it is now.

use plimsoll_memory::{Block, LongList, OffsetPlan, Rows, TraceEvent, Work};
use smallvec::SmallVec;

use super::copies::Copies;
use super::{BlockSpec, Instruction, Program};
use crate::base::error::Result;
use crate::device::Device;

/// The memory that a program or a run takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// The most bytes in use at a time.
    pub peak: u64,
    /// The most bytes committed at a time.
    pub committed: u64,
    /// Who owns the bytes in use at the peak; the rows add up to it.
    pub owners: Rows,
}

/// A program as one of its devices sees it: the memory that it takes there, whatever happens on the others.
#[derive(Clone, Copy)]
pub(super) struct OnDevice<'a> {
    pub program: &'a Program,
    /// The number of the device.
    pub number: u8,
}

impl Program {
    /// The memory that the program takes of its first device as that is, with its blocks at planned offsets if there are any.
    /// The device is not touched, and its limit does not count.
    ///
    /// # Errors
    /// Memory beyond all addresses of the device.
    pub fn footprint(&self, device: &Device, offsets: Option<&OffsetPlan>) -> Result<Footprint> {
        self.on(0).footprint(device, offsets)
    }

    /// The footprint on each of its devices, as they are, in their order.
    ///
    /// # Errors
    /// Memory beyond all addresses of a device.
    pub fn footprints(&self) -> Result<Vec<Footprint>> {
        (0..).zip(&self.devices).map(|(number, device)| self.on(number).footprint(device, None)).collect()
    }

    /// The program as one of its devices sees it.
    pub(super) fn on(&self, number: u8) -> OnDevice<'_> {
        OnDevice { program: self, number }
    }
}

impl OnDevice<'_> {
    /// The footprint on the device as it is, with its blocks at planned offsets if there are any.
    pub fn footprint(self, device: &Device, offsets: Option<&OffsetPlan>) -> Result<Footprint> {
        let ghost = unlimited_ghost(device)?;
        self.dry_run(self.take_donated(&ghost)?, &ghost, offsets)?;
        let stats = ghost.stats();
        Ok(Footprint { peak: stats.peak_in_use, committed: stats.peak_committed, owners: stats.peak_rows })
    }

    /// The requests that the program makes of the pool, in order.
    pub fn requests(self, device: &Device) -> Result<LongList<TraceEvent>> {
        let ghost = unlimited_ghost(device)?;
        let donated = self.take_donated(&ghost)?;
        ghost.pool().start_trace();
        self.dry_run(donated, &ghost, None)?;
        Ok(ghost.pool().take_trace())
    }

    /// Whether a block is on this device.
    fn has(self, block: u32) -> bool {
        self.program.block(block).device == self.number
    }

    /// The memory of donated arguments, which exists before the program begins. It is on the first device.
    fn take_donated(self, ghost: &Device) -> Result<LongList<Option<Block>>> {
        let specs = (0..self.program.donated.len()).map(|number| &self.program.blocks[number]);
        let block = |spec: &BlockSpec| match spec.device == self.number {
            true => Ok(Some(ghost.pool().acquire(spec.n_bytes as usize, spec.label)?)),
            false => Ok(None),
        };
        specs.map(block).collect()
    }

    /// Makes the program's requests of a ghost's pool, as one step, with the memory of donated arguments.
    fn dry_run(
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
        let is_traced = pool.wants_work();
        for instruction in program.instructions() {
            match *instruction {
                Instruction::Acquire(number) if program.donated_argument(number).is_some() => {}
                Instruction::Acquire(number) if !self.has(number) => blocks.push(None),
                Instruction::Acquire(number) => {
                    let spec = program.block(number);
                    debug_assert_eq!(
                        blocks.len(),
                        number as usize,
                        "blocks are numbered as they are acquired"
                    );
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
                        let nanoseconds =
                            call.op.nanoseconds(ghost, &call.input_metas(), &call.output_metas());
                        let (site, repeats) = (call.site, call.is_recomputable());
                        // Lists have no more than this, and nobody else is told of these requests.
                        pool.mark_work(&Work { site, nanoseconds, repeats, reads: &[], writes: &[] });
                    }
                }
                Instruction::Read(_) | Instruction::Call(_) | Instruction::Commit => {}
                Instruction::Offload(value, _) | Instruction::Fetch(_, value)
                    if program.value(value).device != self.number => {}
                Instruction::Offload(..)
                | Instruction::Fetch(..)
                | Instruction::Wait(_)
                | Instruction::Discard(_) => {
                    copies.execute(instruction, |block| &mut blocks[block as usize])?;
                }
            }
        }
        Ok(())
    }
}

/// A ghost of a device as it is, without a limit.
fn unlimited_ghost(device: &Device) -> Result<Device> {
    let ghost = device.ghost();
    ghost.set_limit(None)?;
    // Under a limit, free pages would be returned before the step failed for lack of them.
    ghost.trim();
    ghost.pool().reset_peaks();
    Ok(ghost)
}
