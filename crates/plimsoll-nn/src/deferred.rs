//! What flows from layer to layer: values, or the last step that would make them.
//!
//! Some steps are done better together with what comes next: dropout with the residual sum that it is added to, that sum with
//! the norm that looks at it, the last linear function with the loss. A layer may hand such a step on undone, and the layer
//! around it knows who reads it: a consumer that can do it does, any other gets values, made in the scope of the layer that they
//! belong to. Nothing runs in between, so random draws keep their order, and the bits are those of one step after the other.
//!
//! Passes over programs fuse dropout and a sum with the norm that reads them, too, whoever wrote them. Steps are handed on all the
//! same, for what a pass does not see: eager code, which has no program; backward, where a norm's op adds the gradient that the sum
//! has from elsewhere and drops elements of it in the pass that makes it; and logits, which a loss with a linear function in it never
//! has in memory as a whole, while a pass would have to prove that nobody asks for them.

use std::cell::RefCell;

use plimsoll_tensor::{DType, Device, Error, Nested, Result, Shape, Tensor};

use crate::policy::Policy;
use crate::prediction::Prediction;

/// A value on its way, or what is still to be done for it. Whoever needs the values has them made, once.
pub(crate) struct Deferred(RefCell<State>);

enum State {
    /// The values.
    Values(Tensor),
    /// The values of several tensors.
    Several(Nested<Tensor>),
    /// Values of which a share is to be dropped.
    Dropped { branch: Tensor, rate: f64 },
    /// `x` and a branch that is to be added to it, less what is dropped.
    Sum { x: Tensor, branch: Tensor, rate: f64 },
    /// A linear function without bias: rows times weights.
    Linear { rows: Tensor, weights: Tensor },
    /// What is here while the values are being made; they replace it, or an error ends the pass.
    Taken,
}

/// Who reads what a layer gives, and with it which steps may be left to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consumer {
    /// Somebody who takes values.
    Anyone,
    /// A residual sum, which can drop elements of what it adds.
    Residual,
    /// A norm, which can make the sum that it looks at.
    Norm,
    /// A loss, which can compute with a linear function.
    Loss,
}

/// A norm that can make the sum that it looks at.
pub(crate) trait Norm: Send + Sync + 'static {
    /// The norm of values.
    fn of(&self, x: &Tensor) -> Result<Tensor>;

    /// The sum of `x` and a branch, of which a share is dropped, and the norm of that sum.
    fn of_sum(&self, x: &Tensor, branch: Tensor, rate: f64) -> Result<(Tensor, Tensor)>;
}

impl Deferred {
    pub fn of(values: Tensor) -> Deferred {
        Deferred(RefCell::new(State::Values(values)))
    }

    /// One tensor, or several.
    pub fn nested(values: Nested<Tensor>) -> Deferred {
        match values {
            Nested::One(values) => Deferred::of(values),
            several => Deferred(RefCell::new(State::Several(several))),
        }
    }

    /// Values of which a share is to be dropped.
    pub fn dropped(branch: Tensor, rate: f64) -> Deferred {
        Deferred(RefCell::new(State::Dropped { branch, rate }))
    }

    /// The sum of `x` and these values.
    pub fn added_to(self, x: Tensor) -> Result<Deferred> {
        let sum = match self.0.into_inner() {
            State::Dropped { branch, rate } => State::Sum { x, branch, rate },
            other => State::Sum { x, branch: other.values()?, rate: 0.0 },
        };
        Ok(Deferred(RefCell::new(sum)))
    }

    /// The values of one tensor or of several, made if they are not there yet.
    pub fn nested_values(&self) -> Result<Nested<Tensor>> {
        if let State::Several(several) = &*self.0.borrow() {
            return Ok(several.clone());
        }
        self.values().map(Nested::One)
    }

    /// Whether examples are known to have these shapes, those of a sum that is still to be made included. A sequence may be
    /// shorter than the ones that a layer was built for.
    pub fn is_of(&self, shapes: &Nested<Shape>) -> bool {
        match &*self.0.borrow() {
            State::Sum { x, .. } | State::Dropped { branch: x, .. } => {
                shapes.one().is_some_and(|shape| x.shape().dims().get(1..) == Some(shape.dims()))
            }
            State::Linear { .. } | State::Taken => false,
            State::Values(_) | State::Several(_) => self.differs_from(shapes).is_none(),
        }
    }

    /// Refuses other tensors than a layer was built for: fewer, more, or under other names.
    pub fn check_arrangement(&self, built_for: &Nested<Shape>) -> Result<()> {
        let given = match (&*self.0.borrow(), built_for) {
            (State::Several(several), _) if !several.is_like(built_for) => {
                several.map(|values| *values.shape())
            }
            (State::Values(values), Nested::Tuple(_) | Nested::Named(_)) => Nested::One(*values.shape()),
            _ => return Ok(()),
        };
        let detail = format!("it was built for examples of {built_for}, and is given a batch of {given}");
        Err(Error::shape("layer", detail))
    }

    /// Whether these are values whose examples have other shapes than these; nothing is said of what is not made yet.
    pub fn differs_from(&self, promised: &Nested<Shape>) -> Option<Nested<Shape>> {
        let is_kept =
            |values: &Tensor, promised: &Shape| values.shape().dims().get(1..) == Some(promised.dims());
        let shapes = match (&*self.0.borrow(), promised) {
            (State::Values(values), Nested::One(promised)) if is_kept(values, promised) => return None,
            (State::Several(several), promised) if several.is_like(promised) => {
                let mut pairs = several.leaves().into_iter().zip(promised.leaves());
                if pairs.all(|(values, promised)| is_kept(values, promised)) {
                    return None;
                }
                several.map(|values| *values.shape())
            }
            (State::Values(values), _) => Nested::One(*values.shape()),
            (State::Several(several), _) => several.map(|values| *values.shape()),
            _ => return None,
        };
        Some(shapes)
    }

    /// The values, made if they are not there yet.
    ///
    /// # Errors
    /// Several tensors, where one is taken.
    pub fn values(&self) -> Result<Tensor> {
        let values = self.0.replace(State::Taken).values()?;
        self.0.replace(State::Values(values.clone()));
        Ok(values)
    }

    /// The norm of the values; if they are a sum that is still to be made, both are made together.
    pub fn normed(&self, norm: &impl Norm) -> Result<Tensor> {
        let (values, normed) = match self.0.replace(State::Taken) {
            State::Sum { x, branch, rate } => norm.of_sum(&x, branch, rate)?,
            other => {
                let values = other.values()?;
                let normed = norm.of(&values)?;
                (values, normed)
            }
        };
        self.0.replace(State::Values(values));
        Ok(normed)
    }

    /// What this consumer takes: what it can do itself is left to it, the rest is done.
    pub fn materialize_for(self, consumer: Consumer) -> Result<Deferred> {
        let is_left = match &*self.0.borrow() {
            State::Values(_) | State::Several(_) | State::Taken => true,
            State::Dropped { .. } => consumer == Consumer::Residual,
            State::Sum { .. } => consumer == Consumer::Norm,
            State::Linear { .. } => consumer == Consumer::Loss,
        };
        if !is_left {
            self.values()?;
        }
        Ok(self)
    }

    /// This flow in the policy's dtype, if it is in another one.
    pub fn cast(&self, policy: Policy) -> Result<Option<Deferred>> {
        if let State::Several(several) = &*self.0.borrow() {
            return several
                .try_map(&mut |values| policy.cast(values))
                .map(|cast| Some(Deferred::nested(cast)));
        }
        let dtype = self.0.borrow().dtype();
        match dtype.is_float() && dtype != policy.compute_dtype() {
            true => policy.cast(&self.values()?).map(|values| Some(Deferred::of(values))),
            false => Ok(None),
        }
    }

    /// The device of the first tensor; none where there are no tensors.
    pub fn device(&self) -> Option<Device> {
        match &*self.0.borrow() {
            State::Several(several) => several.first().map(Tensor::device),
            State::Taken => None,
            one => Some(one.tensor().device()),
        }
    }

    /// Whether all tensors are on a device.
    pub fn is_on(&self, device: &Device) -> bool {
        match &*self.0.borrow() {
            State::Several(several) => several.leaves().iter().all(|tensor| tensor.device() == *device),
            State::Taken => false,
            one => one.tensor().device() == *device,
        }
    }

    /// What a loss is given.
    pub fn into_prediction(self) -> Result<Prediction> {
        match self.0.into_inner() {
            // Weights that are shared with the first layer may be on its device.
            State::Linear { rows, weights } => {
                Ok(Prediction::Linear { rows: rows.to_device(&weights.device())?, weights })
            }
            State::Several(several) => Ok(Prediction::Nested(several)),
            other => other.values().map(Prediction::Values),
        }
    }
}

impl From<Prediction> for Deferred {
    fn from(prediction: Prediction) -> Deferred {
        Deferred(RefCell::new(match prediction {
            Prediction::Values(values) => State::Values(values),
            Prediction::Nested(values) => return Deferred::nested(values),
            Prediction::Linear { rows, weights } => State::Linear { rows, weights },
        }))
    }
}

impl State {
    fn values(self) -> Result<Tensor> {
        match self {
            State::Values(values) => Ok(values),
            State::Several(several) => Err(Error::shape(
                "model",
                format!("one tensor is taken, and there are {}", several.map(|values| *values.shape())),
            )),
            State::Dropped { branch, rate } => branch.dropout(rate),
            State::Sum { x, branch, rate } if rate > 0.0 => branch.dropout(rate)?.into_add(x),
            State::Sum { x, branch, .. } => branch.into_add(x),
            State::Linear { rows, weights } => {
                Prediction::Linear { rows: rows.to_device(&weights.device())?, weights }.values()
            }
            State::Taken => unreachable!("an error has ended the pass"),
        }
    }

    fn dtype(&self) -> DType {
        self.tensor().dtype()
    }

    /// The one tensor, or the one that decides about dtype and device of what is still to be made.
    fn tensor(&self) -> &Tensor {
        match self {
            State::Values(tensor)
            | State::Dropped { branch: tensor, .. }
            | State::Sum { branch: tensor, .. }
            | State::Linear { rows: tensor, .. } => tensor,
            State::Several(_) => unreachable!("several tensors are looked at one by one"),
            State::Taken => unreachable!("an error has ended the pass"),
        }
    }
}
