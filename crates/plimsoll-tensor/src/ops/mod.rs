//! The ops: one file or folder each, with everything about it; and the registry that lists them.

mod affine;
pub(crate) mod binary;
mod compare;
pub(crate) mod copy;
mod create;
mod cross_entropy;
mod dropout;
pub(crate) mod kernel;
mod lines;
mod matmul;
mod norm;
mod reduce;
pub mod registry;
mod softmax;
mod unary;
mod view;

/// The registry, family by family: one line for each file that describes ops.
static ALL: &[&[&registry::OpInfo]] = &[
    affine::INFOS,
    binary::INFOS,
    compare::INFOS,
    copy::INFOS,
    create::INFOS,
    cross_entropy::INFOS,
    dropout::INFOS,
    matmul::INFOS,
    norm::INFOS,
    reduce::INFOS,
    softmax::INFOS,
    unary::INFOS,
    view::INFOS,
];
