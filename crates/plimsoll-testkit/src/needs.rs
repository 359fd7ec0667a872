//! What a check needs of a sample: the list of which checks apply to which ops, said where the check is.
//!
//! A check names its needs, and looks at the samples that meet all of them; if none does, the test is reported as
//! *ignored*, with the reason, and not as passed. Checks themselves never return early, so that a test that passes has
//! compared something. A need is about what an op is, never about what it gave: a gradient that should be there and
//! is not is a failure.

use plimsoll_tensor::op::Gradient;

use crate::case::Case;
use crate::outcome::Outcome;

/// Something about a sample without which a check has nothing to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Plain loops in f64 that compute the same.
    Reference,
    /// PyTorch's expression for it.
    Torch,
    /// Inputs that it must refuse.
    Refusals,
    /// An input with an axis.
    Axes,
    /// A chain of elementwise ops on inputs of one shape.
    Elementwise,
    /// A version with more elements that the call takes, too.
    Larger,
    /// An input of floats: that has a gradient, or for which the op says that there is none.
    Floats,
    /// An input that has a gradient.
    Gradient,
    /// A second derivative that is worth checking.
    SecondDerivative,
    /// Two inputs that have gradients.
    TwoGradients,
    /// Two inputs with gradients that may be one tensor.
    TwoAlike,
}

impl Need {
    /// What is said where no sample meets it.
    pub fn reason(self) -> &'static str {
        match self {
            Need::Reference => "no sample has a reference in plain loops",
            Need::Torch => "PyTorch has no such op",
            Need::Refusals => "no sample has inputs that must be refused",
            Need::Axes => "no sample has an input with an axis",
            Need::Elementwise => "the op is not elementwise",
            Need::Larger => "no sample can be enlarged",
            Need::Floats => "no sample has an input of floats",
            Need::Gradient => "the op has no gradient",
            Need::SecondDerivative => "no sample has a second derivative to be checked",
            Need::TwoGradients => "no sample has two inputs with gradients",
            Need::TwoAlike => "no sample has two inputs that may be one tensor",
        }
    }

    /// Whether a sample meets it.
    ///
    /// # Errors
    /// Those of the sample's call.
    pub fn is_met(self, case: &Case<'_>) -> Outcome<bool> {
        let sample = case.sample;
        Ok(match self {
            Need::Reference => sample.reference.is_some(),
            Need::Torch => sample.torch.is_some(),
            Need::Refusals => !sample.refuses.is_empty(),
            Need::Axes => sample.inputs.iter().any(|input| !input.shape.is_empty()),
            Need::Elementwise => case.is_elementwise()?,
            Need::Larger => case.enlarged(crate::checks::WORTH_REBUILDING).is_some(),
            Need::Floats => match case.gradient()? {
                Gradient::Backward | Gradient::Composite => !case.watched().is_empty(),
                Gradient::Zero | Gradient::None(_) => !case.floats().is_empty(),
            },
            Need::Gradient => !case.differentiable()?.is_empty(),
            Need::SecondDerivative => sample.second_order && !case.differentiable()?.is_empty(),
            Need::TwoGradients => case.differentiable()?.len() >= 2,
            Need::TwoAlike => case.two_alike()?.is_some(),
        })
    }
}

/// What a check did that found nothing wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// It looked, and all was right.
    Passed,
    /// It had nothing to look at, and why.
    Ignored(&'static str),
}
