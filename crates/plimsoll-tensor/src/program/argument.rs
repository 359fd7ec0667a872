//! The arguments of a program: tensors from outside, as a call of it sees them.
//!
//! Where in its storage an argument begins does not matter, as long as it is where a block could begin: kernels are given
//! addresses. So the parts of a batch have one program.

use std::sync::Arc;

use plimsoll_memory::rounded_size;

use super::Program;
use crate::layout::Layout;
use crate::op::Meta;
use crate::storage::Storage;
use crate::tensor::Tensor;

/// An argument of a program.
pub(crate) struct Argument {
    pub storage: Arc<Storage>,
    /// How it lies in memory, from where it begins.
    pub meta: Meta,
    /// The elements of the storage before that.
    pub n_before: usize,
}

impl Argument {
    pub fn of(tensor: &Tensor) -> Argument {
        let (storage, meta) = tensor.part();
        let layout = &meta.layout;
        let begins_like_a_block =
            (layout.offset() * meta.dtype.size()).is_multiple_of(rounded_size(1) as usize);
        match begins_like_a_block && layout.strides().iter().all(|&stride| stride >= 0) {
            true => Argument { storage, meta: meta.beginning_at(0), n_before: layout.offset() },
            false => Argument { storage, meta, n_before: 0 },
        }
    }

    /// The address where it begins.
    pub fn ptr(&self) -> *mut u8 {
        self.storage.ptr().wrapping_add(self.n_before * self.meta.dtype.size())
    }

    /// How something that lies in the argument lies in its storage.
    pub fn in_storage(&self, meta: &Meta) -> Meta {
        meta.moved(self.n_before)
    }
}

impl Program {
    /// How a program sees an argument: what is equal for two tensors has one program.
    pub fn argument_meta(tensor: &Tensor) -> Meta {
        Argument::of(tensor).meta
    }
}

impl Meta {
    /// The same values so many elements further on.
    pub(super) fn moved(&self, n_elems: usize) -> Meta {
        self.beginning_at(self.layout.offset() + n_elems)
    }

    fn beginning_at(&self, offset: usize) -> Meta {
        let layout = Layout::from_parts(*self.layout.shape(), self.layout.strides(), offset);
        Meta { layout, ..*self }
    }
}
