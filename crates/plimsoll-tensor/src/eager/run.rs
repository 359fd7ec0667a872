//! What a kernel is given: operands, scratch memory, and what makes an input that is not there yet.
//!
//! All of it comes from the caller; a kernel never allocates. Ops of one's own see slices here, and no address.

use std::fmt;

use plimsoll_cpu::reduce::Source;
use plimsoll_cuda::{Generated, Param};

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::shape::Shape;
use crate::device::Device;
use crate::device::fault;
use crate::device::storage::Storage;
use crate::device::survey::BlockKey;
use crate::eager::op::{Meta, Refusal};

/// What a kernel is given. All memory comes from the caller; a kernel never allocates.
pub struct Run<'a> {
    /// The inputs, with their strides.
    pub(crate) inputs: &'a [Operand<'a>],
    /// The outputs, row-major. The first may be the memory of an input that [`Op::overwrites`](super::op::Op::overwrites) names.
    pub(crate) outputs: &'a [Operand<'a>],
    /// The auxiliary outputs; empty when the op is not recorded.
    pub(crate) aux_outputs: &'a [Operand<'a>],
    /// The address of the scratch memory.
    pub(crate) workspace: *mut u8,
    /// Its length in bytes.
    pub(crate) workspace_len: usize,
    /// The device that runs the op.
    pub(crate) device: &'a Device,
    /// The number of the first element, where the operands are a piece of larger ones; for ops that draw by element.
    pub(crate) first: usize,
}

impl<'a> Run<'a> {
    /// The inputs, with their strides.
    pub fn inputs(&self) -> &'a [Operand<'a>] {
        self.inputs
    }

    /// The outputs, row-major. The first may be the memory of an input that [`Op::overwrites`](super::op::Op::overwrites) names.
    pub fn outputs(&self) -> &'a [Operand<'a>] {
        self.outputs
    }

    /// The auxiliary outputs; empty when the op is not recorded.
    pub fn aux_outputs(&self) -> &'a [Operand<'a>] {
        self.aux_outputs
    }

    /// The address of the scratch memory, and its length in bytes.
    pub fn workspace(&self) -> (*mut u8, usize) {
        (self.workspace, self.workspace_len)
    }

    /// The device that runs the op.
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// Says that the kernel that is about to be launched on a GPU may refuse values. Returns what it is to be given: the
    /// address of a `Note`, and the number of this call, for `fault` of the kernels' prelude.
    ///
    /// # Errors
    /// What the driver says; a device that is no GPU.
    pub fn may_refuse(&self, op: &'static str, refusal: Refusal) -> Result<(*mut u8, u64)> {
        fault::may_refuse(self.device, op, refusal)
    }
}

/// What makes the elements of an input where a kernel of a GPU reads them.
pub(crate) trait GpuSource {
    /// The kernels that it is a part of.
    fn generated(&self) -> &Generated;

    /// For a kernel whose threads read `n` neighbouring elements at a time: tells where operands lie from other ways to lie.
    fn variant(&self, n: usize) -> u64;

    /// The text then: `struct Produced`, and `produce(produced, first, to)`, which makes `n` elements from number `first` on in
    /// their compute type. `Index` is a type for numbers of elements.
    fn text(&self, n: usize) -> String;

    /// What the kernel takes as a `Produced`.
    fn param(&self) -> &dyn Param;
}

/// What makes the elements of an input where a kernel reads them first.
#[derive(Clone, Copy)]
pub(crate) enum Producer<'a> {
    /// A kernel of the CPU.
    Cpu(&'a dyn Source),
    /// One of a GPU.
    Gpu(&'a dyn GpuSource),
}

impl fmt::Debug for Producer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Producer")
    }
}

/// The memory of one input or output.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// The address of the storage, not yet of the first element.
    base: *mut u8,
    /// The block that it lies in; none for scratch memory and for memory in no pool.
    block: Option<BlockKey>,
    /// Shape, strides and dtype.
    pub meta: &'a Meta,
    /// What makes the elements, if they are not there yet.
    producer: Option<Producer<'a>>,
}

impl<'a> Operand<'a> {
    #[inline]
    pub(crate) fn new(base: *mut u8, meta: &'a Meta) -> Operand<'a> {
        Operand { base, block: None, meta, producer: None }
    }

    /// Row-major elements that are made where they are read first, for an op that [takes](super::op::Op::takes_made) such, and the memory that
    /// they are written to, if there is one.
    pub(crate) fn produced(
        producer: Producer<'a>,
        meta: &'a Meta,
        memory: Option<&Operand<'_>>,
    ) -> Operand<'a> {
        let (base, block) = memory.map_or((std::ptr::null_mut(), None), |to| (to.ptr(), to.block));
        Operand { base, block, meta, producer: Some(producer) }
    }

    /// What makes the elements for a kernel of the CPU, if they are not there yet.
    pub(crate) fn source(&self) -> Option<&'a dyn Source> {
        match self.producer {
            Some(Producer::Cpu(source)) => Some(source),
            _ => None,
        }
    }

    /// What makes the elements for a kernel of a GPU, if they are not there yet.
    pub(crate) fn gpu_source(&self) -> Option<&'a dyn GpuSource> {
        match self.producer {
            Some(Producer::Gpu(source)) => Some(source),
            _ => None,
        }
    }

    /// What is seen of a storage.
    #[inline]
    pub(crate) fn of(storage: &Storage, meta: &'a Meta) -> Operand<'a> {
        Operand { base: storage.ptr(), block: storage.key(), meta, producer: None }
    }

    /// What lies in a block of a device, from an address on.
    #[inline]
    pub(crate) fn in_block(base: *mut u8, block: Option<BlockKey>, meta: &'a Meta) -> Operand<'a> {
        Operand { base, block, meta, producer: None }
    }

    /// The block that it lies in.
    pub(crate) fn block(&self) -> Option<BlockKey> {
        self.block
    }

    /// The same memory under another layout, which names elements of this one only.
    pub(crate) fn viewed<'b>(&self, meta: &'b Meta) -> Operand<'b> {
        Operand { base: self.base, block: self.block, meta, producer: None }
    }

    /// The address of the first element.
    #[inline]
    pub fn ptr(&self) -> *mut u8 {
        self.base.wrapping_add(self.meta.layout.offset() * self.meta.dtype.size())
    }

    /// The shape.
    #[inline]
    pub fn shape(&self) -> &Shape {
        self.meta.layout.shape()
    }

    /// The type of the elements.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.meta.dtype
    }

    /// The number of elements.
    #[inline]
    pub fn n_elems(&self) -> usize {
        self.meta.layout.n_elems()
    }

    /// Whether the elements lie one after the other.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.meta.layout.is_contiguous()
    }
}
