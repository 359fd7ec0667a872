//! The offloaded values of a program.
//!
//! Whoever runs or dry-runs a program with offloads keeps their copies here. A copy is offloaded from one block and
//! reloaded to another; on a GPU both transfers overlap with compute, and the instructions say where to wait for them. A
//! ghost takes the room for a copy and nothing else.

use std::sync::Arc;

use plimsoll_cuda::Copied;
use plimsoll_memory::{Block, Site};
use smallvec::SmallVec;

use super::{Instruction, Place, Program};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::device::Device;
use crate::device::offload_store::{OffloadStore, Offloaded};
use crate::device::storage::Storage;

/// The copies of a program that is running or dry-run.
pub(super) struct Copies<'a> {
    program: &'a Program,
    devices: &'a [Device],
    /// Where those of each device are; none if nothing is offloaded.
    offload_stores: SmallVec<[Option<Arc<OffloadStore>>; 1]>,
    offloaded: Vec<Option<Offloaded>>,
    /// The reloads that readers wait for, and on which device.
    in_flight: Vec<Option<(Copied, u8)>>,
}

impl<'a> Copies<'a> {
    /// No copies yet, of a program on these devices.
    pub fn new(program: &'a Program, devices: &'a [Device]) -> Result<Copies<'a>> {
        let n_copies = program.n_copies as usize;
        let offload_store = |device: &Device| if n_copies > 0 { device.offload_store() } else { None };
        let offload_stores: SmallVec<[Option<Arc<OffloadStore>>; 1]> =
            devices.iter().map(offload_store).collect();
        if n_copies > 0 && offload_stores.iter().all(Option::is_none) {
            return Err(Error::argument("offload", "the device no longer has a store to offload values to"));
        }
        let (mut offloaded, mut in_flight) = (Vec::new(), Vec::new());
        offloaded.resize_with(n_copies, || None);
        in_flight.resize_with(n_copies, || None);
        Ok(Copies { program, devices, offload_stores, offloaded, in_flight })
    }

    /// Carries out an instruction about copies; any other is left alone.
    pub fn execute<'b>(
        &mut self,
        instruction: &Instruction,
        block: impl FnOnce(u32) -> &'b mut Option<Block>,
    ) -> Result<()> {
        match *instruction {
            Instruction::Offload(value, copy) => self.offload(value, copy, block(self.block(value))),
            Instruction::Fetch(copy, value) => self.reload(copy, value, block(self.block(value))),
            Instruction::Wait(copy) => match self.in_flight[copy as usize].take() {
                Some((copied, device)) => {
                    let gpu = self.devices[usize::from(device)].gpu();
                    Ok(gpu.map_or(Ok(()), |gpu| gpu.wait_for(&copied))?)
                }
                None => Ok(()),
            },
            Instruction::Discard(copy) => {
                self.offloaded[copy as usize] = None;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn block(&self, value: u32) -> u32 {
        match self.program.value(value).place {
            Place::Block(block) => block,
            _ => unreachable!("only what a program makes is offloaded"),
        }
    }

    fn offload(&mut self, value: u32, copy: u32, block: &mut Option<Block>) -> Result<()> {
        let device = self.program.value(value).device;
        let Some(offload_store) = &self.offload_stores[usize::from(device)] else {
            unreachable!("a program with offloads has a store for them")
        };
        let (mut stored, site) = (None, self.site(value));
        self.as_storage(device, block, |storage| {
            stored = Some(offload_store.store(storage, site)?);
            Ok(())
        })?;
        self.offloaded[copy as usize] = stored;
        Ok(())
    }

    fn reload(&mut self, copy: u32, value: u32, block: &mut Option<Block>) -> Result<()> {
        let device = self.program.value(value).device;
        let Some(stored) = &self.offloaded[copy as usize] else {
            unreachable!("what is reloaded was offloaded")
        };
        let mut copied = None;
        self.as_storage(device, block, |storage| {
            copied = stored.fill(storage)?;
            Ok(())
        })?;
        self.in_flight[copy as usize] = copied.map(|copied| (copied, device));
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
        device: u8,
        block: &mut Option<Block>,
        f: impl FnOnce(&mut Arc<Storage>) -> Result<()>,
    ) -> Result<()> {
        let Some(taken) = block.take() else { unreachable!("a value that is transferred has its block") };
        let mut storage = Storage::own(taken, DType::U8, &self.devices[usize::from(device)]);
        let done = f(&mut storage);
        *block = Storage::into_block(storage);
        done
    }
}
