//! Precision and recall: how many of those that were said to be positive are, and how many of the positive ones were said.

use plimsoll_tensor::{DType, Device, Result, Tensor, Variable, at_callers_line};

use super::{Mean, Metric, check_same_shape};
use crate::losses::weights_like;

/// What a label and a prediction say of each place, as ones and zeros.
struct Said {
    is_positive: Tensor,
    is_said: Tensor,
}

impl Said {
    fn new(metric: &'static str, labels: &Tensor, predictions: &Tensor, threshold: f64) -> Result<Said> {
        check_same_shape(metric, labels, predictions)?;
        Ok(Said {
            is_positive: labels.stop_gradient().cast(DType::F32)?.ne(0.0)?.cast(DType::F32)?,
            is_said: predictions.stop_gradient().gt(threshold)?.cast(DType::F32)?,
        })
    }
}

/// A ratio of two sums over places is the mean of one number, weighted by the other: of nothing it is zero, as in Keras.
macro_rules! ratios {
    ($($(#[$doc:meta])* $name:ident, $text:literal, $of:ident weighted by $by:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            threshold: f64,
            mean: Mean,
        }

        impl $name {
            /// A prediction above the threshold is said to be positive: 0.5 for probabilities, 0 for logits.
            pub fn new(threshold: f64) -> $name {
                $name { threshold, mean: Mean::new() }
            }
        }

        impl Metric for $name {
            fn name(&self) -> &str {
                $text
            }

            #[track_caller]
            fn update(&mut self, labels: &Tensor, predictions: &Tensor) -> Result<()> {
                let _line = at_callers_line();
                let said = Said::new($text, labels, predictions, self.threshold)?;
                self.mean.add_weighted(&said.$of, &said.$by)
            }

            #[track_caller]
            fn update_weighted(&mut self, labels: &Tensor, predictions: &Tensor, weights: &Tensor) -> Result<()> {
                let _line = at_callers_line();
                let said = Said::new($text, labels, predictions, self.threshold)?;
                let weights = weights_like($text, &weights.stop_gradient(), &said.$by)?;
                self.mean.add_weighted(&said.$of, &said.$by.mul(&weights)?)
            }

            fn prepare(&mut self, device: &Device) -> Result<()> {
                self.mean.prepare(device)
            }

            fn result_on_device(&self) -> Result<Option<Tensor>> {
                let Some(ratio) = self.mean.result_on_device()? else { return Ok(None) };
                Ok(Some(ratio.masked_fill(&ratio.is_nan()?, 0.0)?))
            }

            fn result(&self) -> f64 {
                let ratio = self.mean.result();
                let is_of_nothing = self.mean.variables().iter().all(|state| !state.is_ghost());
                if ratio.is_nan() && is_of_nothing { 0.0 } else { ratio }
            }

            fn reset(&mut self) {
                self.mean.reset();
            }

            fn is_pure(&self) -> bool {
                true
            }

            fn variables(&self) -> Vec<Variable> {
                self.mean.variables()
            }
        }
    )*};
}

ratios! {
    /// How many of the places that are said to be positive are so.
    Precision, "precision", is_positive weighted by is_said;
    /// How many of the positive places are said to be so.
    Recall, "recall", is_said weighted by is_positive;
}
