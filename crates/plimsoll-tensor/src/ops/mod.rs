//! The ops: one file or folder each, with everything about it; and the registry that lists them.

mod activation;
mod affine;
mod attention;
pub(crate) mod binary;
mod clamp;
mod compare;
mod conv2d;
pub(crate) mod copy;
mod create;
mod cross_entropy;
mod dropout;
pub(crate) mod kernel;
mod lerp;
mod linear;
mod lines;
mod logical;
mod matmul;
mod norm;
mod predicate;
mod reduce;
pub mod registry;
mod rounding;
mod softmax;
mod unary;
mod view;
mod where_;

pub use activation::Activation;
pub use attention::AttentionConfig;
pub use conv2d::Conv2dConfig;

/// The registry, family by family: one line for each file that describes ops.
static ALL: &[&[&registry::OpInfo]] = &[
    affine::INFOS,
    attention::INFOS,
    binary::INFOS,
    clamp::INFOS,
    compare::INFOS,
    conv2d::INFOS,
    copy::INFOS,
    create::INFOS,
    cross_entropy::INFOS,
    dropout::INFOS,
    linear::INFOS,
    logical::INFOS,
    matmul::INFOS,
    norm::INFOS,
    predicate::INFOS,
    reduce::INFOS,
    rounding::INFOS,
    softmax::INFOS,
    unary::INFOS,
    view::INFOS,
    where_::INFOS,
];
