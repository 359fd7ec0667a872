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
        let jacobian = self.jacobians(target, &[source])?.remove(0);
        jacobian.ok_or_else(|| self.core.not_connected("jacobian", target, 0, source))
    }

    /// The same for several sources, by the same passes; none for a source on which the target does not depend.
    ///
    /// # Errors
    /// More axes than a tensor can have, a second call on a tape that is not persistent; memory that is full.
    #[track_caller]
    pub fn jacobians(&self, target: &Tensor, sources: &[&Tensor]) -> Result<Vec<Option<Tensor>>> {
        let _line = context::at_callers_line();
        let shape = |source: &&Tensor| joined("jacobian", &[target.shape(), source.shape()]);
        let shapes: Vec<Shape> = sources.iter().map(shape).collect::<Result<_>>()?;
        let one_of_all = |one_hot: Tensor| one_hot.reshape(*target.shape());
        let rows = self.rows(target, sources, target.n_elems(), one_of_all)?;
        let shaped =
            |(rows, shape): (Option<Tensor>, Shape)| rows.map(|rows| rows.reshape(shape)).transpose();
        rows.into_iter().zip(shapes).map(shaped).collect()
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
        let jacobian = self.batch_jacobian_or_none(target, source)?;
        jacobian.ok_or_else(|| self.core.not_connected("batch_jacobian", target, 0, source))
    }

    /// As [`batch_jacobian`](Self::batch_jacobian), and none where the target does not depend on the source.
    ///
    /// # Errors
    /// Those of `batch_jacobian`, but for that.
    #[track_caller]
    pub fn batch_jacobian_or_none(&self, target: &Tensor, source: &Tensor) -> Result<Option<Tensor>> {
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
        let Some(rows) = self.rows(target, &[source], n_rows, all_examples)?.remove(0) else {
            return Ok(None);
        };
        rows.reshape([n_rows, batch, n_inputs])?.transpose(0, 1)?.reshape(shape).map(Some)
    }

    /// One gradient of each source per row, each flat, for the output gradients that `seed` makes of a row with a single
    /// one; none for a source on which the target does not depend.
    fn rows(
        &self,
        target: &Tensor,
        sources: &[&Tensor],
        n_rows: usize,
        seed: impl Fn(Tensor) -> Result<Tensor>,
    ) -> Result<Vec<Option<Tensor>>> {
        let _here = target.device().enter();
        let core = &self.core;
        core.begin_use()?;
        let rows = self.stop_recording(|| {
            let mut all: Vec<Option<Tensor>> = vec![None; sources.len()];
            for row in 0..n_rows {
                let place = Tensor::from_slice(&[row as i64], 1)?;
                let seed = seed(place.one_hot(n_rows, target.dtype())?)?;
                let after_use = if row + 1 < n_rows { AfterUse::Retain } else { AfterUse::Free };
                let gradients = core.run_backward(&Pass {
                    targets: &[target],
                    sources,
                    seed: &|_| Ok(seed.clone()),
                    add: add_gradients,
                    after_use,
                })?;
                for ((rows, gradient), source) in all.iter_mut().zip(gradients).zip(sources) {
                    let Some(gradient) = gradient else { continue };
                    let n_elems = source.n_elems();
                    let before = match rows.take() {
                        Some(rows) => rows,
                        None => Tensor::zeros_of([n_rows, n_elems], source.dtype())?,
                    };
                    *rows = Some(before.into_index_add(0, &place, &gradient.reshape([1, n_elems])?)?);
                }
            }
            Ok(all)
        });
        core.end_use();
        Ok(rows?.into_iter().map(|rows| rows.map(|rows| rows.owned_by(Owner::Gradients))).collect())
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
