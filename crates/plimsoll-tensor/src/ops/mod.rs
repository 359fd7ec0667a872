//! The ops: one file or folder each, with everything about it; and the registry that lists them.

mod affine;
pub(crate) mod binary;
mod clamp;
mod compare;
pub(crate) mod copy;
mod create;
pub(crate) mod kernel;
mod lerp;
mod logical;
mod matmul;
mod predicate;
mod reduce;
pub mod registry;
mod rounding;
mod unary;
mod view;
mod where_;

/// The registry, family by family: one line for each file that describes ops.
static ALL: &[&[&registry::OpInfo]] = &[
    affine::INFOS,
    binary::INFOS,
    clamp::INFOS,
    compare::INFOS,
    copy::INFOS,
    create::INFOS,
    logical::INFOS,
    matmul::INFOS,
    predicate::INFOS,
    reduce::INFOS,
    rounding::INFOS,
    unary::INFOS,
    view::INFOS,
    where_::INFOS,
];
