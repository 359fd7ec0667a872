//! `tile` and `roll`: the elements again and again, and the elements moved round. Both are made of views and one copy
//! per axis, so that their gradients come from the plain ops.

use crate::base::axes::Integer;
use crate::base::error::{Error, Result};
use crate::base::shape::{MAX_RANK, Shape};
use crate::eager::context;
use crate::eager::tensor::Tensor;
use crate::ops::registry::{Array, OpInfo, Sample, floats};

impl Tensor {
    /// The whole tensor `repeats` times along each axis, as numpy does it: with fewer repeats than axes the last axes
    /// are meant; with more, axes of extent one are put in front. `broadcast_to` repeats axes of extent one without a
    /// copy.
    ///
    /// # Errors
    /// More axes than a tensor can have, more elements than can be counted; memory that is full.
    #[doc = example!("tile")]
    #[doc(alias = "repeat")]
    #[track_caller]
    pub fn tile(&self, repeats: &[usize]) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let rank = self.rank().max(repeats.len());
        if rank > MAX_RANK {
            return Err(Error::argument(
                "tile",
                format!("{} repeats; a tensor has at most {MAX_RANK} axes", repeats.len()),
            ));
        }
        let ones = vec![1; rank - self.rank()];
        let mut dims = [&ones, self.shape().dims()].concat();
        let mut tiled = self.reshape(dims.as_slice())?;
        // The last axis first: what is copied more than once is then the smaller part.
        for (axis, &n) in (rank - repeats.len()..rank).zip(repeats).rev().filter(|&(_, &n)| n != 1) {
            let (outer, inner) = (dims[..axis].iter().product(), dims[axis..].iter().product());
            let stretched = Shape::new(&[outer, n, inner])?;
            dims[axis] = dims[axis].saturating_mul(n);
            let shape = Shape::new(&dims)?;
            tiled = tiled.reshape([outer, 1, inner])?.broadcast_to(stretched)?.reshape(shape)?;
        }
        Ok(tiled)
    }

    /// The elements moved by `shift` places along `axis`; those that leave at one end come in at the other.
    ///
    /// # Errors
    /// An axis that the tensor does not have; memory that is full.
    #[doc = example!("roll")]
    #[track_caller]
    pub fn roll(&self, shift: impl Integer, axis: impl Integer) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let axis = self.shape().axis("roll", axis)?;
        let extent = self.shape()[axis];
        let shift = shift.to_i128().rem_euclid(extent.max(1) as i128) as usize;
        if shift == 0 {
            return Ok(self.clone());
        }
        let kept = extent - shift;
        Tensor::concat(&[&self.narrow(axis, kept, shift)?, &self.narrow(axis, 0, kept)?], axis)
    }
}

/// Functions made of ops.
pub const COMPOSED: &[&OpInfo] = &[
    &OpInfo { name: "tile", doc: "The whole tensor several times along each axis.", samples: tile_samples },
    &OpInfo { name: "roll", doc: "The elements moved round along an axis.", samples: roll_samples },
];

fn tile_samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &'static [usize], repeats: &'static [usize], out: &'static [usize]| {
        Sample::new(name, vec![floats(shape)], move |x| x[0].tile(repeats))
            .reference(move |x| {
                Array::build(out, |i| {
                    let skip = out.len() - shape.len();
                    let from: Vec<usize> = i[skip..].iter().zip(shape).map(|(i, n)| i % n).collect();
                    x[0].at(&from)
                })
            })
            .torch(format!("torch.tile(x0, {repeats:?})"))
            .example(format!("x0.tile(&{repeats:?})"))
    };
    vec![
        sample("both axes", &[2, 3], &[3, 2], &[6, 6]),
        sample("the last axis", &[2, 3], &[2], &[2, 6]),
        sample("a new axis", &[3, 2], &[2, 1, 2], &[2, 3, 4]),
    ]
}

fn roll_samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &'static [usize], shift: isize, axis: usize| {
        Sample::new(name, vec![floats(shape)], move |x| x[0].roll(shift, axis))
            .reference(move |x| {
                Array::build(shape, |i| {
                    let mut from = i.to_vec();
                    from[axis] = (i[axis] as isize - shift).rem_euclid(shape[axis] as isize) as usize;
                    x[0].at(&from)
                })
            })
            .torch(format!("torch.roll(x0, {shift}, {axis})"))
            .example(format!("x0.roll({shift}, {axis})"))
    };
    vec![
        sample("forwards", &[5], 2, 0).refuses(vec![floats(&[])], "roll: axis 0 of a scalar"),
        sample("backwards, more than once round", &[2, 3], -4, 1),
    ]
}
