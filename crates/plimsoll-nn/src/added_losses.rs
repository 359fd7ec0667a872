//! Losses that layers add to that of the batch: Keras's `add_loss`.
//!
//! A layer's function says a number with [`add_loss`], such as a penalty on what it gives. Whoever calls a model for a loss, the train
//! loop and evaluations, collects what its layers said and adds it. Elsewhere nobody listens, and [`add_loss`] says so.

use std::cell::RefCell;

use plimsoll_tensor::{Error, Result, Tensor, at_callers_line};

thread_local! {
    /// What the layers of the model that is being called have said, if somebody collects it.
    static ADDED: RefCell<Option<Vec<Tensor>>> = const { RefCell::new(None) };
}

/// Adds a number to the loss of the batch that the model is being called for. Returns whether anybody listens: in steps and
/// evaluations of a [`Trainer`](crate::Trainer) so it is; in a loop of one's own the layer has to hand it on itself.
///
/// # Errors
/// Anything but a single number.
#[track_caller]
pub fn add_loss(loss: &Tensor) -> Result<bool> {
    let _line = at_callers_line();
    if loss.n_elems() != 1 {
        let detail = format!("a loss of shape {}; it must be one number, such as its mean", loss.shape());
        return Err(Error::shape("add_loss", detail));
    }
    let loss = loss.reshape(())?;
    Ok(ADDED.with_borrow_mut(|added| match added {
        Some(added) => {
            added.push(loss);
            true
        }
        None => false,
    }))
}

/// Puts back what was collected before, also if a layer panics.
struct Before(Option<Vec<Tensor>>);

impl Drop for Before {
    fn drop(&mut self) {
        ADDED.set(self.0.take());
    }
}

/// Runs `f`, and returns what layers have added meanwhile.
pub(crate) fn collect<R>(f: impl FnOnce() -> R) -> (R, Vec<Tensor>) {
    let before = Before(ADDED.replace(Some(Vec::new())));
    let done = f();
    let added = ADDED.take().unwrap_or_default();
    drop(before);
    (done, added)
}

/// The loss with what layers have added, in its dtype and on its device.
pub(crate) fn with_added(loss: Tensor, added: Vec<Tensor>) -> Result<Tensor> {
    added.into_iter().try_fold(loss, |sum, one| sum.add(&one.cast(sum.dtype())?.to_device(&sum.device())?))
}
