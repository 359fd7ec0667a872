//! What a tape tells a survey: which of its slots hold which memory, and by which nodes tensors keep them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;

use crate::device::Device;
use crate::device::holders::Holder;
use crate::device::survey::{BlockKey, Computation, HolderKind, Item, Keeper, Survey, list};
use crate::eager::context;
use crate::eager::op::{Meta, SavedRef};
use crate::eager::tape::slot::{Slot, SlotValue};
use crate::eager::tape::{Node, NodeRef, TapeCore, TapeState};

/// The nodes of a tape that may still be there, in the order of recording.
#[derive(Default)]
pub(super) struct NodeList {
    nodes: Vec<Weak<Node>>,
    /// How many there were after those that are gone were last left out.
    n_swept: usize,
    /// The numbers of the devices that the nodes' outputs are on: the tape is listed as a keeper on each.
    devices: SmallVec<[u64; 2]>,
}

impl NodeList {
    /// Adds a node whose outputs are on `device`.
    pub fn push(&mut self, node: &Arc<Node>, device: &Device) {
        if !self.devices.contains(&device.number()) {
            self.devices.push(device.number());
            let weak: Weak<TapeCore> = Arc::downgrade(&node.tape);
            list(device, weak);
        }
        if self.nodes.len() >= 64.max(2 * self.n_swept) {
            self.nodes.retain(|node| node.strong_count() > 0);
            self.n_swept = self.nodes.len();
        }
        self.nodes.push(Arc::downgrade(node));
    }

    /// Forgets all nodes; on the devices that they were on, the tape stays listed.
    pub fn clear(&mut self) {
        (self.nodes, self.n_swept) = (Vec::new(), 0);
    }
}

impl TapeCore {
    /// Is called when recording begins: from the first time on the tape is known by that line.
    pub fn name_by_line(&self) {
        self.started.get_or_init(|| context::site(""));
    }
}

impl Keeper for TapeCore {
    fn tell(self: Arc<Self>, survey: &mut Survey<'_>) {
        let line = self.started.get().map_or_else(String::new, |site| site.to_string());
        let tape = survey.holder_at(HolderKind::Tape, format!("tape {line}"), &self);
        // Nodes are dropped after the lock: the last handle of one empties slots.
        let nodes: Vec<Arc<Node>> = {
            let Some(state) = survey.lock(&self.state) else { return };
            let nodes: Vec<Arc<Node>> = state.nodes.nodes.iter().filter_map(Weak::upgrade).collect();
            for node in &nodes {
                tell_node(survey, &state, tape, node);
            }
            for source in state.sources.values() {
                let link = link(survey, source);
                survey.counts(link, Arc::strong_count(source));
                survey.holds_link(tape, link, 1);
                tell_tensors(survey, source, link);
            }
            nodes
        };
        drop(nodes);
    }
}

/// The link of a node, by its address, which is its own while it is held.
fn link(survey: &mut Survey<'_>, node: &Arc<Node>) -> Item {
    survey.link("node", Arc::as_ptr(node) as u64)
}

fn tell_node(survey: &mut Survey<'_>, state: &TapeState, tape: Item, node: &Arc<Node>) {
    let this = link(survey, node);
    // One handle is that of this call.
    survey.counts(this, Arc::strong_count(node) - 1);
    tell_tensors(survey, node, this);
    for NodeRef { node: parent, .. } in node.parents.iter().flatten() {
        let parent = link(survey, parent);
        survey.holds_link(this, parent, 1);
    }
    for &(saved_ref, idx) in &node.saved {
        let Some(slot) = state.slots[idx].as_ref() else { continue };
        let link = survey.link_of_all(HolderKind::Tape, slot.op, [tape, this]);
        tell_slot(survey, slot, link);
        let is_aux = matches!(saved_ref, SavedRef::Aux(_));
        if let (true, SlotValue::Value { storage, .. }) = (is_aux, &slot.value) {
            storage.key().into_iter().for_each(|key| tell_recipe(survey, node, key));
        }
    }
    let inputs = || node.inputs.iter().filter_map(|input| input.read);
    for key in node.outputs.iter().filter_map(|output| output.block) {
        // A view makes nothing.
        if !inputs().any(|(input, _)| input == key) {
            tell_recipe(survey, node, key);
        }
    }
}

/// The tensors in the user's code that have outputs of a node keep it.
fn tell_tensors(survey: &mut Survey<'_>, node: &Node, link: Item) {
    if let [output] = &*node.outputs {
        return output.block.into_iter().for_each(|key| survey.handles_keep_the_rest(key, link));
    }
    for output in &node.outputs {
        let n_tensors = output.n_tensors.load(Ordering::Relaxed) as usize;
        match output.block {
            Some(key) if n_tensors > 0 => survey.handles_keep(key, link, n_tensors),
            _ => {}
        }
    }
}

fn tell_slot(survey: &mut Survey<'_>, slot: &Slot, this: Item) {
    tell_value(survey, &slot.value, this);
    for NodeRef { node, .. } in &slot.outer {
        let node = link(survey, node);
        survey.holds_link(this, node, 1);
    }
}

fn tell_value(survey: &mut Survey<'_>, value: &SlotValue, this: Item) {
    match value {
        SlotValue::Value { storage, .. } => survey.holds(this, storage, Holder::Slot),
        SlotValue::Logged { step_log, number, .. } => {
            let logged = survey.link("logged", step_log.tag(*number));
            survey.holds_link(this, logged, 1);
        }
        SlotValue::Derived { sources, .. } => {
            sources.iter().for_each(|source| tell_value(survey, source, this));
        }
    }
}

/// How a node made what lies in a block.
fn tell_recipe(survey: &mut Survey<'_>, node: &Node, key: BlockKey) {
    let Some(op) = &node.op else { return };
    let inputs: Vec<Meta> = node.inputs.iter().map(|input| Meta::fresh(input.shape, input.dtype)).collect();
    let outputs: Vec<Meta> =
        node.outputs.iter().map(|output| Meta::fresh(output.shape, output.dtype)).collect();
    let (inputs, outputs): (Vec<&Meta>, Vec<&Meta>) = (inputs.iter().collect(), outputs.iter().collect());
    let nanoseconds = op.nanoseconds(survey.device(), &inputs, &outputs);
    let inputs = node.inputs.iter().map(|input| input.read).collect();
    let repeats = !op.has_effect() && survey.device().is_deterministic();
    survey.computed(key, Computation { op: op.name(), site: node.layer, repeats, nanoseconds, inputs });
}
