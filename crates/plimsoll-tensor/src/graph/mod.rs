//! `Graph`: a computation that is described first and run later, as in TensorFlow 1.
//!
//! A graph is a program under construction. Its tensors are ordinary tensors on a ghost of the device, so there is no second kind
//! of tensor: while the graph is entered, every op that is called on them is added to it, with the user's line, and nothing is
//! computed. A tape records all along, so that [`Graph::gradients`] adds the calls of backward to the same graph. What runs is
//! decided by a [`Session`]: the calls that lead to what is fetched, and nothing else.
//!
//! A graph owns the variables that are made while it is entered, and holds the tensors from outside that it uses. It has fixed
//! shapes: a placeholder has the shape and dtype of what is fed. It refuses to give values, to be entered inside a function that
//! is being recorded, and to take tensors of another graph.

mod dot;
mod session;
mod slice;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_memory::LongList;
use smallvec::SmallVec;

use crate::autograd::{GradientTape, Step, Unconnected};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::scopes::OpenScope;
use crate::base::shape::IntoShape;
use crate::device::Device;
use crate::device::storage::Storage;
use crate::eager::context;
use crate::eager::op::OpRef;
use crate::eager::recorder::{Recorder, check_symbolic};
use crate::eager::step_state::StepState;
use crate::eager::tensor::{Data, Tensor};
use crate::eager::variable::{Variable, VariableCell};
use crate::ops::assign::Assign;
use crate::program::{Tracer, ValueView};

pub use session::Session;

/// A computation that is described first and run later; a cheap handle, whose clones are the same graph.
///
/// ```
/// use plimsoll_tensor::{DType, Graph, Session, Tensor};
///
/// let graph = Graph::new()?;
/// let building = graph.enter()?;
/// let x = graph.placeholder([2, 3], DType::F32)?;
/// let w = graph.variable(&Tensor::ones([3, 1])?)?;
/// let loss = x.matmul(&w)?.square()?.mean(..)?;
/// let dw = graph.gradients(&[&loss], &[&w])?.remove(0).expect("the loss depends on it");
/// drop(building);
///
/// let session = Session::new(&graph);
/// session.run([&graph.initializer()?], &[])?;
/// let (ones, train) = (Tensor::ones([2, 3])?, graph.assign_sub(&w, &dw)?);
/// let [loss, _] = session.run([&loss, &train], &[(&x, &ones)])?;
/// assert_eq!((loss.item::<f32>()?, w.value().to_vec::<f32>()?), (9.0, vec![-5.0; 3]));
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct Graph {
    core: Arc<GraphCore>,
}

/// What the handles of a graph and its sessions share.
struct GraphCore {
    device: Device,
    /// Distinguishes its tensors from those of others.
    serial: u32,
    tape: GradientTape,
    /// What records it, while no thread has entered it.
    parked: Mutex<Option<Tracer>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The numbers of the placeholders' values, in their order.
    placeholders: Vec<u32>,
    /// The names of values, for people to read.
    names: HashMap<u32, String>,
    /// What is done besides when certain values are fetched.
    effects: HashMap<u32, Effect>,
    /// The values that are gradients.
    gradients: HashSet<u32>,
}

/// What fetching an operation does.
#[derive(Clone)]
enum Effect {
    /// Gives the variables of the graph their initial values.
    Initialize,
    /// Writes variables, in order.
    Update(Vec<GraphUpdate>),
}

/// An update of variables: an op that takes their values and inputs, and gives them new ones.
#[derive(Clone)]
struct GraphUpdate {
    op: OpRef,
    cells: SmallVec<[Arc<VariableCell>; 1]>,
    inputs: SmallVec<[ValueView; 2]>,
}

/// A graph that is entered: ops on this thread are added to it. Dropping it ends that, in whatever order scopes are dropped.
#[must_use = "the graph is left when this is dropped"]
pub struct GraphScope {
    core: Arc<GraphCore>,
    /// The number of the scope; none where the graph had been entered before.
    number: Option<u64>,
    _tape: Option<OpenScope>,
    _device: OpenScope,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl Drop for GraphScope {
    fn drop(&mut self) {
        if let Some(tracer) = self.number.and_then(context::end_tracing) {
            *lock(&self.core.parked) = Some(tracer);
        }
    }
}

impl Graph {
    /// An empty graph for the current device.
    ///
    /// # Errors
    /// A function that is being recorded: it is a program already.
    pub fn new() -> Result<Graph> {
        let is_function = context::with_tracer(|tracer| !tracer.is_graph()).unwrap_or(false);
        if is_function {
            return Err(Error::argument("graph", "a graph is made inside a function that is being recorded"));
        }
        let device = Device::current();
        let tracer = Tracer::of_graph(&device)?;
        Ok(Graph {
            core: Arc::new(GraphCore {
                device,
                serial: tracer.serial(),
                tape: GradientTape::new().persistent(true),
                parked: Mutex::new(Some(tracer)),
                state: Mutex::default(),
            }),
        })
    }

    /// The device that it runs on.
    pub fn device(&self) -> &Device {
        &self.core.device
    }

    /// Adds all ops of this thread to the graph until the scope is dropped. Variables that are made meanwhile are the graph's,
    /// and have no value before [`Graph::initializer`] is run.
    ///
    /// # Errors
    /// A graph that another thread has entered, or that was entered outside another one; a function that is being recorded.
    #[doc(alias = "as_default")]
    pub fn enter(&self) -> Result<GraphScope> {
        let core = &self.core;
        let scope = |number: Option<u64>| GraphScope {
            core: core.clone(),
            number,
            _tape: None,
            _device: core.device.enter(),
            stays_on_its_thread: PhantomData,
        };
        match context::with_open_tracer(
            |tracer: &Tracer| tracer.serial() == core.serial,
            |_, is_innermost| is_innermost,
        ) {
            Some(true) => return Ok(scope(None)),
            Some(false) => {
                return Err(Error::argument("graph", "it was entered outside what is being recorded now"));
            }
            None => {}
        }
        if context::with_tracer(|tracer| !tracer.is_graph()).unwrap_or(false) {
            return Err(Error::argument("graph", "it is entered inside a function that is being recorded"));
        }
        let tracer = lock(&core.parked).take().ok_or_else(|| core.is_elsewhere())?;
        let mut entered = scope(Some(context::begin_tracing(tracer)));
        // It begins when the graph is entered: what it logs is asked of the ghost.
        entered._tape = Some(core.tape.start());
        Ok(entered)
    }

    /// A tensor whose value is fed when the graph runs.
    ///
    /// # Errors
    /// A shape with too many elements; as [`Graph::enter`].
    #[track_caller]
    pub fn placeholder(&self, shape: impl IntoShape, dtype: DType) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let spec = {
            let _on = self.core.device.enter();
            Tensor::spec(shape, dtype)?
        };
        let placeholder = self.core.with_tracer(|tracer| {
            let placeholder = tracer.placeholder(&spec)?;
            let view = tracer.view(&placeholder.storage(), placeholder.meta())?;
            Ok((placeholder, view.value))
        })?;
        lock(&self.core.state).placeholders.push(placeholder.1);
        self.core.watch(placeholder.0)
    }

    /// A tensor of the graph that stands for one with values. It is held, not copied.
    ///
    /// # Errors
    /// A tensor of another graph; as [`Graph::enter`].
    #[track_caller]
    pub fn constant(&self, value: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let value = value.clone();
        if value.storage().device().is_symbolic() {
            return Err(Error::argument(
                "graph",
                "a constant is made from a tensor of a graph, which has no value",
            ));
        }
        let constant = self.core.with_tracer(|tracer| Ok(tracer.constant(&value)))?;
        self.core.watch(constant)
    }

    /// A trainable variable of the graph: it gets its initial value when [`Graph::initializer`] is run, and has none before.
    ///
    /// # Errors
    /// A tensor of another graph; as [`Graph::enter`].
    #[track_caller]
    pub fn variable(&self, initial: &Tensor) -> Result<Variable> {
        let _line = context::at_callers_line();
        let _entered = self.enter()?;
        check_symbolic("variable", [initial.storage()].iter())?;
        Ok(Variable::new(initial.clone()))
    }

    /// The gradients of the sum of `ys` with respect to each of `xs`, as more calls of the graph; nothing where no `y` depends on
    /// an `x`. Sources can be placeholders, constants, variables and tensors in between.
    ///
    /// A gradient is not itself differentiated: gradients of gradients come from tapes inside the graph, as in eager code.
    ///
    /// # Errors
    /// Tensors that are not of this graph; as [`Graph::enter`].
    #[track_caller]
    pub fn gradients(&self, ys: &[&Tensor], xs: &[&Tensor]) -> Result<Vec<Option<Tensor>>> {
        let _line = context::at_callers_line();
        let _entered = self.enter()?;
        for (number, y) in ys.iter().enumerate() {
            self.core.view_of("gradients", &format!("target {number}"), y)?;
        }
        let gradients = self.core.tape.gradients(ys, None, xs, Unconnected::None)?;
        for gradient in gradients.iter().flatten() {
            let view = self.core.view_of("gradients", "a gradient", gradient)?;
            lock(&self.core.state).gradients.insert(view.value);
        }
        Ok(gradients)
    }

    /// An operation that gives all variables of the graph their initial values when it is fetched, those too that are made later.
    ///
    /// # Errors
    /// As [`Graph::enter`].
    #[doc(alias = "global_variables_initializer")]
    #[track_caller]
    pub fn initializer(&self) -> Result<Tensor> {
        let _line = context::at_callers_line();
        self.effect(Effect::Initialize)
    }

    /// An operation that does what `f` assigns to variables when it is fetched: [`Variable::assign`], an optimizer's step, running
    /// statistics. What else `f` computes becomes part of the graph.
    ///
    /// # Errors
    /// Those of `f`; a step that is open on this thread; as [`Graph::enter`].
    #[doc(alias("group", "control_dependencies"))]
    #[track_caller]
    pub fn operation(&self, f: impl FnOnce() -> Result<()>) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let _entered = self.enter()?;
        if Step::is_open() {
            return Err(Error::argument("graph", "an operation of a graph is described inside a step"));
        }
        let number = context::begin_step(StepState::new(OpRef::fixed(&Assign)));
        let close = context::on_drop(move || drop(context::end_step(number)));
        context::at_own_lines(|| context::without_tapes(f))?;
        let updates =
            context::end_step(number).map_or_else(|| Ok(LongList::default()), StepState::into_updates)?;
        drop(close);
        let kept = |update: crate::eager::update::Update| {
            let (op, cells, inputs) = update.into_parts();
            let view = |(storage, meta): &(Arc<Storage>, crate::eager::op::Meta)| {
                self.core.with_tracer(|tracer| tracer.view(storage, meta))
            };
            let inputs = inputs.iter().map(view).collect::<Result<_>>()?;
            Ok(GraphUpdate { op, cells, inputs })
        };
        let updates: Vec<GraphUpdate> = updates.into_iter().map(kept).collect::<Result<_>>()?;
        self.effect(Effect::Update(updates))
    }

    /// An operation that assigns a tensor to a variable when it is fetched.
    ///
    /// # Errors
    /// Another shape or dtype, a tensor of another graph; as [`Graph::operation`].
    #[track_caller]
    pub fn assign(&self, variable: &Variable, value: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        self.operation(|| variable.assign(value))
    }

    /// An operation that adds a tensor to a variable when it is fetched.
    ///
    /// # Errors
    /// As [`Graph::assign`].
    #[track_caller]
    pub fn assign_add(&self, variable: &Variable, value: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        self.operation(|| variable.assign_add(value))
    }

    /// An operation that subtracts a tensor from a variable when it is fetched.
    ///
    /// # Errors
    /// As [`Graph::assign`].
    #[track_caller]
    pub fn assign_sub(&self, variable: &Variable, value: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        self.operation(|| variable.assign_sub(value))
    }

    /// Gives a tensor of the graph a name, which its text, its picture and errors show.
    ///
    /// # Errors
    /// A tensor that is not of this graph.
    pub fn set_name(&self, tensor: &Tensor, name: &str) -> Result<()> {
        let view = self.core.view_of("set_name", "it", tensor)?;
        lock(&self.core.state).names.insert(view.value, name.to_owned());
        Ok(())
    }

    /// The variables that were made while the graph was entered.
    ///
    /// # Errors
    /// As [`Graph::enter`].
    pub fn variables(&self) -> Result<Vec<Variable>> {
        self.core.with_tracer(|tracer| {
            let made = tracer.symbolic().into_iter().flat_map(|symbolic| &symbolic.variables);
            Ok(made.map(|(variable, _)| variable.clone()).collect())
        })
    }

    /// A tensor without elements; fetching it does something.
    fn effect(&self, effect: Effect) -> Result<Tensor> {
        let _entered = self.enter()?;
        let token = context::without_tapes(|| Tensor::zeros([0]))?;
        let view = self.core.view_of("graph", "an operation", &token)?;
        lock(&self.core.state).effects.insert(view.value, effect);
        Ok(token)
    }
}

impl GraphCore {
    /// Calls `f` with what records the graph, entered by this thread or by none.
    fn with_tracer<R>(&self, f: impl FnOnce(&mut Tracer) -> Result<R>) -> Result<R> {
        let mut f = Some(f);
        let mut call = |tracer: &mut Tracer| match f.take() {
            Some(f) => f(tracer),
            None => unreachable!("it is called once"),
        };
        let entered = context::with_open_tracer(
            |tracer: &Tracer| tracer.serial() == self.serial,
            |tracer, _| call(tracer),
        );
        match entered {
            Some(result) => result,
            None => call(lock(&self.parked).as_mut().ok_or_else(|| self.is_elsewhere())?),
        }
    }

    fn is_elsewhere(&self) -> Error {
        Error::argument("graph", "another thread has entered it; leave it there first")
    }

    /// A source of gradients, if it has any.
    fn watch(&self, tensor: Tensor) -> Result<Tensor> {
        if tensor.dtype().is_float() {
            self.tape.watch(&tensor)?;
        }
        Ok(tensor)
    }

    /// What a tensor is in the graph.
    fn view_of(&self, op: &'static str, what: &str, tensor: &Tensor) -> Result<ValueView> {
        self.with_tracer(|tracer| {
            if let Data::Variable(cell) = tensor.data() {
                let value = cell.lock().clone();
                let (storage, meta) = tracer.variable_value(cell, &value);
                return tracer.view(&storage, &meta);
            }
            match tracer.is_recorded(tensor.data().value()) {
                true => tracer.view(tensor.data().value(), tensor.meta()),
                false => Err(Error::argument(
                    op,
                    format!("{what} is a {}{} and no tensor of this graph", tensor.dtype(), tensor.shape()),
                )),
            }
        })
    }

    /// How people call a value.
    fn name_of(&self, value: u32) -> String {
        let state = lock(&self.state);
        match (state.names.get(&value), state.placeholders.iter().position(|&number| number == value)) {
            (Some(name), _) => format!("{name:?}"),
            (None, Some(number)) => format!("placeholder {number}"),
            (None, None) => format!("%{value}"),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({} on {})", self.core.serial, self.core.device.name())
    }
}
