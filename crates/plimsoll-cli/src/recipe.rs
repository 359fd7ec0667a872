//! A recipe: a model, its data, its loss, its optimizer and good defaults, as a value.
//!
//! Whatever can be trained, planned or measured by the program is a recipe, and the shipped ones are made no other way
//! than a person's own. A recipe makes nothing until it is asked to, so that a list of them costs nothing.

use std::fmt;
use std::panic::Location;
use std::path::Path;
use std::sync::Arc;

use plimsoll::nn::losses::Loss;
use plimsoll::nn::optimizers::{Adam, Optimizer, OptimizerConfig};
use plimsoll::nn::{Layer, Model, Policy};
use plimsoll::{Result, at_line};

use crate::data::{Data, Feature};
use crate::failure::Failure;
use crate::options::DataOption;

/// How long a run is by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// So many times through the data.
    Epochs(u64),
    /// So many optimizer steps.
    Steps(u64),
}

/// A model, its data, its loss, its optimizer and good defaults.
///
/// ```
/// use plimsoll::nn::{layers::Dense, losses::MeanSquaredError};
/// use plimsoll_cli::{Feature, Recipe};
///
/// let recipe = Recipe::new("line", Dense::new(1), Feature::floats([2]), Feature::floats([1]), MeanSquaredError)
///     .about("a straight line through random points")
///     .batch(16)
///     .steps(100);
/// assert_eq!(recipe.name(), "line");
/// ```
pub struct Recipe {
    name: String,
    about: String,
    model: Box<dyn Fn() -> Result<Model>>,
    inputs: Feature,
    labels: Feature,
    loss: Arc<dyn Loss>,
    data: Source,
    optimizer: Box<Choice>,
    batch: usize,
    length: Length,
    precision: Policy,
}

/// Where a recipe's data come from.
enum Source {
    /// There are none.
    Random,
    /// They are always the same.
    Shipped(Box<dyn Fn() -> Result<Data>>),
    /// From a path that the user names, or without one.
    Files(Box<FromFiles>),
}

/// Reads data from a path that the user names, or from the usual place.
type FromFiles = dyn Fn(Option<&Path>) -> Result<Data>;

/// Makes a recipe's optimizer for a run of so many steps.
type Choice = dyn Fn(u64) -> Result<Optimizer>;

impl Recipe {
    /// A recipe that trains on random examples with Adam, for 100 steps of 32, until told otherwise. Its model counts as
    /// described here.
    #[track_caller]
    pub fn new(
        name: impl Into<String>,
        model: impl Layer + 'static,
        inputs: Feature,
        labels: Feature,
        loss: impl Loss + 'static,
    ) -> Recipe {
        let (shape, here) = (inputs.shape().to_vec(), Location::caller());
        Recipe {
            name: name.into(),
            about: String::new(),
            model: Box::new(move || at_line(here.file(), here.line(), || model.build(shape.as_slice()))),
            inputs,
            labels,
            loss: Arc::new(loss),
            data: Source::Random,
            optimizer: Box::new(|_| Ok(Adam::new(1e-3).build())),
            batch: 32,
            length: Length::Steps(100),
            precision: Policy::Float32,
        }
    }

    /// This recipe with a line about it for the list.
    pub fn about(self, about: impl Into<String>) -> Recipe {
        Recipe { about: about.into(), ..self }
    }

    /// This recipe with data of its own, and no others.
    pub fn shipped(self, data: impl Fn() -> Result<Data> + 'static) -> Recipe {
        Recipe { data: Source::Shipped(Box::new(data)), ..self }
    }

    /// This recipe with data from files: `data` gets the path of `--data`, or nothing.
    pub fn files(self, data: impl Fn(Option<&Path>) -> Result<Data> + 'static) -> Recipe {
        Recipe { data: Source::Files(Box::new(data)), ..self }
    }

    /// This recipe with another optimizer.
    pub fn optimizer(self, method: impl OptimizerConfig + 'static) -> Recipe {
        self.optimizer_with(move |_| Ok(method.build()))
    }

    /// This recipe with an optimizer that is made for the number of steps that the run will have, such as one whose
    /// learning rate follows a schedule.
    pub fn optimizer_with(self, make: impl Fn(u64) -> Result<Optimizer> + 'static) -> Recipe {
        Recipe { optimizer: Box::new(make), ..self }
    }

    /// This recipe with so many examples in an optimizer step.
    pub fn batch(self, batch: usize) -> Recipe {
        Recipe { batch, ..self }
    }

    /// This recipe going so many times through its data.
    pub fn epochs(self, epochs: u64) -> Recipe {
        Recipe { length: Length::Epochs(epochs), ..self }
    }

    /// This recipe with so many optimizer steps.
    pub fn steps(self, steps: u64) -> Recipe {
        Recipe { length: Length::Steps(steps), ..self }
    }

    /// This recipe under another policy than float32.
    pub fn precision(self, precision: Policy) -> Recipe {
        Recipe { precision, ..self }
    }

    /// The name on the command line.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The line about it.
    pub fn description(&self) -> &str {
        &self.about
    }

    /// The model, with fresh weights, on the current device and under the current policy.
    ///
    /// # Errors
    /// Memory that is full; a model that does not fit its inputs.
    pub fn model(&self) -> Result<Model> {
        (self.model)()
    }

    /// What is minimised.
    pub fn loss(&self) -> Arc<dyn Loss> {
        self.loss.clone()
    }

    /// An optimizer for a run of so many steps.
    ///
    /// # Errors
    /// A schedule that does not fit the number of steps.
    pub fn make_optimizer(&self, steps: u64) -> Result<Optimizer> {
        (self.optimizer)(steps)
    }

    /// The examples that `--data` asks for.
    ///
    /// # Errors
    /// A path for a recipe that takes none; files that are missing, damaged or of another shape; memory that is full.
    pub(crate) fn examples(&self, asked: Option<&DataOption>, batch: usize) -> Result<Data, Failure> {
        let path = match asked {
            Some(DataOption::Random) => return Ok(self.random_data(batch)?),
            Some(DataOption::Path(path)) => Some(path.as_path()),
            None => None,
        };
        match (&self.data, path) {
            (Source::Files(data), path) => Ok(data(path)?),
            (Source::Shipped(data), None) => Ok(data()?),
            (Source::Random, None) => Ok(self.random_data(batch)?),
            (Source::Shipped(_) | Source::Random, Some(path)) => Err(Failure::options(format!(
                "--data: the recipe {} takes no files ({}); leave the option out, or write `random`",
                self.name,
                path.display()
            ))),
        }
    }

    /// Random examples for a few steps of that batch.
    fn random_data(&self, batch: usize) -> Result<Data> {
        Data::random(&self.inputs, &self.labels, batch.saturating_mul(RANDOM_BATCHES))
    }

    /// What the inputs look like.
    pub fn inputs(&self) -> &Feature {
        &self.inputs
    }

    /// What the labels look like.
    pub fn labels(&self) -> &Feature {
        &self.labels
    }

    /// Examples of an optimizer step, by default.
    pub fn default_batch(&self) -> usize {
        self.batch
    }

    /// The precision of layers, by default.
    pub fn default_precision(&self) -> Policy {
        self.precision
    }

    /// How long a run is, by default.
    pub fn default_length(&self) -> Length {
        self.length
    }
}

/// How many batches of random examples there are before they repeat.
const RANDOM_BATCHES: usize = 4;

impl fmt::Debug for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recipe({}: {:?} to {:?})", self.name, self.inputs, self.labels)
    }
}
