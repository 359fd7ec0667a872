//! What a run tells about itself while it goes on: plain numbers, for logs, progress bars and programs.

use std::fmt;

use plimsoll_tensor::Device;

/// An optimizer step has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct StepEvent {
    /// The number of the step, from one, over the whole run.
    pub step: u64,
    /// The number of the epoch, from one.
    pub epoch: u64,
    /// The number of the batch in its epoch, from one.
    pub batch: u64,
    /// The batches of an epoch, if that is known.
    pub n_batches: Option<u64>,
    /// The examples of the batch.
    pub n_examples: u64,
    /// The mean loss of the batch, before the step.
    pub loss: f64,
    /// The learning rate of the step.
    pub learning_rate: f64,
    /// What the loss is multiplied by in the next step; one without loss scaling.
    pub loss_scale: f64,
    /// The variable whose gradient overflowed, if the step was skipped for that.
    pub skipped: Option<String>,
    /// The training metrics of the epoch so far, by name.
    pub metrics: Vec<(String, f64)>,
    /// Milliseconds from the end of the step before, waiting for data included.
    pub ms: f64,
    /// The memory of the device after the step.
    pub memory: MemoryUse,
}

impl StepEvent {
    /// Examples per second.
    pub fn speed(&self) -> f64 {
        self.n_examples as f64 / (self.ms / 1e3).max(1e-9)
    }
}

/// The bytes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes in use now.
    pub in_use: u64,
    /// The most that was in use since the start.
    pub peak: u64,
    /// The most that was committed since the start.
    pub committed: u64,
    /// The limit on what may be committed.
    pub limit: Option<u64>,
}

impl MemoryUse {
    /// The bytes of a device as they are now.
    pub fn of(device: &Device) -> MemoryUse {
        let stats = device.stats();
        MemoryUse {
            in_use: stats.in_use,
            peak: stats.peak_in_use,
            committed: stats.peak_committed,
            limit: stats.limit,
        }
    }
}

/// An epoch has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct EpochEvent {
    /// The number of the epoch, from one.
    pub epoch: u64,
    /// The steps of the whole run so far.
    pub step: u64,
    /// The mean of the losses of its steps.
    pub loss: f64,
    /// The training metrics of its steps, by name.
    pub metrics: Vec<(String, f64)>,
    /// The model on the data that it is not trained on, if there are such data.
    pub held_out: Option<Evaluation>,
}

impl EpochEvent {
    /// A number of the epoch by name, as Keras calls them: `loss` and the training metrics, and with `val_` before it what
    /// the held-out data say.
    pub fn value(&self, name: &str) -> Option<f64> {
        match (name, name.strip_prefix("val_")) {
            ("loss", _) => Some(self.loss),
            ("val_loss", _) => self.held_out.as_ref().map(|held_out| held_out.loss),
            (_, Some(metric)) => self.held_out.as_ref()?.metric(metric),
            (name, None) => self.metrics.iter().find(|(known, _)| known == name).map(|(_, value)| *value),
        }
    }

    /// The names of all its numbers.
    pub fn names(&self) -> Vec<String> {
        let trained = self.metrics.iter().map(|(name, _)| name.clone());
        let held_out = self.held_out.iter().flat_map(|held_out| &held_out.metrics);
        let of_loss = self.held_out.iter().map(|_| "val_loss".to_owned());
        let held_out = of_loss.chain(held_out.map(|(name, _)| format!("val_{name}")));
        std::iter::once("loss".to_owned()).chain(trained).chain(held_out).collect()
    }
}

/// How good a model is on some data.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// The mean loss of the examples.
    pub loss: f64,
    /// The metrics by name.
    pub metrics: Vec<(String, f64)>,
}

impl Evaluation {
    /// A metric by its name.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }
}

impl fmt::Display for StepEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StepEvent { step, epoch, batch, loss, ms, .. } = self;
        write!(f, "step {step} (epoch {epoch}, batch {batch}): loss {loss:.4}, {ms:.1} ms")?;
        match &self.skipped {
            Some(variable) => write!(f, ", skipped: the gradient of {variable} overflowed"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for EpochEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}: loss {:.4}", self.epoch, self.loss)?;
        self.metrics.iter().try_for_each(|(name, value)| write!(f, ", {name} {value:.4}"))?;
        match &self.held_out {
            Some(held_out) => write!(f, ", held out: {held_out}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "loss {:.4}", self.loss)?;
        self.metrics.iter().try_for_each(|(name, value)| write!(f, ", {name} {value:.4}"))
    }
}
