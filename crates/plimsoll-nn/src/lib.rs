//! Layers, losses, optimizers, metrics and mixed precision; one per file.
//!
//! A [`Layer`] is a description, plain data: `Dense::new(10)`. Building it for the shape of one example makes its
//! variables and gives a [`Model`], which is a function with variables. A model of any size is made so, and one's own
//! layers are no different from those here: variables are found, and named by path, while a layer is being built.
//!
//! Warnings go to the `log` facade, once each; the program decides whether and how they are shown.

#![forbid(unsafe_code)]

mod added_losses;
mod buffers;
mod build;
pub mod checkpoint;
mod deferred;
mod filter;
pub mod initializer;
pub mod layer;
pub mod layers;
pub mod losses;
pub mod metrics;
mod model;
pub mod optimizers;
mod placement;
pub mod plan;
mod policy;
mod prediction;
pub mod regularizers;
mod shapes;
mod shards;
mod summary;
pub mod train;

pub use added_losses::add_loss;
pub use buffers::update_buffer;
pub use filter::VariableFilter;
pub use initializer::Initializer;
pub use layer::{BuiltLayer, Layer, With, adopt_variable, buffer, variable};
pub use losses::{Loss, LossContext};
pub use metrics::Metric;
pub use model::{Mode, Model};
pub use optimizers::{Optimizer, OptimizerConfig};
pub use policy::{Policy, current_policy, enter_policy, set_policy, with_policy};
pub use prediction::Prediction;
pub use shapes::IntoShapes;
pub use shards::with_strategy;
pub use summary::{Summary, SummaryRow};
pub use train::Trainer;
