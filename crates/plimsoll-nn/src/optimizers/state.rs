//! What an optimizer keeps for its variables.

use std::ops::Range;

use plimsoll_tensor::optimizer::{Algorithm, Common, Member};
use plimsoll_tensor::{Error, OpRef, Owner, Result, Tensor, Variable, with_owner};

/// The most variables that one op updates. An op has lists of its operands, and no block outside the pool shall grow
/// with a model, so the variables of a large one are updated by several ops.
const VARIABLES_OF_AN_OP: usize = 64;

/// The variables that an optimizer updates, and the states that it keeps for them.
#[derive(Debug)]
pub(super) struct State {
    /// The variables, as the user gave them.
    pub variables: Vec<Variable>,
    /// The states of all variables, one variable after the other.
    pub states: Vec<Variable>,
    pub members: Vec<Member>,
    /// The ops that update the variables, and which variables each of them updates.
    pub updates: Vec<(OpRef, Range<usize>)>,
}

impl State {
    /// Makes the states; `decays` says which variables weight decay applies to.
    pub fn new(
        algorithm: &dyn Algorithm,
        common: Common,
        variables: &[Variable],
        decays: impl Fn(&Variable) -> bool,
    ) -> Result<State> {
        let (mut states, mut members) = (Vec::new(), Vec::new());
        for variable in variables {
            let parameter = variable.master().unwrap_or(variable);
            let _there = parameter.device().enter();
            let specs = algorithm.states(parameter.shape(), parameter.dtype());
            members.push(Member {
                n_states: specs.len(),
                has_copy: variable.master().is_some(),
                decays: decays(variable),
            });
            for spec in specs {
                let tensor =
                    with_owner(Owner::Optimizer, || Tensor::full_of(spec.shape, spec.initial, spec.dtype))?;
                let state = Variable::new(tensor).trainable(false).owned_by(Owner::Optimizer);
                states.push(state.named(&format!("optimizer.{}.{}", spec.name, variable.name())));
            }
        }
        let firsts = (0..members.len()).step_by(VARIABLES_OF_AN_OP);
        let ranges = firsts.map(|first| first..members.len().min(first + VARIABLES_OF_AN_OP));
        let updates =
            ranges.map(|range| (algorithm.update(common, &members[range.clone()]), range)).collect();
        Ok(State { variables: variables.to_vec(), states, members, updates })
    }

    /// Refuses other variables than those that the state was made for.
    pub fn check(&self, variables: &[Variable]) -> Result<()> {
        if self.variables == variables {
            return Ok(());
        }
        let name =
            |variable: Option<&Variable>| variable.map_or("none".to_owned(), |v| format!("{:?}", v.name()));
        let n_either = self.variables.len().max(variables.len());
        let differs = |&idx: &usize| self.variables.get(idx) != variables.get(idx);
        let first = (0..n_either).find(differs).unwrap_or(0);
        Err(Error::argument(
            "optimizer",
            format!(
                "it keeps state for {} variables and was given {}; the first that differs is number {first}: {} was \
                 expected, not {}. Build another optimizer for other variables",
                self.variables.len(),
                variables.len(),
                name(self.variables.get(first)),
                name(variables.get(first))
            ),
        ))
    }

    /// The operands of an op that updates these variables, in its order.
    pub fn operands<'a>(&'a self, range: Range<usize>, control: &'a Variable) -> Vec<&'a Variable> {
        let mut operands = Vec::new();
        let mut next: usize = self.members[..range.start].iter().map(|member| member.n_states).sum();
        for (variable, member) in self.variables[range.clone()].iter().zip(&self.members[range]) {
            operands.push(variable.master().unwrap_or(variable));
            operands.extend(&self.states[next..next + member.n_states]);
            operands.extend(variable.master().map(|_| variable));
            next += member.n_states;
        }
        operands.push(control);
        operands
    }
}
