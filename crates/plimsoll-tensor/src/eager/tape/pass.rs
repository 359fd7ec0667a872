//! A pass backward: from the targets to the sources, node by node.
//!
//! Only nodes between a source and a target are visited, in the reverse order of recording. Each saved value is
//! dropped when its node has used it, so the bytes held fall as backward goes on. The first gradient that reaches
//! a value is moved in, later ones are added in place where nobody else holds it. How gradients are begun and added is told by
//! whoever asks: that takes ops, and here are none.

use std::sync::Arc;

use plimsoll_memory::Owner;
use smallvec::SmallVec;

use super::{Accumulated, Backward, Node, NodeRef, SourceKey, TapeCore};
use crate::base::error::{Error, Result};
use crate::eager::context;
use crate::eager::op::Op;
use crate::eager::tensor::Tensor;

/// Adds two gradients of one value, over the memory of the first where nobody else holds it.
pub(crate) type AddGradients = fn(Tensor, Tensor) -> Result<Tensor>;

/// What is asked of one pass.
pub(crate) struct Pass<'a> {
    /// The targets, whose gradients are added up.
    pub targets: &'a [&'a Tensor],
    /// The sources.
    pub sources: &'a [&'a Tensor],
    /// The gradient with which backward begins at a target, by the target's position.
    pub seed: &'a dyn Fn(usize) -> Result<Tensor>,
    /// Adds gradients up.
    pub add: AddGradients,
    /// What becomes of saved values.
    pub after_use: AfterUse,
}

/// What becomes of the saved values that backward has used, on a tape that is not persistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterUse {
    /// Each is freed when its node has used it.
    Free,
    /// They are retained for another pass.
    Retain,
}

/// From now on the bytes of a result of backward are those of a gradient.
pub(crate) fn count_as_gradient(gradient: &Tensor) {
    let storage = gradient.storage();
    if storage.owner() == Owner::Temporary {
        storage.relabel(Owner::Gradients);
    }
}

/// The nodes between sources and targets, by their place in the order of recording.
struct Path {
    /// Nodes that a target can reach, last recorded first.
    nodes: Vec<Arc<Node>>,
    /// Whether a node leads back to a source.
    leads: Vec<bool>,
    /// The gradients that were accumulated so far.
    accumulated: Vec<Accumulated>,
}

impl TapeCore {
    /// Refuses a second use of a tape that is not persistent.
    pub fn begin_use(&self) -> Result<()> {
        let mut state = self.lock();
        if state.used && !self.persistent {
            return Err(Error::tape(
                "gradient: this tape has given its gradient and dropped what it had saved; a tape made with \
                 `.persistent(true)` gives more than one",
            ));
        }
        state.used = true;
        Ok(())
    }

    /// Drops what is still saved, unless the tape is persistent.
    pub fn end_use(&self) {
        if !self.persistent {
            self.clear();
        }
    }

    /// Runs backward from the targets and collects the gradients of the sources.
    pub fn run_backward(self: &Arc<Self>, pass: &Pass<'_>) -> Result<Vec<Option<Tensor>>> {
        let mut gradients: Vec<Option<Tensor>> = vec![None; pass.sources.len()];
        self.run_backward_each(pass, &mut |source, gradient| {
            gradients[source] = Some(gradient);
            Ok(())
        })?;
        Ok(gradients)
    }

    /// Runs backward from the targets and hands out the gradient of each source when it is complete: a node comes after all
    /// that read its outputs.
    pub fn run_backward_each(
        self: &Arc<Self>,
        pass: &Pass<'_>,
        hand_out: &mut dyn FnMut(usize, Tensor) -> Result<()>,
    ) -> Result<()> {
        let retains = self.persistent || pass.after_use == AfterUse::Retain;
        let known = |tensors: &[&Tensor]| -> Result<Vec<Option<NodeRef>>> {
            tensors.iter().map(|tensor| self.known(tensor)).collect()
        };
        let (ends, starts) = (known(pass.targets)?, known(pass.sources)?);
        let mut path = Path::between(&starts, &ends);
        for (target, end) in ends.iter().enumerate() {
            let Some(end) = end.as_ref().filter(|end| path.leads[end.node.seq]) else { continue };
            path.accumulate(end, (pass.seed)(target)?, pass.add)?;
        }
        for node in std::mem::take(&mut path.nodes) {
            let accumulated = std::mem::take(&mut path.accumulated[node.seq]);
            if accumulated.is_empty() {
                continue;
            }
            for (source, start) in starts.iter().enumerate() {
                let Some(start) = start.as_ref().filter(|start| Arc::ptr_eq(&start.node, &node)) else {
                    continue;
                };
                if let Some(gradient) = &accumulated[start.output] {
                    hand_out(source, gradient.clone())?;
                }
            }
            if let Some(op) = &node.op {
                self.backward_node(op.get(), &node, accumulated, (retains, pass.add), &mut path)?;
            }
        }
        Ok(())
    }

    /// The first source that no way leads to from the target.
    pub fn unconnected(self: &Arc<Self>, target: &Tensor, sources: &[&Tensor]) -> Result<Option<usize>> {
        let starts: Vec<Option<NodeRef>> =
            sources.iter().map(|source| self.known(source)).collect::<Result<_>>()?;
        let path = Path::between(&starts, &[self.known(target)?]);
        let is_reached = |start: &NodeRef| path.nodes.iter().any(|node| Arc::ptr_eq(node, &start.node));
        Ok(starts.iter().position(|start| !start.as_ref().is_some_and(is_reached)))
    }

    /// What is said of a source that the target does not depend on.
    pub fn not_connected(self: &Arc<Self>, op: &str, target: &Tensor, idx: usize, source: &Tensor) -> Error {
        if !self.has_recorded(target) {
            return Error::tape(format!("{op}: {}", self.unrecorded(target)));
        }
        Error::tape(format!(
            "{op}: source {idx} of shape {} is not connected to the target: it was not watched, or the target does not \
             depend on it; `gradient_or_none` and `gradient_or_zeros` allow that",
            source.shape()
        ))
    }

    /// Whether an op that this tape recorded made the tensor.
    pub fn has_recorded(self: &Arc<Self>, tensor: &Tensor) -> bool {
        tensor.nodes().iter().any(|known| Arc::ptr_eq(&known.node.tape, self))
    }

    /// What is said of a target that no recorded op made.
    pub fn unrecorded(self: &Arc<Self>, target: &Tensor) -> String {
        let (shape, by) =
            (target.shape(), if target.nodes().is_empty() { "no tape" } else { "another tape" });
        format!(
            "the target of shape {shape} was not recorded by this tape: {by} knows it; make it inside `record`, from \
             variables or from tensors that the tape watches"
        )
    }

    /// The node of a target or source.
    fn known(self: &Arc<Self>, tensor: &Tensor) -> Result<Option<NodeRef>> {
        let inert =
            |node: &NodeRef| Arc::ptr_eq(&node.node.tape, self) && node.node.generation != self.generation();
        if tensor.nodes().iter().any(inert) {
            return Err(Error::tape(
                "gradient: the tape was reset since this tensor was recorded; record it again",
            ));
        }
        Ok(tensor.nodes().iter().find(|known| Arc::ptr_eq(&known.node.tape, self)).cloned().or_else(|| {
            let state = self.lock();
            let node = state.sources.get(&SourceKey::of(tensor))?;
            Some(NodeRef { node: node.clone(), output: 0 })
        }))
    }

    /// Calls one op's backward, passes its results on, and drops what it has used.
    fn backward_node(
        self: &Arc<Self>,
        op: &dyn Op,
        node: &Node,
        accumulated: Accumulated,
        (retains, add): (bool, AddGradients),
        path: &mut Path,
    ) -> Result<()> {
        let leads = |parent: &Option<NodeRef>| parent.as_ref().is_some_and(|p| path.leads[p.node.seq]);
        let wanted: SmallVec<[bool; 4]> = node.parents.iter().map(leads).collect();
        let mut backward = Backward::new(self, node, accumulated, wanted, retains);
        context::in_layer_of(node.layer, || context::in_backward(|| op.backward(&mut backward)))?;
        if !retains && !node.saved.is_empty() {
            self.empty_slots(node.generation, node.saved.iter().map(|&(_, slot)| slot));
        }
        for (parent, result) in node.parents.iter().zip(backward.take_results()) {
            if let (Some(parent), Some(result)) = (parent, result) {
                path.accumulate(parent, result, add)?;
            }
        }
        Ok(())
    }
}

impl Path {
    fn between(starts: &[Option<NodeRef>], ends: &[Option<NodeRef>]) -> Path {
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let last = ends.iter().chain(starts).flatten().map(|end| end.node.seq).max().unwrap_or(0);
        let mut seen = vec![false; last + 1];
        let mut open: Vec<Arc<Node>> = ends.iter().flatten().map(|end| end.node.clone()).collect();
        while let Some(node) = open.pop() {
            if std::mem::replace(&mut seen[node.seq], true) {
                continue;
            }
            open.extend(node.parents.iter().flatten().map(|parent| parent.node.clone()));
            nodes.push(node);
        }
        nodes.sort_unstable_by_key(|node| std::cmp::Reverse(node.seq));
        let mut leads = vec![false; last + 1];
        for start in starts.iter().flatten() {
            leads[start.node.seq] = true;
        }
        for node in nodes.iter().rev() {
            leads[node.seq] |= node.parents.iter().flatten().any(|parent| leads[parent.node.seq]);
        }
        nodes.retain(|node| leads[node.seq]);
        Path { nodes, leads, accumulated: (0..=last).map(|_| Accumulated::new()).collect() }
    }

    /// Accumulates a gradient of an output: moved in if it is the first, added otherwise.
    fn accumulate(&mut self, at: &NodeRef, gradient: Tensor, add: AddGradients) -> Result<()> {
        let accumulated = &mut self.accumulated[at.node.seq];
        accumulated.resize(at.node.outputs.len(), None);
        let entry = &mut accumulated[at.output];
        *entry = Some(match entry.take() {
            None => gradient,
            Some(sum) => add(sum, gradient)?,
        });
        Ok(())
    }
}
