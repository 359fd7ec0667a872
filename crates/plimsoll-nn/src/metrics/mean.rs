//! `Mean`: the mean of all numbers that come by.

use plimsoll_tensor::{DType, Device, Result, Tensor, Variable, at_callers_line};

use crate::losses::weights_like;

/// The mean of all numbers since the last reset, such as losses. Every other metric is one of these.
///
/// The sum and the number of numbers are two f64 on the device.
#[derive(Debug, Default)]
pub struct Mean {
    state: Option<Variable>,
}

impl Mean {
    /// The mean of nothing yet.
    pub fn new() -> Mean {
        Mean::default()
    }

    /// Takes in some numbers; each counts once.
    ///
    /// # Errors
    /// Memory that is full.
    #[track_caller]
    pub fn add(&mut self, values: &Tensor) -> Result<()> {
        let _line = at_callers_line();
        let device = values.device();
        let _there = device.enter();
        let sum = values.stop_gradient().cast(DType::F64)?.sum(..)?;
        let count = Tensor::from(values.n_elems() as f64)?;
        self.add_sums(&sum, &count)
    }

    /// Takes in some numbers, each as often as its weight says; bools say whether it counts at all.
    ///
    /// # Errors
    /// Weights that do not fit; memory that is full.
    #[track_caller]
    pub fn add_weighted(&mut self, values: &Tensor, weights: &Tensor) -> Result<()> {
        let _line = at_callers_line();
        let device = values.device();
        let _there = device.enter();
        let values = values.stop_gradient().cast(DType::F64)?;
        let weights = weights_like("metric", &weights.stop_gradient(), &values)?;
        self.add_sums(&values.mul(&weights)?.sum(..)?, &weights.sum(..)?)
    }

    fn add_sums(&mut self, sum: &Tensor, count: &Tensor) -> Result<()> {
        let both = Tensor::stack(&[sum, count], 0)?;
        self.prepare(&sum.device())?;
        match &self.state {
            Some(state) => state.assign_add(&both.to_device(&state.device())?),
            None => Ok(()),
        }
    }

    /// Makes the two numbers on a device now instead of at the first ones that come by.
    ///
    /// # Errors
    /// Memory that is full.
    pub fn prepare(&mut self, device: &Device) -> Result<()> {
        if self.state.is_none() {
            let _there = device.enter();
            let zeros = Tensor::zeros_of(2, DType::F64)?;
            self.state = Some(Variable::new(zeros).named("metric").trainable(false));
        }
        Ok(())
    }

    /// The mean on its device; nothing before there is one.
    ///
    /// # Errors
    /// Memory that is full.
    pub fn result_on_device(&self) -> Result<Option<Tensor>> {
        let ratio = |state: &Variable| state.get(0)?.div(&state.get(1)?);
        self.state.as_ref().map(ratio).transpose()
    }

    /// The mean; NaN of nothing, or on a ghost.
    pub fn result(&self) -> f64 {
        let state = self.state.as_ref().map(|state| state.value().to_vec::<f64>());
        match state {
            Some(Ok(state)) => state[0] / state[1],
            _ => f64::NAN,
        }
    }

    /// Forgets all numbers.
    pub fn reset(&mut self) {
        let is_reset = self.state.as_ref().is_none_or(|state| {
            let _there = state.device().enter();
            Tensor::zeros_of(2, DType::F64).and_then(|zeros| state.assign(&zeros)).is_ok()
        });
        if !is_reset {
            self.state = None;
        }
    }

    /// The sum and the number of numbers, if there were any.
    pub fn variables(&self) -> Vec<Variable> {
        self.state.iter().cloned().collect()
    }
}
