//! Optimizers by name, for `--optimizer`.

use plimsoll::nn::optimizers::{Adafactor, Adagrad, Adam, Adam8bit, AdamW, OptimizerConfig, RMSprop, SGD};

use crate::failure::Failure;

/// A name, and how that optimizer is made with the learning rate that is usual for it.
type Entry = (&'static str, fn() -> Box<dyn OptimizerConfig>);

/// The optimizers that `--optimizer` knows.
const KNOWN: [Entry; 9] = [
    ("sgd", || Box::new(SGD::new(1e-2))),
    ("momentum", || Box::new(SGD::new(1e-2).momentum(0.9))),
    ("nesterov", || Box::new(SGD::new(1e-2).momentum(0.9).nesterov(true))),
    ("adam", || Box::new(Adam::new(1e-3))),
    ("adamw", || Box::new(AdamW::new(1e-3))),
    ("adam8bit", || Box::new(Adam8bit::new(1e-3))),
    ("rmsprop", || Box::new(RMSprop::new(1e-3))),
    ("adagrad", || Box::new(Adagrad::new(1e-2))),
    ("adafactor", || Box::new(Adafactor::new(1e-2))),
];

/// The optimizer of that name.
///
/// # Errors
/// An unknown name; the error lists those that are known.
pub fn by_name(name: &str) -> Result<Box<dyn OptimizerConfig>, Failure> {
    let known = KNOWN.iter().find(|(known, _)| *known == name);
    known.map(|(_, make)| make()).ok_or_else(|| {
        let names = KNOWN.map(|(name, _)| name).join(", ");
        Failure::options(format!("--optimizer: there is no optimizer `{name}`; there are {names}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_and_others_are_refused_with_the_list() {
        assert!(KNOWN.iter().all(|(name, _)| by_name(name).is_ok()));
        let failure = by_name("adma").err().expect("a misspelt name");
        assert!(failure.message.contains("`adma`") && failure.message.contains("adamw"), "{failure}");
    }
}
