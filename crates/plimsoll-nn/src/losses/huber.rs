//! `Huber`: squares of small differences, magnitudes of large ones.

use plimsoll_tensor::{Error, Result, Tensor};

use super::{Loss, dense_labels, per_example};

/// The mean over the last axis of `d² / 2` for differences up to `delta`, and of `delta (|d| - delta / 2)` beyond.
#[doc(alias("HuberLoss", "SmoothL1Loss"))]
#[derive(Clone, Copy, Debug)]
pub struct Huber {
    delta: f64,
}

impl Huber {
    /// The loss that changes over at `delta`; Keras's and PyTorch's default is 1.
    pub fn new(delta: f64) -> Huber {
        Huber { delta }
    }
}

impl Loss for Huber {
    fn name(&self) -> &str {
        "huber"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn losses(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
        if self.delta.is_nan() || self.delta <= 0.0 {
            return Err(Error::argument(
                "huber",
                format!("a delta of {}; it must be above zero", self.delta),
            ));
        }
        let (labels, predictions) = dense_labels("huber", labels, predictions)?;
        let distance = predictions.sub(&labels)?.abs()?;
        let quadratic = distance.clamp(0.0, self.delta)?;
        // q (d - q / 2): with q = d it is d² / 2, with q = delta the straight line.
        per_example(&quadratic.mul(&distance.sub(&quadratic.affine(0.5, 0.0)?)?)?)
    }
}
