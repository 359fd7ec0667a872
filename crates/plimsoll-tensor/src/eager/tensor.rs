//! `Tensor`: an immutable value on a device; cheap to clone, safe to share between threads.
//!
//! The dtype, rank and device are values, not type parameters. A tensor is a view (layout) of a storage, with
//! the nodes by which tapes know where it came from. The handle of a [`Variable`](crate::Variable) is a tensor,
//! too: it reads the variable's value of the moment, and a clone of it is that value, fixed.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_memory::Owner;
use smallvec::SmallVec;

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::device::Device;
use crate::device::handle_lines::{self, HandleLine};
use crate::device::holders::Holders;
use crate::device::storage::Storage;
use crate::device::why_alive::{AliveBlock, WhyAlive};
use crate::eager::context;
use crate::eager::execute::StorageView;
use crate::eager::op::Meta;
use crate::eager::tape::{NodeRef, TensorNodes};
use crate::eager::variable::VariableCell;

/// A multi-dimensional array on a device.
pub struct Tensor(Arc<Inner>);

struct Inner {
    data: Data,
    meta: Meta,
    id: u64,
    nodes: TensorNodes,
    /// The line that made this handle, if such lines are noted.
    line: HandleLine,
}

/// Where the values are.
pub(crate) enum Data {
    /// In a storage that does not change.
    Value(Arc<Storage>),
    /// In a variable, whose value of the moment is meant.
    Variable(Arc<VariableCell>),
}

impl Data {
    /// The storage of a tensor that is no variable's handle.
    pub fn value(&self) -> &Arc<Storage> {
        match self {
            Data::Value(storage) => storage,
            Data::Variable(_) => unreachable!("only handles refer to variables"),
        }
    }
}

/// The nodes that tapes have made for a tensor: usually none or one.
pub(crate) type Nodes = SmallVec<[NodeRef; 1]>;

impl Tensor {
    /// A tensor over a storage that has the elements of its layout: it was made for them, or `check` has looked.
    pub(crate) fn over(storage: Arc<Storage>, meta: Meta, nodes: Nodes) -> Tensor {
        debug_assert!(
            meta.layout.lies_within(storage.n_bytes() / meta.dtype.size()),
            "{meta:?} in its storage"
        );
        let line = HandleLine::of(&storage, "");
        let nodes = TensorNodes::new(nodes);
        Tensor(Arc::new(Inner { data: Data::Value(storage), meta, id: next_id(), nodes, line }))
    }

    /// The handle of a variable.
    pub(crate) fn handle(cell: Arc<VariableCell>, meta: Meta) -> Tensor {
        let (nodes, line) = (TensorNodes::default(), HandleLine::default());
        Tensor(Arc::new(Inner { data: Data::Variable(cell), meta, id: next_id(), nodes, line }))
    }

    /// The extents.
    #[doc(alias = "size")]
    #[inline]
    pub fn shape(&self) -> &Shape {
        self.0.meta.layout.shape()
    }

    /// The type of the elements.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.0.meta.dtype
    }

    /// The number of dimensions.
    #[doc(alias("ndim", "dim"))]
    #[inline]
    pub fn rank(&self) -> usize {
        self.shape().rank()
    }

    /// The number of elements.
    #[doc(alias("numel", "size"))]
    #[inline]
    pub fn n_elems(&self) -> usize {
        self.0.meta.layout.n_elems()
    }

    /// The bytes of the elements.
    #[doc(alias = "nbytes")]
    #[inline]
    pub fn n_bytes(&self) -> usize {
        self.0.meta.n_bytes()
    }

    /// Shape, strides and dtype.
    #[inline]
    pub fn meta(&self) -> &Meta {
        &self.0.meta
    }

    /// Which elements of the storage the tensor means.
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.0.meta.layout
    }

    /// The device that holds the values; while a function is recorded, the one that will hold them.
    pub fn device(&self) -> Device {
        match &self.0.data {
            Data::Value(storage) => context::real_device(storage.device()),
            Data::Variable(cell) => cell.device().clone(),
        }
    }

    /// Whether the tensor has a shape but no values: on a ghost device, as a description, or while a function is recorded.
    pub fn is_ghost(&self) -> bool {
        match &self.0.data {
            Data::Value(storage) => storage.device().is_ghost(),
            Data::Variable(_) => self.storage_view().0.device().is_ghost(),
        }
    }

    /// Whether the elements lie one after the other in row-major order.
    pub fn is_contiguous(&self) -> bool {
        self.layout().is_contiguous()
    }

    /// Whether two tensors look at the same memory.
    #[doc(alias = "shares_memory")]
    pub fn shares_memory_with(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.storage(), &other.storage())
    }

    /// The same value as a constant: no gradient flows through it to where it came from.
    #[doc(alias = "detach")]
    pub fn stop_gradient(&self) -> Tensor {
        self.without_nodes()
    }

    /// Who the bytes of this tensor are counted for.
    pub fn owner(&self) -> Owner {
        self.storage().owner()
    }

    /// Counts the bytes of this tensor as `owner`'s from here on. A batch stays data: its bytes go back to the pipeline.
    pub fn owned_by(self, owner: Owner) -> Tensor {
        self.storage().relabel(owner);
        self
    }

    /// What keeps this tensor's memory alive: tensors of your own, and parts of the framework.
    ///
    /// ```
    /// use plimsoll_tensor::{GradientTape, Tensor, Variable};
    ///
    /// let x = Variable::new(Tensor::ones([1000])?);
    /// let tape = GradientTape::new();
    /// let y = tape.record(|| x.sin()?.cos())?;
    /// assert_eq!(x.holders().to_string(), "1 slot of a tape, 1 variable");
    /// assert_eq!(y.holders().to_string(), "1 tensor");
    /// drop(tape);
    /// assert_eq!(x.holders().to_string(), "1 variable");
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    pub fn holders(&self) -> Holders {
        Holders::of(&self.storage())
    }

    pub(crate) fn data(&self) -> &Data {
        &self.0.data
    }

    /// A number that a tensor shares with its clones and with nothing else.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        self.0.nodes.get()
    }

    /// A tape has recorded how this tensor, which nobody else holds yet, was made.
    pub(crate) fn add_node(&mut self, node: NodeRef) {
        match Arc::get_mut(&mut self.0) {
            Some(inner) => inner.nodes.push(node),
            None => unreachable!("a fresh tensor is held once"),
        }
    }

    /// The storage of the present value, and what the tensor sees of it.
    pub(crate) fn storage_view(&self) -> StorageView {
        match &self.0.data {
            Data::Value(storage) => (storage.clone(), self.0.meta),
            Data::Variable(cell) => cell.value(),
        }
    }

    /// The storage of the present value.
    pub(crate) fn storage(&self) -> Arc<Storage> {
        self.storage_view().0
    }

    /// The same value without a past: no tape knows where it came from.
    pub(crate) fn without_nodes(&self) -> Tensor {
        let (storage, meta) = self.storage_view();
        Tensor::over(storage, meta, Nodes::new())
    }

    /// Whether this tensor is the only holder of its storage and means all of it, so that it may be overwritten.
    pub(crate) fn is_unshared(&self) -> bool {
        let Data::Value(storage) = &self.0.data else { return false };
        Arc::strong_count(&self.0) == 1
            && Arc::strong_count(storage) == 1
            && !storage.is_lent()
            && self.layout().covers(storage.n_bytes() / self.dtype().size())
    }

    /// The storage under a new identity, ready to be overwritten; the tensor itself if somebody else holds it.
    ///
    /// The new identity matters: records remember the storages that they read, and must not take the new contents
    /// for the old.
    pub(crate) fn into_unshared(self) -> Result<Arc<Storage>, Tensor> {
        let Inner { data, meta, id, nodes, line } = Arc::try_unwrap(self.0).map_err(Tensor)?;
        let data = match data {
            Data::Value(storage) => match Arc::try_unwrap(storage) {
                Ok(storage) => return Ok(Arc::new(storage)),
                Err(storage) => Data::Value(storage),
            },
            variable => variable,
        };
        Err(Tensor(Arc::new(Inner { data, meta, id, nodes, line })))
    }
}

impl Clone for Tensor {
    #[track_caller]
    fn clone(&self) -> Tensor {
        match &self.0.data {
            Data::Value(storage) if handle_lines::is_on() => self.clone_with_line(storage),
            Data::Value(_) => Tensor(self.0.clone()),
            Data::Variable(cell) => cell.read(self),
        }
    }
}

impl Tensor {
    /// A clone that is a handle of its own, with the line that made it.
    #[cold]
    #[track_caller]
    fn clone_with_line(&self, storage: &Arc<Storage>) -> Tensor {
        let _line = context::at_callers_line();
        let line = HandleLine::of(storage, "clone");
        let Inner { meta, id, ref nodes, .. } = *self.0;
        let nodes = TensorNodes::new(nodes.get().clone());
        Tensor(Arc::new(Inner { data: Data::Value(storage.clone()), meta, id, nodes, line }))
    }
}

impl WhyAlive {
    /// The block that a tensor lies in; none if its memory is not of this device's pool, or was not there at that moment.
    pub fn of(&self, tensor: &Tensor) -> Option<&AliveBlock> {
        self.place_of(&tensor.storage()).map(|place| &self.blocks()[place])
    }

    /// Says who has a tensor, in the words of a language that embeds the framework, such as the name of a Python variable. The
    /// rows show it beside the tensor's block.
    pub fn name_handle(&mut self, tensor: &Tensor, name: impl Into<String>) {
        if let Some(place) = self.place_of(&tensor.storage()) {
            self.name_handle_at(place, name.into());
        }
    }
}

/// A number never given before; each thread takes them in long runs, so that threads do not contend.
fn next_id() -> u64 {
    const RUN: u64 = 1 << 20;
    static NEXT_RUN: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NEXT: Cell<(u64, u64)> = const { Cell::new((0, 0)) });
    NEXT.with(|next| {
        let (mut id, mut end) = next.get();
        if id == end {
            id = NEXT_RUN.fetch_add(RUN, Ordering::Relaxed);
            end = id + RUN;
        }
        next.set((id + 1, end));
        id
    })
}
