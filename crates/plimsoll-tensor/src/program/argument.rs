//! The arguments of a program: tensors from outside, as a call of it sees them.
//!
//! Where in its storage an argument begins does not matter, as long as a block could begin there: kernels are given
//! addresses. So the parts of a batch share one program.

use std::sync::Arc;

use plimsoll_memory::{Block, Label, Site, rounded_size};
use smallvec::SmallVec;

use super::Program;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::device::Device;
use crate::device::storage::Storage;
use crate::eager::op::Meta;
use crate::eager::tensor::Tensor;

/// An argument of a program.
#[derive(Clone)]
pub(crate) struct Argument {
    pub storage: Arc<Storage>,
    /// How it lies in memory, from where it begins.
    pub meta: Meta,
    /// The elements of the storage before that.
    pub n_before: usize,
}

impl Argument {
    pub fn of(tensor: &Tensor) -> Argument {
        let (storage, meta) = tensor.storage_view();
        let layout = &meta.layout;
        let begins_like_a_block =
            (layout.offset() * meta.dtype.size()).is_multiple_of(rounded_size(1) as usize);
        match begins_like_a_block && layout.strides().iter().all(|&stride| stride >= 0) {
            true => Argument { storage, meta: meta.beginning_at(0), n_before: layout.offset() },
            false => Argument { storage, meta, n_before: 0 },
        }
    }

    /// The device that it is on, or described for.
    pub fn device(&self) -> Device {
        let device = self.storage.device();
        device.described().unwrap_or_else(|| device.clone())
    }

    /// Those of a call, in order.
    pub fn all(tensors: &[&Tensor]) -> Vec<Argument> {
        tensors.iter().map(|tensor| Argument::of(tensor)).collect()
    }

    /// The memory of a donated argument.
    ///
    /// # Errors
    /// Memory that something else references too, that is lent, or of which the argument is a part: the caller does not own it.
    pub fn into_donated(self, number: u32) -> Result<Block> {
        let why = if self.n_before > 0 || self.meta.n_bytes() < self.storage.n_bytes() {
            "it is a part of a larger tensor"
        } else if self.storage.is_lent() {
            "its memory belongs to the input pipeline or to another program"
        } else if Arc::strong_count(&self.storage) > 1 {
            "something else holds it: a variable, a clone, a tape or another argument"
        } else {
            match Storage::into_block(self.storage) {
                Some(block) => return Ok(block),
                None => "its memory is held elsewhere",
            }
        };
        let detail = format!("argument {number} is donated, but {why}; pass a copy, or do not donate it");
        Err(Error::argument("function", detail))
    }

    /// The address where it begins.
    pub fn ptr(&self) -> *mut u8 {
        self.storage.ptr().wrapping_add(self.n_before * self.meta.dtype.size())
    }

    /// How something that lies in the argument lies in its storage.
    pub fn in_storage(&self, meta: &Meta) -> Meta {
        meta.shifted(self.n_before)
    }
}

/// The devices of a program as they are when it is called with certain arguments.
pub(crate) struct CallDevices {
    pub devices: SmallVec<[Device; 1]>,
    /// The memory of arguments that are only described.
    _described: Vec<Block>,
}

impl Program {
    /// The devices as they are when the program is called with these arguments: with the memory of those that are only described,
    /// and without that of donated ones, which a dry run of the program acquires itself.
    pub(crate) fn call_devices(&self, arguments: &[Argument]) -> Result<CallDevices> {
        let is_plain = |argument: &Argument| self.devices.contains(argument.storage.device());
        if self.donated.is_empty() && arguments.iter().all(is_plain) {
            return Ok(CallDevices { devices: self.devices.clone(), _described: Vec::new() });
        }
        let ghosts: SmallVec<[Device; 1]> = self.devices.iter().map(Device::ghost).collect();
        ghosts.iter().try_for_each(|ghost| ghost.set_limit(None))?;
        let mut described = Vec::new();
        for (number, argument) in (0..).zip(arguments) {
            let ghost = &ghosts[usize::from(self.argument_devices[number as usize])];
            match (argument.storage.block(), self.donated.contains(&number)) {
                (Some(block), true) => ghost.pool().release_copy_of(block),
                (None, false) if !is_plain(argument) => {
                    let label = Label::new(argument.storage.owner(), Site::UNKNOWN);
                    described.push(ghost.acquire(argument.storage.n_bytes(), label)?);
                }
                _ => {}
            }
        }
        Ok(CallDevices { devices: ghosts, _described: described })
    }

    /// How a program sees an argument: two tensors for which it is equal share a program.
    pub fn argument_meta(tensor: &Tensor) -> Meta {
        Argument::of(tensor).meta
    }
}

impl Meta {
    /// The same layout, so many elements further on.
    pub(super) fn shifted(&self, n_elems: usize) -> Meta {
        self.beginning_at(self.layout.offset() + n_elems)
    }

    fn beginning_at(&self, offset: usize) -> Meta {
        let layout = Layout::from_parts(*self.layout.shape(), self.layout.strides(), offset);
        Meta { layout, ..*self }
    }
}
