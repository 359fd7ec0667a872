//! Slots: the values that a tape keeps for backward.
//!
//! A slot holds storage, never a tensor, so values and nodes form no cycles. A derived slot holds no bytes of its
//! own: it names a cheap op and the kept values that the op rebuilds the value from.

use std::sync::Arc;

use plimsoll_memory::Site;
use smallvec::SmallVec;

use crate::context::{self, Saving};
use crate::error::Result;
use crate::execute::{Arg, execute};
use crate::op::{Form, Meta, OpRef};
use crate::storage::Storage;
use crate::tape::node::NodeRef;
use crate::tensor::{Nodes, Tensor};

/// Chains of cheap ops longer than this are not rebuilt.
const LONGEST_CHAIN: usize = 4;

/// Smaller values are kept: rebuilding them costs more than their bytes are worth.
pub(super) const LEAST_REBUILT_BYTES: usize = 4096;

/// A value kept for backward.
pub(crate) struct Slot {
    pub kept: Kept,
    pub form: Form,
    /// The op whose backward reads it.
    pub op: &'static str,
    pub site: Site,
    /// The nodes of outer tapes, so that backward itself can be differentiated.
    pub outer: Nodes,
}

/// The value, or how to get it.
pub(crate) enum Kept {
    Value { storage: Arc<Storage>, meta: Meta },
    Derived { op: OpRef, output: usize, sources: SmallVec<[Box<Kept>; 2]> },
}

impl Slot {
    /// The value, as a tensor that only outer tapes know.
    pub fn tensor(&self) -> Result<Tensor> {
        self.kept.tensor(&self.outer)
    }
}

impl Kept {
    /// Keeps a value in the leanest way: a reference to its storage if that is kept anyway, else a recipe from kept
    /// values, else the storage.
    pub fn new(storage: &Arc<Storage>, meta: &Meta, node: Option<&NodeRef>) -> Kept {
        let worth_it = meta.n_bytes() >= LEAST_REBUILT_BYTES && context::saving() == Saving::Lean;
        let node = node.filter(|_| worth_it && !storage.is_kept());
        if let Some(derived) = node.and_then(|node| Kept::derived(node, LONGEST_CHAIN)) {
            return derived;
        }
        Kept::value(storage, meta)
    }

    fn value(storage: &Arc<Storage>, meta: &Meta) -> Kept {
        storage.keep();
        Kept::Value { storage: storage.clone(), meta: *meta }
    }

    /// A chain of cheap ops that ends in `node`'s output and begins at values that are kept anyway.
    fn derived(node: &NodeRef, longest: usize) -> Option<Kept> {
        let recipe = node.node.recipe.as_ref()?;
        if longest == 0 || node.output >= recipe.n_outputs {
            return None;
        }
        let mut sources = SmallVec::new();
        for (idx, (storage, meta)) in recipe.inputs.iter().enumerate() {
            let source = match storage.upgrade() {
                Some(storage) if storage.is_kept() || storage.is_persistent() => Kept::value(&storage, meta),
                // Extras have no parents: they are kept, or the value cannot be rebuilt.
                _ => Kept::derived(node.node.parents.get(idx)?.as_ref()?, longest - 1)?,
            };
            sources.push(Box::new(source));
        }
        Some(Kept::Derived { op: recipe.op.clone(), output: node.output, sources })
    }

    /// The value, with the given nodes.
    fn tensor(&self, nodes: &Nodes) -> Result<Tensor> {
        match self {
            Kept::Value { storage, meta } => Ok(Tensor::over(storage.clone(), *meta, nodes.clone())),
            Kept::Derived { op, output, sources } => {
                let mut args = SmallVec::new();
                for source in sources {
                    args.push(Arg::Given(source.tensor(&Nodes::new())?));
                }
                let rebuilt = context::replay(|| execute(op.clone(), args))?;
                let rebuilt = &rebuilt[*output];
                Ok(Tensor::over(rebuilt.storage(), *rebuilt.meta(), nodes.clone()))
            }
        }
    }

    /// The storage that the slot holds; none if derived.
    pub fn storage(&self) -> Option<&Arc<Storage>> {
        match self {
            Kept::Value { storage, .. } => Some(storage),
            Kept::Derived { .. } => None,
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Kept::Value { storage, .. } = self {
            storage.unkeep();
        }
    }
}
