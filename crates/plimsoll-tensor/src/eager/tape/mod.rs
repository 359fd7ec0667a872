//! What a gradient tape records: nodes, slots, and what an op's backward is given.
//!
//! A tape records the ops whose inputs it watches and saves, for each, only what its backward reads. Saved values
//! live in slots owned by the tape; nodes are owned by the tensors that the user holds. A saved value is freed at
//! the first of: backward has used it; the tape is dropped; no live tensor can reach it. Making
//! gradients of it is `autograd`'s part.

mod backward;
mod node;
mod pass;
mod saved;
mod slot;
mod survey;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use plimsoll_memory::{LongList, Site};
use smallvec::SmallVec;

use crate::device::storage::Storage;
use crate::eager::context;
use crate::eager::execute::Arg;
use crate::eager::op::{AuxOutput, Form, OpRef, Rebuild, SavedRef};
use crate::eager::op_log::{OpLog, OpenLog};
use crate::eager::tensor::{Data, Nodes, Tensor};
use crate::eager::variable::VariableCell;

pub(crate) use backward::Accumulated;
pub use backward::Backward;
pub(crate) use node::{Node, NodeRef, TensorNodes};
pub(crate) use pass::{AfterUse, Pass, count_as_gradient};
pub use saved::{Saved, SavedValue};

use node::{NodeInput, NodeOutput, RebuildChain, RebuildInput};
use slot::{Slot, SlotValue};
use survey::NodeList;

/// The part of a tape that nodes and the context share.
pub(crate) struct TapeCore {
    /// Whether saved values are retained after their first use.
    pub persistent: bool,
    /// Whether trainable variables are watched when they are read.
    pub watch_variables: bool,
    /// Opens the log of what it records outside a step.
    open_log: OpenLog,
    /// Counts the lives of the tape; nodes of an earlier one are inert.
    generation: AtomicU32,
    /// The number of watched sources that are tensors, so that ops on others need no look-up.
    n_tensors: AtomicUsize,
    /// The number of nodes made in this life.
    n_nodes: AtomicUsize,
    /// Where recording was first started.
    started: OnceLock<Site>,
    state: Mutex<TapeState>,
    /// How the values that it records outside a step were computed, if they may be evicted under a limit.
    step_log: Mutex<Option<Arc<dyn OpLog>>>,
}

#[derive(Default)]
pub(crate) struct TapeState {
    slots: LongList<Option<Slot>>,
    free_slots: Vec<usize>,
    pub sources: HashMap<SourceKey, Arc<Node>>,
    pub variables: Vec<Weak<VariableCell>>,
    /// All nodes that may still be there.
    nodes: NodeList,
    /// Whether gradients were asked for.
    pub used: bool,
}

/// By what a tape knows a watched source.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum SourceKey {
    /// A variable: the address of its cell, which the tape's weak handle keeps from being used again.
    Variable(usize),
    /// A tensor: its number.
    Tensor(u64),
}

impl SourceKey {
    pub fn of(source: &Tensor) -> SourceKey {
        match source.data() {
            Data::Variable(cell) => SourceKey::Variable(Arc::as_ptr(cell) as usize),
            Data::Value(_) => SourceKey::Tensor(source.id()),
        }
    }
}

/// A finished execution, about to be recorded.
pub(crate) struct FinishedCall<'a> {
    pub op: &'a OpRef,
    pub edges: &'a [Option<NodeRef>],
    pub saved: &'a [SavedRef],
    pub args: &'a [Arg<'a>],
    /// The outputs; they have the nodes of the tapes outside the one that records.
    pub outputs: &'a [Tensor],
    pub aux_outputs: &'a [(AuxOutput, Arc<Storage>)],
}

impl FinishedCall<'_> {
    /// How to rebuild outputs, if that is cheap: by the op itself, or by one that also reads what it saved.
    fn rebuild_chain(&self) -> Option<Box<RebuildChain>> {
        if self.outputs.iter().all(|output| output.n_bytes() < slot::LEAST_REBUILT_BYTES) {
            return None;
        }
        if self.op.is_cheap() {
            let inputs = (0..self.args.len()).map(|idx| self.rebuild_input(SavedRef::Input(idx))).collect();
            return Some(Box::new(RebuildChain {
                op: self.op.clone(),
                inputs,
                outputs: 0..self.outputs.len(),
            }));
        }
        if self.aux_outputs.is_empty() {
            return None;
        }
        let Rebuild { op, output, reads } = self.op.get().rebuild()?;
        let inputs = reads.into_iter().map(|read| self.rebuild_input(read)).collect();
        Some(Box::new(RebuildChain { op, inputs, outputs: output..output + 1 }))
    }

    /// A value of the call, as a rebuild chain remembers it.
    fn rebuild_input(&self, read: SavedRef) -> RebuildInput {
        let (storage, meta, input) = match read {
            SavedRef::Input(idx) => {
                let storage = Some(&self.args[idx]).filter(|arg| !matches!(arg, Arg::Overwritten(_)));
                (storage.map(Arg::storage), *self.args[idx].meta(), Some(idx))
            }
            SavedRef::Output(idx) => {
                (Some(self.outputs[idx].data().value()), *self.outputs[idx].meta(), None)
            }
            SavedRef::Aux(idx) => (Some(&self.aux_outputs[idx].1), self.aux_outputs[idx].0.meta, None),
        };
        let tag = storage.map_or(0, |storage| storage.tag());
        RebuildInput { storage: storage.map_or_else(Weak::new, Arc::downgrade), tag, meta, input }
    }
}

impl TapeCore {
    pub fn new(persistent: bool, watch_variables: bool, open_log: OpenLog) -> TapeCore {
        TapeCore {
            persistent,
            watch_variables,
            open_log,
            generation: AtomicU32::new(0),
            n_tensors: AtomicUsize::new(0),
            n_nodes: AtomicUsize::new(0),
            started: OnceLock::new(),
            state: Mutex::default(),
            step_log: Mutex::default(),
        }
    }

    /// The log of what it records outside a step.
    pub fn step_log(&self) -> Option<Arc<dyn OpLog>> {
        self.step_log.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// Begins a log, if what it records now may be evicted under a limit and there is no log yet.
    pub fn begin_step_log(&self) {
        let mut step_log = self.step_log.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if step_log.is_none() && context::with_step(|_| ()).is_none() {
            *step_log = (self.open_log)(&context::device());
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, TapeState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The place of the next node in the order of recording.
    fn next_seq(&self) -> usize {
        self.n_nodes.fetch_add(1, Ordering::Relaxed)
    }

    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// The node by which this tape knows a tensor, if it watches it.
    pub fn find(self: &Arc<Self>, tensor: &Tensor) -> Option<NodeRef> {
        let ours = |known: &&NodeRef| {
            Arc::ptr_eq(&known.node.tape, self) && known.node.generation == self.generation()
        };
        if let Some(known) = tensor.nodes().iter().find(ours) {
            return Some(known.clone());
        }
        if !tensor.dtype().is_float() {
            return None;
        }
        let variable = match tensor.data() {
            Data::Variable(cell) => Some(cell),
            Data::Value(_) if self.n_tensors.load(Ordering::Relaxed) == 0 => return None,
            Data::Value(_) => None,
        };
        if let Some(node) = self.lock().sources.get(&SourceKey::of(tensor)) {
            return Some(NodeRef { node: node.clone(), output: 0 });
        }
        let watch = variable.is_some_and(|cell| self.watch_variables && cell.is_trainable());
        watch.then(|| self.watch(tensor))
    }

    /// Whether the tape watches a tensor, or has recorded it, or watches a variable that other tapes would not.
    pub fn knows(self: &Arc<Self>, tensor: &Tensor) -> bool {
        match tensor.data() {
            Data::Variable(cell) if cell.is_trainable() => false,
            Data::Variable(_) => self.lock().sources.contains_key(&SourceKey::of(tensor)),
            Data::Value(_) => self.find(tensor).is_some(),
        }
    }

    /// Makes a tensor or variable a source, if it is not one yet.
    pub fn watch(self: &Arc<Self>, source: &Tensor) -> NodeRef {
        let mut state = self.lock();
        let key = SourceKey::of(source);
        if let Some(node) = state.sources.get(&key) {
            return NodeRef { node: node.clone(), output: 0 };
        }
        match source.data() {
            Data::Variable(cell) => state.variables.push(Arc::downgrade(cell)),
            Data::Value(_) => _ = self.n_tensors.fetch_add(1, Ordering::Relaxed),
        }
        let node = Arc::new(Node {
            tape: self.clone(),
            generation: self.generation(),
            seq: self.next_seq(),
            op: None,
            layer: Site::UNKNOWN,
            parents: SmallVec::new(),
            saved: SmallVec::new(),
            inputs: SmallVec::new(),
            outputs: smallvec::smallvec![NodeOutput::new(*source.shape(), source.dtype(), None)],
            rebuild_chain: None,
        });
        state.sources.insert(key, node.clone());
        NodeRef { node, output: 0 }
    }

    /// Records an execution: saves what its backward reads, and returns the node of its outputs.
    pub fn record(self: &Arc<Self>, call: &FinishedCall<'_>) -> Arc<Node> {
        let mut saved = SmallVec::new();
        for &saved_ref in call.saved {
            let slot = self.slot(call, saved_ref);
            saved.push((saved_ref, self.lock().insert(slot)));
        }
        let node = Arc::new(Node {
            tape: self.clone(),
            generation: self.generation(),
            seq: self.next_seq(),
            op: Some(call.op.clone()),
            layer: context::layer_site(call.op.name()),
            parents: call.edges.iter().cloned().collect(),
            saved,
            inputs: call.args.iter().map(NodeInput::of).collect(),
            outputs: call.outputs.iter().map(NodeOutput::of).collect(),
            rebuild_chain: call.rebuild_chain(),
        });
        self.lock().nodes.push(&node, call.outputs[0].data().value().device());
        node
    }

    /// The slot for one value that backward reads.
    fn slot(self: &Arc<Self>, call: &FinishedCall<'_>, saved_ref: SavedRef) -> Slot {
        let op = call.op.name();
        let site = context::site(op);
        match saved_ref {
            SavedRef::Input(idx) => {
                let node = call.edges[idx].as_ref();
                let value = SlotValue::new(call.args[idx].storage(), call.args[idx].meta(), node);
                let form = if value.is_derived() { Form::Derived } else { Form::Input };
                let outer = match call.args[idx].tensor() {
                    Some(tensor) => self.outer_nodes(tensor),
                    None => Nodes::new(),
                };
                Slot { value, form, op, site, outer }
            }
            SavedRef::Output(idx) => {
                let output = &call.outputs[idx];
                let value = SlotValue::new(output.data().value(), output.meta(), None);
                Slot { value, form: Form::Output, op, site, outer: output.nodes().clone() }
            }
            SavedRef::Aux(idx) => {
                let (aux, storage) = &call.aux_outputs[idx];
                let value = SlotValue::new(storage, &aux.meta, None);
                Slot { value, form: aux.form, op, site, outer: Nodes::new() }
            }
        }
    }

    /// The nodes by which the tapes outside this one know a tensor.
    fn outer_nodes(self: &Arc<Self>, tensor: &Tensor) -> Nodes {
        context::with_tapes(|tapes| {
            let outer = tapes.iter().take_while(|tape| !Arc::ptr_eq(tape, self));
            outer.filter_map(|tape| tape.find(tensor)).collect()
        })
    }

    /// Empties slots whose node is gone or has been used.
    pub fn empty_slots(&self, generation: u32, slots: impl Iterator<Item = usize>) {
        let mut emptied: SmallVec<[Slot; 4]> = SmallVec::new();
        {
            let mut state = self.lock();
            if generation != self.generation() {
                return;
            }
            for idx in slots {
                if let Some(slot) = state.slots.get_mut(idx).and_then(Option::take) {
                    state.free_slots.push(idx);
                    emptied.push(slot);
                }
            }
        }
        // Slots may hold nodes of other tapes, whose end releases slots in turn: not under this tape's lock.
        drop(emptied);
    }

    /// Drops everything that the tape holds and makes its nodes inert.
    pub fn clear(&self) {
        let (slots, sources) = {
            let mut state = self.lock();
            self.generation.fetch_add(1, Ordering::Relaxed);
            state.free_slots.clear();
            state.variables.clear();
            state.nodes.clear();
            self.n_tensors.store(0, Ordering::Relaxed);
            self.n_nodes.store(0, Ordering::Relaxed);
            (std::mem::take(&mut state.slots), std::mem::take(&mut state.sources))
        };
        drop(slots);
        drop(sources);
        let step_log = self.step_log.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        drop(step_log);
    }
}

impl TapeState {
    fn insert(&mut self, slot: Slot) -> usize {
        match self.free_slots.pop() {
            Some(idx) => {
                self.slots[idx] = Some(slot);
                idx
            }
            None => {
                self.slots.push(Some(slot));
                self.slots.len() - 1
            }
        }
    }
}
