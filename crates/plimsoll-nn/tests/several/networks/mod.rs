//! Networks of several tensors, each as a user would write it: data, model, loss, optimizer.

use std::sync::Arc;

use plimsoll_data::Dataset;
use plimsoll_nn::losses::Loss;
use plimsoll_nn::{Model, Optimizer};
use plimsoll_tensor::Result;

mod fine_tune;
mod multi_task;
mod picture_text;
mod siamese;
mod translate;

/// A network, and what is done with it between its first epoch and its second.
pub struct Network {
    pub name: &'static str,
    pub source: &'static str,
    pub data: fn() -> Result<Dataset>,
    pub model: fn() -> Result<Model>,
    pub loss: fn() -> Arc<dyn Loss>,
    pub optimizer: fn() -> Optimizer,
    pub between: fn(&Model) -> Result<()>,
}

macro_rules! network {
    ($module:ident, $between:expr) => {
        Network {
            name: stringify!($module),
            source: include_str!(concat!(stringify!($module), ".rs")),
            data: $module::data,
            model: $module::model,
            loss: || Arc::new($module::loss()),
            optimizer: $module::optimizer,
            between: $between,
        }
    };
}

/// All of them.
pub const ALL: [Network; 5] = [
    network!(picture_text, |_| Ok(())),
    network!(siamese, |_| Ok(())),
    network!(translate, |_| Ok(())),
    network!(multi_task, |_| Ok(())),
    network!(fine_tune, fine_tune::unfreeze),
];
