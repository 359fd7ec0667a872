//! Mean errors, as metrics.

use plimsoll_tensor::Tensor;

use super::averaged;
use crate::losses::{self, Loss};

averaged! {
    /// The mean of the squared differences of labels and predictions.
    MeanSquaredError, "mean_squared_error", |labels: &Tensor, predictions: &Tensor| {
        losses::MeanSquaredError.losses(labels, predictions)
    }
}

averaged! {
    /// The mean of the magnitudes of the differences of labels and predictions.
    MeanAbsoluteError, "mean_absolute_error", |labels: &Tensor, predictions: &Tensor| {
        losses::MeanAbsoluteError.losses(labels, predictions)
    }
}
