//! Slots: the values that a tape saves for backward.
//!
//! A slot holds storage, never a tensor, so values and nodes form no cycles. A derived slot holds no bytes of its
//! own: it names a cheap op and the saved values that the op rebuilds the value from.

use std::sync::Arc;

use plimsoll_memory::Site;
use smallvec::SmallVec;

use crate::base::error::Result;
use crate::device::storage::Storage;
use crate::eager::check;
use crate::eager::context::{self, Saving};
use crate::eager::execute::{Arg, execute};
use crate::eager::op::{Form, Meta, OpRef};
use crate::eager::op_log::OpLog;
use crate::eager::tape::node::{NodeRef, RebuildInput};
use crate::eager::tensor::{Nodes, Tensor};

/// Chains of cheap ops longer than this are not rebuilt.
const LONGEST_CHAIN: usize = 4;

/// Smaller values are saved: rebuilding them costs more than their bytes are worth.
pub(super) const LEAST_REBUILT_BYTES: usize = 4096;

/// A value saved for backward.
pub(crate) struct Slot {
    pub value: SlotValue,
    pub form: Form,
    /// The op whose backward reads it.
    pub op: &'static str,
    pub site: Site,
    /// The nodes of outer tapes, so that backward itself can be differentiated.
    pub outer: Nodes,
}

/// The value, or how to get it.
pub(crate) enum SlotValue {
    /// The value itself.
    Value { storage: Arc<Storage>, meta: Meta },
    /// A value that a step's log retains, recomputes or reloads.
    Logged { step_log: Arc<dyn OpLog>, number: u32, meta: Meta },
    /// What a cheap op makes of other values.
    Derived { op: OpRef, output: usize, sources: SmallVec<[Box<SlotValue>; 2]> },
}

impl Slot {
    /// The value, as a tensor that only outer tapes know.
    pub fn tensor(&self) -> Result<Tensor> {
        self.value.tensor(&self.outer)
    }
}

impl SlotValue {
    /// Saves a value in the leanest way: a reference to its storage if that is saved anyway, else a chain of cheap ops from
    /// saved values, else the storage.
    pub fn new(storage: &Arc<Storage>, meta: &Meta, node: Option<&NodeRef>) -> SlotValue {
        let worth_it = meta.n_bytes() >= LEAST_REBUILT_BYTES && context::saving() == Saving::Lean;
        let node = node.filter(|_| worth_it && !is_saved(storage));
        if let Some(derived) = node.and_then(|node| SlotValue::derived(node, LONGEST_CHAIN)) {
            return derived;
        }
        SlotValue::value(storage, meta)
    }

    fn value(storage: &Arc<Storage>, meta: &Meta) -> SlotValue {
        let known = context::step_log().and_then(|step_log| Some((step_log.number(storage)?, step_log)));
        match known {
            Some((number, step_log)) => {
                step_log.retain_for_slot(number, storage);
                SlotValue::Logged { step_log, number, meta: *meta }
            }
            None => {
                storage.add_slot();
                SlotValue::Value { storage: storage.clone(), meta: *meta }
            }
        }
    }

    /// A value that slots name already and that has been evicted.
    fn evicted(step_log: Arc<dyn OpLog>, number: u32, meta: &Meta) -> SlotValue {
        step_log.add_slot(number);
        SlotValue::Logged { step_log, number, meta: *meta }
    }

    /// A chain of cheap ops that ends in `node`'s output and begins at values that are saved anyway.
    fn derived(node: &NodeRef, longest: usize) -> Option<SlotValue> {
        let rebuild_chain = node.node.rebuild_chain.as_ref()?;
        if longest == 0 || !rebuild_chain.outputs.contains(&node.output) {
            return None;
        }
        let mut sources = SmallVec::new();
        for RebuildInput { storage, tag, meta, input } in &rebuild_chain.inputs {
            let source = match (storage.upgrade(), held_by_step_log(*tag)) {
                (Some(storage), _) if is_saved(&storage) || storage.is_persistent() => {
                    SlotValue::value(&storage, meta)
                }
                (None, Some((step_log, number))) => SlotValue::evicted(step_log, number, meta),
                // What is no input has no parent: it is saved, or the value cannot be rebuilt.
                _ => SlotValue::derived(node.node.parents[(*input)?].as_ref()?, longest - 1)?,
            };
            sources.push(Box::new(source));
        }
        let output = node.output - rebuild_chain.outputs.start;
        Some(SlotValue::Derived { op: rebuild_chain.op.clone(), output, sources })
    }

    /// The value, with the given nodes.
    fn tensor(&self, nodes: &Nodes) -> Result<Tensor> {
        match self {
            SlotValue::Value { storage, meta } => {
                context::with_tracer(|tracer| tracer.fetched(storage));
                Ok(Tensor::over(storage.clone(), *meta, nodes.clone()))
            }
            SlotValue::Logged { step_log, number, meta } => {
                Ok(Tensor::over(step_log.fetch(*number)?, *meta, nodes.clone()))
            }
            SlotValue::Derived { op, output, sources } => {
                let mut args = SmallVec::new();
                for source in sources {
                    args.push(Arg::Given(source.tensor(&Nodes::new())?));
                }
                let rebuilt = context::replay(|| execute(op.clone(), args))?;
                let rebuilt = rebuilt.get(*output).ok_or_else(|| check::changed(op))?;
                Ok(Tensor::over(rebuilt.storage(), *rebuilt.meta(), nodes.clone()))
            }
        }
    }

    /// Whether the slot holds nothing of its own.
    pub fn is_derived(&self) -> bool {
        matches!(self, SlotValue::Derived { .. })
    }
}

/// Whether slots name a value, be it in memory or evicted.
fn is_saved(storage: &Storage) -> bool {
    storage.is_saved() || held_by_step_log(storage.tag()).is_some()
}

/// The log and the number of a value that slots name, by its storage's tag.
fn held_by_step_log(tag: u64) -> Option<(Arc<dyn OpLog>, u32)> {
    let step_log = context::step_log()?;
    let number = step_log.number_of(tag).filter(|&number| step_log.has_slots(number))?;
    Some((step_log, number))
}

impl Drop for SlotValue {
    fn drop(&mut self) {
        match self {
            SlotValue::Value { storage, .. } => storage.remove_slot(),
            SlotValue::Logged { step_log, number, .. } => step_log.drop_slot(*number),
            SlotValue::Derived { .. } => {}
        }
    }
}
