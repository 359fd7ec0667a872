//! Slots: the values that a tape keeps for backward.
//!
//! A slot holds storage, never a tensor, so values and nodes form no cycles. A derived slot holds no bytes of its
//! own: it names a cheap op and the kept values that the op rebuilds the value from.

use std::sync::Arc;

use plimsoll_memory::Site;
use smallvec::SmallVec;

use crate::check;
use crate::context::{self, Saving};
use crate::error::Result;
use crate::execute::{Arg, execute};
use crate::journal::Journal;
use crate::op::{Form, Meta, OpRef};
use crate::storage::Storage;
use crate::tape::node::{Ingredient, NodeRef};
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
    /// The value itself.
    Value { storage: Arc<Storage>, meta: Meta },
    /// A value that a journal keeps, or makes again.
    Journalled { journal: Arc<Journal>, number: u32, meta: Meta },
    /// What a cheap op makes of other values.
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
        let node = node.filter(|_| worth_it && !is_kept(storage));
        if let Some(derived) = node.and_then(|node| Kept::derived(node, LONGEST_CHAIN)) {
            return derived;
        }
        Kept::value(storage, meta)
    }

    fn value(storage: &Arc<Storage>, meta: &Meta) -> Kept {
        let known = context::journal().and_then(|journal| Some((journal.number(storage)?, journal)));
        match known {
            Some((number, journal)) => {
                journal.hold(number, storage);
                Kept::Journalled { journal, number, meta: *meta }
            }
            None => {
                storage.keep();
                Kept::Value { storage: storage.clone(), meta: *meta }
            }
        }
    }

    /// A value that slots name already and that has been let go.
    fn let_go(journal: Arc<Journal>, number: u32, meta: &Meta) -> Kept {
        journal.hold_again(number);
        Kept::Journalled { journal, number, meta: *meta }
    }

    /// A chain of cheap ops that ends in `node`'s output and begins at values that are kept anyway.
    fn derived(node: &NodeRef, longest: usize) -> Option<Kept> {
        let recipe = node.node.recipe.as_ref()?;
        if longest == 0 || !recipe.outputs.contains(&node.output) {
            return None;
        }
        let mut sources = SmallVec::new();
        for Ingredient { storage, tag, meta, input } in &recipe.inputs {
            let source = match (storage.upgrade(), held_by_journal(*tag)) {
                (Some(storage), _) if is_kept(&storage) || storage.is_persistent() => {
                    Kept::value(&storage, meta)
                }
                (None, Some((journal, number))) => Kept::let_go(journal, number, meta),
                // What is no input has no parent: it is kept, or the value cannot be rebuilt.
                _ => Kept::derived(node.node.parents[(*input)?].as_ref()?, longest - 1)?,
            };
            sources.push(Box::new(source));
        }
        let output = node.output - recipe.outputs.start;
        Some(Kept::Derived { op: recipe.op.clone(), output, sources })
    }

    /// The value, with the given nodes.
    fn tensor(&self, nodes: &Nodes) -> Result<Tensor> {
        match self {
            Kept::Value { storage, meta } => {
                context::with_tracer(|tracer| tracer.fetched(storage));
                Ok(Tensor::over(storage.clone(), *meta, nodes.clone()))
            }
            Kept::Journalled { journal, number, meta } => {
                Ok(Tensor::over(journal.fetch(*number)?, *meta, nodes.clone()))
            }
            Kept::Derived { op, output, sources } => {
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

    /// Whether the slot keeps nothing of its own.
    pub fn is_derived(&self) -> bool {
        matches!(self, Kept::Derived { .. })
    }
}

/// Whether slots keep a value, be it there or let go.
fn is_kept(storage: &Storage) -> bool {
    storage.is_kept() || held_by_journal(storage.tag()).is_some()
}

/// The journal and the number of a value that slots name, by its storage's tag.
fn held_by_journal(tag: u64) -> Option<(Arc<Journal>, u32)> {
    let journal = context::journal()?;
    let number = journal.number_of(tag).filter(|&number| journal.is_held(number))?;
    Some((journal, number))
}

impl Drop for Kept {
    fn drop(&mut self) {
        match self {
            Kept::Value { storage, .. } => storage.unkeep(),
            Kept::Journalled { journal, number, .. } => journal.let_go(*number),
            Kept::Derived { .. } => {}
        }
    }
}
