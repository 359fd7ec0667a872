//! What an optimizer keeps for its variables.
//!
//! States are made when a variable is first seen, and stay: one that is frozen for a while finds them again. Which variables
//! are updated now, and by which ops, is a list beside them.

use plimsoll_tensor::optimizer::{Algorithm, Common, UpdatedParameter};
use plimsoll_tensor::{Device, Error, OpRef, Owner, Result, Tensor, Variable, with_owner};

use super::Optimizer;

/// The most variables that one op updates. An op has lists of its operands, and no block outside the pool shall grow
/// with a model, so the variables of a large one are updated by several ops.
const VARIABLES_OF_AN_OP: usize = 64;

/// The variables that an optimizer has seen, and those that it updates.
#[derive(Debug, Default)]
pub(super) struct State {
    known: Vec<Known>,
    /// Which of the known variables are updated, in the order of their gradients.
    active: Vec<usize>,
    /// The ops that update them.
    pub updates: Vec<Update>,
}

/// A variable, as the user gave it, and what is kept for it.
#[derive(Debug)]
struct Known {
    variable: Variable,
    states: Vec<Variable>,
    member: UpdatedParameter,
    /// The number of its parameter group, of which 0 are those in no other.
    group: usize,
}

/// An op that updates some variables of one group on one device.
#[derive(Debug)]
pub(super) struct Update {
    pub op: OpRef,
    pub group: usize,
    pub device: Device,
    /// The numbers of their gradients.
    pub gradients: Vec<usize>,
}

/// How variables are updated: by which algorithm, and what is special to a group.
pub(super) struct Rules<'a> {
    pub algorithm: &'a dyn Algorithm,
    /// What is done before the algorithm, for each group.
    pub common: &'a [Common],
    /// Who says to which group a variable belongs.
    pub optimizer: &'a Optimizer,
}

impl State {
    /// Updates these variables from now on, and makes states for those that have none. All or nothing.
    pub fn select(&mut self, rules: &Rules<'_>, variables: &[Variable]) -> Result<()> {
        let n_before = self.known.len();
        if let Err(error) = self.know(rules, variables) {
            self.known.truncate(n_before);
            return Err(error);
        }
        let place = |variable: &Variable| self.known.iter().position(|known| known.variable == *variable);
        self.active = variables.iter().filter_map(place).collect();
        let mut updates = Vec::new();
        let devices = self.devices();
        let kinds = rules.common.iter().enumerate();
        let kinds = kinds.flat_map(|(group, common)| devices.iter().map(move |on| (group, *common, on)));
        for (group, common, device) in kinds {
            let known = |idx: usize| &self.known[self.active[idx]];
            let is_meant =
                |&idx: &usize| known(idx).group == group && known(idx).variable.device() == *device;
            let gradients: Vec<usize> = (0..self.active.len()).filter(is_meant).collect();
            for gradients in gradients.chunks(VARIABLES_OF_AN_OP) {
                let members: Vec<UpdatedParameter> = gradients.iter().map(|&idx| known(idx).member).collect();
                let op = rules.algorithm.update(common, &members);
                updates.push(Update { op, group, device: device.clone(), gradients: gradients.to_vec() });
            }
        }
        self.updates = updates;
        Ok(())
    }

    /// The devices of the variables that are updated.
    fn devices(&self) -> Vec<Device> {
        let mut devices: Vec<Device> = Vec::new();
        for variable in self.variables() {
            if !devices.contains(&variable.device()) {
                devices.push(variable.device());
            }
        }
        devices
    }

    /// Makes the states of variables that have none.
    pub fn know(&mut self, rules: &Rules<'_>, variables: &[Variable]) -> Result<()> {
        for variable in variables {
            if self.known.iter().any(|known| known.variable == *variable) {
                continue;
            }
            let parameter = variable.master().unwrap_or(variable);
            let _there = parameter.device().enter();
            let specs = rules.algorithm.states(parameter.shape(), parameter.dtype());
            let (group, decays) = rules.optimizer.group_of(variable);
            let member =
                UpdatedParameter { n_states: specs.len(), has_copy: variable.master().is_some(), decays };
            let mut states = Vec::new();
            for spec in specs {
                let initial = || Tensor::full_of(spec.shape, spec.initial, spec.dtype);
                let tensor = parameter.in_its_layer(|| with_owner(Owner::Optimizer, initial))?;
                let state = Variable::new(tensor).trainable(false).owned_by(Owner::Optimizer);
                states.push(state.named(&format!("optimizer.{}.{}", spec.name, variable.name())));
            }
            self.known.push(Known { variable: variable.clone(), states, member, group });
        }
        Ok(())
    }

    /// The variables that are updated, in the order of their gradients.
    pub fn variables(&self) -> impl ExactSizeIterator<Item = &Variable> {
        self.active.iter().map(|&idx| &self.known[idx].variable)
    }

    /// The states of all variables that were ever seen, one variable after the other.
    pub fn states(&self) -> impl Iterator<Item = &Variable> {
        self.known.iter().flat_map(|known| &known.states)
    }

    /// Refuses other variables than those that are updated.
    pub fn check(&self, variables: &[Variable]) -> Result<()> {
        if self.variables().eq(variables) {
            return Ok(());
        }
        let ours: Vec<&Variable> = self.variables().collect();
        let name =
            |variable: Option<&Variable>| variable.map_or("none".to_owned(), |v| format!("{:?}", v.name()));
        let n_either = ours.len().max(variables.len());
        let differs = |&idx: &usize| ours.get(idx).copied() != variables.get(idx);
        let first = (0..n_either).find(differs).unwrap_or(0);
        Err(Error::argument(
            "optimizer",
            format!(
                "it keeps state for {} variables and was given {}; the first that differs is number {first}: {} was \
                 expected, not {}. Build another optimizer for other variables, or `select` them",
                ours.len(),
                variables.len(),
                name(ours.get(first).copied()),
                name(variables.get(first))
            ),
        ))
    }

    /// The operands of an op that updates these variables, in its order.
    pub fn operands<'a>(&'a self, gradients: &[usize], control: &'a Variable) -> Vec<&'a Variable> {
        let mut operands = Vec::new();
        for &idx in gradients {
            let known = &self.known[self.active[idx]];
            operands.push(known.variable.master().unwrap_or(&known.variable));
            operands.extend(&known.states);
            operands.extend(known.variable.master().map(|_| &known.variable));
        }
        operands.push(control);
        operands
    }

    /// The op that updates one variable alone, and its group.
    pub fn update_of(&self, rules: &Rules<'_>, gradient: usize) -> (OpRef, usize) {
        let known = &self.known[self.active[gradient]];
        let members = std::slice::from_ref(&known.member);
        (rules.algorithm.update(rules.common[known.group], members), known.group)
    }
}
