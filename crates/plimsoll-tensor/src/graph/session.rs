//! `Session`: runs what fetches need of a graph, and nothing else.
//!
//! A session keeps a program for each set of fetches, recorded when it is first asked for and bounded in bytes as a function's are.
//! A program runs as any other: planned under a limit, with eager's bits, its effects committed together at the end. Values of
//! variables are in the variables, so sessions of one graph share them. It refuses feeds that do not fit, and never runs a part
//! of what was asked for.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use plimsoll_memory::Owner;

use super::slice::{Needs, Slice};
use super::{Graph, GraphCore, lock};
use crate::base::error::{Error, Result};
use crate::device::Device;
use crate::eager::context;
use crate::eager::op::Meta;
use crate::eager::tensor::Tensor;
use crate::eager::variable::VariableCell;
use crate::program::{
    Argument, CacheInfo, Footprint, Listed, PlannedProgram, ProgramCache, ProgramKey, Recording, ValueView,
};

/// The most bytes of the heap for the programs of a session, if it is not told otherwise.
const MOST_BYTES: usize = 64 << 20;

/// Runs a graph: see [`Graph`]. Dropping it drops its programs.
pub struct Session {
    graph: Arc<GraphCore>,
    programs: Arc<Mutex<ProgramCache<Key, Needs>>>,
    _listed: Listed,
}

/// What decides about the program for some fetches.
#[derive(PartialEq)]
struct Key {
    fetches: Vec<ValueView>,
    /// The variables that were there: an initialiser is about all of them.
    n_variables: usize,
    is_deterministic: bool,
    allows_tf32: bool,
    can_offload: bool,
}

impl ProgramKey for Key {
    fn heap_bytes(&self) -> usize {
        self.fetches.capacity() * size_of::<ValueView>() + self.fetches.len() * size_of::<Meta>()
    }
}

impl Session {
    /// A session of that graph.
    pub fn new(graph: &Graph) -> Session {
        let programs = Arc::new(Mutex::new(ProgramCache::new(MOST_BYTES)));
        let listed = Listed::new(Arc::downgrade(&programs) as _);
        Session { graph: graph.core.clone(), programs, _listed: listed }
    }

    /// This session with another bound on the heap that its programs take; 64 MiB if it is not called.
    #[must_use]
    pub fn cache_bytes(self, most_bytes: usize) -> Session {
        lock(&self.programs).set_most_bytes(most_bytes);
        self
    }

    /// Runs what leads to the fetches, with values for the placeholders among it; returns the values of the fetches. An operation
    /// among them, such as [`Graph::initializer`], is done after everything was computed, and its value has no elements.
    ///
    /// # Errors
    /// A fetch that is not of the graph; a placeholder without a feed, a feed of another shape, dtype or device, or for something
    /// else than a placeholder of the graph; a variable that was not initialised; what ops refuse; a limit under which it cannot
    /// run, before anything runs; memory that is full. Variables and the random generator are then as before.
    #[track_caller]
    pub fn run<const N: usize>(
        &self,
        fetches: [&Tensor; N],
        feeds: &[(&Tensor, &Tensor)],
    ) -> Result<[Tensor; N]> {
        let _line = context::at_callers_line();
        let values = self.run_all(&fetches, feeds)?;
        Ok(values.try_into().unwrap_or_else(|_| unreachable!("one value per fetch")))
    }

    /// Like [`Session::run`], for any number of fetches.
    ///
    /// # Errors
    /// As [`Session::run`].
    #[track_caller]
    pub fn run_all(&self, fetches: &[&Tensor], feeds: &[(&Tensor, &Tensor)]) -> Result<Vec<Tensor>> {
        let _line = context::at_callers_line();
        let fed = self.check_feeds(feeds)?;
        self.with_program(fetches, |program, needs| {
            let arguments = self.arguments(needs, &fed)?;
            check_initialized(needs)?;
            let mut results = program.run_passed(arguments)?;
            let initial = results.split_off(results.len() - needs.initialized.len());
            needs.initialized.iter().zip(&initial).for_each(|(cell, value)| initialize(cell, value));
            Ok(results)
        })
    }

    /// The footprint of a run of these fetches on the device as it is, with everything retained. Nothing is run.
    ///
    /// # Errors
    /// A fetch that is not of the graph.
    #[track_caller]
    pub fn plan(&self, fetches: &[&Tensor]) -> Result<Footprint> {
        let _line = context::at_callers_line();
        self.with_program(fetches, |program, needs| {
            let _on = self.graph.device.enter();
            let spec = |(_, meta): &(u32, Meta)| Ok(Argument::of(&Tensor::spec(*meta.shape(), meta.dtype)?));
            let arguments: Vec<Argument> = needs.placeholders.iter().map(spec).collect::<Result<_>>()?;
            let program = program.program();
            Ok(program.placed(&program.call_devices(&arguments)?.devices[0])?.0)
        })
    }

    /// The program for these fetches, in words: every call that runs, in order.
    ///
    /// # Errors
    /// A fetch that is not of the graph.
    #[track_caller]
    pub fn program_text(&self, fetches: &[&Tensor]) -> Result<String> {
        let _line = context::at_callers_line();
        self.with_program(fetches, |program, _| Ok(program.program().to_string()))
    }

    /// The programs that the session keeps, by their fetches.
    pub fn cache(&self) -> CacheInfo {
        let describe = |key: &Key| {
            let fetches: Vec<String> =
                key.fetches.iter().map(|view| self.graph.name_of(view.value)).collect();
            fetches.join(", ")
        };
        let programs = lock(&self.programs);
        CacheInfo {
            programs: programs.programs(describe),
            most_bytes: programs.most_bytes() as u64,
            n_evicted: programs.n_evicted(),
        }
    }

    /// Calls `f` with the program for these fetches, as if no graph were entered and no tape recording.
    fn with_program<R>(
        &self,
        fetches: &[&Tensor],
        f: impl FnOnce(&mut PlannedProgram, &Needs) -> Result<R>,
    ) -> Result<R> {
        if context::with_tracer(|tracer| !tracer.is_graph()).unwrap_or(false) {
            return Err(Error::argument("session", "it is run inside a function that is being recorded"));
        }
        let view = |(number, fetch): (usize, &&Tensor)| {
            self.graph.view_of("session", &format!("fetch {number}"), fetch)
        };
        let fetches: Vec<ValueView> = fetches.iter().enumerate().map(view).collect::<Result<_>>()?;
        let (graph, device) = (&self.graph, &self.graph.device);
        let n_variables = graph
            .with_tracer(|tracer| Ok(tracer.symbolic().map_or(0, |symbolic| symbolic.variables.len())))?;
        let key = Key {
            fetches: fetches.clone(),
            n_variables,
            is_deterministic: device.is_deterministic(),
            allows_tf32: device.allows_tf32(),
            can_offload: device.can_offload(),
        };
        context::without_tracing(|| {
            let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
            let found = programs.find(key, Recording::Once, |_| {
                let slice = graph.with_tracer(|tracer| Slice::of(tracer, &lock(&graph.state), &fetches))?;
                Ok((slice.record()?, slice.needs))
            })?;
            let Some((program, needs)) = found else { unreachable!("a graph reads no values") };
            let result = f(program, needs)?;
            programs.called();
            Ok(result)
        })
    }

    /// The values of placeholders, each checked.
    fn check_feeds<'a>(&self, feeds: &[(&Tensor, &'a Tensor)]) -> Result<Vec<(u32, &'a Tensor)>> {
        let checked = |(placeholder, value): &(&Tensor, &'a Tensor)| {
            let view = self.graph.view_of("session", "what is fed", placeholder)?;
            let name = self.graph.name_of(view.value);
            let refused = |detail: String| Err(Error::argument("session", format!("{name} {detail}")));
            if !lock(&self.graph.state).placeholders.contains(&view.value) {
                return refused("is fed and no placeholder; only placeholders can be".to_owned());
            }
            if value.shape() != placeholder.shape() || value.dtype() != placeholder.dtype() {
                let (wanted, given) = (placeholder.shape(), value.shape());
                let (dtype, other) = (placeholder.dtype(), value.dtype());
                return refused(format!("is {dtype}{wanted} and is fed {other}{given}"));
            }
            if value.is_ghost() {
                return refused("is fed a tensor without values".to_owned());
            }
            if value.device() != self.graph.device {
                let [own, other] = self.graph.device.names_apart(&value.device());
                return refused(format!(
                    "is on {own} and is fed a tensor on {other}; bring it over with `to_device`"
                ));
            }
            Ok((view.value, *value))
        };
        feeds.iter().map(checked).collect()
    }

    /// The arguments of a program; a feed that lies otherwise in memory than a fresh tensor is copied.
    fn arguments(&self, needs: &Needs, fed: &[(u32, &Tensor)]) -> Result<Vec<Argument>> {
        let argument = |(number, meta): &(u32, Meta)| {
            let Some((_, value)) = fed.iter().find(|(placeholder, _)| placeholder == number) else {
                let (name, dtype, shape) = (self.graph.name_of(*number), meta.dtype, meta.shape());
                let detail = format!("{name}, {dtype}{shape}, is not fed, and what is fetched depends on it");
                return Err(Error::argument("session", detail));
            };
            let argument = Argument::of(value);
            if argument.meta == *meta {
                return Ok(argument);
            }
            let _on = self.graph.device.enter();
            Ok(Argument::of(&value.copied()?))
        };
        needs.placeholders.iter().map(argument).collect()
    }
}

/// Refuses variables that have no value.
fn check_initialized(needs: &Needs) -> Result<()> {
    needs.variables.iter().filter_map(Weak::upgrade).try_for_each(|cell| cell.check_initialized("session"))
}

/// Gives a variable its first value, or its first value again. The memory is taken over, not copied.
fn initialize(cell: &Weak<VariableCell>, value: &Tensor) {
    let Some(cell) = cell.upgrade() else { return };
    let view = value.storage_view();
    view.0.relabel(Owner::Parameters);
    *cell.lock() = view;
    cell.written();
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session(graph {} on {})", self.graph.serial, Device::name(&self.graph.device))
    }
}
