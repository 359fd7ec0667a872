//! Shapes, dtypes, layouts, axes, errors and labels: what everything else is made of. No tensor, no device, no memory.

pub(crate) mod axes;
pub(crate) mod dtype;
pub(crate) mod error;
pub(crate) mod labels;
pub(crate) mod layout;
pub(crate) mod reshape;
pub mod scopes;
pub(crate) mod shape;
pub(crate) mod text;
