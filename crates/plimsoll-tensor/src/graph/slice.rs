//! What a fetch needs of a graph: the calls that lead to it, and how they are recorded as a program of their own.
//!
//! The calls go through `execute` once more, on another ghost, in the order in which they were described. A value is dropped after
//! its last reader among them, and its memory is given to that reader, so the program holds nothing that its fetches do not
//! need; auxiliary outputs are made only where one of them is read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use plimsoll_memory::Owner;

use super::{Effect, GraphUpdate, State};
use crate::base::error::{Error, Result};
use crate::base::labels;
use crate::device::Device;
use crate::device::storage::Storage;
use crate::eager::context;
use crate::eager::execute::{Arg, Args, StorageView, recompute_op};
use crate::eager::op::{Draw, Meta};
use crate::eager::random;
use crate::eager::recorder::{capture_args, capture_view};
use crate::eager::tensor::{Nodes, Tensor};
use crate::eager::update::{self, Update};
use crate::eager::variable::VariableCell;
use crate::program::{Call, OwnedVariables, Phase, Place, Program, Tracer, ValueView};

/// A part of a graph that can be recorded by itself.
pub(super) struct Slice {
    device: Device,
    calls: Vec<SlicedCall>,
    /// Where values come from that no call makes.
    sources: HashMap<u32, Source>,
    /// What is fetched, then the initial values of variables.
    results: Vec<ValueView>,
    n_fetched: usize,
    updates: Vec<GraphUpdate>,
    /// The calls after which values are dead; those that are results or inputs of updates never are.
    last_reads: HashMap<u32, usize>,
    /// Who owns values that are not temporary.
    owners: HashMap<u32, Owner>,
    pub needs: Needs,
}

struct SlicedCall {
    call: Call,
    /// The device of a call without inputs.
    device: Device,
    /// Whether an auxiliary output is read.
    with_aux: bool,
}

enum Source {
    /// The placeholder of that number among those that are needed.
    Fed(usize),
    Captured(Arc<Storage>),
    Variable(Arc<VariableCell>, Meta),
}

/// What must be there when the program runs.
#[derive(Clone, Default)]
pub(super) struct Needs {
    /// The values of placeholders, in the order of the program's arguments.
    pub placeholders: Vec<(u32, Meta)>,
    /// The variables that must have a value; a program keeps none alive.
    pub variables: Vec<Weak<VariableCell>>,
    /// The variables that get their first values: the results after those that are fetched.
    pub initialized: Vec<Weak<VariableCell>>,
}

impl Slice {
    /// What leads to the values that are fetched.
    pub fn of(tracer: &Tracer, state: &State, fetches: &[ValueView]) -> Result<Slice> {
        let mut slice = Slice {
            device: tracer.device().clone(),
            calls: Vec::new(),
            sources: HashMap::new(),
            results: fetches.to_vec(),
            n_fetched: fetches.len(),
            updates: Vec::new(),
            last_reads: HashMap::new(),
            owners: HashMap::new(),
            needs: Needs::default(),
        };
        for effect in fetches.iter().filter_map(|view| state.effects.get(&view.value)) {
            match effect {
                Effect::Update(updates) => slice.updates.extend(updates.iter().cloned()),
                Effect::Initialize => slice.add_initial(tracer),
            }
        }
        slice.add_calls(tracer)?;
        slice.find_lives(state);
        for cell in slice.updates.iter().flat_map(|update| &update.cells) {
            slice.needs.variables.push(Arc::downgrade(cell));
        }
        Ok(slice)
    }

    /// The initial values of the variables are results, too.
    fn add_initial(&mut self, tracer: &Tracer) {
        if !self.needs.initialized.is_empty() {
            return;
        }
        for (variable, initial) in tracer.symbolic().into_iter().flat_map(|symbolic| &symbolic.variables) {
            self.needs.initialized.push(Arc::downgrade(variable.cell()));
            self.results.push(initial.clone());
        }
    }

    /// Finds the calls, in order, and where their other inputs come from.
    fn add_calls(&mut self, tracer: &Tracer) -> Result<()> {
        let ends = self.results.iter().chain(self.updates.iter().flat_map(|update| &update.inputs));
        let mut open: Vec<u32> = ends.map(|view| view.value).collect();
        let mut seen = BTreeSet::new();
        let (mut calls, mut read_aux) = (BTreeSet::new(), BTreeSet::new());
        while let Some(number) = open.pop() {
            if !seen.insert(number) {
                continue;
            }
            let Some(call) = tracer.value(number).call else {
                self.add_source(tracer, number)?;
                continue;
            };
            let made = tracer.call_numbered(call);
            let n_outputs = made.outputs.len() - usize::from(made.n_aux);
            if made.outputs[n_outputs..].iter().any(|view| view.value == number) {
                read_aux.insert(call);
            }
            if calls.insert(call) {
                open.extend(made.inputs.iter().map(|view| view.value));
            }
        }
        let sliced = |&number: &u32| {
            let call = tracer.call_numbered(number).clone();
            let device = tracer.device_numbered(call.device).clone();
            SlicedCall { call, device, with_aux: read_aux.contains(&number) }
        };
        self.calls = calls.iter().map(sliced).collect();
        Ok(())
    }

    fn add_source(&mut self, tracer: &Tracer, number: u32) -> Result<()> {
        let source = match tracer.value(number).place {
            Place::Argument(argument) => {
                self.needs.placeholders.push((number, *tracer.placeholder_meta(argument)));
                Source::Fed(self.needs.placeholders.len() - 1)
            }
            Place::Captured(captured) => Source::Captured(tracer.captured_storage(captured)),
            Place::Variable(variable) => {
                let (cell, meta) = tracer.variable_input(variable);
                let cell = cell.ok_or_else(|| {
                    Error::argument("session", "a variable that the graph reads was dropped")
                })?;
                self.needs.variables.push(Arc::downgrade(&cell));
                Source::Variable(cell, *meta)
            }
            Place::Block(_) => unreachable!("a call makes what lies in a block"),
        };
        self.sources.insert(number, source);
        Ok(())
    }

    /// Finds the last reader of each value, and which values backward reads.
    fn find_lives(&mut self, state: &State) {
        for (at, SlicedCall { call, .. }) in self.calls.iter().enumerate() {
            for view in &call.inputs {
                self.last_reads.insert(view.value, at);
                if call.phase == Phase::Backward {
                    self.owners.entry(view.value).or_insert(Owner::Saved);
                }
            }
        }
        for SlicedCall { call, .. } in self.calls.iter().filter(|sliced| sliced.call.phase == Phase::Backward)
        {
            call.outputs.iter().for_each(|view| _ = self.owners.remove(&view.value));
        }
        for value in &state.gradients {
            self.owners.insert(*value, Owner::Gradients);
        }
        let ends = self.results.iter().chain(self.updates.iter().flat_map(|update| &update.inputs));
        for view in ends {
            self.last_reads.insert(view.value, usize::MAX);
        }
    }

    /// Records the slice as a program, whose arguments are the placeholders that it needs.
    pub fn record(&self) -> Result<Program> {
        let _on = self.device.enter();
        let spec = |(_, meta): &(u32, Meta)| Tensor::spec(*meta.shape(), meta.dtype);
        let arguments: Vec<Tensor> = self.needs.placeholders.iter().map(spec).collect::<Result<_>>()?;
        let arguments: Vec<&Tensor> = arguments.iter().collect();
        let mut owned = OwnedVariables::default();
        Program::record_owning(&self.device, &arguments, &[], &mut owned, |fed| Replay::new(self, fed)?.run())
    }
}

/// A slice that is being recorded.
struct Replay<'a> {
    slice: &'a Slice,
    /// The values that are there: those of sources, and those that calls have made and that are read later.
    values: HashMap<u32, Arc<Storage>>,
    /// The draws of the graph, and those that stand for them now.
    draws: BTreeMap<u64, Draw>,
}

impl<'a> Replay<'a> {
    fn new(slice: &'a Slice, fed: Vec<Tensor>) -> Result<Replay<'a>> {
        let mut values = HashMap::new();
        for (&number, source) in &slice.sources {
            let storage = match source {
                Source::Fed(argument) => fed[*argument].storage(),
                Source::Captured(storage) => storage.clone(),
                Source::Variable(cell, described) => {
                    let (storage, meta) = cell.value();
                    if meta != *described {
                        let detail = "lies otherwise in memory than when the graph was described";
                        return Err(Error::argument(
                            "session",
                            format!("variable {:?} {detail}", cell.name()),
                        ));
                    }
                    storage
                }
            };
            values.insert(number, storage);
        }
        Ok(Replay { slice, values, draws: slice.draws() })
    }

    fn run(mut self) -> Result<Vec<Tensor>> {
        for (at, sliced) in self.slice.calls.iter().enumerate() {
            context::at_recorded_site(sliced.call.site, || match sliced.call.phase {
                Phase::Backward => context::in_backward(|| self.call(at, sliced)),
                Phase::Forward | Phase::Update => self.call(at, sliced),
            })?;
        }
        let results: Vec<Tensor> = self.slice.results.iter().map(|view| self.tensor(view)).collect();
        let mut owned = results[self.slice.n_fetched..].iter().map(whole).collect::<Result<Vec<Tensor>>>()?;
        let mut results: Vec<Tensor> = results[..self.slice.n_fetched].to_vec();
        results.append(&mut owned);
        let updates: Vec<Update> = self.slice.updates.iter().map(|update| self.update(update)).collect();
        drop(self);
        update::apply(updates)?;
        Ok(results)
    }

    /// Runs a call on what it read when it was described.
    fn call(&mut self, at: usize, sliced: &SlicedCall) -> Result<()> {
        let SlicedCall { call, device, with_aux } = sliced;
        let _on = call.inputs.is_empty().then(|| device.enter());
        let (mut args, mut fetched) = (Args::new(), Vec::new());
        for (input, view) in call.inputs.iter().enumerate() {
            let is_last = self.slice.last_reads.get(&view.value) == Some(&at)
                && !call.inputs[input + 1..].iter().any(|later| later.value == view.value);
            let storage = match is_last {
                true => self.values.remove(&view.value),
                false => self.values.get(&view.value).cloned(),
            };
            let storage = storage.unwrap_or_else(|| unreachable!("a value is made before it is read"));
            if call.phase == Phase::Backward && self.slice.owners.get(&view.value) == Some(&Owner::Saved) {
                context::with_tracer(|tracer| tracer.fetched(&storage));
                // A plan may evict it and restore it elsewhere, so nothing is written over it.
                fetched.push(storage.clone());
            }
            args.push(Arg::Given(Tensor::over(storage, *view.meta, Nodes::new())));
        }
        capture_args(&mut args);
        let drawn = |draw: Draw| self.draws.get(&draw.number).copied().unwrap_or(draw);
        let wanted = with_aux.then_some(&*call.wanted);
        let owner = call.outputs.first().and_then(|view| self.slice.owners.get(&view.value));
        // A gradient is one from the moment when its memory is taken.
        let _owner =
            owner.filter(|&&owner| owner == Owner::Gradients).map(|&owner| labels::enter_owner(owner));
        let made = recompute_op(call.op.redrawn(&drawn), args, wanted, call.order)?;
        drop(fetched);
        for (view, storage) in call.outputs.iter().zip(made) {
            if !self.slice.last_reads.contains_key(&view.value) {
                continue;
            }
            if let Some(&owner) = self.slice.owners.get(&view.value) {
                storage.relabel(owner);
            }
            self.values.insert(view.value, storage);
        }
        Ok(())
    }

    fn tensor(&self, view: &ValueView) -> Tensor {
        let (storage, meta) = self.view(view);
        Tensor::over(storage, meta, Nodes::new())
    }

    fn view(&self, view: &ValueView) -> StorageView {
        let storage = self.values.get(&view.value).cloned();
        (storage.unwrap_or_else(|| unreachable!("what is fetched is there at the end")), *view.meta)
    }

    fn update(&self, update: &GraphUpdate) -> Update {
        let inputs = update.inputs.iter().map(|view| capture_view(self.view(view))).collect();
        Update::from_parts(update.op.clone(), update.cells.clone(), inputs)
    }
}

impl Slice {
    /// Takes a draw of the thread's generator for each draw of the slice, in the order in which they were described: an op and its
    /// backward share one.
    fn draws(&self) -> BTreeMap<u64, Draw> {
        let drawn = std::cell::RefCell::new(BTreeSet::new());
        let note = |draw: Draw| {
            drawn.borrow_mut().insert(draw.number);
            draw
        };
        self.calls.iter().for_each(|sliced| _ = sliced.call.op.redrawn(&note));
        drawn.into_inner().into_iter().map(|number| (number, random::draw())).collect()
    }
}

/// A tensor that has its memory to itself, as a variable wants it.
fn whole(tensor: &Tensor) -> Result<Tensor> {
    let storage = tensor.storage();
    match tensor.layout().covers(storage.n_bytes() / tensor.dtype().size()) {
        true => Ok(tensor.clone()),
        false => tensor.copied(),
    }
}
