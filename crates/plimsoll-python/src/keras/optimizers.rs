//! Optimizers: Keras's object, which a run takes for as long as it lasts and gives back.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll::nn::optimizers::{
    self, Adafactor, Adagrad, Adam, AdamW, LossScale, OptimizerConfig, RMSprop, SGD, Schedule,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::options::Options;
use super::raised;
use crate::errors;
use crate::tensor::{Tensor, Value, Variable};

/// How an optimizer is described: any number of them can be made of it.
#[derive(Clone)]
struct Config {
    algorithm: Arc<dyn OptimizerConfig + Send + Sync>,
    schedule: Option<Schedule>,
    clip_value: Option<f64>,
    clip_norm: Option<f64>,
    loss_scale: Option<f64>,
}

impl Config {
    fn build(&self) -> optimizers::Optimizer {
        let mut optimizer = self.algorithm.build();
        if let Some(schedule) = &self.schedule {
            optimizer = optimizer.schedule(schedule.clone());
        }
        if let Some(greatest) = self.clip_value {
            optimizer = optimizer.clip_value(greatest);
        }
        if let Some(greatest) = self.clip_norm {
            optimizer = optimizer.clip_norm(greatest);
        }
        if let Some(initial) = self.loss_scale {
            optimizer = optimizer.loss_scale(LossScale::new().initial(initial));
        }
        optimizer
    }
}

/// An optimizer with what it keeps for variables.
#[pyclass(frozen, module = "plimsoll._core")]
pub struct Optimizer {
    config: Config,
    state: Mutex<State>,
}

/// Where the optimizer is.
struct State {
    /// None while a run has it.
    here: Option<optimizers::Optimizer>,
    /// The learning rate that the run told last,
    rate: f64,
    /// and the one that somebody has set meanwhile.
    wanted: Option<f64>,
}

impl Optimizer {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the optimizer for a run.
    pub fn take(&self) -> PyResult<optimizers::Optimizer> {
        self.lock().here.take().ok_or_else(in_use)
    }

    /// Gives it back.
    pub fn give_back(&self, optimizer: optimizers::Optimizer) {
        let mut state = self.lock();
        state.here = Some(optimizer);
        state.wanted = None;
    }

    /// An optimizer of its description that has not seen any variables.
    pub fn fresh(&self) -> optimizers::Optimizer {
        self.config.build()
    }

    /// Tells the rate of the last step of the run that has it.
    pub fn tell_rate(&self, rate: f64) {
        self.lock().rate = rate;
    }

    /// The rate that somebody has set while a run had the optimizer.
    pub fn wanted_rate(&self) -> Option<f64> {
        self.lock().wanted.take()
    }

    fn with<R: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut optimizers::Optimizer) -> plimsoll::Result<R> + Send,
    ) -> PyResult<R> {
        // It is out of the lock while it works: Python may run meanwhile.
        let mut optimizer = self.take()?;
        let done = raised::call(py, || f(&mut optimizer));
        self.lock().here = Some(optimizer);
        done
    }
}

fn in_use() -> PyErr {
    PyRuntimeError::new_err(
        "the optimizer is at work in a call of fit; it can be used when that has returned",
    )
}

#[pymethods]
impl Optimizer {
    /// The optimizer of that name of Keras's.
    #[new]
    fn new(py: Python<'_>, kind: &str, options: Bound<'_, PyDict>) -> PyResult<Optimizer> {
        let options = Options(options);
        let rate: f64 = options.get("learning_rate")?;
        let config = Config {
            algorithm: algorithm(kind, rate, &options)?,
            schedule: schedule(py, &options)?,
            clip_value: options.get("clipvalue")?,
            clip_norm: options.get("global_clipnorm")?,
            loss_scale: options.get("loss_scale")?,
        };
        let state = State { here: Some(config.build()), rate, wanted: None };
        Ok(Optimizer { config, state: Mutex::new(state) })
    }

    /// Updates variables from their gradients, one each.
    fn apply_gradients(
        &self,
        py: Python<'_>,
        gradients: Vec<Value>,
        variables: Vec<PyRef<'_, Variable>>,
    ) -> PyResult<()> {
        let variables: Vec<plimsoll::Variable> =
            variables.iter().map(|variable| variable.0.clone()).collect();
        self.with(py, |optimizer| {
            let gradients = gradients.iter().map(|value| plimsoll::Tensor::clone(value)).collect();
            optimizer.apply_gradients(gradients, &variables)
        })
    }

    /// Makes what is kept for variables now instead of at the first update.
    fn prepare(&self, py: Python<'_>, variables: Vec<PyRef<'_, Variable>>) -> PyResult<()> {
        let variables: Vec<plimsoll::Variable> =
            variables.iter().map(|variable| variable.0.clone()).collect();
        self.with(py, |optimizer| optimizer.prepare(&variables))
    }

    /// A loss times the present loss scale; the loss itself without one.
    fn scale_loss(&self, py: Python<'_>, loss: Value) -> PyResult<Tensor> {
        self.with(py, |optimizer| optimizer.scale_loss(&loss)).map(Tensor)
    }

    /// The learning rate.
    #[getter]
    fn learning_rate(&self, py: Python<'_>) -> PyResult<f64> {
        let state = self.lock();
        match &state.here {
            Some(optimizer) => optimizer.learning_rate().map_err(|error| errors::exception(py, &error)),
            None => Ok(state.wanted.unwrap_or(state.rate)),
        }
    }

    #[setter]
    fn set_learning_rate(&self, py: Python<'_>, rate: f64) -> PyResult<()> {
        let mut state = self.lock();
        state.rate = rate;
        match &mut state.here {
            Some(optimizer) => {
                optimizer.set_learning_rate(rate).map_err(|error| errors::exception(py, &error))
            }
            None => {
                state.wanted = Some(rate);
                Ok(())
            }
        }
    }

    /// How many steps it has made.
    #[getter]
    fn iterations(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |optimizer| optimizer.steps())
    }

    /// What it keeps, by name.
    fn variables(&self, py: Python<'_>) -> PyResult<Vec<Variable>> {
        let variables = self.with(py, |optimizer| Ok(optimizer.variables()))?;
        Ok(variables.into_iter().map(Variable).collect())
    }
}

fn algorithm(
    kind: &str,
    rate: f64,
    options: &Options<'_>,
) -> PyResult<Arc<dyn OptimizerConfig + Send + Sync>> {
    let number = |name: &str| options.get::<f64>(name);
    let decay = options.get::<Option<f64>>("weight_decay")?;
    // Keras's weight decay is apart from the gradients in all optimizers, which is AdamW's.
    if decay.is_some_and(|decay| decay != 0.0) && !matches!(kind, "adam" | "adamw") {
        return Err(PyValueError::new_err(format!(
            "weight_decay of {kind}: decay apart from the gradients is AdamW's here; use it, or a kernel_regularizer"
        )));
    }
    let adamw = |decay: f64| {
        let adam = AdamW::new(rate).epsilon_hat(true).beta_1(number("beta_1")?).beta_2(number("beta_2")?);
        let adam = adam.epsilon(number("epsilon")?).amsgrad(options.get("amsgrad")?);
        Ok::<_, PyErr>(Arc::new(adam.weight_decay(decay)))
    };
    Ok(match (kind, decay) {
        ("adam" | "adamw", Some(decay)) => adamw(decay)?,
        ("adamw", None) => adamw(0.0)?,
        ("adam", None) => {
            let adam = Adam::new(rate).epsilon_hat(true).beta_1(number("beta_1")?).beta_2(number("beta_2")?);
            Arc::new(adam.epsilon(number("epsilon")?).amsgrad(options.get("amsgrad")?))
        }
        ("sgd", _) => {
            Arc::new(SGD::new(rate).momentum(number("momentum")?).nesterov(options.get("nesterov")?))
        }
        ("rmsprop", _) => {
            let rmsprop = RMSprop::new(rate).rho(number("rho")?).momentum(number("momentum")?);
            Arc::new(rmsprop.epsilon(number("epsilon")?).centered(options.get("centered")?))
        }
        ("adagrad", _) => {
            let adagrad = Adagrad::new(rate).epsilon(number("epsilon")?);
            Arc::new(adagrad.initial_accumulator_value(number("initial_accumulator_value")?))
        }
        ("adafactor", _) => Arc::new(Adafactor::new(rate)),
        _ => return Err(PyValueError::new_err(format!("there is no optimizer {kind:?}"))),
    })
}

/// The schedule of the learning rate, if it has one: (kind, numbers).
fn schedule(py: Python<'_>, options: &Options<'_>) -> PyResult<Option<Schedule>> {
    let Some((kind, numbers)) = options.get::<Option<(String, Vec<f64>)>>("schedule")? else {
        return Ok(None);
    };
    let made = match (kind.as_str(), &*numbers) {
        ("exponential_decay", &[initial, decay, every]) => {
            Schedule::exponential_decay(initial, decay, every as u64)
        }
        ("staircase", &[initial, decay, every]) => Schedule::steps(initial, decay, every as u64),
        ("polynomial_decay", &[initial, last, steps, power]) => {
            Schedule::polynomial_decay(initial, last, steps as u64, power)
        }
        ("cosine_decay", &[initial, last, steps]) => Schedule::cosine_decay(initial, last, steps as u64),
        ("piecewise_constant_decay", numbers) if numbers.len() % 2 == 1 => {
            let (boundaries, values) = numbers.split_at(numbers.len() / 2);
            let boundaries: Vec<u64> = boundaries.iter().map(|&step| step as u64).collect();
            Schedule::piecewise_constant_decay(&boundaries, values)
        }
        _ => return Err(PyValueError::new_err(format!("there is no schedule {kind} of {numbers:?}"))),
    };
    made.map(Some).map_err(|error| errors::exception(py, &error))
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Optimizer>()
}
