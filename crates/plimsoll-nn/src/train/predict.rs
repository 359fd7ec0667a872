//! `predict`: a model's outputs for more examples than are worked through at once.

use plimsoll_tensor::op::Meta;
use plimsoll_tensor::{Error, Program, ProgramCache, Recording, Result, Tensor, at_callers_line};

use crate::model::Model;

impl Model {
    /// The outputs for any number of inputs, `batch` examples at a time, without a tape and without training. Of the
    /// activations, no more than one layer's input and output are held at a time.
    ///
    /// # Errors
    /// Inputs that do not fit, or none; a batch of zero; memory that is full.
    #[track_caller]
    pub fn predict(&self, inputs: &Tensor, batch: usize) -> Result<Tensor> {
        let _line = at_callers_line();
        let n_examples = inputs.shape().dims().first().copied().unwrap_or(0);
        if n_examples == 0 || batch == 0 {
            return Err(Error::argument(
                "predict",
                format!(
                    "inputs of {} in batches of {batch}; there must be at least one example in each",
                    inputs.shape()
                ),
            ));
        }
        let starts = (0..n_examples).step_by(batch);
        let mut predictions = Predictions { model: self, programs: ProgramCache::new(usize::MAX) };
        let part = |start: usize| predictions.of(&inputs.narrow(0, start, batch.min(n_examples - start))?);
        let parts: Vec<Tensor> = starts.map(part).collect::<Result<_>>()?;
        match &*parts {
            [only] => Ok(only.clone()),
            several => Tensor::concat(&several.iter().collect::<Vec<_>>(), 0),
        }
    }
}

/// What a model says to batches: recorded for the first of a kind, and run from its program for the others.
struct Predictions<'a> {
    model: &'a Model,
    programs: ProgramCache<Meta, ()>,
}

impl Predictions<'_> {
    fn of(&mut self, inputs: &Tensor) -> Result<Tensor> {
        if !self.model.is_pure() {
            return self.model.infer(inputs);
        }
        let found = self.programs.find(Program::argument_meta(inputs), Recording::Once, |owned| {
            let device = inputs.device();
            let program = Program::record_owning(&device, &[inputs], &[], owned, |arguments| {
                Ok(vec![self.model.infer(&arguments[0])?])
            })?;
            Ok((program, ()))
        })?;
        match found {
            Some((program, ())) => Ok(program.run(&[inputs])?.swap_remove(0)),
            None => self.model.infer(inputs),
        }
    }
}
