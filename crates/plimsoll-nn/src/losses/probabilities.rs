//! Predictions that should be probabilities, as Keras treats them.

use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_tensor::{Result, Tensor};

/// How near 0 and 1 a probability may come before its logarithm is taken.
const EPSILON: f64 = 1e-7;

/// How far from one the sum of probabilities may be by rounding, in any dtype.
const TOLERANCE: f64 = 0.02;

/// Looks at the first predictions that come by, and never again.
#[derive(Debug, Default)]
pub(super) struct Look {
    has_looked: AtomicBool,
    /// Whether predictions came by, with values or without: a plan takes the same steps as the run.
    is_over: AtomicBool,
}

impl Clone for Look {
    /// A clone is a loss of its own, and looks for itself.
    fn clone(&self) -> Look {
        Look::default()
    }
}

impl Look {
    /// The logarithms of predictions divided by their sum along the last axis and clipped. If the first ones sum up to
    /// something else than one, they are no probabilities, and the user is told.
    pub fn log(&self, loss: &str, predictions: &Tensor) -> Result<Tensor> {
        let sums = predictions.sum_keepdims(-1)?;
        self.check(loss, &sums)?;
        predictions.div(&sums)?.clamp(EPSILON, 1.0 - EPSILON)?.ln()
    }

    /// Whether there will be no more looking from the next step on.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn check(&self, loss: &str, sums: &Tensor) -> Result<()> {
        self.is_over.store(true, Ordering::Relaxed);
        if sums.is_ghost() || self.has_looked.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        if let Some(sum) = sums.to_f64_vec()?.into_iter().find(|sum| (sum - 1.0).abs() > TOLERANCE) {
            log::warn!(
                "{loss}: predictions that sum up to {sum:.4} are no probabilities; they are divided by their sum and \
                 clipped. If the model gives logits, say `.from_logits(true)`"
            );
        }
        Ok(())
    }
}
