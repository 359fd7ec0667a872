//! `AUC`: the area under a curve of how predictions tell positive examples from negative ones, whatever the threshold.

use plimsoll_tensor::{DType, Device, Error, Result, Tensor, Variable, at_callers_line};

use super::{Metric, check_same_shape};
use crate::losses::weights_like;

/// What is drawn against what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// The share of the positive ones that are found, over the share of the negative ones that are taken for such.
    Roc,
    /// Precision over recall.
    PrecisionRecall,
}

/// The area under a curve, from counts at thresholds that lie evenly between 0 and 1, as in Keras: 200 of them unless another number
/// is asked for. Between two of them the curve is a line, for precision and recall the one that
/// is right for counts between (Davis and Goadrich 2006).
///
/// A batch takes `8 * thresholds` bytes for each prediction while it is counted.
#[derive(Debug)]
pub struct AUC {
    curve: Curve,
    n_thresholds: usize,
    /// The positive ones above each threshold, and the negative ones; above the first are all.
    counts: Option<Variable>,
}

const NAME: &str = "auc";

impl AUC {
    /// The area under a curve at 200 thresholds.
    pub fn new(curve: Curve) -> AUC {
        AUC { curve, n_thresholds: 200, counts: None }
    }

    /// At another number of thresholds.
    ///
    /// # Errors
    /// Fewer than two.
    pub fn thresholds(self, n_thresholds: usize) -> Result<AUC> {
        match n_thresholds {
            2.. => Ok(AUC { n_thresholds, ..self }),
            _ => Err(Error::argument(
                NAME,
                format!("{n_thresholds} thresholds; a curve has two ends at least"),
            )),
        }
    }

    fn zeros(&self) -> Result<Tensor> {
        Tensor::zeros_of([2, self.n_thresholds], DType::F64)
    }

    fn count(&mut self, labels: &Tensor, predictions: &Tensor, weights: Option<&Tensor>) -> Result<()> {
        check_same_shape(NAME, labels, predictions)?;
        let device = predictions.device();
        let _there = device.enter();
        let predictions = predictions.stop_gradient().cast(DType::F64)?;
        let n = predictions.n_elems();
        let positive = labels.stop_gradient().cast(DType::F64)?.ne(0.0)?.cast(DType::F64)?;
        let mut both = Tensor::stack(&[&positive, &positive.mul(-1.0)?.add(1.0)?], 0)?.reshape([2, n])?;
        if let Some(weights) = weights {
            let weights = weights_like(NAME, &weights.stop_gradient(), &positive)?;
            both = both.mul(&weights.reshape([1, n])?)?;
        }
        let last = (self.n_thresholds - 1) as f64;
        let threshold = |idx: usize| match idx {
            0 => f64::NEG_INFINITY,
            _ if idx + 1 == self.n_thresholds => f64::INFINITY,
            _ => idx as f64 / last,
        };
        let thresholds: Vec<f64> = (0..self.n_thresholds).map(threshold).collect();
        let thresholds = Tensor::from_slice(&thresholds, [1, self.n_thresholds])?;
        let is_above = predictions.reshape([n, 1])?.gt(&thresholds)?.cast(DType::F64)?;
        let counts = both.matmul(&is_above)?;
        self.prepare(&device)?;
        match &self.counts {
            Some(state) => state.assign_add(&counts.to_device(&state.device())?),
            None => Ok(()),
        }
    }

    fn area(&self, counts: &Tensor) -> Result<Tensor> {
        let (found, taken) = (Ends::of(&counts.get(0)?)?, Ends::of(&counts.get(1)?)?);
        match self.curve {
            Curve::Roc => {
                let width = ratio(&taken.first.sub(&taken.second)?, &taken.all)?;
                let heights = ratio(&found.first.add(&found.second)?, &found.all.mul(2.0)?)?;
                width.mul(&heights)?.sum(..)
            }
            Curve::PrecisionRecall => {
                let (said, said_after) = (found.first.add(&taken.first)?, found.second.add(&taken.second)?);
                let gained = found.first.sub(&found.second)?;
                let slope = ratio(&gained, &said.sub(&said_after)?.relu()?)?;
                let start = found.second.sub(&slope.mul(&said_after)?)?;
                // Where nothing is said to be positive, the curve goes on as it is: a logarithm of one.
                let growth = ratio(&said, &said_after)?;
                let growth = growth.masked_fill(&growth.le(0.0)?, 1.0)?;
                let area = slope.mul(&gained.add(&start.mul(&growth.ln()?)?)?)?;
                ratio(&area, &found.all)?.sum(..)
            }
        }
    }
}

/// Counts at the two ends of each line of a curve, and of all.
struct Ends {
    first: Tensor,
    second: Tensor,
    all: Tensor,
}

impl Ends {
    fn of(counts: &Tensor) -> Result<Ends> {
        let n_lines = counts.n_elems() - 1;
        let part = |start| counts.narrow(0, start, n_lines);
        Ok(Ends { first: part(0)?, second: part(1)?, all: counts.narrow(0, 0, 1)? })
    }
}

/// A quotient that is zero where it is of nothing.
fn ratio(part: &Tensor, whole: &Tensor) -> Result<Tensor> {
    let quotient = part.div(whole)?;
    let is_of_nothing = whole.eq(0.0)?.broadcast_to(*quotient.shape())?;
    quotient.masked_fill(&is_of_nothing, 0.0)
}

impl Metric for AUC {
    fn name(&self) -> &str {
        NAME
    }

    #[track_caller]
    fn update(&mut self, labels: &Tensor, predictions: &Tensor) -> Result<()> {
        let _line = at_callers_line();
        self.count(labels, predictions, None)
    }

    #[track_caller]
    fn update_weighted(&mut self, labels: &Tensor, predictions: &Tensor, weights: &Tensor) -> Result<()> {
        let _line = at_callers_line();
        self.count(labels, predictions, Some(weights))
    }

    fn prepare(&mut self, device: &Device) -> Result<()> {
        if self.counts.is_none() {
            let _there = device.enter();
            self.counts = Some(Variable::new(self.zeros()?).named("metric").trainable(false));
        }
        Ok(())
    }

    fn result_on_device(&self) -> Result<Option<Tensor>> {
        self.counts.as_ref().map(|counts| self.area(&counts.value())).transpose()
    }

    fn result(&self) -> f64 {
        match &self.counts {
            None => 0.0,
            Some(counts) => {
                self.area(&counts.value()).and_then(|area| area.item::<f64>()).unwrap_or(f64::NAN)
            }
        }
    }

    fn reset(&mut self) {
        let is_reset = self.counts.as_ref().is_none_or(|counts| {
            let _there = counts.device().enter();
            self.zeros().and_then(|zeros| counts.assign(&zeros)).is_ok()
        });
        if !is_reset {
            self.counts = None;
        }
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn variables(&self) -> Vec<Variable> {
        self.counts.iter().cloned().collect()
    }
}
