//! `Function`: a function of tensors that is recorded once per signature and then run from its program, as `tf.function`.
//!
//! What the function does is recorded on a ghost the first time that it is called with arguments of a signature (shapes,
//! dtypes, layouts, settings of the device); from then on its program runs, with the bits of eager code, without calling
//! the function and without a tape. Under a limit the program is planned before it first runs, and kept under the limit or
//! refused with the least that works.
//!
//! The contract is that of `tf.function`: a function does the same whenever it is called with arguments of the same
//! signature. That is checked by recording again at calls 2, 4, 8 and so on; a function that differs runs eagerly from
//! then on, and so does one that reads a value while it is recorded. Both say so once, with the line.
//!
//! Where a tape records, the function is called, so that the tape sees its ops; so it is inside another function, whose
//! program it becomes part of.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_plan::Family;

use crate::context::{self, Saving};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::op::Meta;
use crate::program::{PlannedProgram, Played, Program};
use crate::structure::Structure;
use crate::tensor::Tensor;

/// The most bytes of the heap for the programs of a function, roughly; the least recently used go first.
const MOST_BYTES: usize = 64 << 20;

/// A function of tensors, or of structures of them, that runs from its program.
///
/// ```
/// use plimsoll_tensor::{Function, GradientTape, Tensor, Variable};
///
/// let w = Variable::new(Tensor::ones([3])?);
/// let train = Function::new({
///     let w = w.clone();
///     move |(x, y): (Tensor, Tensor)| {
///         let tape = GradientTape::new();
///         let loss = tape.record(|| x.mul(&w)?.sub(&y)?.square()?.mean(..))?;
///         let [gradient] = tape.gradient(&loss, [&w])?;
///         w.assign_sub(&gradient.mul(0.1)?)?;
///         Ok(loss)
///     }
/// });
/// let (x, y) = (Tensor::ones([3])?, Tensor::zeros([3])?);
/// let first = train.call((x.clone(), y.clone()))?.item::<f32>()?;
/// assert!(train.call((x, y))?.item::<f32>()? < first);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
pub struct Function<A, R, F> {
    f: F,
    run_eagerly: bool,
    state: Mutex<State<R>>,
    arguments: PhantomData<fn(A)>,
}

/// What is known of a function.
struct State<R> {
    /// Why it runs eagerly, if it does.
    eager: Option<String>,
    /// Its programs by signature, the latest last.
    known: Vec<Known<R>>,
}

/// The program of one signature.
struct Known<R> {
    signature: Signature,
    program: PlannedProgram,
    /// The structure of what it returns.
    result: R,
    n_calls: u64,
}

/// What decides about the ops of a function.
#[derive(PartialEq)]
struct Signature {
    arguments: Vec<Meta>,
    device: Device,
    saving: Saving,
    is_deterministic: bool,
}

impl<A: Structure, R: Structure, F: Fn(A) -> Result<R>> Function<A, R, F> {
    /// A function that has not been called yet.
    pub fn new(f: F) -> Function<A, R, F> {
        let state = State { eager: None, known: Vec::new() };
        Function { f, run_eagerly: false, state: Mutex::new(state), arguments: PhantomData }
    }

    /// This function, called as it is each time: for debugging.
    #[must_use]
    pub fn run_eagerly(self, run_eagerly: bool) -> Function<A, R, F> {
        Function { run_eagerly, ..self }
    }

    /// Calls the function.
    ///
    /// # Errors
    /// Those of the function; a limit under which it cannot be run, before anything runs; memory that is full. Variables
    /// and the random generator are then as before.
    #[track_caller]
    pub fn call(&self, arguments: A) -> Result<R> {
        let _line = context::at_callers_line();
        if self.run_eagerly || context::is_tracing() || context::is_recording() || self.is_eager() {
            return (self.f)(arguments);
        }
        let tensors = arguments.tensors();
        let views: Vec<&Tensor> = tensors.iter().collect();
        let mut state = self.lock();
        if let Some(reason) = self.find(&mut state, &arguments, &views)? {
            log::warn!("a function runs eagerly from now on: {reason}");
            state.eager = Some(reason);
            drop(state);
            return (self.f)(arguments);
        }
        let Some(known) = state.known.last_mut() else { unreachable!("it has just been found") };
        let results = known.program.run(&views)?;
        known.n_calls += 1;
        known.result.rebuild(&mut results.into_iter())
    }

    /// Records the function for arguments like these, and plans it for the limit of the moment, without running it.
    ///
    /// # Errors
    /// As [`Function::call`]; a function that reads a value.
    #[track_caller]
    pub fn prepare(&self, arguments: A) -> Result<()> {
        let _line = context::at_callers_line();
        self.with_program(arguments, |program| program.prepare().map(drop))
    }

    /// What a call with arguments like these takes on its device as it is, everything retained.
    ///
    /// # Errors
    /// As [`Function::prepare`].
    #[track_caller]
    pub fn plan(&self, arguments: A) -> Result<Played> {
        let _line = context::at_callers_line();
        self.with_program(arguments, |program| Ok(program.program().placed(program.program().device())?.0))
    }

    /// The ways to run the function with arguments like these, from the leanest to the one that retains everything.
    ///
    /// # Errors
    /// As [`Function::prepare`].
    #[track_caller]
    pub fn memory_plans(&self, arguments: A) -> Result<Family> {
        let _line = context::at_callers_line();
        self.with_program(arguments, |program| program.program().memory_plans(program.program().device()))
    }

    /// The least limit under which the function can be called with arguments like these, on its device as it is.
    ///
    /// # Errors
    /// As [`Function::prepare`].
    #[track_caller]
    pub fn least_limit(&self, arguments: A) -> Result<u64> {
        Ok(self.memory_plans(arguments)?.least())
    }

    /// Why the function runs eagerly, if it does.
    pub fn eager_reason(&self) -> Option<String> {
        self.lock().eager.clone()
    }

    fn is_eager(&self) -> bool {
        self.lock().eager.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_program<T>(&self, arguments: A, f: impl FnOnce(&mut PlannedProgram) -> Result<T>) -> Result<T> {
        let tensors = arguments.tensors();
        let mut state = self.lock();
        match self.find(&mut state, &arguments, &tensors.iter().collect::<Vec<_>>())? {
            Some(reason) => Err(Error::argument("function", reason)),
            None => {
                state.known.last_mut().map_or_else(|| unreachable!("found"), |known| f(&mut known.program))
            }
        }
    }

    /// Brings the program for these arguments to the end of the list, recorded if it is not there, and recorded again to
    /// compare if it is time. Returns why the function has none, if so.
    fn find(&self, state: &mut State<R>, arguments: &A, tensors: &[&Tensor]) -> Result<Option<String>> {
        let device = tensors.first().map_or_else(Device::current, |tensor| tensor.device());
        let signature = Signature {
            arguments: tensors.iter().map(|tensor| tensor.part().1).collect(),
            is_deterministic: device.is_deterministic(),
            saving: context::saving(),
            device,
        };
        let at = state.known.iter().position(|known| known.signature == signature);
        let is_due = |known: &Known<R>| known.n_calls.is_power_of_two();
        let found = at.map(|at| state.known.remove(at));
        let recorded = match &found {
            Some(known) if !is_due(known) => None,
            _ => match self.record(arguments, tensors, &signature.device) {
                Ok(recorded) => Some(recorded),
                Err(error) if matches!(error.kind(), ErrorKind::ReadsValue { .. }) => {
                    return Ok(Some(error.to_string()));
                }
                Err(error) => return Err(error),
            },
        };
        let known = match (found, recorded) {
            (Some(known), None) => known,
            (Some(known), Some((program, _))) => {
                if let Some(difference) = known.program.program().difference(&program) {
                    return Ok(Some(format!("it does not do the same at every call: {difference}")));
                }
                known
            }
            (None, Some((program, result))) => {
                Known { signature, program: PlannedProgram::new(program), result, n_calls: 0 }
            }
            (None, None) => unreachable!("what is not known is recorded"),
        };
        state.known.push(known);
        let mut bytes: usize = state.known.iter().map(|known| known.program.heap_bytes()).sum();
        while bytes > MOST_BYTES && state.known.len() > 1 {
            bytes -= state.known.remove(0).program.heap_bytes();
        }
        Ok(None)
    }

    /// Records the function; returns the structure of its results, too.
    fn record(&self, arguments: &A, tensors: &[&Tensor], device: &Device) -> Result<(Program, R)> {
        let mut result = None;
        let program = Program::record(device, tensors, |ghosts| {
            let returned = (self.f)(arguments.rebuild(&mut ghosts.iter().cloned())?)?;
            let tensors = returned.tensors();
            result = Some(returned);
            Ok(tensors)
        })?;
        Ok((program, result.unwrap_or_else(|| unreachable!("recording calls the function"))))
    }
}

impl<A, R, F> fmt::Debug for Function<A, R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Function")
            .field("n_programs", &state.known.len())
            .field("eager", &state.eager)
            .finish_non_exhaustive()
    }
}
