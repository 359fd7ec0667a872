//! Assignments: how variables get new values by ops, now or at the end of the open step.

use plimsoll_memory::{LongList, Owner};

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::device::Device;
use crate::eager::context;
use crate::eager::op::{Op, OpRef};
use crate::eager::recorder;
use crate::eager::tensor::Tensor;
use crate::eager::update::{self, Update};
use crate::eager::variable::{Variable, with_pinned};
use crate::ops::assign::Assign;
use crate::ops::binary::{self, Binary};

impl Variable {
    /// This variable as the master of a copy that is computed with: the copy, in `compute`'s precision, is what is
    /// read and watched, and what gradients are taken for; optimizers update the master and write both. Without
    /// a difference in dtype, the variable itself.
    ///
    /// # Errors
    /// A dtype that is not a float's; a graph that is entered; memory that is full.
    #[track_caller]
    pub fn mixed(self, compute: DType) -> Result<Variable> {
        let _line = context::at_callers_line();
        if self.dtype() == compute {
            return Ok(self);
        }
        if !(self.dtype().is_float() && compute.is_float()) {
            return Err(Error::dtype(
                "mixed",
                format!(
                    "a {} variable cannot be computed with in {compute}; both must be floats",
                    self.dtype()
                ),
            ));
        }
        if context::with_tracer(|tracer| tracer.is_graph()).unwrap_or(false) {
            let detail = "a variable of a graph has no master in another precision; make it before the graph is entered";
            return Err(Error::argument("mixed", detail));
        }
        let (name, trainable) = (self.name(), self.is_trainable());
        let copy = context::with_owner(Owner::Parameters, || self.value().cast(compute))?;
        let master = self.trainable(false);
        Ok(Variable::with_master(copy, Some(master)).named(&name).trainable(trainable))
    }

    /// Gives the variable a new value.
    ///
    /// # Errors
    /// Another shape, dtype or device; memory that is full.
    #[doc(alias = "copy_")]
    #[track_caller]
    pub fn assign(&self, value: &Tensor) -> Result<()> {
        let _line = context::at_callers_line();
        assign(self, value)
    }

    /// Adds a tensor to the variable, in place where nobody else holds its value.
    ///
    /// # Errors
    /// Another shape, dtype or device; memory that is full.
    #[doc(alias = "add_")]
    #[track_caller]
    pub fn assign_add(&self, value: &Tensor) -> Result<()> {
        let _line = context::at_callers_line();
        match self.master() {
            Some(master) => self.assign(&master.value().add(&value.cast(master.dtype())?)?),
            None => self.accumulate(binary::add::Add::OP, value),
        }
    }

    /// Subtracts a tensor from the variable, in place where nobody else holds its value.
    ///
    /// # Errors
    /// Another shape, dtype or device; memory that is full.
    #[doc(alias = "sub_")]
    #[track_caller]
    pub fn assign_sub(&self, value: &Tensor) -> Result<()> {
        let _line = context::at_callers_line();
        match self.master() {
            Some(master) => self.assign(&master.value().sub(&value.cast(master.dtype())?)?),
            None => self.accumulate(binary::sub::Sub::OP, value),
        }
    }

    fn accumulate(&self, op: &'static dyn Op, value: &Tensor) -> Result<()> {
        update::apply([Update::new(OpRef::fixed(op), &[self], &[value])?])
    }
}

/// Assigns a tensor to a variable, now or at the end of the open step; to its master as well, if it has one.
fn assign(variable: &Variable, value: &Tensor) -> Result<()> {
    let Some(master) = variable.master() else { return update::apply([assignment(variable, value)?]) };
    let assignments = [(master, master.dtype()), (variable, variable.dtype())]
        .map(|(variable, dtype)| assignment(variable, &value.cast(dtype)?));
    update::apply(assignments.into_iter().collect::<Result<LongList<_>>>()?)
}

fn assignment(variable: &Variable, value: &Tensor) -> Result<Update> {
    let update = Update::new(OpRef::fixed(&Assign), &[variable], &[value])?;
    Ok(update.with_value(recorder::capture_view(value.storage_view())))
}

/// Runs `f` with the variables reading as ghosts on `ghost`, so that a model can be tried for its shapes and bytes
/// without another model and without arithmetic.
///
/// # Errors
/// A device that is no ghost; those of `f`; memory that is full.
pub fn with_ghosts<R>(variables: &[Variable], ghost: &Device, f: impl FnOnce() -> Result<R>) -> Result<R> {
    if !ghost.is_ghost() {
        let detail = format!("{ghost} is no ghost; make one with `Device::ghost`");
        return Err(Error::device("with_ghosts", detail));
    }
    let _on = ghost.enter();
    let empty = |variable: &Variable| Tensor::zeros_of(variable.shape(), variable.dtype());
    let values: Vec<Tensor> =
        context::with_owner(Owner::Parameters, || variables.iter().map(empty).collect::<Result<_>>())?;
    with_pinned(variables, &values, f)
}
