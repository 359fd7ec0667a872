//! The list of tests: one per op and check, and a few about the registry as a whole.

use plimsoll_tensor::ops::registry::{composed, registry};

use crate::checks;
use crate::needs::CheckOutcome;
use crate::outcome::Outcome;

/// A test: a name to filter by, and what it runs.
pub struct Test {
    /// `op::check`, or `registry::check`.
    pub name: String,
    /// The check.
    pub run: Box<dyn FnOnce() -> Outcome<CheckOutcome> + Send>,
}

/// Every test that the registry gives rise to.
pub fn tests() -> Vec<Test> {
    let of_ops = registry().into_iter().chain(composed()).flat_map(|op| {
        checks::ALL.iter().map(move |&(name, check)| Test {
            name: format!("{}::{name}", op.name),
            run: Box::new(move || check(op)),
        })
    });
    let of_registry = |name: &str, check: fn() -> Outcome| Test {
        name: format!("registry::{name}"),
        run: Box::new(move || check().map(|()| CheckOutcome::Passed)),
    };
    let of_registry = [
        of_registry("unique_names", checks::unique_names),
        of_registry("saved_values_document", crate::saved_values::document_is_current),
        of_registry("examples_in_docs", crate::examples::are_current),
    ];
    of_ops.chain(of_registry).collect()
}
