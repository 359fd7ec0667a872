//! The gradient tape, as TensorFlow's users know it.

use std::sync::{Arc, Weak};

use crate::base::error::{Error, Result};
use crate::base::scopes::OpenScope;
use crate::device::Device;
use crate::device::why_alive::{HolderId, WhyAlive};
use crate::eager::context;
use crate::eager::op_log::OpLog;
use crate::eager::tape::{Saved, TapeCore};
use crate::eager::tensor::Tensor;
use crate::eager::variable::Variable;
use crate::remat::StepLog;

/// Records ops so that their gradients can be asked for.
///
/// ```
/// # use plimsoll_tensor::{GradientTape, Tensor, Variable};
/// # fn main() -> plimsoll_tensor::Result<()> {
/// let x = Variable::new(Tensor::from(3.0f32)?);
/// let tape = GradientTape::new();
/// let y = tape.record(|| x.mul(&x))?;
/// let [dx] = tape.gradient(&y, [&x])?;
/// assert_eq!(dx.item::<f32>()?, 6.0);
/// # Ok(())
/// # }
/// ```
///
/// # Tapes within tapes
///
/// Gradients of gradients come from a tape that records while another one's `gradient` is called. Many ops have one fused
/// kernel for forward or backward; where a second tape watches, such an op is recorded as the plain ops that it stands for,
/// which round elsewhere. **A first-order gradient can then differ in its last bits from the same gradient taken by one tape
/// alone.** Runs that are to have equal bits must therefore be watched alike. A tape that watches none of the inputs changes
/// nothing.
pub struct GradientTape {
    pub(super) core: Arc<TapeCore>,
}

impl GradientTape {
    /// A tape for one gradient that watches every trainable variable that is read while it records.
    #[expect(clippy::new_without_default, reason = "making a tape is an act, not a default value")]
    pub fn new() -> GradientTape {
        GradientTape { core: Arc::new(TapeCore::new(false, true, open_log)) }
    }

    /// Whether [`gradient`](GradientTape::gradient) may be called more than once; a persistent tape keeps its saved
    /// values until it is dropped.
    pub fn persistent(self, persistent: bool) -> GradientTape {
        GradientTape { core: Arc::new(TapeCore::new(persistent, self.core.watch_variables, open_log)) }
    }

    /// Whether trainable variables are watched when they are read.
    pub fn watch_accessed_variables(self, watch: bool) -> GradientTape {
        GradientTape { core: Arc::new(TapeCore::new(self.core.persistent, watch, open_log)) }
    }

    /// Watches a tensor or variable: ops that read it from now on are recorded.
    ///
    /// # Errors
    /// Whole numbers and truth values have no gradient.
    #[doc(alias = "requires_grad_")]
    pub fn watch(&self, source: &Tensor) -> Result<()> {
        if !source.dtype().is_float() {
            return Err(Error::dtype(
                "watch",
                format!("a {} tensor has no gradient; watch a float tensor", source.dtype()),
            ));
        }
        self.core.watch(source);
        Ok(())
    }

    /// Runs `f` and records its ops.
    ///
    /// # Errors
    /// Those of `f`.
    #[track_caller]
    pub fn record<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let _recording = self.start();
        f()
    }

    /// Records ops until the scope is dropped.
    ///
    /// ```
    /// # use plimsoll_tensor::{GradientTape, Tensor, Variable};
    /// # fn main() -> plimsoll_tensor::Result<()> {
    /// let x = Variable::new(Tensor::from(3.0f32)?);
    /// let tape = GradientTape::new();
    /// let recording = tape.start();
    /// let y = x.mul(&x)?;
    /// drop(recording);
    /// let [dx] = tape.gradient(&y, [&x])?;
    /// assert_eq!(dx.item::<f32>()?, 6.0);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "enable_grad")]
    #[track_caller]
    pub fn start(&self) -> OpenScope {
        let line = context::at_callers_line();
        self.core.name_by_line();
        drop(line);
        self.core.begin_step_log();
        context::start_tape(self.core.clone())
    }

    /// Runs `f` inside [`record`](GradientTape::record) without recording it.
    ///
    /// # Errors
    /// Those of `f`.
    #[doc(alias = "no_grad")]
    pub fn stop_recording<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let _paused = self.pause();
        f()
    }

    /// Stops recording until the scope is dropped: what was started before goes on then, and what is started meanwhile
    /// records.
    #[doc(alias = "no_grad")]
    pub fn pause(&self) -> OpenScope {
        context::stop_tape(self.core.clone())
    }

    /// Forgets everything: records, saved values, watched sources. The tape is as new.
    pub fn reset(&self) {
        self.core.clear();
        self.core.lock().used = false;
    }

    /// The variables that the tape watches, in the order in which it met them.
    pub fn watched_variables(&self) -> Vec<Variable> {
        let state = self.core.lock();
        state.variables.iter().filter_map(Weak::upgrade).map(Variable::from_cell).collect()
    }

    /// What the tape saves for backward: op, form, bytes and line of each value.
    #[doc(alias = "saved_tensors")]
    pub fn saved(&self) -> Saved {
        Saved::of(&self.core)
    }
}

impl WhyAlive {
    /// A tape as a holder of what it saves, which lets go when the tape is dropped or reset; none if it has recorded nothing.
    pub fn tape(&self, tape: &GradientTape) -> Option<HolderId> {
        self.holder_at(Arc::as_ptr(&tape.core) as usize)
    }
}

impl Drop for GradientTape {
    fn drop(&mut self) {
        self.core.clear();
    }
}

/// The log of a step on a device, or of what a tape records outside steps.
pub(super) fn open_log(device: &Device) -> Option<Arc<dyn OpLog>> {
    StepLog::on(device).map(|step_log| step_log as Arc<dyn OpLog>)
}
