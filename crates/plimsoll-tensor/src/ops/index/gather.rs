//! `gather`: for each place of the index, the element that it names along an axis.

use plimsoll_cpu::element::Element;
use plimsoll_cpu::threads::SharedPtr;
use plimsoll_cuda::{Gpu, Grid, Param, Template};

use super::lanes::{for_each_block, without_axis};
use super::{Index, check_dtype, check_range, cuda, for_indices, refusal};
use crate::base::axes::Integer;
use crate::base::error::{Error, Result};
use crate::base::shape::{MAX_RANK, Shape};
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{Meta, Op, OpRef, Operand, Outputs, Run, SavedRef, SavedRefs, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::cuda::moves::unit_name;
use crate::ops::cuda::{c_name, code};
use crate::ops::registry::{Array, Sample, Values, floats, input};

/// y[.., i, ..] = x[.., index[.., i, ..], ..]. The gradient is added at the same indices; only they are saved.
#[derive(Debug)]
struct Gather {
    axis: usize,
}

impl Op for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        check_index("gather", inputs[0].shape(), inputs[1], self.axis)?;
        one(*inputs[1].shape(), inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let [x, index] = run.inputs else { unreachable!("a tensor and indices") };
        let y = &run.outputs[0];
        for_indices!(index.dtype(), I => {
            // SAFETY: `execute` hands out operands that are valid for their layouts, and the output is fresh; the range of
            // the indices is checked first, and elements are moved as bits of their size.
            unsafe {
                check_range::<I>("gather", index, self.axis, x.shape()[self.axis])?;
                match x.dtype().size() {
                    1 => gather::<u8, I>(x, index, y, self.axis),
                    2 => gather::<u16, I>(x, index, y, self.axis),
                    4 => gather::<i32, I>(x, index, y, self.axis),
                    _ => gather::<i64, I>(x, index, y, self.axis),
                }
            }
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let ([x, index], y) = (run.inputs, &run.outputs[0]) else { unreachable!("a tensor and indices") };
        let (n, rank, size) = (y.n_elems(), y.shape().rank(), x.dtype().size());
        let (extents, index_strides) = cuda::axes(&index.meta.layout);
        let (_, mut x_strides) = cuda::axes(&x.meta.layout);
        let step = std::mem::take(&mut x_strides[self.axis]);
        let extent = x.shape()[self.axis] as i64;
        let places = Places { n: n as u64, extents, x_strides, index_strides, extent, step };
        let is_wide = n >= 1 << 31;
        let variant =
            code(index.dtype()) << 16 | (size as u64) << 8 | (rank as u64) << 1 | u64::from(is_wide);
        let kernel = gpu.kernel(&TEMPLATE, "gather", variant, || {
            let (t, i) = (unit_name(size), c_name(index.dtype()));
            let wide = if is_wide { "u64" } else { "u32" };
            format!("#define T {t}\n#define I {i}\n#define RANK {rank}\n#define Index {wide}\n")
        })?;
        let (cell, call) = run.may_refuse("gather", refusal(index.shape(), self.axis, extent as usize))?;
        let params: [&dyn Param; 6] = [&y.ptr(), &x.ptr(), &index.ptr(), &places, &cell, &call];
        // SAFETY: `execute` hands out operands that are valid for their layouts, whose strides these are; the kernel
        // checks the indices.
        unsafe { gpu.launch(&kernel, Grid::covering(n, cuda::THREADS), &params) }?;
        Ok(())
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        wanted[0].then_some(SavedRef::Input(1)).into_iter().collect()
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        let _here = gradient.device().enter();
        let zeros = Tensor::zeros_of(*backward.input_shape(0), backward.input_dtype(0))?;
        let index = backward.input(1)?;
        backward.set_grad(0, zeros.into_scatter_add(self.axis, &index, &gradient)?)
    }
}

static TEMPLATE: Template = Template { name: "gather", text: include_str!("gather.cu") };

/// Where elements lie, as the kernel takes it.
#[repr(C)]
struct Places {
    n: u64,
    extents: [u32; MAX_RANK],
    /// None along the axis.
    x_strides: [i64; MAX_RANK],
    index_strides: [i64; MAX_RANK],
    extent: i64,
    step: i64,
}

// SAFETY: `gather.cu` has the same struct.
unsafe impl Param for Places {}

/// Refuses indices that do not go with a tensor: other axes than the indexed one may be shorter, not longer.
pub(super) fn check_index(op: &'static str, shape: &Shape, index: &Meta, axis: usize) -> Result<()> {
    check_dtype(op, index)?;
    let inside = |(other, (len, extent)): (usize, (&usize, &usize))| other == axis || len <= extent;
    let fits = index.shape().rank() == shape.rank()
        && index.shape().iter().zip(shape.iter()).enumerate().all(inside);
    if fits {
        return Ok(());
    }
    Err(Error::shape(
        op,
        format!(
            "indices of shape {} for a tensor of shape {shape}; they need as many axes, none but axis {axis} longer",
            index.shape()
        ),
    ))
}

/// # Safety
/// The operands are valid for their layouts, the output is nobody else's, elements are as large as `B` and indices of
/// type `I` and in range.
unsafe fn gather<B: Element, I: Index>(x: &Operand, index: &Operand, y: &Operand, axis: usize) {
    let step = x.meta.layout.strides()[axis];
    let x_strides = without_axis(x.meta.layout.strides(), axis);
    let strides = [x_strides.as_slice(), index.meta.layout.strides(), y.meta.layout.strides()];
    let (x, positions, y) = (
        SharedPtr::new(x.ptr().cast::<B>()),
        SharedPtr::new(index.ptr().cast::<I>()),
        SharedPtr::new(y.ptr().cast::<B>()),
    );
    for_each_block(index.shape(), axis, strides, |block| {
        block.for_each(|[from, at, to]| {
            // SAFETY: the offsets are those of elements of each operand, the index is in range, and each element of the
            // output is written by one block.
            unsafe {
                let position: i64 = (*positions.get().offset(at)).cast();
                *y.get().offset(to) = *x.get().offset(from + position as isize * step);
            }
        });
    });
}

impl Tensor {
    /// For each place of `index`, the element that it names along `axis`: in two dimensions and along the first,
    /// `y[i][j] = x[index[i][j]][j]`. The result has the shape of `index`.
    ///
    /// # Errors
    /// An axis that the tensor does not have; indices that are not int64 or int32, have other axes, or are out of range;
    /// memory that is full.
    #[doc = example!("gather")]
    #[doc(alias("take_along_axis", "take_along_dim"))]
    #[track_caller]
    pub fn gather(&self, axis: impl Integer, index: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let axis = self.shape().axis("gather", axis)?;
        call(OpRef::shipped(Gather { axis }), &[self, index])
    }
}

pub(super) fn samples() -> Vec<Sample> {
    let indices = |shape: &[usize], bound: i64| input(shape, Values::Indices(bound));
    vec![
        Sample::new("rows", vec![floats(&[4, 3]), indices(&[2, 3], 4)], |x| x[0].gather(0, &x[1]))
            .reference(|x| Array::build(&[2, 3], |i| x[0].at(&[x[1].at(i) as usize, i[1]])))
            .torch("x0.gather(0, x1)")
            .example("x0.gather(0, &x1)")
            .refuses(vec![floats(&[4, 3]), floats(&[2, 3])], "int64 or int32")
            .refuses(vec![floats(&[4, 3]), indices(&[2, 4], 4)], "none but axis 0 longer")
            .refuses(vec![floats(&[0, 3]), indices(&[2, 3], 4)], "is out of range for axis 0 of extent 0"),
        Sample::new("fewer lanes", vec![floats(&[2, 3, 5]), indices(&[2, 2, 7], 5)], |x| {
            x[0].gather(-1, &x[1])
        })
        .reference(|x| Array::build(&[2, 2, 7], |i| x[0].at(&[i[0], i[1], x[1].at(i) as usize])))
        .torch("x0.gather(-1, x1)"),
    ]
}
