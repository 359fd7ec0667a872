//! `tf.keras`: layers, losses, metrics, optimizers and the train loop of `plimsoll::nn`, for Python to put Keras's names on.
//!
//! Descriptions come as a kind and a dictionary of options, which `python/plimsoll/keras` has filled with Keras's defaults, so
//! each is read here once. [`fit`] is the `Trainer`: one call without the GIL. Python runs inside it only where the user hung
//! Python on it (a callback, an iterable of batches, a loss or layer of one's own), and what is raised there comes out as it is.

mod batches;
mod descriptions;
mod fit;
mod initializers;
mod losses;
mod metrics;
mod model;
mod nested;
mod observer;
mod optimizers;
mod options;
mod plan;
mod python_layer;
mod raised;
#[cfg(debug_assertions)]
mod twin;

use pyo3::prelude::*;

/// Adds what Python calls, as the module `_core.keras`.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let keras = PyModule::new(module.py(), "keras")?;
    batches::add_to(&keras)?;
    descriptions::add_to(&keras)?;
    fit::add_to(&keras)?;
    initializers::add_to(&keras)?;
    losses::add_to(&keras)?;
    metrics::add_to(&keras)?;
    model::add_to(&keras)?;
    optimizers::add_to(&keras)?;
    plan::add_to(&keras)?;
    #[cfg(debug_assertions)]
    twin::add_to(&keras)?;
    module.add_submodule(&keras)
}
