//! `sort`, `argsort` and `top_k`: the elements of each line in order, and where they were.
//!
//! All are stable: of equal elements the one with the lower index comes first, in either direction. NaN counts as
//! greater than every number, as for numpy and PyTorch, so it comes last in rising order and first in falling order.
//! The kernel works along the last axis; another axis is brought there by a view. It needs no scratch memory: the
//! indices are ordered where they are to lie. What backward reads is the indices alone.

mod cuda;
mod rank;

use plimsoll_cuda::{Gpu, Profile};
use smallvec::smallvec;

use self::cuda::Sorting;
use self::rank::rank_lanes;
use crate::base::axes::Integer;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::context;
use crate::eager::execute::{call, execute};
use crate::eager::op::{Gradient, Meta, Op, OpRef, Operand, Output, Outputs, Run, SavedRef, SavedRefs, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::kernel::for_numbers;
use crate::ops::registry::{Array, OpInfo, Sample, Values, floats, input};

/// The first elements of each line in order, and their indices: all of them (`sort`), or some (`top_k`).
#[derive(Debug)]
struct Sort {
    descending: bool,
    /// How many elements of each line are wanted; none for all.
    n_wanted: Option<usize>,
}

impl Op for Sort {
    fn name(&self) -> &'static str {
        match self.n_wanted {
            None => "sort",
            Some(_) => "top_k",
        }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let shape = sortable(self.name(), inputs[0])?;
        let (axis, extent) = (shape.rank() - 1, shape[shape.rank() - 1]);
        let n_wanted = self.n_wanted.unwrap_or(extent);
        if n_wanted > extent {
            return Err(Error::argument(
                self.name(),
                format!("the {n_wanted} greatest of lines of {extent} elements; there are not so many"),
            ));
        }
        let shape = shape.with_dim(axis, n_wanted)?;
        Ok(smallvec![Output::New { shape, dtype: inputs[0].dtype }, Output::New { shape, dtype: DType::I64 }])
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        rank(&run.inputs[0], Some(&run.outputs[0]), &run.outputs[1], self.descending);
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let sorting = Sorting {
            op: self.name(),
            x: &run.inputs[0],
            values: Some(&run.outputs[0]),
            indices: &run.outputs[1],
            descending: self.descending,
            workspace: run.workspace,
        };
        sorting.run(gpu)
    }

    fn workspace_cuda(&self, inputs: &[&Meta], _profile: &Profile) -> usize {
        self.n_wanted.map_or(0, |n_wanted| cuda::workspace(inputs[0], n_wanted))
    }

    fn saved(&self, _wanted: &[bool]) -> SavedRefs {
        smallvec![SavedRef::Output(1)]
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        let _here = gradient.device().enter();
        let zeros = Tensor::zeros_of(*backward.input_shape(0), backward.input_dtype(0))?;
        let gradient = zeros.into_scatter_add(-1, &backward.output(1)?, &gradient)?;
        backward.set_grad(0, gradient)
    }
}

/// The indices that put each line in order.
#[derive(Debug)]
struct ArgSort {
    descending: bool,
}

impl Op for ArgSort {
    fn name(&self) -> &'static str {
        "argsort"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        one(*sortable("argsort", inputs[0])?, DType::I64)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        rank(&run.inputs[0], None, &run.outputs[0], self.descending);
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let sorting = Sorting {
            op: "argsort",
            x: &run.inputs[0],
            values: None,
            indices: &run.outputs[0],
            descending: self.descending,
            workspace: run.workspace,
        };
        sorting.run(gpu)
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero
    }
}

/// The shape of something that has an order and an axis.
fn sortable<'a>(op: &'static str, x: &'a Meta) -> Result<&'a Shape> {
    match x.dtype {
        DType::Bool => Err(Error::dtype(op, "takes numbers, not bool; convert with `cast`")),
        _ if x.shape().rank() == 0 => Err(Error::shape(op, "a scalar, shape [], has no axis to go along")),
        _ => Ok(x.shape()),
    }
}

fn rank(x: &Operand, values: Option<&Operand>, indices: &Operand, descending: bool) {
    for_numbers!(x.dtype(), T => match descending {
        false => rank_lanes::<T, false>(x, values, indices),
        true => rank_lanes::<T, true>(x, values, indices),
    });
}

/// Calls `f` with `axis` of the tensor brought to the end, and brings it back in what `f` gives.
fn along<const N: usize>(
    op: &'static str,
    x: &Tensor,
    axis: impl Integer,
    f: impl FnOnce(&Tensor) -> Result<[Tensor; N]>,
) -> Result<[Tensor; N]> {
    let axis = x.shape().axis(op, axis)?;
    if axis + 1 == x.rank() {
        return f(x);
    }
    let mut results = f(&x.transpose(axis, -1)?)?;
    for result in &mut results {
        *result = result.transpose(axis, -1)?;
    }
    Ok(results)
}

/// Runs an op that gives values and indices.
fn values_and_indices(op: Sort, x: &Tensor, axis: impl Integer) -> Result<(Tensor, Tensor)> {
    let [values, indices] = along(op.name(), x, axis, |x| {
        let both = execute(OpRef::shipped(op), smallvec![crate::eager::execute::Arg::Lent(x)])?;
        Ok(both.into_vec().try_into().unwrap_or_else(|_| unreachable!("values and indices")))
    })?;
    Ok((values, indices))
}

impl Tensor {
    /// The elements of each line along `axis` in rising order, or in falling order, and the index that each had. Equal
    /// elements stay in the order in which they were; NaN counts as the greatest.
    ///
    /// # Errors
    /// An axis that the tensor does not have, truth values; memory that is full.
    #[doc = example!("sort")]
    #[track_caller]
    pub fn sort(&self, axis: impl Integer, descending: bool) -> Result<(Tensor, Tensor)> {
        let _line = context::at_callers_line();
        values_and_indices(Sort { descending, n_wanted: None }, self, axis)
    }

    /// The indices by which [`sort`](Tensor::sort) orders each line along `axis`; no values are made.
    ///
    /// # Errors
    /// An axis that the tensor does not have, truth values; memory that is full.
    #[doc = example!("argsort")]
    #[track_caller]
    pub fn argsort(&self, axis: impl Integer, descending: bool) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let [indices] =
            along("argsort", self, axis, |x| Ok([call(OpRef::shipped(ArgSort { descending }), &[x])?]))?;
        Ok(indices)
    }

    /// The `k` greatest elements of each line along `axis`, the greatest first, and their indices. Of equal elements the
    /// one with the lower index comes first; NaN counts as the greatest.
    ///
    /// # Errors
    /// An axis that the tensor does not have, more elements than there are, truth values; memory that is full.
    #[doc = example!("top_k")]
    #[doc(alias = "topk")]
    #[track_caller]
    pub fn top_k(&self, k: usize, axis: impl Integer) -> Result<(Tensor, Tensor)> {
        let _line = context::at_callers_line();
        values_and_indices(Sort { descending: true, n_wanted: Some(k) }, self, axis)
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &OpInfo {
        name: "sort",
        doc: "The elements of each line in order, and their indices.",
        samples: sort_samples,
    },
    &OpInfo { name: "argsort", doc: "The indices that put each line in order.", samples: argsort_samples },
    &OpInfo {
        name: "top_k",
        doc: "The greatest elements of each line, and their indices.",
        samples: top_k_samples,
    },
];

/// The indices along `axis` in order, at most `n` of them: an insertion sort of each line.
fn reference_indices(x: &Array, axis: usize, descending: bool, n: usize) -> Array {
    let mut shape = x.shape.clone();
    shape[axis] = n;
    Array::build(&shape, |at| {
        let value = |idx: usize| {
            let mut at = at.to_vec();
            at[axis] = idx;
            x.at(&at)
        };
        let mut order: Vec<usize> = Vec::new();
        for idx in 0..x.shape[axis] {
            let comes_first = |other: &usize| match descending {
                false => value(idx) < value(*other),
                true => value(idx) > value(*other),
            };
            let place = order.iter().position(comes_first).unwrap_or(order.len());
            order.insert(place, idx);
        }
        order[at[axis]] as f64
    })
}

/// The values that belong to indices.
fn picked(x: &Array, indices: &Array, axis: usize) -> Array {
    Array::build(&indices.shape, |at| {
        let mut from = at.to_vec();
        from[axis] = indices.at(at) as usize;
        x.at(&from)
    })
}

fn sort_samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &'static [usize], axis: usize, descending: bool| {
        Sample::many(name, vec![floats(shape)], move |x| {
            x[0].sort(axis, descending).map(|(values, indices)| vec![values, indices])
        })
        .references(move |x| {
            let indices = reference_indices(&x[0], axis, descending, shape[axis]);
            vec![picked(&x[0], &indices, axis), indices]
        })
        .torch(format!(
            "torch.sort(x0, dim={axis}, stable=True, descending={})",
            if descending { "True" } else { "False" }
        ))
        .example(format!("let (values, indices) = x0.sort({axis}, {descending})"))
    };
    vec![
        sample("rows", &[3, 5], 1, false)
            .refuses(vec![floats(&[5])], "sort: axis 1 of shape [5]")
            .refuses(vec![input(&[3, 5], Values::Truths)], "takes numbers, not bool"),
        sample("columns, falling", &[4, 2, 3], 0, true),
    ]
}

fn argsort_samples() -> Vec<Sample> {
    let sample = |name: &str, given: crate::ops::registry::Input, axis: usize, descending: bool| {
        let extent = given.shape[axis];
        Sample::new(name, vec![given], move |x| x[0].argsort(axis, descending))
            .reference(move |x| reference_indices(&x[0], axis, descending, extent))
            .torch(format!(
                "torch.argsort(x0, dim={axis}, stable=True, descending={})",
                if descending { "True" } else { "False" }
            ))
            .example(format!("x0.argsort({axis}, {descending})"))
    };
    let wholes = |dtype: DType| input(&[2, 9], Values::Of(dtype, 0.0, 4.0));
    vec![
        sample("columns", input(&[5, 3], Values::Constants(-2.0, 2.0)), 0, false)
            .refuses(vec![input(&[5, 3], Values::Truths)], "takes numbers, not bool"),
        sample("ties", wholes(DType::I32), 1, false),
        sample("ties of bytes, falling", wholes(DType::U8), 1, true),
        sample("ties of 64 bits, falling", wholes(DType::I64), 1, true),
    ]
}

fn top_k_samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &'static [usize], k: usize, axis: usize| {
        Sample::many(name, vec![floats(shape)], move |x| {
            x[0].top_k(k, axis).map(|(values, indices)| vec![values, indices])
        })
        .references(move |x| {
            let indices = reference_indices(&x[0], axis, true, k);
            vec![picked(&x[0], &indices, axis), indices]
        })
        .torch(format!("torch.topk(x0, {k}, dim={axis})"))
        .example(format!("let (values, indices) = x0.top_k({k}, {axis})"))
    };
    vec![
        sample("rows", &[3, 7], 3, 1)
            .refuses(vec![floats(&[3, 2])], "the 3 greatest of lines of 2 elements")
            .refuses(vec![input(&[3, 5], Values::Truths)], "takes numbers, not bool"),
        sample("columns", &[6, 4], 2, 0),
        sample("all", &[2, 4], 4, 1),
    ]
}

#[cfg(test)]
mod tests;
