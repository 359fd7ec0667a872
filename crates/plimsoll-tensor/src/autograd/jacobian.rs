//! Jacobians: the derivative of every element of a target, by as many passes of backward over the same nodes.

use plimsoll_memory::Owner;

use super::GradientTape;
use crate::base::error::{Error, Result};
use crate::base::shape::{MAX_RANK, Shape};
use crate::eager::context;
use crate::eager::tape::{AfterUse, Pass};
use crate::eager::tensor::Tensor;
use crate::ops::backward::add_gradients;

impl GradientTape {
    /// The derivatives of every element of `target` with respect to every element of `source`: the shape of the target,
    /// followed by that of the source.
    ///
    /// It takes one pass of backward per element of the target. What the tape has saved stays until the last of them, also on a
    /// tape that is not persistent, whose one use this is.
    ///
    /// ```
    /// # use plimsoll_tensor::{GradientTape, Tensor, Variable};
    /// # fn main() -> plimsoll_tensor::Result<()> {
    /// let x = Variable::new(Tensor::from_slice(&[2.0f32, 3.0], 2)?);
    /// let tape = GradientTape::new();
    /// let y = tape.record(|| x.mul(&x))?;
    /// assert_eq!(tape.jacobian(&y, &x)?.to_vec::<f32>()?, [4.0, 0.0, 0.0, 6.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A target that does not depend on the source, more axes than a tensor can have, a second call on a tape that is
    /// not persistent; memory that is full.
    #[doc(alias("jacrev", "jacfwd"))]
    #[track_caller]
    pub fn jacobian(&self, target: &Tensor, source: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let shape = joined("jacobian", &[target.shape(), source.shape()])?;
        let n_rows = target.n_elems();
        self.rows(target, source, n_rows, |one_hot| one_hot.reshape(*target.shape()))?.reshape(shape)
    }

    /// The derivatives of every element of each example of `target` with respect to every element of the same example of
    /// `source`: `[batch, ..target, ..source]`. The first axis of both counts the examples, which must not depend on
    /// each other. It takes one pass of backward per element of one example.
    ///
    /// # Errors
    /// Batches that differ, a target that does not depend on the source, more axes than a tensor can have, a second call
    /// on a tape that is not persistent; memory that is full.
    #[track_caller]
    pub fn batch_jacobian(&self, target: &Tensor, source: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let (&[batch, ref outputs @ ..], &[other, ref inputs @ ..]) =
            (target.shape().dims(), source.shape().dims())
        else {
            return Err(different_batches(target, source));
        };
        if batch != other {
            return Err(different_batches(target, source));
        }
        let shape = joined("batch_jacobian", &[&[batch], outputs, inputs])?;
        let (n_rows, n_inputs) = (outputs.iter().product(), inputs.iter().product());
        let all_examples = |one_hot: Tensor| one_hot.broadcast_to([batch, n_rows])?.reshape(*target.shape());
        let rows = self.rows(target, source, n_rows, all_examples)?;
        rows.reshape([n_rows, batch, n_inputs])?.transpose(0, 1)?.reshape(shape)
    }

    /// One gradient of the source per row, each flat, for the output gradients that `seed` makes of a row with a single
    /// one.
    fn rows(
        &self,
        target: &Tensor,
        source: &Tensor,
        n_rows: usize,
        seed: impl Fn(Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let _here = source.device().enter();
        let core = &self.core;
        core.begin_use()?;
        let rows = self.stop_recording(|| {
            let mut rows = Tensor::zeros_of([n_rows, source.n_elems()], source.dtype())?;
            for row in 0..n_rows {
                let place = Tensor::from_slice(&[row as i64], 1)?;
                let seed = seed(place.one_hot(n_rows, target.dtype())?)?;
                let after_use = if row + 1 < n_rows { AfterUse::Retain } else { AfterUse::Free };
                let mut gradients = core.run_backward(&Pass {
                    targets: &[target],
                    sources: &[source],
                    seed: &|_| Ok(seed.clone()),
                    add: add_gradients,
                    after_use,
                })?;
                let gradient =
                    gradients.remove(0).ok_or_else(|| core.not_connected("jacobian", target, 0, source))?;
                rows = rows.into_index_add(0, &place, &gradient.reshape([1, source.n_elems()])?)?;
            }
            Ok(rows)
        });
        core.end_use();
        Ok(rows?.owned_by(Owner::Gradients))
    }
}

/// The shape with all those extents.
fn joined(op: &'static str, parts: &[&[usize]]) -> Result<Shape> {
    let dims = parts.concat();
    match dims.len() > MAX_RANK {
        true => Err(Error::shape(
            op,
            format!(
                "the result {dims:?} would have {} axes; at most {MAX_RANK} are possible (see `flatten`)",
                dims.len()
            ),
        )),
        false => Shape::new(&dims),
    }
}

fn different_batches(target: &Tensor, source: &Tensor) -> Error {
    Error::shape(
        "batch_jacobian",
        format!(
            "a target of shape {} and a source of shape {}; the first axis of both must count the same examples",
            target.shape(),
            source.shape()
        ),
    )
}
