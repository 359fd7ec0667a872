//! Values of a program that wait outside the device's memory.
//!
//! Whoever runs or plays a program with copies keeps them here. A copy is begun from a block and brought back to another;
//! on a GPU both go on beside the work, and the instructions say where it waits. A ghost has the room and nothing else.

use std::sync::Arc;

use plimsoll_cuda::Copied;
use plimsoll_memory::{Block, Site};

use super::{Instruction, Place, Program};
use crate::depot::{Away, Depot};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::storage::Storage;

/// The copies of a program that is running or being played.
pub(super) struct Copies<'a> {
    program: &'a Program,
    device: &'a Device,
    /// Where they are; there is none if nothing is copied.
    depot: Option<Arc<Depot>>,
    away: Vec<Option<Away>>,
    /// What readers wait for.
    arriving: Vec<Option<Copied>>,
}

impl<'a> Copies<'a> {
    /// No copies yet, of a program on a device.
    pub fn new(program: &'a Program, device: &'a Device) -> Result<Copies<'a>> {
        let n_copies = program.n_copies as usize;
        let depot = if n_copies > 0 { device.depot() } else { None };
        if n_copies > 0 && depot.is_none() {
            return Err(Error::argument(
                "offload",
                "there is no place any more to which values can be moved",
            ));
        }
        let (mut away, mut arriving) = (Vec::new(), Vec::new());
        away.resize_with(n_copies, || None);
        arriving.resize_with(n_copies, || None);
        Ok(Copies { program, device, depot, away, arriving })
    }

    /// Carries out an instruction about copies; any other is left alone.
    pub fn follow<'b>(
        &mut self,
        instruction: &Instruction,
        block: impl FnOnce(u32) -> &'b mut Option<Block>,
    ) -> Result<()> {
        match *instruction {
            Instruction::Offload(value, copy) => self.offload(value, copy, block(self.block(value))),
            Instruction::Fetch(copy, value) => self.fetch(copy, block(self.block(value))),
            Instruction::Wait(copy) => match (self.arriving[copy as usize].take(), self.device.gpu()) {
                (Some(copied), Some(gpu)) => Ok(gpu.wait_for(&copied)?),
                _ => Ok(()),
            },
            Instruction::Discard(copy) => {
                self.away[copy as usize] = None;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn block(&self, value: u32) -> u32 {
        match self.program.value(value).place {
            Place::Block(block) => block,
            _ => unreachable!("only what a program makes is copied out of memory"),
        }
    }

    fn offload(&mut self, value: u32, copy: u32, block: &mut Option<Block>) -> Result<()> {
        let Some(depot) = &self.depot else { unreachable!("a program with copies has a place for them") };
        let (mut stored, site) = (None, self.site(value));
        self.as_storage(block, |storage| {
            stored = Some(depot.store(storage, site)?);
            Ok(())
        })?;
        self.away[copy as usize] = stored;
        Ok(())
    }

    fn fetch(&mut self, copy: u32, block: &mut Option<Block>) -> Result<()> {
        let Some(away) = &self.away[copy as usize] else { unreachable!("what is fetched was offloaded") };
        let mut copied = None;
        self.as_storage(block, |storage| {
            copied = away.fill(storage)?;
            Ok(())
        })?;
        self.arriving[copy as usize] = copied;
        Ok(())
    }

    /// The line that made a value.
    fn site(&self, value: u32) -> Site {
        let call = self.program.value(value).call;
        call.map_or_else(|| unreachable!("a call made it"), |call| self.program.calls[call as usize].site)
    }

    /// Lends a block as a storage.
    fn as_storage(
        &self,
        block: &mut Option<Block>,
        f: impl FnOnce(&mut Arc<Storage>) -> Result<()>,
    ) -> Result<()> {
        let Some(taken) = block.take() else { unreachable!("a value that is copied has its block") };
        let mut storage = Storage::own(taken, DType::U8, self.device);
        let done = f(&mut storage);
        *block = Storage::into_block(storage);
        done
    }
}
