//! Nodes: what a tape knows about a recorded tensor.
//!
//! Nodes are owned by tensors and by later nodes; they hold their parents and the keys of slots, never values. When
//! the last handle of a node goes, its slots go too, so a value that no live tensor can reach is freed.

use std::ops::Range;
use std::sync::{Arc, Weak};

use plimsoll_memory::Site;
use smallvec::SmallVec;

use crate::base::dtype::DType;
use crate::base::shape::Shape;
use crate::device::storage::Storage;
use crate::eager::op::{Meta, OpRef, SavedRef};
use crate::eager::tape::TapeCore;

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
    pub inputs: SmallVec<[(Shape, DType); 2]>,
    pub outputs: SmallVec<[(Shape, DType); 1]>,
    /// How to rebuild the outputs, if that is cheap.
    pub rebuild_chain: Option<Box<RebuildChain>>,
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

impl Drop for Node {
    fn drop(&mut self) {
        if !self.saved.is_empty() {
            self.tape.empty_slots(self.generation, self.saved.iter().map(|&(_, slot)| slot));
        }
        // A long chain must not be dropped by recursion: parents that nobody else holds are taken apart here.
        let mut orphans: SmallVec<[Arc<Node>; 4]> = SmallVec::new();
        orphans.extend(self.parents.drain(..).flatten().map(|parent| parent.node));
        while let Some(mut orphan) = orphans.pop() {
            if let Some(node) = Arc::get_mut(&mut orphan) {
                orphans.extend(node.parents.drain(..).flatten().map(|parent| parent.node));
            }
        }
    }
}
