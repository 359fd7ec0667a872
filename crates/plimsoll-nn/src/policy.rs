//! Precision policies: in which dtype layers compute, and in which they keep their variables.
//!
//! As in Keras, a layer takes the policy that is current when it is built, casts its inputs to the compute dtype, and
//! reads its variables in it. Under a mixed policy a variable owns an f32 master and one 16-bit copy.

use std::fmt;
use std::str::FromStr;

use plimsoll_tensor::scopes::Current;
use plimsoll_tensor::{DType, Error, OpenScope, Result, Tensor};

/// In which dtype layers compute, and in which they keep their variables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Everything in f32.
    #[default]
    Float32,
    /// Everything in f64.
    Float64,
    /// Computes in f16, keeps f32 masters; training needs a loss scale.
    MixedFloat16,
    /// Computes in bf16, keeps f32 masters.
    MixedBfloat16,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Policy; 4] =
        [Policy::Float32, Policy::Float64, Policy::MixedFloat16, Policy::MixedBfloat16];

    /// The name that people and command lines use.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Float32 => "float32",
            Policy::Float64 => "float64",
            Policy::MixedFloat16 => "mixed_float16",
            Policy::MixedBfloat16 => "mixed_bfloat16",
        }
    }

    /// The dtype of activations.
    pub fn compute_dtype(self) -> DType {
        match self {
            Policy::Float32 => DType::F32,
            Policy::Float64 => DType::F64,
            Policy::MixedFloat16 => DType::F16,
            Policy::MixedBfloat16 => DType::BF16,
        }
    }

    /// The dtype of masters, of statistics and of what optimizers keep.
    pub fn variable_dtype(self) -> DType {
        if self == Policy::Float64 { DType::F64 } else { DType::F32 }
    }

    /// Whether small gradients vanish unless the loss is scaled up.
    pub fn needs_loss_scale(self) -> bool {
        self == Policy::MixedFloat16
    }

    /// Floats in the compute dtype; whole numbers as they are.
    ///
    /// # Errors
    /// Memory that is full.
    pub(crate) fn cast(self, x: &Tensor) -> Result<Tensor> {
        match x.dtype() {
            dtype if dtype.is_float() && dtype != self.compute_dtype() => x.cast(self.compute_dtype()),
            _ => Ok(x.clone()),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = Error;

    fn from_str(name: &str) -> Result<Policy> {
        Policy::ALL.into_iter().find(|policy| policy.name() == name).ok_or_else(|| {
            let known = Policy::ALL.map(Policy::name).join(", ");
            Error::argument("policy", format!("there is none named {name:?}; there are {known}"))
        })
    }
}

thread_local!(static CURRENT: Current<Policy> = const { Current::new(Policy::Float32) });

/// The policy that layers built on this thread take.
pub fn current_policy() -> Policy {
    CURRENT.with(Current::get)
}

/// Makes a policy the one that layers built on this thread take from now on: until the innermost open scope of
/// [`enter_policy`] or [`with_policy`] ends, if there is one.
pub fn set_policy(policy: Policy) {
    CURRENT.with(|current| current.set(policy));
}

/// Lets layers take `policy` when they are built, until the scope is dropped.
pub fn enter_policy(policy: Policy) -> OpenScope {
    let number = CURRENT.with(|current| current.begin(policy));
    OpenScope::new(number, |number| _ = CURRENT.try_with(|current| current.end(number)))
}

/// Runs `f` with layers taking `policy` when they are built.
pub fn with_policy<R>(policy: Policy, f: impl FnOnce() -> R) -> R {
    let _policy = enter_policy(policy);
    f()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_end_by_themselves() {
        let double = enter_policy(Policy::Float64);
        let half = enter_policy(Policy::MixedFloat16);
        drop(double);
        assert_eq!(current_policy(), Policy::MixedFloat16);
        with_policy(Policy::Float64, || {
            set_policy(Policy::MixedBfloat16);
            assert_eq!(current_policy(), Policy::MixedBfloat16);
        });
        assert_eq!(current_policy(), Policy::MixedFloat16);
        drop(half);
        assert_eq!(current_policy(), Policy::Float32);
        let panicked = std::panic::catch_unwind(|| with_policy(Policy::Float64, || panic!("a layer panics")));
        assert_eq!((panicked.is_err(), current_policy()), (true, Policy::Float32));
    }
}
