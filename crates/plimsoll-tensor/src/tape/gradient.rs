//! Backward: from the targets to the sources, node by node.
//!
//! Only nodes between a source and a target are visited, in the reverse order of recording. Each saved value is
//! dropped when its node has used it, so the bytes held fall as backward goes on. The first gradient that reaches
//! a value is moved in, later ones are added in place where nobody else holds it.

use std::sync::Arc;

use plimsoll_memory::Owner;
use smallvec::{SmallVec, smallvec};

use crate::context;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{Op, SavedRef};
use crate::shape::Shape;
use crate::tape::{GradientTape, Node, NodeRef, TapeCore};
use crate::tensor::Tensor;
use crate::variable::Variable;

/// What stands for the gradient of a source that the target does not depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unconnected {
    /// Nothing.
    #[default]
    None,
    /// Zeros of the source's shape.
    Zeros,
}

impl GradientTape {
    /// The gradients of `target` (of the sum of its elements) with respect to each source.
    ///
    /// # Errors
    /// A target that this tape did not record, a source that the target does not depend on (see
    /// [`gradient_or_none`](GradientTape::gradient_or_none)), a second call on a tape that is not persistent, memory that is full.
    #[doc(alias("grad", "backward", "autograd"))]
    #[track_caller]
    pub fn gradient<const N: usize>(&self, target: &Tensor, sources: [&Tensor; N]) -> Result<[Tensor; N]> {
        let _line = context::at_callers_line();
        let gradients = self.gradients(&[target], None, &sources, Unconnected::None)?;
        let named = |(idx, gradient): (usize, Option<Tensor>)| {
            gradient.ok_or_else(|| self.core.not_connected("gradient", target, idx, sources[idx]))
        };
        let gradients: Vec<Tensor> = gradients.into_iter().enumerate().map(named).collect::<Result<_>>()?;
        Ok(gradients.try_into().unwrap_or_else(|_| unreachable!("one gradient per source")))
    }

    /// Like [`gradient`](GradientTape::gradient), with nothing where the target does not depend on a source.
    ///
    /// # Errors
    /// A second call on a tape that is not persistent, memory that is full.
    #[track_caller]
    pub fn gradient_or_none<const N: usize>(
        &self,
        target: &Tensor,
        sources: [&Tensor; N],
    ) -> Result<[Option<Tensor>; N]> {
        let _line = context::at_callers_line();
        let gradients = self.gradients(&[target], None, &sources, Unconnected::None)?;
        Ok(gradients.try_into().unwrap_or_else(|_| unreachable!("one gradient per source")))
    }

    /// Like [`gradient`](GradientTape::gradient), with zeros where the target does not depend on a source.
    ///
    /// # Errors
    /// A second call on a tape that is not persistent, memory that is full.
    #[doc(alias = "unconnected_gradients")]
    #[track_caller]
    pub fn gradient_or_zeros<const N: usize>(
        &self,
        target: &Tensor,
        sources: [&Tensor; N],
    ) -> Result<[Tensor; N]> {
        let _line = context::at_callers_line();
        let gradients = self.gradients(&[target], None, &sources, Unconnected::Zeros)?;
        let gradients: Vec<Tensor> = gradients.into_iter().flatten().collect();
        Ok(gradients.try_into().unwrap_or_else(|_| unreachable!("one gradient per source")))
    }

    /// The gradient of `target` with respect to each of a model's variables, in their order.
    ///
    /// # Errors
    /// Variables that the target does not depend on, by name; a second call on a tape that is not persistent; memory
    /// that is full.
    #[doc(alias = "grad")]
    #[track_caller]
    pub fn variable_gradients(&self, target: &Tensor, variables: &[Variable]) -> Result<Vec<Tensor>> {
        let _line = context::at_callers_line();
        self.variable_gradients_with(target, variables, Unconnected::None)
    }

    /// Like [`GradientTape::variable_gradients`], with a choice for variables that the target does not depend on: an error,
    /// or zeros.
    ///
    /// # Errors
    /// As [`GradientTape::variable_gradients`].
    #[track_caller]
    pub fn variable_gradients_with(
        &self,
        target: &Tensor,
        variables: &[Variable],
        unconnected: Unconnected,
    ) -> Result<Vec<Tensor>> {
        let _line = context::at_callers_line();
        let sources: Vec<&Tensor> = variables.iter().map(|variable| &**variable).collect();
        let gradients = self.gradients(&[target], None, &sources, unconnected)?;
        let missing = variables.iter().zip(&gradients).filter(|(_, gradient)| gradient.is_none());
        let missing: Vec<String> = missing.map(|(variable, _)| format!("{:?}", variable.name())).collect();
        if !missing.is_empty() && !self.core.has_recorded(target) {
            return Err(Error::tape(format!("gradient: {}", self.core.unrecorded(target))));
        }
        if !missing.is_empty() {
            return Err(Error::tape(format!(
                "gradient: the target does not depend on {}; leave them out, freeze their layers, or ask for zeros",
                missing.join(", ")
            )));
        }
        Ok(gradients.into_iter().flatten().collect())
    }

    /// The gradients of several targets, added up, with respect to any number of sources. `output_gradients` has one
    /// tensor per target, of its shape; without it, each element of a target counts once.
    ///
    /// # Errors
    /// A second call on a tape that is not persistent, output gradients that do not fit, memory that is full.
    #[doc(alias = "grad")]
    #[track_caller]
    pub fn gradients(
        &self,
        targets: &[&Tensor],
        output_gradients: Option<&[&Tensor]>,
        sources: &[&Tensor],
        unconnected: Unconnected,
    ) -> Result<Vec<Option<Tensor>>> {
        let _line = context::at_callers_line();
        check_output_gradients(targets, output_gradients)?;
        self.begin_use()?;
        let core = &self.core;
        let ran =
            self.stop_recording(|| core.run_backward(targets, output_gradients, sources, AfterUse::Free));
        self.end_use();
        let mut gradients = ran?;
        for (gradient, source) in gradients.iter_mut().zip(sources) {
            if gradient.is_none() && unconnected == Unconnected::Zeros {
                *gradient = Some(source.zeros_like()?);
            }
            gradient.iter().for_each(count_as_gradient);
        }
        Ok(gradients)
    }

    /// Refuses a second use of a tape that is not persistent.
    pub(super) fn begin_use(&self) -> Result<()> {
        let mut state = self.core.lock();
        if state.used && !self.core.persistent {
            return Err(Error::tape(
                "gradient: this tape has given its gradient and dropped what it had saved; a tape made with \
                 `.persistent(true)` gives more than one",
            ));
        }
        state.used = true;
        Ok(())
    }

    /// Drops what is still saved, unless the tape is persistent.
    pub(super) fn end_use(&self) {
        if !self.core.persistent {
            self.core.clear();
        }
    }
}

/// From now on the bytes of a result of backward are those of a gradient.
pub(super) fn count_as_gradient(gradient: &Tensor) {
    let storage = gradient.storage();
    if storage.owner() == Owner::Temporary {
        storage.relabel(Owner::Gradients);
    }
}

/// What becomes of the saved values that backward has used, on a tape that is not persistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterUse {
    /// Each is freed when its node has used it.
    Free,
    /// They are retained for another pass.
    Retain,
}

fn check_output_gradients(targets: &[&Tensor], output_gradients: Option<&[&Tensor]>) -> Result<()> {
    let Some(gradients) = output_gradients else { return Ok(()) };
    if gradients.len() != targets.len() {
        return Err(Error::argument(
            "gradient",
            format!(
                "{} targets but {} output gradients; give one per target",
                targets.len(),
                gradients.len()
            ),
        ));
    }
    for (target, gradient) in targets.iter().zip(gradients) {
        if target.shape() != gradient.shape() || target.dtype() != gradient.dtype() {
            return Err(Error::shape(
                "gradient",
                format!(
                    "the output gradient is {} {} but its target {} {}; they must agree",
                    gradient.shape(),
                    gradient.dtype(),
                    target.shape(),
                    target.dtype()
                ),
            ));
        }
    }
    Ok(())
}

/// The gradients of a node's outputs as far as they are accumulated; empty until the first one is there.
type Accumulated = SmallVec<[Option<Tensor>; 1]>;

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
    /// Runs backward from the targets and collects the gradients of the sources.
    pub(super) fn run_backward(
        self: &Arc<Self>,
        targets: &[&Tensor],
        output_gradients: Option<&[&Tensor]>,
        sources: &[&Tensor],
        after_use: AfterUse,
    ) -> Result<Vec<Option<Tensor>>> {
        let mut gradients: Vec<Option<Tensor>> = vec![None; sources.len()];
        self.run_backward_each(targets, output_gradients, sources, after_use, &mut |source, gradient| {
            gradients[source] = Some(gradient);
            Ok(())
        })?;
        Ok(gradients)
    }

    /// Runs backward from the targets and hands out the gradient of each source when it is complete: a node comes after all
    /// that read its outputs.
    pub(super) fn run_backward_each(
        self: &Arc<Self>,
        targets: &[&Tensor],
        output_gradients: Option<&[&Tensor]>,
        sources: &[&Tensor],
        after_use: AfterUse,
        hand_out: &mut dyn FnMut(usize, Tensor) -> Result<()>,
    ) -> Result<()> {
        let retains = self.persistent || after_use == AfterUse::Retain;
        let ends: Vec<Option<NodeRef>> =
            targets.iter().map(|target| self.known(target)).collect::<Result<_>>()?;
        let starts: Vec<Option<NodeRef>> =
            sources.iter().map(|source| self.known(source)).collect::<Result<_>>()?;
        let mut path = Path::between(&starts, &ends);
        for (idx, (target, end)) in targets.iter().zip(&ends).enumerate() {
            let Some(end) = end.as_ref().filter(|end| path.leads[end.node.seq]) else { continue };
            let seed = match output_gradients {
                Some(gradients) => gradients[idx].clone(),
                None => Tensor::full_like_scalar(target, 1.0)?,
            };
            path.accumulate(end, seed)?;
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
                self.backward_node(op.get(), &node, accumulated, retains, &mut path)?;
            }
        }
        Ok(())
    }

    /// The first source that no way leads to from the target.
    pub(super) fn unconnected(
        self: &Arc<Self>,
        target: &Tensor,
        sources: &[&Tensor],
    ) -> Result<Option<usize>> {
        let starts: Vec<Option<NodeRef>> =
            sources.iter().map(|source| self.known(source)).collect::<Result<_>>()?;
        let path = Path::between(&starts, &[self.known(target)?]);
        let is_reached = |start: &NodeRef| path.nodes.iter().any(|node| Arc::ptr_eq(node, &start.node));
        Ok(starts.iter().position(|start| !start.as_ref().is_some_and(is_reached)))
    }

    /// What is said of a source that the target does not depend on.
    pub(super) fn not_connected(
        self: &Arc<Self>,
        op: &str,
        target: &Tensor,
        idx: usize,
        source: &Tensor,
    ) -> Error {
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
    fn has_recorded(self: &Arc<Self>, tensor: &Tensor) -> bool {
        tensor.nodes().iter().any(|known| Arc::ptr_eq(&known.node.tape, self))
    }

    /// What is said of a target that no recorded op made.
    fn unrecorded(self: &Arc<Self>, target: &Tensor) -> String {
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
            let node = state.sources.get(&super::SourceKey::of(tensor))?;
            Some(NodeRef { node: node.clone(), output: 0 })
        }))
    }

    /// Calls one op's backward, passes its results on, and drops what it has used.
    fn backward_node(
        self: &Arc<Self>,
        op: &dyn Op,
        node: &Node,
        accumulated: Accumulated,
        retains: bool,
        path: &mut Path,
    ) -> Result<()> {
        let leads = |parent: &Option<NodeRef>| parent.as_ref().is_some_and(|p| path.leads[p.node.seq]);
        let wanted: SmallVec<[bool; 4]> = node.parents.iter().map(leads).collect();
        let results = smallvec![None; node.parents.len()];
        let mut backward = Backward { tape: self, node, gradients: accumulated, wanted, results, retains };
        context::in_layer_of(node.layer, || context::in_backward(|| op.backward(&mut backward)))?;
        let Backward { results, wanted, .. } = backward;
        if !retains && !node.saved.is_empty() {
            self.empty_slots(node.generation, node.saved.iter().map(|&(_, slot)| slot));
        }
        for ((parent, result), wanted) in node.parents.iter().zip(results).zip(wanted) {
            if let (Some(parent), Some(result), true) = (parent, result, wanted) {
                path.accumulate(parent, result)?;
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
    fn accumulate(&mut self, at: &NodeRef, gradient: Tensor) -> Result<()> {
        let accumulated = &mut self.accumulated[at.node.seq];
        accumulated.resize(at.node.outputs.len(), None);
        let entry = &mut accumulated[at.output];
        *entry = Some(match entry.take() {
            None => gradient,
            Some(sum) => sum.into_add(gradient)?,
        });
        Ok(())
    }
}

/// What an op's backward is given, and where it puts its results.
pub struct Backward<'a> {
    tape: &'a Arc<TapeCore>,
    node: &'a Node,
    gradients: Accumulated,
    wanted: SmallVec<[bool; 4]>,
    results: SmallVec<[Option<Tensor>; 3]>,
    /// Whether saved values are retained for another pass.
    retains: bool,
}

impl Backward<'_> {
    /// Takes the gradient of the first output; it may be overwritten if nobody else holds it.
    ///
    /// # Errors
    /// Memory that is full.
    #[doc(alias("grad", "backward", "autograd"))]
    pub fn gradient(&mut self) -> Result<Tensor> {
        match self.gradients[0].take() {
            Some(gradient) => Ok(gradient),
            None => Tensor::zeros_of(self.node.outputs[0].0, self.node.outputs[0].1),
        }
    }

    /// Takes the gradient of an output, if there is one.
    pub fn gradient_of(&mut self, output: usize) -> Option<Tensor> {
        self.gradients.get_mut(output)?.take()
    }

    /// Whether the gradient of an input is wanted; never that of an optional input that was not given.
    pub fn wants(&self, input: usize) -> bool {
        self.wanted.get(input).is_some_and(|&wanted| wanted)
    }

    /// The number of inputs.
    pub fn n_inputs(&self) -> usize {
        self.node.inputs.len()
    }

    /// The shape of an input.
    ///
    /// # Panics
    /// There is no such input.
    pub fn input_shape(&self, input: usize) -> &Shape {
        &self.node.inputs[input].0
    }

    /// The dtype of an input.
    ///
    /// # Panics
    /// There is no such input.
    pub fn input_dtype(&self, input: usize) -> DType {
        self.node.inputs[input].1
    }

    /// A saved input.
    ///
    /// # Errors
    /// Memory that is full while the value is rebuilt.
    pub fn input(&self, input: usize) -> Result<Tensor> {
        self.saved(SavedRef::Input(input))
    }

    /// A saved input, for the last time: the tape frees it unless another pass will read it, so that what nobody else holds
    /// may be overwritten.
    ///
    /// # Errors
    /// Memory that is full while the value is rebuilt; the input was taken before.
    pub fn take_input(&mut self, input: usize) -> Result<Tensor> {
        self.take(SavedRef::Input(input))
    }

    /// A saved output, for the last time: see [`Backward::take_input`].
    ///
    /// # Errors
    /// Memory that is full while the value is rebuilt; the output was taken before.
    pub fn take_output(&mut self, output: usize) -> Result<Tensor> {
        self.take(SavedRef::Output(output))
    }

    /// A saved auxiliary output, for the last time: see [`Backward::take_input`].
    ///
    /// # Errors
    /// The op did not save it, or it was taken before.
    pub fn take_aux(&mut self, aux: usize) -> Result<Tensor> {
        self.take(SavedRef::Aux(aux))
    }

    fn take(&mut self, saved_ref: SavedRef) -> Result<Tensor> {
        let value = self.saved(saved_ref)?;
        if !self.retains {
            let wanted = |&&(saved, _): &&(SavedRef, usize)| saved == saved_ref;
            let slot =
                self.node.saved.iter().find(wanted).and_then(|&(_, idx)| self.tape.lock().slots[idx].take());
            // The slot may hold nodes of other tapes: it is dropped outside the lock.
            drop(slot);
        }
        Ok(value)
    }

    /// A saved output.
    ///
    /// # Errors
    /// Memory that is full while the value is rebuilt.
    pub fn output(&self, output: usize) -> Result<Tensor> {
        self.saved(SavedRef::Output(output))
    }

    /// A saved auxiliary output.
    ///
    /// # Errors
    /// The op did not save it.
    pub fn aux(&self, aux: usize) -> Result<Tensor> {
        self.saved(SavedRef::Aux(aux))
    }

    /// Sets the gradient of an input.
    ///
    /// # Errors
    /// An input that the op does not have; a gradient whose shape or dtype is not that of the input.
    pub fn set_grad(&mut self, input: usize, gradient: Tensor) -> Result<()> {
        let Some(&(shape, dtype)) = self.node.inputs.get(input) else {
            let detail =
                format!("backward gives input {input} a gradient; the op has {} inputs", self.n_inputs());
            return Err(Error::argument(self.name(), detail));
        };
        if *gradient.shape() != shape || gradient.dtype() != dtype {
            return Err(Error::shape(
                self.name(),
                format!(
                    "backward gives input {input} a gradient of {} {}, but the input is {shape} {dtype}",
                    gradient.shape(),
                    gradient.dtype()
                ),
            ));
        }
        self.results[input] = Some(gradient);
        Ok(())
    }

    fn name(&self) -> &'static str {
        self.node.op.as_ref().map_or("source", |op| op.name())
    }

    fn saved(&self, saved_ref: SavedRef) -> Result<Tensor> {
        let missing = || {
            Error::tape(format!("{}: backward reads {saved_ref:?}, which the op did not save", self.name()))
        };
        let &(_, idx) = self.node.saved.iter().find(|&&(saved, _)| saved == saved_ref).ok_or_else(missing)?;
        let slot = {
            let mut state = self.tape.lock();
            let slot = state.slots.get_mut(idx).ok_or_else(missing)?;
            // The slot is taken out while it is read, because rebuilding a derived value runs ops.
            slot.take().ok_or_else(missing)?
        };
        let tensor = slot.tensor();
        self.tape.lock().slots[idx] = Some(slot);
        tensor
    }
}
