//! What it would take to have a value again once it is freed: how a price is told, wherever it is worked out.
//!
//! Prices are worked out twice, by what tapes have recorded (`device.why_alive()`) and by what a profile has noted of ops; both
//! are told in these words, and a test holds the one against the other.

use std::fmt;

use crate::Owner;

/// What it would take to have a value again once it is freed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Price {
    /// Running ops again, by formula.
    Recompute {
        /// How long that takes.
        nanoseconds: u64,
        /// How many ops it is: more than one if what they read is gone, too.
        n_ops: usize,
    },
    /// It cannot be recomputed; why.
    Never(String),
}

impl Price {
    /// Why a value is out of reach whose inputs are.
    pub const INPUTS_GONE: &str = "what it was computed from is gone";
    /// Why an op cannot run again that does something else, too.
    pub const HAS_EFFECT: &str = "has an effect, or sums in any order";
    /// Why an op cannot run again whose inputs it has destroyed.
    pub const OVERWROTE: &str = "wrote over what it read";

    /// It cannot be recomputed, because of that.
    pub fn never(why: impl Into<String>) -> Price {
        Price::Never(why.into())
    }

    /// The price of what no op computes, whatever is known of ops.
    pub fn of_owner(owner: Owner) -> Option<Price> {
        match owner {
            Owner::Parameters | Owner::Optimizer => Some(Price::never("it is a variable's value")),
            Owner::Data => Some(Price::never("it was read from data")),
            Owner::Workspace => Some(Price::never("it is scratch memory, which goes with its op")),
            Owner::Gradients | Owner::Saved | Owner::Temporary | Owner::Graph => None,
        }
    }

    /// The price of two values together.
    pub fn and(self, other: Price) -> Price {
        match (self, other) {
            (Price::Recompute { nanoseconds, n_ops }, Price::Recompute { nanoseconds: ns, n_ops: n }) => {
                let (nanoseconds, n_ops) = (nanoseconds.saturating_add(ns), n_ops.saturating_add(n));
                Price::Recompute { nanoseconds, n_ops }
            }
            (never @ Price::Never(_), _) | (_, never) => never,
        }
    }
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Price::Recompute { nanoseconds, n_ops } => {
                let ops = if *n_ops == 1 { "op" } else { "ops" };
                write!(f, "{:.3} ms to recompute ({n_ops} {ops})", *nanoseconds as f64 / 1e6)
            }
            Price::Never(why) => write!(f, "cannot be recomputed, because {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_add_up_and_one_that_cannot_be_paid_remains() {
        let ms = |n: u64, n_ops| Price::Recompute { nanoseconds: n * 1_000_000, n_ops };
        assert_eq!(ms(2, 1).and(ms(3, 2)), ms(5, 3));
        assert_eq!(ms(5, 3).to_string(), "5.000 ms to recompute (3 ops)");
        assert_eq!(ms(1, 1).to_string(), "1.000 ms to recompute (1 op)");
        let never = Price::of_owner(Owner::Data).expect("no op computes data");
        assert_eq!(
            [ms(1, 1).and(never.clone()), never.clone().and(ms(1, 1))],
            [never.clone(), never.clone()]
        );
        assert_eq!(never.to_string(), "cannot be recomputed, because it was read from data");
        assert_eq!(Price::of_owner(Owner::Saved), None);
    }
}
