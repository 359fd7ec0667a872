//! `scatter_add`: each element of a source added at the place that its index names along an axis.

use plimsoll_cpu::copy::cast;
use plimsoll_cpu::element::{CastTo, Element, Number};
use plimsoll_cpu::map::{Dst, Src};
use plimsoll_cpu::threads::SharedPtr;
use plimsoll_cuda::{Gpu, Profile};

use super::cuda::{Addition, Keys, Sort, Sums};
use super::gather::check_index;
use super::lanes::{for_each_block, without_axis};
use super::{Index, check_range, cuda, for_indices, refusal};
use crate::base::axes::Integer;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::context;
use crate::eager::execute::{Arg, Order, call_with};
use crate::eager::op::{Meta, Op, OpRef, Operand, Outputs, Run, SavedRef, SavedRefs, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::copy::{copy, copy_cuda};
use crate::ops::kernel::{dst, for_numbers};
use crate::ops::registry::{Sample, Values, floats, input};

/// y = x, then y[.., index[.., i, ..], ..] += source[.., i, ..] in the order of i. The gradient of x is that of y, the
/// source's is gathered from it.
#[derive(Debug)]
struct ScatterAdd {
    axis: usize,
}

impl ScatterAdd {
    fn add_cuda(&self, run: &Run<'_>, gpu: &Gpu, order: Order) -> Result<()> {
        let ([x, index, source], y) = (run.inputs, &run.outputs[0]) else {
            unreachable!("a tensor, indices and a source")
        };
        if x.ptr() != y.ptr() {
            copy_cuda("scatter_add", gpu, x, y)?;
        }
        let (n, n_sums) = (index.n_elems(), y.n_elems());
        if n == 0 {
            return Ok(());
        }
        let (extents, index_strides) = cuda::axes(&index.meta.layout);
        let (_, mut key_strides) = cuda::axes(&y.meta.layout);
        let step = std::mem::take(&mut key_strides[self.axis]);
        let extent = y.shape()[self.axis] as i64;
        let keys =
            Keys { n: n as u64, extents, index_strides, key_strides, step, extent, beyond: n_sums as u64 };
        let (extents, strides) = cuda::axes(&source.meta.layout);
        // Every element is a row of its own.
        let (n_keys, n_rows) = (n as u64, n_sums as u64);
        let sums = Sums { n: n_keys, width: 1, row_len: 1, n_rows, outer: 0, inner: 0, extents, strides };
        let (op, indices) = ("scatter_add", index);
        let faults = run.may_refuse(op, refusal(index.shape(), self.axis, extent as usize))?;
        let addition = Addition { op, faults, indices, keys: &keys, source, y, sums: &sums, v: 1 };
        // SAFETY: `execute` hands out operands that are valid for their layouts, whose strides these are; the keys are made from
        // all indices, those beyond the sums are left out, and the workspace is the sort's.
        unsafe {
            match order {
                Order::Fixed => addition.in_order(gpu, Sort::new(n, n_sums), run.workspace),
                Order::Any => addition.in_any_order(gpu),
            }
        }
    }
}

impl Op for ScatterAdd {
    fn name(&self) -> &'static str {
        "scatter_add"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let [x, index, source] = inputs else { unreachable!("a tensor, indices and a source") };
        check_addends("scatter_add", x, source)?;
        check_index("scatter_add", x.shape(), index, self.axis)?;
        if index.shape() != source.shape() {
            return Err(Error::shape(
                "scatter_add",
                format!(
                    "{} indices for a source of {}; the shapes must agree",
                    index.shape(),
                    source.shape()
                ),
            ));
        }
        one(*x.shape(), x.dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let index = &run.inputs[1];
        for_indices!(index.dtype(), I => {
            // SAFETY: `execute` hands out operands that are valid for their layouts.
            unsafe { check_range::<I>("scatter_add", index, self.axis, run.inputs[0].shape()[self.axis])? };
            for_numbers!(run.inputs[0].dtype(), T => {
                // SAFETY: as above; the output is fresh or the first input itself, and the indices are in range.
                unsafe { scatter_add::<T, I>(run, self.axis) }
            });
        });
        Ok(())
    }

    /// Sums of 16-bit floats are made in f32, in a copy.
    fn workspace(&self, inputs: &[&Meta]) -> usize {
        let dtype = inputs[0].dtype;
        if dtype.accumulator() == dtype { 0 } else { inputs[0].n_elems() * dtype.accumulator().size() }
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        self.add_cuda(run, gpu, Order::Fixed)
    }

    fn run_cuda_unordered(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        self.add_cuda(run, gpu, cuda::order(run.outputs[0].dtype()))
    }

    fn workspace_cuda(&self, inputs: &[&Meta], _profile: &Profile) -> usize {
        Sort::new(inputs[1].n_elems(), inputs[0].n_elems()).workspace()
    }

    fn workspace_cuda_unordered(&self, inputs: &[&Meta], profile: &Profile) -> usize {
        match cuda::order(inputs[0].dtype) {
            Order::Fixed => self.workspace_cuda(inputs, profile),
            Order::Any => 0,
        }
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        wanted[2].then_some(SavedRef::Input(1)).into_iter().collect()
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        if backward.wants(2) {
            let source = gradient.gather(self.axis, &backward.input(1)?)?;
            backward.set_grad(2, source)?;
        }
        backward.set_grad(0, gradient)
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }
}

/// Refuses dtypes that cannot be added.
pub(super) fn check_addends(op: &'static str, x: &Meta, source: &Meta) -> Result<()> {
    if x.dtype != source.dtype {
        return Err(Error::mixed_dtypes(op, x.dtype, source.dtype));
    }
    if x.dtype == DType::Bool {
        return Err(Error::dtype(op, "takes numbers, not bool; convert with `cast`"));
    }
    Ok(())
}

/// # Safety
/// The operands are valid for their layouts, the output is fresh or the first input itself, the workspace is as long as
/// the op says; elements are of type `T`, indices of type `I` and in range.
unsafe fn scatter_add<T, I: Index>(run: &Run<'_>, axis: usize)
where
    T: Element<Compute: Number + CastTo<T::Compute>>,
{
    let [x, index, source] = run.inputs else { unreachable!("a tensor, indices and a source") };
    let y = &run.outputs[0];
    let strides = y.meta.layout.strides();
    let sums: *mut T::Compute = if T::IS_COMPUTE {
        if x.ptr() != y.ptr() {
            copy(x, y);
        }
        y.ptr().cast()
    } else {
        let sums = run.workspace.cast::<T::Compute>();
        let from = Src { ptr: x.ptr().cast::<T>().cast_const(), strides: x.meta.layout.strides() };
        // SAFETY: the workspace holds one value of the wider type for each element.
        unsafe { cast::<T, T::Compute>(y.shape(), Dst { ptr: sums, strides }, from) };
        sums
    };
    // SAFETY: the caller's promise; `sums` is row-major with one value for each element of the output.
    unsafe { add_lanes::<T, I>(SharedPtr::new(sums), strides, index, source, axis) };
    if !T::IS_COMPUTE {
        let from = Src { ptr: sums.cast_const(), strides };
        // SAFETY: as above, the other way.
        unsafe { cast::<T::Compute, T>(y.shape(), dst(y), from) };
    }
}

/// # Safety
/// The operands are valid for their layouts, `sums` for its strides; elements are of type `T`, indices of type `I` and
/// in range.
unsafe fn add_lanes<T: Element<Compute: Number>, I: Index>(
    sums: SharedPtr<T::Compute>,
    sum_strides: &[isize],
    index: &Operand,
    source: &Operand,
    axis: usize,
) {
    let step = sum_strides[axis];
    let sum_strides = without_axis(sum_strides, axis);
    let strides = [sum_strides.as_slice(), index.meta.layout.strides(), source.meta.layout.strides()];
    let positions = SharedPtr::new(index.ptr().cast::<I>());
    let addends = SharedPtr::new(source.ptr().cast::<T>());
    for_each_block(index.shape(), axis, strides, |block| {
        block.for_each(|[to, at, from]| {
            // SAFETY: the offsets are those of elements of each operand and the index is in range; blocks have different
            // lanes, so nobody else adds to this sum.
            unsafe {
                let position: i64 = (*positions.get().offset(at)).cast();
                let sum = sums.get().offset(to + position as isize * step);
                *sum = Number::add(*sum, (*addends.get().offset(from)).widen());
            }
        });
    });
}

impl Tensor {
    /// The tensor with each element of `source` added at the place that `index` names along `axis`: in two dimensions
    /// and along the first, `y[index[i][j]][j] += source[i][j]`. `index` and `source` have one shape; indices may repeat.
    ///
    /// # Errors
    /// An axis that the tensor does not have; indices that are not int64 or int32, have other axes, or are out of range;
    /// shapes or dtypes that differ; memory that is full.
    #[doc = example!("scatter_add")]
    #[doc(alias = "put_along_axis")]
    #[track_caller]
    pub fn scatter_add(&self, axis: impl Integer, index: &Tensor, source: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let axis = self.shape().axis("scatter_add", axis)?;
        let args = smallvec::smallvec![Arg::Lent(self), Arg::Lent(index), Arg::Lent(source)];
        call_with(OpRef::shipped(ScatterAdd { axis }), args)
    }

    /// Like [`scatter_add`](Tensor::scatter_add), written over this tensor if nobody else holds it.
    ///
    /// # Errors
    /// Those of [`scatter_add`](Tensor::scatter_add).
    #[track_caller]
    pub fn into_scatter_add(self, axis: impl Integer, index: &Tensor, source: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let axis = self.shape().axis("scatter_add", axis)?;
        let args = smallvec::smallvec![Arg::Given(self), Arg::Lent(index), Arg::Lent(source)];
        call_with(OpRef::shipped(ScatterAdd { axis }), args)
    }
}

pub(super) fn samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &'static [usize], index: &[usize], axis: usize| {
        let inputs = vec![floats(shape), input(index, Values::Indices(shape[axis] as i64)), floats(index)];
        Sample::new(name, inputs, move |x| x[0].scatter_add(axis, &x[1], &x[2]))
            .reference(move |x| {
                let mut y = x[0].clone();
                let shape = Shape::within_bounds(x[1].shape.iter().copied());
                for (flat, &position) in x[1].values.iter().enumerate() {
                    let mut place = shape.place(flat);
                    place[axis] = position as usize;
                    let to = place.iter().zip(&y.shape).fold(0, |to, (at, extent)| to * extent + at);
                    y.values[to] += x[2].values[flat];
                }
                y
            })
            .torch(format!("x0.scatter_add({axis}, x1, x2)"))
            .example(format!("x0.scatter_add({axis}, &x1, &x2)"))
    };
    vec![
        sample("rows", &[3, 2], &[4, 2], 0)
            .refuses(
                vec![floats(&[3, 2]), input(&[1, 2], Values::Indices(3)), floats(&[2, 2])],
                "shapes must agree",
            )
            .refuses(vec![floats(&[3, 2]), floats(&[1, 2]), floats(&[1, 2])], "int64 or int32"),
        sample("columns", &[2, 4, 3], &[2, 3, 5], 2),
    ]
}
