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

pub(crate) mod nested;
pub(crate) mod structure;

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_plan::PlanSet;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::device::Device;
use crate::device::why_alive::{HolderId, WhyAlive};
use crate::eager::context::{self, Saving};
use crate::eager::op::Meta;
use crate::eager::tensor::Tensor;
use crate::eager::variable::Variable;
use crate::function::structure::Structure;
use crate::program::{
    Argument, CacheInfo, Footprint, Listed, PlannedProgram, Program, ProgramCache, ProgramKey, Recording,
};

/// The most bytes of the heap for the programs of a function, if it is not told otherwise.
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
    /// The numbers of the tensors that are given away, in rising order.
    donated: Vec<u32>,
    recording: Recording,
    /// The programs by signature, each with the structure of what it returns.
    programs: Arc<Mutex<ProgramCache<Signature, R>>>,
    _listed: Listed,
    arguments: PhantomData<fn(A)>,
}

/// What decides about the ops of a function.
#[derive(PartialEq)]
struct Signature {
    /// How the arguments are arranged, and the plain values among them.
    arrangement: String,
    arguments: Vec<Meta>,
    /// For each argument the first that lies in the same memory.
    shared: Vec<usize>,
    device: Device,
    saving: Saving,
    is_deterministic: bool,
    allows_tf32: bool,
    can_offload: bool,
}

impl Signature {
    fn of(structure: &impl Structure, arguments: &[Tensor]) -> Signature {
        let mut arrangement = String::new();
        structure.arrangement(&mut arrangement);
        let parts: Vec<Argument> = arguments.iter().map(Argument::of).collect();
        let device = parts.first().map_or_else(Device::current, Argument::device);
        let is_same = |one: &Argument, other: &Argument| Arc::ptr_eq(&one.storage, &other.storage);
        let first = |part: &Argument| parts.iter().position(|other| is_same(other, part)).unwrap_or(0);
        Signature {
            arrangement,
            shared: parts.iter().map(first).collect(),
            arguments: parts.iter().map(|part| part.meta).collect(),
            saving: context::saving(),
            is_deterministic: device.is_deterministic(),
            allows_tf32: device.allows_tf32(),
            can_offload: device.can_offload(),
            device,
        }
    }
}

impl ProgramKey for Signature {
    fn heap_bytes(&self) -> usize {
        self.arrangement.capacity()
            + self.arguments.heap_bytes()
            + self.shared.capacity() * size_of::<usize>()
    }

    fn differing_argument(&self, other: &Signature) -> Option<(usize, String)> {
        if self.arguments.len() != other.arguments.len() {
            return None;
        }
        let pairs = self.arguments.iter().zip(&other.arguments).enumerate();
        let differing = pairs.map(|(number, (now, before))| (number, difference(now, before)));
        differing.into_iter().find_map(|(number, how)| Some((number, how?)))
    }
}

/// How an argument differs from what it was before.
fn difference(now: &Meta, before: &Meta) -> Option<String> {
    if now.dtype != before.dtype {
        return Some(format!("its dtype is {} and was {}", now.dtype, before.dtype));
    }
    if now.shape() != before.shape() {
        return Some(format!("its shape is {} and was {}", now.shape(), before.shape()));
    }
    let (strides, others) = (now.layout.strides(), before.layout.strides());
    (now != before).then(|| format!("its layout has strides {strides:?} and had {others:?}"))
}

impl fmt::Display for Signature {
    /// `float32[64, 10], int64[64]`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, meta) in self.arguments.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{}{}", meta.dtype, meta.shape())?;
            if !meta.layout.is_contiguous() {
                write!(f, " with strides {:?}", meta.layout.strides())?;
            }
        }
        match self.device == Device::cpu() {
            true => Ok(()),
            false => write!(f, " on {}", self.device.name()),
        }
    }
}

impl<A: Structure, R: Structure, F: Fn(A) -> Result<R>> Function<A, R, F> {
    /// A function that has not been called yet.
    pub fn new(f: F) -> Function<A, R, F> {
        let programs = Arc::new(Mutex::new(ProgramCache::new(MOST_BYTES)));
        let listed = Listed::new(Arc::downgrade(&programs) as _);
        let (recording, arguments) = (Recording::Checked, PhantomData);
        Function {
            f,
            run_eagerly: false,
            donated: Vec::new(),
            recording,
            programs,
            _listed: listed,
            arguments,
        }
    }

    /// This function with another bound on the heap that its programs take, plans included; 64 MiB if it is not called. When they
    /// take more, the least recently used are dropped; the one that was called last stays.
    #[doc(alias("recompile_limit", "cache_size_limit", "maxsize"))]
    #[must_use]
    pub fn cache_bytes(self, most_bytes: usize) -> Function<A, R, F> {
        self.lock().set_most_bytes(most_bytes);
        self
    }

    /// This function with or without passes over its programs: dead calls removed, equal calls made once, casts of whole numbers to
    /// a wider type and back left out, pointwise ops that follow each other fused. They keep every bit and never raise the peak;
    /// without them a program is what was recorded, call by call. On if it is not called.
    #[must_use]
    pub fn passes(self, has_passes: bool) -> Function<A, R, F> {
        self.lock().set_passes(has_passes);
        self
    }

    /// What the function keeps: its signatures, with what their programs take and how often they were used.
    ///
    /// ```
    /// use plimsoll_tensor::{Function, Tensor};
    ///
    /// let double = Function::new(|x: Tensor| x.mul(2.0));
    /// for length in [3, 4, 3, 3] {
    ///     double.call(Tensor::ones([length])?)?;
    /// }
    /// let cache = double.cache();
    /// assert_eq!(cache.programs[0].signature, "float32[3]");
    /// assert_eq!((cache.programs[0].n_calls, cache.programs[1].n_calls), (3, 1));
    /// println!("{cache}");
    /// double.clear_cache();
    /// assert!(double.cache().programs.is_empty());
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    #[doc(alias("cache_info", "get_concrete_function", "_cache_size"))]
    pub fn cache(&self) -> CacheInfo {
        let programs = self.lock();
        CacheInfo {
            programs: programs.programs(Signature::to_string),
            most_bytes: programs.most_bytes() as u64,
            n_evicted: programs.n_evicted(),
        }
    }

    /// Drops all programs, with their plans and the constants that they own on devices. The function stays usable, and so do the
    /// variables that it has made.
    pub fn clear_cache(&self) {
        self.lock().clear();
    }

    /// This function, called as it is each time: for debugging.
    #[must_use]
    pub fn run_eagerly(self, run_eagerly: bool) -> Function<A, R, F> {
        Function { run_eagerly, ..self }
    }

    /// This function with another rule for when it is recorded again: a function that is declared to do the same each time
    /// need not be checked, and one that does not can be recorded at each call.
    #[must_use]
    pub fn recording(self, recording: Recording) -> Function<A, R, F> {
        Function { recording, ..self }
    }

    /// This function taking some of its arguments for good, as `donate_argnums` of `jax.jit`: their memory is free after their
    /// last use, or holds what is made from them. Tensors are counted through the whole structure of the arguments, from 0.
    /// Whoever calls it must hold the only handle of such a tensor; it is gone afterwards, also if the call fails.
    #[doc(alias = "donate_argnums")]
    #[must_use]
    pub fn donate(self, arguments: impl IntoIterator<Item = u32>) -> Function<A, R, F> {
        let mut donated: Vec<u32> = arguments.into_iter().collect();
        donated.sort_unstable();
        donated.dedup();
        Function { donated, ..self }
    }

    /// Calls the function.
    ///
    /// # Errors
    /// Those of the function; a donated argument that somebody else holds; a limit under which it cannot be run, before anything runs; memory that is full. Variables
    /// and the random generator are then as before.
    #[track_caller]
    pub fn call(&self, arguments: A) -> Result<R> {
        let _line = context::at_callers_line();
        if self.run_eagerly || context::is_tracing() || context::is_recording() {
            return context::at_own_lines(|| (self.f)(arguments));
        }
        let tensors = arguments.tensors();
        let mut programs = self.lock();
        let Some((program, result)) = self.find(&mut programs, &arguments, &tensors)? else {
            drop((programs, tensors));
            return context::at_own_lines(|| (self.f)(arguments));
        };
        let passed = tensors.iter().map(Argument::of).collect();
        // Nobody but the program holds what is given away.
        drop((arguments, tensors));
        let results = program.run_passed(passed)?;
        let returned = result.rebuild(&mut results.into_iter());
        programs.called();
        returned
    }

    /// Records the function for arguments like these, and plans it for the limit of the moment, without running it. What the
    /// arguments will look like can be said with [`Tensor::spec`].
    ///
    /// # Errors
    /// As [`Function::call`]; a function that reads a value.
    #[track_caller]
    pub fn prepare(&self, arguments: A) -> Result<()> {
        let _line = context::at_callers_line();
        self.with_program(arguments, |program, passed| program.prepare_for(passed).map(drop))
    }

    /// The footprint of a call with arguments like these on its device as it is, with everything retained.
    ///
    /// # Errors
    /// As [`Function::prepare`].
    #[track_caller]
    pub fn plan(&self, arguments: A) -> Result<Footprint> {
        let _line = context::at_callers_line();
        self.with_program(arguments, |program, passed| {
            let program = program.program();
            Ok(program.placed(&program.call_devices(passed)?.devices[0])?.0)
        })
    }

    /// The plans to run the function with arguments like these, from the leanest to the one that retains everything. They are those of the
    /// program with its passes; as it was recorded it may need less than the leanest of them, which
    /// [`least_limit`](Function::least_limit) knows.
    ///
    /// # Errors
    /// As [`Function::prepare`].
    #[track_caller]
    pub fn memory_plans(&self, arguments: A) -> Result<PlanSet> {
        let _line = context::at_callers_line();
        self.with_program(arguments, |program, passed| {
            let program = program.program();
            program.memory_plans(&program.call_devices(passed)?.devices[0])
        })
    }

    /// The least limit under which the function can be called with arguments like these, on its device as it is.
    ///
    /// # Errors
    /// As [`Function::prepare`].
    #[track_caller]
    pub fn least_limit(&self, arguments: A) -> Result<u64> {
        let _line = context::at_callers_line();
        self.with_program(arguments, |program, passed| {
            program.least_limit(&program.program().call_devices(passed)?.devices[0])
        })
    }

    /// Why the function runs eagerly, if it does.
    pub fn eager_reason(&self) -> Option<String> {
        self.lock().eager_reason().map(str::to_owned)
    }

    /// The variables that the function has made, which are its own.
    pub fn variables(&self) -> Vec<Variable> {
        self.lock().owned().iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, ProgramCache<Signature, R>> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_program<T>(
        &self,
        arguments: A,
        f: impl FnOnce(&mut PlannedProgram, &[Argument]) -> Result<T>,
    ) -> Result<T> {
        let tensors = arguments.tensors();
        let mut programs = self.lock();
        if let Some((program, _)) = self.find(&mut programs, &arguments, &tensors)? {
            let passed: Vec<Argument> = tensors.iter().map(Argument::of).collect();
            return f(program, &passed);
        }
        Err(Error::argument("function", programs.eager_reason().unwrap_or("it runs eagerly").to_owned()))
    }

    /// The program for these arguments and the structure of what it returns; nothing if the function runs eagerly.
    fn find<'a>(
        &self,
        programs: &'a mut ProgramCache<Signature, R>,
        arguments: &A,
        tensors: &[Tensor],
    ) -> Result<Option<(&'a mut PlannedProgram, &'a mut R)>> {
        if let Some(number) = self.donated.iter().find(|&&number| number as usize >= tensors.len()) {
            let detail = format!("argument {number} is donated, and there are {} tensors", tensors.len());
            return Err(Error::argument("function", detail));
        }
        let signature = Signature::of(arguments, tensors);
        let device = signature.device.clone();
        programs.find(signature, self.recording, |owned| {
            let mut result = None;
            let place = Tensor::spec((), DType::F32)?;
            let views: Vec<&Tensor> = tensors.iter().collect();
            let program = Program::record_owning(&device, &views, &self.donated, owned, |ghosts| {
                let arguments = arguments.rebuild(&mut ghosts.into_iter())?;
                let returned = context::at_own_lines(|| (self.f)(arguments))?;
                let tensors = returned.tensors();
                // Only the arrangement is kept: the tensors themselves would keep the ghost that they are on.
                result = Some(returned.rebuild(&mut std::iter::repeat(place.clone()))?);
                Ok(tensors)
            })?;
            Ok((program, result.unwrap_or_else(|| unreachable!("recording calls the function"))))
        })
    }
}

impl WhyAlive {
    /// The programs of a function as holders of the tensors from outside that they use. They let go when the function is
    /// dropped, with the tensors that the function itself has captured.
    pub fn programs<A, R, F>(&self, function: &Function<A, R, F>) -> Vec<HolderId> {
        function.programs.lock().unwrap_or_else(PoisonError::into_inner).holders(self)
    }
}

impl<A, R, F> fmt::Debug for Function<A, R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").field("recording", &self.recording).finish_non_exhaustive()
    }
}
