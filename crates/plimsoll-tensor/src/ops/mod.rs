//! The ops: one file or folder each, with everything about it; and the registry that lists them.

mod affine;
pub(crate) mod binary;
mod compare;
mod concat;
pub(crate) mod copy;
mod create;
mod index;
pub(crate) mod kernel;
mod masked_fill;
mod matmul;
pub(crate) mod pool;
mod reduce;
pub mod registry;
pub(crate) mod slice;
mod triangle;
mod unary;
mod view;

/// The registry, family by family: one line for each file that describes ops.
static ALL: &[&[&registry::OpInfo]] = &[
    affine::INFOS,
    binary::INFOS,
    compare::INFOS,
    concat::INFOS,
    copy::INFOS,
    create::INFOS,
    index::INFOS,
    masked_fill::INFOS,
    matmul::INFOS,
    pool::INFOS,
    reduce::INFOS,
    slice::INFOS,
    triangle::INFOS,
    unary::INFOS,
    view::INFOS,
];
