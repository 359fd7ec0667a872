//! The checks that every op of the registry passes; each is a function of one op, and says what it needs of a sample.

mod composite;
mod edges;
mod errors;
mod faults;
mod forward;
mod ghost;
mod gradient;
mod layouts;
mod order;
mod programs;
mod registry;
mod replay;
mod tape;
mod threads;

use plimsoll_tensor::ops::registry::OpInfo;

use crate::needs::CheckOutcome;
use crate::outcome::Outcome;

pub use composite::fused_equals_composite;
pub use edges::{empty_inputs, zero_dimensional_inputs};
pub use errors::{error_inputs, mismatched_operands};
pub use faults::failed_acquisitions;
pub use forward::forward_values;
pub use ghost::ghost_trace;
pub use gradient::{first_order, narrow_gradients, second_order, unwatched_inputs};
pub use layouts::layouts;
pub use order::any_order;
pub use programs::programs;
pub use registry::{declarations, unique_names};
pub use replay::replayed_records;
pub(crate) use tape::WORTH_REBUILDING;
pub use tape::{derived_inputs, persistent_tape, shared_inputs};
pub use threads::thread_counts;

/// A check of one op.
pub type Check = fn(&'static OpInfo) -> Outcome<CheckOutcome>;

/// Every check of a single op, with the name that its test has.
pub const ALL: &[(&str, Check)] = &[
    ("declarations", declarations),
    ("forward_values", forward_values),
    ("layouts", layouts),
    ("empty_inputs", empty_inputs),
    ("zero_dimensional_inputs", zero_dimensional_inputs),
    ("error_inputs", error_inputs),
    ("mismatched_operands", mismatched_operands),
    ("first_order", first_order),
    ("second_order", second_order),
    ("narrow_gradients", narrow_gradients),
    ("unwatched_inputs", unwatched_inputs),
    ("shared_inputs", shared_inputs),
    ("derived_inputs", derived_inputs),
    ("persistent_tape", persistent_tape),
    ("fused_equals_composite", fused_equals_composite),
    ("ghost_trace", ghost_trace),
    ("replayed_records", replayed_records),
    ("thread_counts", thread_counts),
    ("any_order", any_order),
    ("programs", programs),
    ("failed_acquisitions", failed_acquisitions),
    ("golden_values", crate::golden::golden_values),
];
