//! What is open on a thread while a step runs: updates that wait, records of ops, the log of values.
//!
//! A step begins, commits and fails in [`Step`](crate::Step); here is what ops, variables and updates see of it meanwhile.

use std::sync::Arc;

use plimsoll_memory::LongList;
use smallvec::SmallVec;

use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::execute::{Arg, StorageView};
use crate::eager::op::{Cost, Meta, OpRef, Tensors};
use crate::eager::op_log::OpLog;
use crate::eager::tensor::{Data, Tensor};
use crate::eager::update::Update;

/// What is open while a step runs.
pub(crate) struct StepState {
    pub updates: LongList<Update>,
    /// The loss that must be finite for the updates to be written, on each device that has some.
    pub finite_loss: SmallVec<[StorageView; 1]>,
    /// How the step's values were computed, if values may be evicted: under a limit.
    pub step_log: Option<Arc<dyn OpLog>>,
    /// What ran, for [`Step::traced`](crate::Step::traced).
    pub records: Option<LongList<StepRecord>>,
    /// What went wrong where no error could be returned; the step ends with it.
    pub failure: Option<Error>,
    /// The op that writes a value that is known already.
    pub assign: OpRef,
}

/// One op that ran inside a step.
#[derive(Clone, Debug)]
pub struct StepRecord {
    /// The op, with its attributes and, for random ops, its draw. Not for everybody: the methods of tensors prepare what
    /// they hand to an op, and who calls it with anything else is told so less well.
    pub(crate) op: OpRef,
    /// What it read.
    pub inputs: SmallVec<[RecordInput; 3]>,
    /// The numbers of its outputs.
    pub outputs: SmallVec<[u64; 1]>,
    /// The shape of its first output.
    pub shape: Shape,
    /// What running it takes, by its formula; nothing for views.
    pub cost: Cost,
}

impl StepRecord {
    /// The name of the op.
    pub fn name(&self) -> &'static str {
        self.op.name()
    }

    /// Whether the op is cheap to recompute.
    pub fn is_cheap(&self) -> bool {
        self.op.is_cheap()
    }

    /// The op, for tests that rerun records.
    #[cfg(feature = "testing")]
    pub fn op(&self) -> &OpRef {
        &self.op
    }
}

/// What a record read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordInput {
    /// A tensor, by its number.
    Tensor(u64),
    /// A version of a variable.
    Variable {
        /// The variable.
        address: usize,
        /// How many times it had been assigned.
        version: u64,
    },
    /// A tensor that the op wrote over.
    Overwritten,
}

impl StepState {
    /// A step in which nothing has happened yet.
    pub fn new(assign: OpRef) -> StepState {
        let updates = LongList::default();
        StepState {
            updates,
            finite_loss: SmallVec::new(),
            step_log: None,
            records: None,
            failure: None,
            assign,
        }
    }

    /// Leaves the record of an op.
    pub fn record(&mut self, op: &OpRef, args: &[Arg<'_>], outputs: &Tensors) {
        let input = |arg: &Arg<'_>| match arg.tensor() {
            None => RecordInput::Overwritten,
            Some(tensor) => match tensor.data() {
                Data::Value(_) => RecordInput::Tensor(tensor.id()),
                Data::Variable(cell) => {
                    RecordInput::Variable { address: cell.address(), version: cell.version() }
                }
            },
        };
        let Some(records) = &mut self.records else { return };
        let is_view =
            |output: &Tensor| args.iter().any(|arg| Arc::ptr_eq(arg.storage(), output.data().value()));
        let inputs: SmallVec<[&Meta; 3]> = args.iter().map(Arg::meta).collect();
        let metas: SmallVec<[&Meta; 1]> = outputs.iter().map(Tensor::meta).collect();
        let cost =
            match outputs.iter().all(is_view) && !args.iter().any(|arg| matches!(arg, Arg::Overwritten(_))) {
                true => Cost::default(),
                false => op.get().cost(&inputs, &metas),
            };
        records.push(StepRecord {
            op: op.clone(),
            inputs: args.iter().map(input).collect(),
            outputs: outputs.iter().map(|tensor| tensor.id()).collect(),
            shape: *outputs[0].shape(),
            cost,
        });
    }

    /// The step cannot succeed any more.
    pub fn fail(&mut self, failure: Error) {
        self.failure.get_or_insert(failure);
    }

    /// The updates that wait; what went wrong where no error could be returned.
    pub fn into_updates(self) -> Result<LongList<Update>> {
        self.failure.map_or(Ok(self.updates), Err)
    }

    /// Takes updates that wait for the step's end.
    pub fn stage(&mut self, updates: LongList<Update>) {
        self.updates.extend(updates);
    }

    /// The last update of a variable among the first `n` that wait, and its place.
    pub fn staged(&self, cell: usize, n: usize) -> Option<(usize, &Update)> {
        let mut newest_first = (0..self.updates.len().min(n)).rev().map(|at| (at, &self.updates[at]));
        newest_first.find(|(_, update)| update.writes(cell))
    }

    /// How many updates wait, if the step is committed only if its loss is finite.
    pub fn n_conditional(&self) -> usize {
        if !self.finite_loss.is_empty() { self.updates.len() } else { 0 }
    }

    /// The update of that place among those that wait.
    pub fn staged_mut(&mut self, at: usize) -> &mut Update {
        &mut self.updates[at]
    }
}
