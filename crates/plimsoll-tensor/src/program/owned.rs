//! Variables that a function makes: it owns them.
//!
//! A variable that is made while its function is recorded is made for real: the calls that lead to its first value run
//! once, with the draws that they were recorded with, and the function is recorded again, now with the variable as an
//! input. In later recordings the k-th variable that is made is the k-th that the function owns. One more than it owns is
//! refused with the line: it would be another variable at each call.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use smallvec::SmallVec;

use super::tracer::Tracer;
use super::{Call, Place, ValueView};
use crate::base::error::{Error, Result};
use crate::device::storage::Storage;
use crate::eager::context;
use crate::eager::execute::{self, Arg, Args, StorageView};
use crate::eager::op::{Draw, Meta};
use crate::eager::recorder::Recorder;
use crate::eager::tensor::{Nodes, Tensor};
use crate::eager::variable::{Variable, VariableCell};

/// The variables of a function, in the order in which it made them.
#[derive(Clone, Debug, Default)]
pub struct OwnedVariables {
    variables: Vec<Variable>,
    /// How many the present recording has made so far.
    n_made: usize,
    /// Whether the function may make more.
    is_complete: bool,
    /// Whether the present recording has added some.
    has_grown: bool,
    /// The draws that making them took.
    n_draws: u64,
}

impl OwnedVariables {
    /// Those of a function that cannot have any.
    pub(super) fn none() -> OwnedVariables {
        OwnedVariables { is_complete: true, ..OwnedVariables::default() }
    }

    /// The variables.
    pub fn iter(&self) -> impl Iterator<Item = &Variable> {
        self.variables.iter()
    }

    /// A recording begins.
    pub(super) fn begin(&mut self) {
        (self.n_made, self.has_grown, self.n_draws) = (0, false, 0);
    }

    /// A recording has ended: how many draws its variables took, if it has made any. It makes no more from then on.
    pub(super) fn end(&mut self) -> Option<u64> {
        self.is_complete = true;
        std::mem::take(&mut self.has_grown).then_some(self.n_draws)
    }

    /// The function has made one more.
    pub(super) fn push(&mut self, variable: &Variable) {
        self.variables.push(variable.clone());
        (self.n_made, self.has_grown) = (self.variables.len(), true);
    }

    /// The next variable, if the function has made it before.
    fn next(&mut self) -> Option<Variable> {
        let next = self.variables.get(self.n_made).cloned();
        self.n_made += usize::from(next.is_some());
        next
    }
}

/// The calls that lead to a value, with what they read from outside.
pub(super) struct Wanted {
    calls: Vec<Call>,
    /// The values from outside by their numbers, and the elements of their storages before them.
    sources: HashMap<u32, (Arc<Storage>, usize)>,
    target: (u32, Meta),
    device: crate::device::Device,
}

impl Tracer {
    /// The variable that the function makes now, if it owns it.
    pub(super) fn next_owned(&mut self, value: &StorageView) -> Result<Option<Variable>> {
        let refused = |detail: String| {
            Err(Error::argument("function", format!("{detail}, at {}", context::site("variable"))))
        };
        if self.is_graph() {
            return self.graph_variable(value).map(Some);
        }
        match self.owned.next() {
            Some(variable)
                if variable.shape() != value.1.shape() || variable.dtype() != value.1.dtype =>
            {
                refused(format!(
                    "a variable that it makes is {} {} and was {} {}",
                    value.1.dtype,
                    value.1.shape(),
                    variable.dtype(),
                    variable.shape()
                ))
            }
            Some(variable) => {
                if self.is_recorded(&value.0) {
                    self.initial.push(self.number(&value.0)?);
                }
                Ok(Some(variable))
            }
            None if self.owned.is_complete => refused(
                "a variable is made inside it that it did not make when it was first recorded; make it outside"
                    .to_owned(),
            ),
            None => Ok(None),
        }
    }

    /// What leads to a value that the function has made.
    pub(super) fn calls_to(&mut self, (storage, meta): &StorageView) -> Result<Wanted> {
        let device = self.device().clone();
        if !self.is_recorded(storage) {
            // Values of the host are on the device already.
            let sources = HashMap::from([(0, (storage.clone(), 0))]);
            return Ok(Wanted { calls: Vec::new(), sources, target: (0, *meta), device });
        }
        let target = self.number(storage)?;
        let (mut wanted, mut sources, mut open) = (BTreeSet::new(), HashMap::new(), vec![target]);
        while let Some(number) = open.pop() {
            match self.value(number).call {
                Some(call) if wanted.insert(call) => {
                    open.extend(self.call_numbered(call).inputs.iter().map(|view| view.value));
                }
                Some(_) => {}
                None => _ = sources.insert(number, self.source(number)?),
            }
        }
        let calls: Vec<Call> = wanted.iter().map(|&call| self.call_numbered(call).clone()).collect();
        let count = std::cell::Cell::new(0);
        let counted = |draw: Draw| {
            count.set(count.get() + 1);
            draw
        };
        calls.iter().for_each(|call| _ = call.op.redrawn(&counted));
        self.owned.n_draws += count.get();
        Ok(Wanted { calls, sources, target: (target, *meta), device })
    }

    /// What an input of the function is on the real device.
    fn source(&self, number: u32) -> Result<(Arc<Storage>, usize)> {
        match self.value(number).place {
            Place::Argument(argument) => self.argument_itself(argument),
            Place::Captured(captured) => Ok((self.captured_storage(captured), 0)),
            Place::Variable(variable) => self
                .cell(variable)
                .map(|cell: Arc<VariableCell>| (cell.value().0, 0))
                .ok_or_else(|| Error::argument("function", "a variable that it reads was dropped")),
            Place::Block(block) => match self.donated_argument(block) {
                Some(argument) => self.argument_itself(argument),
                None => unreachable!("a call makes what lies in a block"),
            },
        }
    }
}

impl Wanted {
    /// Runs the calls for real, each once, and returns the value.
    pub(super) fn run(self) -> Result<StorageView> {
        let Wanted { calls, sources, target, device } = self;
        let mut made: HashMap<u32, (Arc<Storage>, usize)> = sources;
        context::without_tracing(|| {
            let _on = device.enter();
            for call in &calls {
                let operand = |view: &ValueView| {
                    let (storage, n_before) = made[&view.value].clone();
                    Arg::Given(Tensor::over(storage, view.meta.shifted(n_before), Nodes::new()))
                };
                let args: Args<'_> = call.inputs.iter().map(operand).collect();
                let outputs = execute::execute(call.op.clone(), args)?;
                let outputs: SmallVec<[(Arc<Storage>, usize); 2]> =
                    outputs.iter().map(|output| (output.storage_view().0, 0)).collect();
                made.extend(call.outputs.iter().map(|view| view.value).zip(outputs));
            }
            let (storage, n_before) = made[&target.0].clone();
            Ok((storage, target.1.shifted(n_before)))
        })
    }
}
