//! `predict`: a model's outputs for more examples than are worked through at once.

use plimsoll_tensor::op::Meta;
use plimsoll_tensor::{
    Error, Nested, Program, ProgramCache, Recording, Result, Structure, Tensor, at_callers_line,
};

use crate::model::{Mode, Model};

impl Model {
    /// The outputs for any number of inputs, `batch` examples at a time, without a tape and without training. Of the
    /// activations, no more than one layer's input and output are held at a time.
    ///
    /// # Errors
    /// Inputs that do not fit, or none; a batch of zero; a model that gives several tensors, see
    /// [`Model::predict_nested`]; memory that is full.
    #[track_caller]
    pub fn predict(&self, inputs: impl Into<Nested<Tensor>>, batch: usize) -> Result<Tensor> {
        let _line = at_callers_line();
        Tensor::try_from(self.predict_nested(inputs, batch)?)
    }

    /// As [`Model::predict`], for a model that gives several tensors.
    ///
    /// # Errors
    /// Inputs that do not fit, or none; a batch of zero; memory that is full; somebody who
    /// [asks to stop](plimsoll_data::stop_waiting_when).
    #[track_caller]
    pub fn predict_nested(&self, inputs: impl Into<Nested<Tensor>>, batch: usize) -> Result<Nested<Tensor>> {
        let _line = at_callers_line();
        let inputs = inputs.into();
        let first = |tensor: &Tensor| tensor.shape().dims().first().copied().unwrap_or(0);
        let n_examples = inputs.first().map_or(0, first);
        let is_even = inputs.leaves().into_iter().all(|tensor| first(tensor) == n_examples);
        if n_examples == 0 || batch == 0 || !is_even {
            return Err(Error::argument(
                "predict",
                format!(
                    "inputs of {} in batches of {batch}; there must be at least one example in each, and as many of \
                     each input",
                    inputs.map(|tensor| *tensor.shape())
                ),
            ));
        }
        let starts = (0..n_examples).step_by(batch);
        let mut predictions = Predictions { model: self, programs: ProgramCache::new(usize::MAX) };
        let part = |start: usize| {
            if plimsoll_data::is_asked_to_stop() {
                return Err(Error::interrupted("predictions"));
            }
            let len = batch.min(n_examples - start);
            predictions.of(&inputs.try_map(&mut |tensor| tensor.narrow(0, start, len))?)
        };
        let parts: Vec<Nested<Tensor>> = starts.map(part).collect::<Result<_>>()?;
        let [first, rest @ ..] = &*parts else { unreachable!("there is at least one example") };
        if rest.is_empty() {
            return Ok(first.clone());
        }
        let leaves: Vec<Vec<&Tensor>> = parts.iter().map(Nested::leaves).collect();
        let mut outputs = 0..;
        first.try_map(&mut |_| {
            let output = outputs.next().unwrap_or(0);
            Tensor::concat(&leaves.iter().map(|leaves| leaves[output]).collect::<Vec<_>>(), 0)
        })
    }
}

/// What a model says to batches: recorded for the first of a kind, and run from its program for the others.
struct Predictions<'a> {
    model: &'a Model,
    programs: ProgramCache<Vec<Meta>, Nested<Tensor>>,
}

impl Predictions<'_> {
    fn of(&mut self, inputs: &Nested<Tensor>) -> Result<Nested<Tensor>> {
        let (model, tensors) = (self.model, inputs.leaves());
        if !model.is_pure() {
            return model.forward_nested(inputs, Mode::Infer);
        }
        let signature = tensors.iter().map(|tensor| Program::argument_meta(tensor)).collect();
        let found = self.programs.find(signature, Recording::Once, |owned| {
            let device = tensors[0].device();
            let mut outputs = None;
            let program = Program::record_owning(&device, &tensors, &[], owned, |arguments| {
                let inputs = inputs.rebuild(&mut arguments.into_iter())?;
                let said = model.forward_nested(inputs, Mode::Infer)?;
                let tensors = said.tensors();
                outputs = Some(said);
                Ok(tensors)
            })?;
            Ok((program, outputs.unwrap_or_else(|| unreachable!("recording calls the model"))))
        })?;
        match found {
            Some((program, outputs)) => outputs.rebuild(&mut program.run(&tensors)?.into_iter()),
            None => model.forward_nested(inputs, Mode::Infer),
        }
    }
}
