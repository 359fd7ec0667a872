//! Precision policies: in which dtype layers compute, and in which they keep their variables.
//!
//! As in Keras, a layer takes the policy that is current when it is built, casts its inputs to the compute dtype, and
//! reads its variables in it. Under a mixed policy a variable owns an f32 master and one 16-bit copy.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

use plimsoll_tensor::{DType, Error, Result, Tensor};

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

thread_local!(static CURRENT: Cell<Policy> = const { Cell::new(Policy::Float32) });

/// The policy that layers built on this thread take.
pub fn current_policy() -> Policy {
    CURRENT.get()
}

/// Makes a policy the one that layers built on this thread take from now on.
pub fn set_policy(policy: Policy) {
    CURRENT.set(policy);
}

/// Runs `f` with layers taking `policy` when they are built.
pub fn with_policy<R>(policy: Policy, f: impl FnOnce() -> R) -> R {
    struct Restore(Policy);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }
    let _restore = Restore(CURRENT.replace(policy));
    f()
}
