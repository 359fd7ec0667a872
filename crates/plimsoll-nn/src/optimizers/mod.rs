//! Optimizers: descriptions, one per file, and [`Optimizer`], which holds the state and updates in place.
//!
//! A description such as `Adam::new(1e-3)` is plain data; [`OptimizerConfig::build`] makes an [`Optimizer`] of it, on which what
//! all of them share is set: schedule, clipping, loss scale, which variables decay. The state is made when the variables
//! are first seen. One op updates up to 64 variables, in place and with no temporary of their size (see
//! `plimsoll_tensor::optimizer`); the numbers that change from step to step live in a small buffer on the device, so a
//! step reads nothing back. An update changes everything or nothing, inside a [`Step`] together
//! with the rest of the step.
//!
//! ```
//! use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
//! use plimsoll_tensor::{GradientTape, Tensor, Variable};
//!
//! let w = Variable::new(Tensor::ones([3])?).named("w");
//! let variables = [w.clone()];
//! let mut optimizer = Adam::new(0.1).build().clip_norm(1.0);
//! let tape = GradientTape::new();
//! let loss = tape.record(|| w.mul(&w)?.sum(..))?;
//! optimizer.apply_gradients(tape.variable_gradients(&loss, &variables)?, &variables)?;
//! assert!(w.to_vec::<f32>()?.iter().all(|&w| w < 1.0));
//! # Ok::<(), plimsoll_tensor::Error>(())
//! ```

mod accumulator;
mod adafactor;
mod adagrad;
mod adam;
mod adam_8bit;
mod adamw;
mod during_backward;
mod group;
mod loss_scale;
mod rate;
mod replica;
mod rmsprop;
mod sgd;
mod state;

use std::sync::Arc;

pub use plimsoll_tensor::optimizer::Schedule;
use plimsoll_tensor::optimizer::{Algorithm, BeginStep, Common, Control, Decay};
use plimsoll_tensor::{
    DType, Device, Error, OpRef, Owner, PendingValue, Result, Step, Tensor, Variable, at_callers_line,
};

pub use accumulator::Accumulator;
pub use adafactor::Adafactor;
pub use adagrad::Adagrad;
pub use adam::Adam;
pub use adam_8bit::Adam8bit;
pub use adamw::AdamW;
pub use group::ParameterGroup;
pub use loss_scale::LossScale;
use replica::Replica;
pub use rmsprop::RMSprop;
pub use sgd::SGD;
use state::{Rules, State};

/// A description of an optimizer: plain data, from which any number of optimizers can be built.
pub trait OptimizerConfig {
    /// The learning rate at the beginning.
    fn learning_rate(&self) -> f64;

    /// How parameters are updated.
    fn algorithm(&self) -> Arc<dyn Algorithm>;

    /// What weight decay does.
    fn decay(&self) -> Decay {
        Decay::None
    }

    /// An optimizer that has not seen any variables yet.
    fn build(&self) -> Optimizer {
        Optimizer {
            algorithm: self.algorithm(),
            rate: self.learning_rate(),
            begin: BeginStep::default(),
            common: Common { decay: self.decay(), clip_value: None },
            undecayed: Vec::new(),
            groups: Vec::new(),
            rate_factor: 1.0,
            version: 0,
            loss_scale: None,
            control: None,
            group_controls: Vec::new(),
            replicas: Vec::new(),
            state: None,
        }
    }
}

/// What an update is given from outside: the norm of the gradients and the first that is not finite, if these are known, and further
/// updates that come after the optimizer's.
type Around<'a> = (Option<(Tensor, Tensor)>, &'a [(OpRef, Vec<Variable>)]);

/// What updates variables from their gradients, and the state that it keeps for them.
#[derive(Debug)]
pub struct Optimizer {
    algorithm: Arc<dyn Algorithm>,
    /// The learning rate that the control buffer begins with.
    rate: f64,
    begin: BeginStep,
    common: Common,
    /// Names of variables that do not decay.
    undecayed: Vec<String>,
    groups: Vec<ParameterGroup>,
    /// What the rates of schedules are multiplied by.
    rate_factor: f64,
    /// How often something was set that ops have as an attribute.
    version: u64,
    loss_scale: Option<LossScale>,
    /// The control buffer; made when it is first needed, on the device of what needs it.
    control: Option<Variable>,
    /// Those of the groups with a learning rate of their own, made with the state.
    group_controls: Vec<Option<Variable>>,
    /// Those on further devices that variables are on.
    replicas: Vec<Replica>,
    /// What is kept for the variables; made when they are first seen.
    state: Option<State>,
}

impl Optimizer {
    /// This optimizer with a learning rate that follows a schedule, evaluated on the device at every step.
    #[must_use]
    pub fn schedule(mut self, schedule: Schedule) -> Optimizer {
        self.rate = schedule.at(0.0);
        self.begin.schedule = Some(schedule);
        self
    }

    /// This optimizer with every element of every gradient cut to a magnitude of at most `greatest`.
    #[must_use]
    pub fn clip_value(mut self, greatest: f64) -> Optimizer {
        self.common.clip_value = Some(greatest);
        self
    }

    /// This optimizer with gradients scaled down together when their global norm is above `greatest`.
    #[must_use]
    pub fn clip_norm(mut self, greatest: f64) -> Optimizer {
        self.begin.clip_norm = Some(greatest);
        self
    }

    /// This optimizer with a dynamic loss scale: the loss goes through [`Optimizer::scale_loss`] before backward, and a
    /// step whose gradients overflow is skipped.
    #[must_use]
    pub fn loss_scale(mut self, loss_scale: LossScale) -> Optimizer {
        self.begin.scaling = Some(loss_scale.scaling());
        self.loss_scale = Some(loss_scale);
        self
    }

    /// Whether the loss is scaled.
    pub fn has_loss_scale(&self) -> bool {
        self.loss_scale.is_some()
    }

    /// This optimizer with no weight decay for variables whose name, or the last part of it, is one of `names`: usually
    /// `["bias", "gamma", "beta"]`, biases and the scales and shifts of norms.
    #[must_use]
    pub fn exclude_from_weight_decay<S: AsRef<str>>(mut self, names: &[S]) -> Optimizer {
        self.undecayed = names.iter().map(|name| name.as_ref().to_owned()).collect();
        self
    }

    /// This optimizer with a group of variables that have a learning rate or a weight decay of their own.
    #[must_use]
    pub fn group(mut self, group: ParameterGroup) -> Optimizer {
        self.groups.push(group);
        self
    }

    /// Updates variables from their gradients, one each, as a tape's
    /// [`variable_gradients`](plimsoll_tensor::GradientTape::variable_gradients) gives them. The first call makes the
    /// state, before anything is written; later ones take the same variables.
    ///
    /// # Errors
    /// Another number of gradients, or one of another shape; other variables than before; memory that is full. Variables
    /// and state are then as they were.
    #[track_caller]
    pub fn apply_gradients(&mut self, gradients: Vec<Tensor>, variables: &[Variable]) -> Result<()> {
        let _line = at_callers_line();
        self.apply(&gradients, variables, None, (None, &[]))
    }

    /// Like [`Optimizer::apply_gradients`], if a number is finite when the device comes to it: one float64, as
    /// [`Optimizer::finite_loss`] makes it of the loss. If it is not, or if a kernel of the step has refused a value, nothing is
    /// updated, now and in later steps of that kind, until [`Optimizer::release`]. So nobody has to wait for the loss before
    /// going on.
    ///
    /// # Errors
    /// As [`Optimizer::apply_gradients`].
    #[track_caller]
    pub fn apply_if_finite(
        &mut self,
        gradients: &[Tensor],
        variables: &[Variable],
        finite_loss: &Tensor,
    ) -> Result<()> {
        let _line = at_callers_line();
        self.apply(gradients, variables, Some(finite_loss), (None, &[]))
    }

    /// As [`Optimizer::apply_if_finite`], of gradients whose norm is known where it is wanted, because they are parts of others;
    /// these further updates are made after the optimizer's.
    pub(crate) fn apply_sharded(
        &mut self,
        gradients: &[Tensor],
        variables: &[Variable],
        finite_loss: &Tensor,
        around: Around<'_>,
    ) -> Result<()> {
        self.apply(gradients, variables, Some(finite_loss), around)
    }

    /// Whether an update needs the global norm of the gradients.
    pub(crate) fn needs_norm(&self) -> bool {
        self.begin.needs_norm()
    }

    /// Whether it treats every element by itself.
    pub(crate) fn is_elementwise(&self) -> bool {
        self.algorithm.is_elementwise()
    }

    /// The number that decides about a step: finite if the loss is, and if no loss before has stopped the optimizer.
    ///
    /// # Errors
    /// Memory that is full.
    #[track_caller]
    pub fn finite_loss(&mut self, loss: &Tensor) -> Result<Tensor> {
        let _line = at_callers_line();
        let control = self.control_on(&loss.device())?;
        let overflow = control.get(Control::OVERFLOW)?;
        let loss = loss.to_device(&control.device())?;
        loss.cast(DType::F64)?.reshape(())?.into_add(overflow.mul(0.0)?)
    }

    /// Lets the optimizer go on after a loss that was not finite has stopped it.
    ///
    /// # Errors
    /// Memory that is full.
    #[track_caller]
    pub fn release(&mut self) -> Result<()> {
        let _line = at_callers_line();
        for control in self.controls() {
            let _there = control.device().enter();
            control.assign(&Control::read(control)?.accepting().to_tensor()?)?;
        }
        Ok(())
    }

    fn apply(
        &mut self,
        gradients: &[Tensor],
        variables: &[Variable],
        finite_loss: Option<&Tensor>,
        around: Around<'_>,
    ) -> Result<()> {
        check(gradients, variables)?;
        let is_new = self.state.is_none();
        self.prepare(variables)?;
        let updated = self.update(gradients, finite_loss, around);
        if updated.is_err() && is_new {
            // What a failed first step has made is not kept: everything is as before.
            self.state = None;
        }
        updated
    }

    /// Makes the state for variables now instead of at the first update, for example to load a checkpoint into it.
    ///
    /// # Errors
    /// Other variables than before; memory that is full.
    #[track_caller]
    pub fn prepare(&mut self, variables: &[Variable]) -> Result<()> {
        let _line = at_callers_line();
        match &self.state {
            Some(state) => state.check(variables),
            None => self.select(variables),
        }
    }

    /// Updates these variables from now on, whichever were before: what is kept for those that are left out stays, and is
    /// there when they are selected again; new ones begin without. How layers are frozen and trained again in the middle of
    /// a run.
    ///
    /// # Errors
    /// No variables; memory that is full.
    #[track_caller]
    pub fn select(&mut self, variables: &[Variable]) -> Result<()> {
        let _line = at_callers_line();
        let first = variables.first().ok_or_else(|| {
            Error::argument("optimizer", "there are no variables to update; is the model frozen?")
        })?;
        self.make_controls(&first.device())?;
        self.make_replicas(variables)?;
        let common = self.common_of_groups();
        let mut state = self.state.take().unwrap_or_default();
        let selected = state.select(&self.rules(&common), variables);
        // A state that could not be made is none.
        self.state = Some(state).filter(|state| selected.is_ok() || state.variables().len() > 0);
        selected
    }

    /// Makes what is kept for variables, without updating them, for example to load a checkpoint into it.
    pub(crate) fn keep_for(&mut self, variables: &[Variable]) -> Result<()> {
        let common = self.common_of_groups();
        let Some(mut state) = self.state.take() else { return Ok(()) };
        let known = state.know(&self.rules(&common), variables);
        self.state = Some(state);
        known
    }

    fn make_controls(&mut self, device: &Device) -> Result<()> {
        let _there = self.control_on(device)?.device().enter();
        for idx in self.group_controls.len()..self.groups.len() {
            let name = format!("optimizer.control.{idx}");
            let control = self.groups[idx].rate.map(|rate| self.new_control(rate, &name)).transpose()?;
            self.group_controls.push(control);
        }
        Ok(())
    }

    fn new_control(&self, rate: f64, name: &str) -> Result<Variable> {
        let scale = self.loss_scale.map_or(1.0, |loss_scale| loss_scale.initial);
        let control = Variable::new(Control::new(rate, scale).to_tensor()?).named(name);
        Ok(control.trainable(false).owned_by(Owner::Optimizer))
    }

    /// All control buffers that there are.
    pub(crate) fn controls(&self) -> impl Iterator<Item = &Variable> {
        self.control.iter().chain(self.group_controls.iter().flatten())
    }

    /// The control buffer of a group, of which 0 are the variables in no other, on a device.
    fn control_of(&self, group: usize, device: &Device) -> &Variable {
        let replica = self.replicas.iter().find(|replica| replica.device == *device);
        let (of_all, of_groups) = match replica {
            Some(replica) => (Some(&replica.control), &replica.groups),
            None => (self.control.as_ref(), &self.group_controls),
        };
        let own = group.checked_sub(1).and_then(|idx| of_groups.get(idx)?.as_ref());
        own.or(of_all).unwrap_or_else(|| unreachable!("`prepare` has made it"))
    }

    /// What is done before the algorithm, for each group.
    fn common_of_groups(&self) -> Vec<Common> {
        let of_group =
            |group: &ParameterGroup| Common { decay: group.decay(self.common.decay), ..self.common };
        std::iter::once(self.common).chain(self.groups.iter().map(of_group)).collect()
    }

    fn rules<'a>(&'a self, common: &'a [Common]) -> Rules<'a> {
        Rules { algorithm: &*self.algorithm, common, optimizer: self }
    }

    /// The group of a variable, and whether weight decay applies to it.
    fn group_of(&self, variable: &Variable) -> (usize, bool) {
        let name = variable.name();
        let group = self.groups.iter().position(|group| group.variables.matches(&name));
        (group.map_or(0, |idx| idx + 1), !self.is_undecayed(&name))
    }

    /// The ops that begin a step, each with its control buffer.
    fn begin_steps(&self, if_finite: bool) -> Vec<(OpRef, &Variable)> {
        let scaled = |schedule: &Option<Schedule>| match self.rate_factor == 1.0 {
            true => schedule.clone(),
            false => schedule.as_ref().map(|schedule| schedule.scaled(self.rate_factor)),
        };
        let begin = |schedule| BeginStep { schedule: scaled(schedule), if_finite, ..self.begin.clone() }.op();
        let first = self.control.iter().map(|control| (control, &self.group_controls));
        let replicas = self.replicas.iter().map(|replica| (&replica.control, &replica.groups));
        let on_device = |(control, of_groups)| {
            let groups = self.groups.iter().zip(of_groups);
            let groups = groups.filter_map(|(group, control): (&ParameterGroup, &Option<Variable>)| {
                Some((&group.schedule, control.as_ref()?))
            });
            std::iter::once((&self.begin.schedule, control)).chain(groups)
        };
        let all = first.chain(replicas).flat_map(on_device);
        all.map(|(schedule, control)| (begin(schedule), control)).collect()
    }

    fn is_undecayed(&self, name: &str) -> bool {
        let last = name.rsplit('.').next();
        self.undecayed.iter().any(|excluded| excluded == name || Some(excluded.as_str()) == last)
    }

    fn update(
        &self,
        gradients: &[Tensor],
        finite_loss: Option<&Tensor>,
        (norm, then): Around<'_>,
    ) -> Result<()> {
        let Some(state) = &self.state else { unreachable!("`prepare` has made it") };
        let gradients: Vec<&Tensor> = gradients.iter().collect();
        let norm_inputs = match (self.begin.needs_norm(), norm) {
            (true, None) => Some(Tensor::global_norm(&gradients)?),
            (true, norm) => norm,
            (false, _) => None,
        };
        let norm_inputs = norm_inputs.iter().flat_map(|(norm, first_bad)| [norm, first_bad]);
        let norm_inputs: Vec<&Tensor> = norm_inputs.chain(finite_loss).collect();
        self.copy_controls()?;
        let begins = self.begin_steps(finite_loss.is_some());
        let on =
            |control: &Variable| norm_inputs.iter().map(|input| input.to_device(&control.device())).collect();
        let begin_inputs: Vec<Vec<Tensor>> =
            begins.iter().map(|(_, control)| on(control)).collect::<Result<_>>()?;
        let mut operands: Vec<(OpRef, Vec<&Variable>, Vec<&Tensor>)> = Vec::new();
        for ((begin, control), inputs) in begins.into_iter().zip(&begin_inputs) {
            operands.push((begin, vec![control], inputs.iter().collect()));
        }
        for update in &state.updates {
            let of_update = update.gradients.iter().map(|&idx| gradients[idx]).collect();
            let control = self.control_of(update.group, &update.device);
            operands.push((update.op.clone(), state.operands(&update.gradients, control), of_update));
        }
        operands
            .extend(then.iter().map(|(op, variables)| (op.clone(), variables.iter().collect(), Vec::new())));
        let updates: Vec<(OpRef, &[&Variable], &[&Tensor])> =
            operands.iter().map(|(op, variables, inputs)| (op.clone(), &**variables, &**inputs)).collect();
        match finite_loss {
            Some(_) => Variable::update_if_finite(&updates),
            None => Variable::update_together(&updates),
        }
    }

    /// The control buffer, made on `device` if there is none yet.
    fn control_on(&mut self, device: &Device) -> Result<&Variable> {
        if self.control.is_none() {
            let _there = device.enter();
            self.control = Some(self.new_control(self.rate, "optimizer.control")?);
        }
        Ok(self.control.as_ref().unwrap_or_else(|| unreachable!("it has just been made")))
    }

    /// A loss multiplied by the present loss scale, which is read on the device; the loss itself without one.
    ///
    /// # Errors
    /// Memory that is full.
    #[track_caller]
    pub fn scale_loss(&mut self, loss: &Tensor) -> Result<Tensor> {
        let _line = at_callers_line();
        if self.loss_scale.is_none() {
            return Ok(loss.clone());
        }
        // A 16-bit loss would overflow before its gradients do.
        let loss = loss.cast(loss.dtype().accumulator())?;
        let scale = self.control_on(&loss.device())?.get(Control::LOSS_SCALE)?.to_device(&loss.device())?;
        loss.mul(&scale.cast(loss.dtype())?)
    }

    /// The numbers of the last step, read back from the device.
    ///
    /// # Errors
    /// A ghost, which has no values.
    #[track_caller]
    pub fn control(&self) -> Result<Control> {
        let _line = at_callers_line();
        match &self.control {
            Some(control) => Control::read(control),
            None => Ok(Control::new(self.rate, self.loss_scale.map_or(1.0, |loss_scale| loss_scale.initial))),
        }
    }

    /// How many steps have changed the variables; skipped ones do not count.
    ///
    /// # Errors
    /// A ghost, which has no values.
    pub fn steps(&self) -> Result<u64> {
        Ok(self.control()?.step as u64)
    }

    /// The name of the first variable whose gradient was not finite in the last step, if that step was skipped.
    ///
    /// # Errors
    /// A ghost, which has no values.
    pub fn overflowed(&self) -> Result<Option<String>> {
        Ok(self.overflowed_in(&self.control()?))
    }

    /// The name of the variable whose gradient was the first that was not finite, as the numbers of a step say.
    pub(crate) fn overflowed_in(&self, control: &Control) -> Option<String> {
        let variable = (control.overflow as usize).checked_sub(1);
        variable.and_then(|idx| Some(self.state.as_ref()?.variables().nth(idx)?.name()))
    }

    /// The numbers of the last step, on their way to the host.
    pub(crate) fn control_later(&self) -> Result<Option<PendingValue>> {
        self.control.as_ref().map(|control| control.to_f64_later()).transpose()
    }

    /// All state, by name: the control buffer, `optimizer.control`, and what is kept for each variable, such as
    /// `optimizer.m.encoder.kernel`. Assigning to them restores an optimizer; empty before the first step and before
    /// [`Optimizer::prepare`].
    pub fn variables(&self) -> Vec<Variable> {
        let of_variables = self.state.iter().flat_map(State::states);
        self.controls().chain(of_variables).cloned().collect()
    }

    /// Refuses to update during backward where all gradients are needed first, or where nothing may change yet.
    fn check_during_backward(&self) -> Result<()> {
        let refuse = |what: &str| Err(Error::argument("apply_during_backward", what));
        if self.begin.clip_norm.is_some() {
            return refuse(
                "clipping by global norm needs all gradients before the first variable is updated; clip by value, or \
                 use `apply_gradients`",
            );
        }
        if self.begin.scaling.is_some() {
            return refuse(
                "a dynamic loss scale looks for overflows in all gradients before the first variable is updated; use \
                 `apply_gradients`",
            );
        }
        if Step::is_open() {
            return refuse(
                "a step promises that nothing changes if it fails, and an update during backward cannot be undone; \
                 call it outside `Step::run`, or use `apply_gradients`",
            );
        }
        Ok(())
    }
}

/// Refuses gradients that do not belong to the variables, one each.
fn check(gradients: &[Tensor], variables: &[Variable]) -> Result<()> {
    if gradients.len() != variables.len() {
        return Err(Error::argument(
            "optimizer",
            format!(
                "{} gradients for {} variables; there must be one each",
                gradients.len(),
                variables.len()
            ),
        ));
    }
    match gradients.iter().zip(variables).find(|(gradient, variable)| gradient.shape() != variable.shape()) {
        None => Ok(()),
        Some((gradient, variable)) => Err(Error::shape(
            "optimizer",
            format!(
                "variable {:?} is {}, but its gradient {}",
                variable.name(),
                variable.shape(),
                gradient.shape()
            ),
        )),
    }
}
