//! What an op's backward is given, and where it puts its results.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::op::SavedRef;
use crate::eager::tape::{Node, NodeInput, TapeCore};
use crate::eager::tensor::Tensor;

/// The gradients of a node's outputs as far as they are accumulated; empty until the first one is there.
pub(crate) type Accumulated = SmallVec<[Option<Tensor>; 1]>;

/// What an op's backward is given, and where it puts its results.
pub struct Backward<'a> {
    tape: &'a Arc<TapeCore>,
    node: &'a Node,
    gradients: Accumulated,
    wanted: SmallVec<[bool; 4]>,
    results: SmallVec<[Option<Tensor>; 3]>,
    /// Whether saved values are retained for another pass.
    retains: bool,
}

impl<'a> Backward<'a> {
    /// What the op of a node is given: the gradients of its outputs, and which gradients of its inputs are wanted.
    pub(crate) fn new(
        tape: &'a Arc<TapeCore>,
        node: &'a Node,
        gradients: Accumulated,
        wanted: SmallVec<[bool; 4]>,
        retains: bool,
    ) -> Backward<'a> {
        let results = smallvec![None; node.parents.len()];
        Backward { tape, node, gradients, wanted, results, retains }
    }

    /// Takes the gradients that were set, input by input, where they are wanted.
    pub(crate) fn take_results(&mut self) -> impl Iterator<Item = Option<Tensor>> + use<> {
        let (results, wanted) = (std::mem::take(&mut self.results), std::mem::take(&mut self.wanted));
        results.into_iter().zip(wanted).map(|(result, wanted)| result.filter(|_| wanted))
    }

    /// A tape for the backward of an op that is stated as that of plain ops; it watches what it is told to.
    pub(crate) fn inner_tape(&self) -> Arc<TapeCore> {
        Arc::new(TapeCore::new(false, false, self.tape.open_log))
    }

    /// Shape and dtype of the first output.
    pub(crate) fn first_output(&self) -> (Shape, DType) {
        (self.node.outputs[0].shape, self.node.outputs[0].dtype)
    }

    /// Takes the gradient of an output, if there is one.
    pub fn gradient_of(&mut self, output: usize) -> Option<Tensor> {
        self.gradients.get_mut(output)?.take()
    }

    /// Whether the gradient of an input is wanted; never that of an optional input that was not given.
    pub fn wants(&self, input: usize) -> bool {
        self.wanted.get(input).is_some_and(|&wanted| wanted)
    }

    /// The number of inputs.
    pub fn n_inputs(&self) -> usize {
        self.node.inputs.len()
    }

    /// The shape of an input.
    ///
    /// # Panics
    /// There is no such input.
    pub fn input_shape(&self, input: usize) -> &Shape {
        &self.node.inputs[input].shape
    }

    /// The dtype of an input.
    ///
    /// # Panics
    /// There is no such input.
    pub fn input_dtype(&self, input: usize) -> DType {
        self.node.inputs[input].dtype
    }

    /// A saved input.
    ///
    /// # Errors
    /// Memory that is full while the value is rebuilt.
    pub fn input(&self, input: usize) -> Result<Tensor> {
        self.saved(SavedRef::Input(input))
    }

    /// A saved input, for the last time: the tape frees it unless another pass will read it, so that what nobody else holds
    /// may be overwritten.
    ///
    /// # Errors
    /// Memory that is full while the value is rebuilt; the input was taken before.
    pub fn take_input(&mut self, input: usize) -> Result<Tensor> {
        self.take(SavedRef::Input(input))
    }

    /// A saved output, for the last time: see [`Backward::take_input`].
    ///
    /// # Errors
    /// Memory that is full while the value is rebuilt; the output was taken before.
    pub fn take_output(&mut self, output: usize) -> Result<Tensor> {
        self.take(SavedRef::Output(output))
    }

    /// A saved auxiliary output, for the last time: see [`Backward::take_input`].
    ///
    /// # Errors
    /// The op did not save it, or it was taken before.
    pub fn take_aux(&mut self, aux: usize) -> Result<Tensor> {
        self.take(SavedRef::Aux(aux))
    }

    fn take(&mut self, saved_ref: SavedRef) -> Result<Tensor> {
        let value = self.saved(saved_ref)?;
        if !self.retains {
            let wanted = |&&(saved, _): &&(SavedRef, usize)| saved == saved_ref;
            let slot =
                self.node.saved.iter().find(wanted).and_then(|&(_, idx)| self.tape.lock().slots[idx].take());
            // The slot may hold nodes of other tapes: it is dropped outside the lock.
            drop(slot);
        }
        Ok(value)
    }

    /// A saved output.
    ///
    /// # Errors
    /// Memory that is full while the value is rebuilt.
    pub fn output(&self, output: usize) -> Result<Tensor> {
        self.saved(SavedRef::Output(output))
    }

    /// A saved auxiliary output.
    ///
    /// # Errors
    /// The op did not save it.
    pub fn aux(&self, aux: usize) -> Result<Tensor> {
        self.saved(SavedRef::Aux(aux))
    }

    /// Sets the gradient of an input.
    ///
    /// # Errors
    /// An input that the op does not have; a gradient whose shape or dtype is not that of the input.
    pub fn set_grad(&mut self, input: usize, gradient: Tensor) -> Result<()> {
        let Some(&NodeInput { shape, dtype, .. }) = self.node.inputs.get(input) else {
            let detail =
                format!("backward gives input {input} a gradient; the op has {} inputs", self.n_inputs());
            return Err(Error::argument(self.name(), detail));
        };
        if *gradient.shape() != shape || gradient.dtype() != dtype {
            return Err(Error::shape(
                self.name(),
                format!(
                    "backward gives input {input} a gradient of {} {}, but the input is {shape} {dtype}",
                    gradient.shape(),
                    gradient.dtype()
                ),
            ));
        }
        self.results[input] = Some(gradient);
        Ok(())
    }

    fn name(&self) -> &'static str {
        self.node.op.as_ref().map_or("source", |op| op.name())
    }

    fn saved(&self, saved_ref: SavedRef) -> Result<Tensor> {
        let missing = || {
            Error::tape(format!("{}: backward reads {saved_ref:?}, which the op did not save", self.name()))
        };
        let &(_, idx) = self.node.saved.iter().find(|&&(saved, _)| saved == saved_ref).ok_or_else(missing)?;
        let slot = {
            let mut state = self.tape.lock();
            let slot = state.slots.get_mut(idx).ok_or_else(missing)?;
            // The slot is taken out while it is read, because rebuilding a derived value runs ops.
            slot.take().ok_or_else(missing)?
        };
        let tensor = slot.tensor();
        self.tape.lock().slots[idx] = Some(slot);
        tensor
    }
}
