//! Nodes: what a tape knows about a recorded tensor.
//!
//! Nodes are owned by tensors and by later nodes; they hold their parents and the keys of slots, never values. When
//! the last handle of a node goes, its slots go too, so a value that no live tensor can reach is freed.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use plimsoll_memory::Site;
use smallvec::SmallVec;

use crate::base::dtype::DType;
use crate::base::shape::Shape;
use crate::device::storage::Storage;
use crate::device::survey::BlockKey;
use crate::eager::execute::Arg;
use crate::eager::op::{Meta, OpRef, SavedRef};
use crate::eager::tape::TapeCore;
use crate::eager::tensor::{Nodes, Tensor};

/// One recorded execution of an op, or a source of a tape.
pub(crate) struct Node {
    pub tape: Arc<TapeCore>,
    /// The tape's life that the node belongs to; `reset` begins a new one.
    pub generation: u32,
    /// The place in the order of recording.
    pub seq: usize,
    /// The op; none for a watched source.
    pub op: Option<OpRef>,
    /// The site that recorded it, to whose layer the bytes of its gradients belong, too; unknown outside all layers.
    pub layer: Site,
    /// For each input, the node that made it, if the tape watches it.
    pub parents: SmallVec<[Option<NodeRef>; 2]>,
    /// What backward reads, and the slots that hold it.
    pub saved: SmallVec<[(SavedRef, usize); 2]>,
    pub inputs: SmallVec<[NodeInput; 2]>,
    pub outputs: SmallVec<[NodeOutput; 1]>,
    /// How to rebuild the outputs, if that is cheap.
    pub rebuild_chain: Option<Box<RebuildChain>>,
}

/// An input of a node.
pub(crate) struct NodeInput {
    pub shape: Shape,
    pub dtype: DType,
    /// The block that it lay in, and how often that had been overwritten; none for one that the op itself wrote over.
    pub read: Option<(BlockKey, u32)>,
}

/// An output of a node.
pub(crate) struct NodeOutput {
    pub shape: Shape,
    pub dtype: DType,
    /// The block that it lay in.
    pub block: Option<BlockKey>,
    /// Where the node has several outputs, how many tensors have this one, so that whoever asks why memory is alive knows
    /// which of them keep the node. Of a single output it is known without counting.
    pub n_tensors: AtomicU32,
}

impl NodeInput {
    pub fn of(arg: &Arg<'_>) -> NodeInput {
        let read = match arg {
            Arg::Overwritten(_) => None,
            arg => arg.storage().key().map(|key| (key, arg.storage().n_overwrites())),
        };
        NodeInput { shape: *arg.meta().shape(), dtype: arg.meta().dtype, read }
    }
}

impl NodeOutput {
    pub fn of(output: &Tensor) -> NodeOutput {
        NodeOutput::new(*output.shape(), output.dtype(), output.data().value().key())
    }

    pub fn new(shape: Shape, dtype: DType, block: Option<BlockKey>) -> NodeOutput {
        NodeOutput { shape, dtype, block, n_tensors: AtomicU32::new(0) }
    }
}

/// The nodes of a tensor, which count it.
#[derive(Default)]
pub(crate) struct TensorNodes(Nodes);

impl TensorNodes {
    pub fn new(nodes: Nodes) -> TensorNodes {
        nodes.iter().for_each(|known| known.count(|n_tensors| _ = n_tensors.fetch_add(1, Ordering::Relaxed)));
        TensorNodes(nodes)
    }

    pub fn get(&self) -> &Nodes {
        &self.0
    }

    pub fn push(&mut self, node: NodeRef) {
        node.count(|n_tensors| _ = n_tensors.fetch_add(1, Ordering::Relaxed));
        self.0.push(node);
    }
}

impl Drop for TensorNodes {
    #[inline]
    fn drop(&mut self) {
        self.0
            .iter()
            .for_each(|known| known.count(|n_tensors| _ = n_tensors.fetch_sub(1, Ordering::Relaxed)));
    }
}

/// A cheap op that rebuilds outputs of a node, and what it reads.
pub(crate) struct RebuildChain {
    pub op: OpRef,
    pub inputs: SmallVec<[RebuildInput; 2]>,
    /// The outputs of the node that it gives, in the order of its own.
    pub outputs: Range<usize>,
}

/// What a rebuild chain reads: remembered, but not held.
pub(crate) struct RebuildInput {
    pub storage: Weak<Storage>,
    /// By what a step's log knows it.
    pub tag: u64,
    pub meta: Meta,
    /// The input of the node that it is; an auxiliary or another output of the node is none.
    pub input: Option<usize>,
}

/// One output of a node.
#[derive(Clone)]
pub(crate) struct NodeRef {
    pub node: Arc<Node>,
    pub output: usize,
}

impl NodeRef {
    /// Changes the count of an output's tensors, where there is one.
    #[inline]
    fn count(&self, change: impl FnOnce(&AtomicU32)) {
        if let [_, _, ..] = &*self.node.outputs {
            change(&self.node.outputs[self.output].n_tensors);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if !self.saved.is_empty() {
            self.tape.empty_slots(self.generation, self.saved.iter().map(|&(_, slot)| slot));
        }
        // A long chain must not be dropped by recursion: parents that nobody else holds are taken apart here.
        let mut orphans: SmallVec<[Arc<Node>; 4]> = SmallVec::new();
        orphans.extend(self.parents.drain(..).flatten().map(|parent| parent.node));
        while let Some(orphan) = orphans.pop() {
            // Tapes remember nodes weakly, so `get_mut` would refuse.
            if let Some(mut node) = Arc::into_inner(orphan) {
                orphans.extend(node.parents.drain(..).flatten().map(|parent| parent.node));
            }
        }
    }
}
