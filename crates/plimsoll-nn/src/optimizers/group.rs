//! Parameter groups: variables with a learning rate or a weight decay of their own.

use plimsoll_tensor::optimizer::{Decay, Schedule};

use crate::filter::VariableFilter;

/// Some variables that an optimizer treats otherwise, as PyTorch's parameter groups. A variable belongs to the first group that
/// means it; what a group does not say is as for all others.
///
/// ```
/// use plimsoll_nn::optimizers::{AdamW, OptimizerConfig, ParameterGroup};
///
/// let optimizer = AdamW::new(1e-3)
///     .build()
///     .group(ParameterGroup::new("encoder").learning_rate(1e-5))
///     .group(ParameterGroup::new(["bias", "gamma", "beta"]).weight_decay(0.0));
/// # let _ = optimizer;
/// ```
#[doc(alias = "param_groups")]
#[derive(Clone, Debug)]
pub struct ParameterGroup {
    pub(super) variables: VariableFilter,
    /// The learning rate at the beginning, if the group has one of its own.
    pub(super) rate: Option<f64>,
    pub(super) schedule: Option<Schedule>,
    weight_decay: Option<f64>,
}

impl ParameterGroup {
    /// The variables that are meant: by name, layer or pattern, see [`VariableFilter`].
    pub fn new(variables: impl Into<VariableFilter>) -> ParameterGroup {
        ParameterGroup { variables: variables.into(), rate: None, schedule: None, weight_decay: None }
    }

    /// This group with a learning rate of its own, which stays as it is.
    #[must_use]
    pub fn learning_rate(self, rate: f64) -> ParameterGroup {
        ParameterGroup { rate: Some(rate), schedule: None, ..self }
    }

    /// This group with a learning rate that follows a schedule of its own.
    #[must_use]
    pub fn schedule(self, schedule: Schedule) -> ParameterGroup {
        ParameterGroup { rate: Some(schedule.at(0.0)), schedule: Some(schedule), ..self }
    }

    /// This group with another weight decay, in the way that the optimizer has it.
    #[must_use]
    pub fn weight_decay(self, weight_decay: f64) -> ParameterGroup {
        ParameterGroup { weight_decay: Some(weight_decay), ..self }
    }

    /// The weight decay of the group.
    pub(super) fn decay(&self, of_all: Decay) -> Decay {
        match (self.weight_decay, of_all) {
            (None, of_all) => of_all,
            (Some(weight), Decay::Decoupled(_)) => Decay::Decoupled(weight),
            (Some(weight), _) => Decay::L2(weight),
        }
    }
}
