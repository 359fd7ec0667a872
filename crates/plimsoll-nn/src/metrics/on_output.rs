//! Metrics of one output of several, and metrics that look at sample weights.

use plimsoll_tensor::{Device, Error, Nested, Result, Tensor, Variable};

use super::Metric;

/// A metric of one output of several, named or by its place: `OnOutput::new("class", SparseCategoricalAccuracy::new())` is told
/// as `class_sparse_categorical_accuracy`, as Keras has it.
pub struct OnOutput<M> {
    output: String,
    name: String,
    metric: M,
}

impl<M: Metric> OnOutput<M> {
    /// The metric of the output of that name.
    pub fn new(output: impl Into<String>, metric: M) -> OnOutput<M> {
        let output = output.into();
        OnOutput { name: format!("{output}_{}", metric.name()), output, metric }
    }
}

/// A metric in which examples count as their sample weights say: Keras's `weighted_metrics`. Without weights, all count the
/// same.
pub struct Weighted<M>(pub M);

/// What both hand on to the metric that they hold.
macro_rules! hand_on {
    ($($metric:tt)*) => {
        fn update(&mut self, labels: &Tensor, predictions: &Tensor) -> Result<()> {
            self.$($metric)*.update(labels, predictions)
        }

        fn update_weighted(&mut self, labels: &Tensor, predictions: &Tensor, weights: &Tensor) -> Result<()> {
            self.$($metric)*.update_weighted(labels, predictions, weights)
        }

        fn prepare(&mut self, device: &Device) -> Result<()> {
            self.$($metric)*.prepare(device)
        }

        fn result_on_device(&self) -> Result<Option<Tensor>> {
            self.$($metric)*.result_on_device()
        }

        fn result(&self) -> f64 {
            self.$($metric)*.result()
        }

        fn reset(&mut self) {
            self.$($metric)*.reset();
        }

        fn is_pure(&self) -> bool {
            self.$($metric)*.is_pure()
        }

        fn variables(&self) -> Vec<Variable> {
            self.$($metric)*.variables()
        }
    };
}

impl<M: Metric> Metric for OnOutput<M> {
    fn name(&self) -> &str {
        &self.name
    }

    fn update_batch(
        &mut self,
        labels: &Nested<Tensor>,
        predictions: &Nested<Tensor>,
        weights: Option<&Nested<Tensor>>,
    ) -> Result<()> {
        let of_metric = |error| Error::within(format!("metric {}", self.name), error);
        let part = |whole: &Nested<Tensor>| match whole {
            Nested::One(_) => Ok(whole.clone()),
            several => several.get(&self.output).cloned().map_err(of_metric),
        };
        let (labels, predictions) = (part(labels)?, part(predictions)?);
        let weights = weights.map(part).transpose()?;
        self.metric.update_batch(&labels, &predictions, weights.as_ref()).map_err(of_metric)
    }

    fn takes_weights(&self) -> bool {
        self.metric.takes_weights()
    }

    hand_on!(metric);
}

impl<M: Metric> Metric for Weighted<M> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn update_batch(
        &mut self,
        labels: &Nested<Tensor>,
        predictions: &Nested<Tensor>,
        weights: Option<&Nested<Tensor>>,
    ) -> Result<()> {
        self.0.update_batch(labels, predictions, weights)
    }

    fn takes_weights(&self) -> bool {
        true
    }

    hand_on!(0);
}
