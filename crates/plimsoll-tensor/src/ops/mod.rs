//! The ops: one file or folder each, with everything about it; and the registry that lists them.

/// The example of a method, made from the registry's samples: see `plimsoll-testkit`'s `doc-examples`.
macro_rules! example {
    ($($name:tt)+) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/examples/", $($name)+, ".md"))
    };
}

mod activation;
mod affine;
pub(crate) mod assign;
mod attention;
pub(crate) mod backward;
pub(crate) mod binary;
mod clamp;
mod compare;
pub(crate) mod compute;
mod concat;
mod conv;
pub(crate) mod copy;
mod create;
mod cross_entropy;
pub(crate) mod cuda;
mod debug_print;
mod diagonal;
mod dropout;
mod einsum;
pub(crate) mod fused;
mod global_norm;
mod index;
pub(crate) mod kernel;
mod lanes;
mod lerp;
mod linear;
mod logical;
mod masked_fill;
mod matmul;
mod norm;
pub(crate) mod operators;
pub mod optimizer;
pub(crate) mod pooling;
mod predicate;
pub(crate) mod read_file;
mod recurrent;
mod reduce;
pub mod registry;
mod repeat;
mod rounding;
mod scan;
pub(crate) mod slice;
mod softmax;
mod sort;
mod to_device;
mod triangle;
mod unary;
mod view;
mod where_;

pub use activation::Activation;
pub use attention::AttentionConfig;
pub use conv::{Conv1dConfig, Conv2dConfig, ConvConfig};
pub use recurrent::{GruWeights, LstmState, RecurrentWeights};

/// The registry, family by family: one line for each file that describes ops.
#[cfg(any(test, feature = "testing"))]
const ALL: &[&[&registry::OpInfo]] = &[
    affine::INFOS,
    attention::INFOS,
    binary::INFOS,
    clamp::INFOS,
    compare::INFOS,
    concat::INFOS,
    conv::INFOS,
    copy::INFOS,
    create::INFOS,
    cross_entropy::INFOS,
    diagonal::INFOS,
    dropout::INFOS,
    global_norm::INFOS,
    index::INFOS,
    linear::INFOS,
    logical::INFOS,
    masked_fill::INFOS,
    matmul::INFOS,
    norm::INFOS,
    optimizer::INFOS,
    pooling::INFOS,
    predicate::INFOS,
    recurrent::INFOS,
    reduce::INFOS,
    rounding::INFOS,
    scan::INFOS,
    slice::INFOS,
    softmax::INFOS,
    sort::INFOS,
    triangle::INFOS,
    unary::INFOS,
    view::INFOS,
    where_::INFOS,
];

/// Functions that are made of ops, family by family; they are tested like ops.
#[cfg(any(test, feature = "testing"))]
const COMPOSED: &[&[&registry::OpInfo]] =
    &[einsum::COMPOSED, lerp::COMPOSED, repeat::COMPOSED, scan::COMPOSED];
