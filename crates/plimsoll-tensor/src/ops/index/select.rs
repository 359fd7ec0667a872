//! `index_select` and `embedding`: whole rows by their indices.

use plimsoll_cpu::element::Element;
use plimsoll_cpu::threads::{self, SharedPtr};
use plimsoll_cuda::{Gpu, Grid, Param, Template};

use super::{Index, check_dtype, check_range, cuda, for_indices, readable_as, refusal};
use crate::base::axes::Integer;
use crate::base::error::Result;
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{Meta, Op, OpRef, Operand, Outputs, Run, SavedRef, SavedRefs, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::cuda::moves::unit_name;
use crate::ops::cuda::{c_name, code};
use crate::ops::kernel::units_per_task;
use crate::ops::registry::{Array, Sample, Values, floats, input};

/// `y[.., i, ..] = x[.., ids[i], ..]`, where i may have any number of axes. The gradient's rows are added at the same ids
/// (`index_add`); only they are saved.
#[derive(Debug)]
struct Select {
    name: &'static str,
    axis: usize,
}

/// Rows shorter than this are copied element by element, which is faster than a call.
const SHORT: usize = 8;

/// The rows of a table.
static EMBEDDING: Select = Select { name: "embedding", axis: 0 };

static TEMPLATE: Template = Template { name: "select", text: include_str!("select.cu") };

/// The units that a block moves on a GPU.
const BLOCK_UNITS: usize = 1024;

/// Where rows lie, as the kernel takes it.
#[repr(C)]
struct Rows {
    n: u64,
    row_len: u64,
    n_ids: u64,
    outer: i64,
    step: i64,
    inner: i64,
    id_stride: i64,
    extent: i64,
}

// SAFETY: `select.cu` has the same struct.
unsafe impl Param for Rows {}

impl Op for Select {
    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let [x, ids] = inputs else { unreachable!("a tensor and ids") };
        check_dtype(self.name, ids)?;
        one(selected(x.shape(), self.axis, ids.shape())?, x.dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let [x, ids] = run.inputs else { unreachable!("a tensor and ids") };
        let y = &run.outputs[0];
        for_indices!(ids.dtype(), I => {
            // SAFETY: `execute` hands out operands that are valid for their layouts, and the output is fresh; the range of
            // the ids is checked first, and elements are moved as bits of their size.
            unsafe {
                check_range::<I>(self.name, ids, self.axis, x.shape()[self.axis])?;
                match x.dtype().size() {
                    1 => select::<u8, I>(x, ids, y, self.axis),
                    2 => select::<u16, I>(x, ids, y, self.axis),
                    4 => select::<i32, I>(x, ids, y, self.axis),
                    _ => select::<i64, I>(x, ids, y, self.axis),
                }
            }
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let ([x, ids], y) = (run.inputs, &run.outputs[0]) else { unreachable!("a tensor and ids") };
        let layout = read_as(x, three(x.shape(), self.axis, 1));
        let (&[_, extent, row_len], &[outer, step, inner]) = (layout.shape().dims(), layout.strides()) else {
            unreachable!("three axes")
        };
        // Neighbours in a row are moved together where they lie together.
        let group = match inner {
            1 => cuda::group_len(x.dtype().size(), row_len, &[outer, step], &[x.ptr(), y.ptr()]),
            _ => 1,
        };
        let (n, n_ids, bytes) = (y.n_elems() / group, ids.n_elems(), group * x.dtype().size());
        let rows = Rows {
            n: n as u64,
            row_len: (row_len / group) as u64,
            n_ids: n_ids as u64,
            outer: (outer / group as isize) as i64,
            step: (step / group as isize) as i64,
            inner: inner as i64,
            id_stride: read_as(ids, Shape::within_bounds([n_ids])).strides()[0] as i64,
            extent: extent as i64,
        };
        let is_wide = n >= 1 << 31;
        let variant = code(ids.dtype()) << 8 | (bytes as u64) << 1 | u64::from(is_wide);
        let kernel = gpu.kernel(&TEMPLATE, self.name, variant, || {
            let index = if is_wide { "u64" } else { "u32" };
            let (unit, id) = (unit_name(bytes), c_name(ids.dtype()));
            format!("#define T {unit}\n#define I {id}\n#define Index {index}\n")
        })?;
        let (cell, call) = run.may_refuse(self.name, refusal(ids.shape(), self.axis, extent))?;
        let params: [&dyn Param; 6] = [&y.ptr(), &x.ptr(), &ids.ptr(), &rows, &cell, &call];
        // SAFETY: `execute` hands out operands that are valid for their layouts, whose strides these are; units are
        // aligned, and the kernel checks the ids.
        unsafe { gpu.launch(&kernel, Grid::of(n.div_ceil(BLOCK_UNITS), cuda::THREADS), &params) }?;
        Ok(())
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        wanted[0].then_some(SavedRef::Input(1)).into_iter().collect()
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        let _here = gradient.device().enter();
        let zeros = Tensor::zeros_of(*backward.input_shape(0), backward.input_dtype(0))?;
        let ids = backward.input(1)?;
        backward.set_grad(0, zeros.into_index_add(self.axis, &ids, &gradient)?)
    }
}

/// The shape of a tensor with the shape of the ids in place of its axis.
pub(super) fn selected(shape: &Shape, axis: usize, ids: &Shape) -> Result<Shape> {
    Shape::new(&[&shape[..axis], ids.dims(), &shape[axis + 1..]].concat())
}

/// A shape as three axes: everything before `axis`, the `n_axes` axes from there on, everything after.
pub(super) fn three(shape: &Shape, axis: usize, n_axes: usize) -> Shape {
    let product = |dims: &[usize]| dims.iter().product();
    Shape::within_bounds([
        product(&shape[..axis]),
        product(&shape[axis..axis + n_axes]),
        product(&shape[axis + n_axes..]),
    ])
}

/// An operand's layout as other axes; the methods copy first where that needs it.
pub(super) fn read_as(operand: &Operand, shape: Shape) -> Layout {
    let layout = operand.meta.layout.reshaped(shape);
    layout.unwrap_or_else(|| unreachable!("copied first where the layout does not allow it"))
}

/// # Safety
/// The operands are valid for their layouts, the output is nobody else's, elements are as large as `B` and ids of type
/// `I` and in range.
unsafe fn select<B: Element, I: Index>(x: &Operand, ids: &Operand, y: &Operand, axis: usize) {
    let layout = read_as(x, three(x.shape(), axis, 1));
    let (&[n_before, _, row_len], &[outer, step, inner]) = (layout.shape().dims(), layout.strides()) else {
        unreachable!("three axes")
    };
    let n_ids = ids.n_elems();
    let id_stride = read_as(ids, Shape::within_bounds([n_ids])).strides()[0];
    let n_rows = n_before * n_ids;
    let per_task = units_per_task(row_len);
    let (x, ids, y) = (
        SharedPtr::new(x.ptr().cast::<B>()),
        SharedPtr::new(ids.ptr().cast::<I>()),
        SharedPtr::new(y.ptr().cast::<B>()),
    );
    threads::parallel(n_rows.div_ceil(per_task), |task| {
        let first = task * per_task;
        // Counted along, because dividing takes longer than copying a short row.
        let (mut before, mut place) = ((first / n_ids) as isize, (first % n_ids) as isize);
        for row in first..n_rows.min(first + per_task) {
            // SAFETY: the id and the row that it names exist, and each row of the output is written by one task.
            unsafe {
                let id: i64 = (*ids.get().offset(place * id_stride)).cast();
                let from = x.get().offset(before * outer + id as isize * step);
                let to = y.get().add(row * row_len);
                if inner == 1 && row_len >= SHORT {
                    std::ptr::copy_nonoverlapping(from, to, row_len);
                } else {
                    (0..row_len).for_each(|col| *to.add(col) = *from.offset(col as isize * inner));
                }
            }
            place += 1;
            if place == n_ids as isize {
                (before, place) = (before + 1, 0);
            }
        }
    });
}

impl Tensor {
    /// The rows of `axis` that `ids` name, in their order; the axes of `ids` take the place of `axis`.
    ///
    /// # Errors
    /// An axis that the tensor does not have; ids that are not int64 or int32, or out of range; memory that is full.
    #[doc = example!("index_select")]
    #[doc(alias = "take")]
    #[track_caller]
    pub fn index_select(&self, axis: impl Integer, ids: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let axis = self.shape().axis("index_select", axis)?;
        select_rows(OpRef::shipped(Select { name: "index_select", axis }), self, axis, ids)
    }

    /// The rows of this table that `ids` name: a table `[n, width]` and ids `[..]` give `[.., width]`.
    ///
    /// # Errors
    /// A table without axes; ids that are not int64 or int32, or out of range; memory that is full.
    #[doc = example!("embedding")]
    #[doc(alias = "embedding_lookup")]
    #[track_caller]
    pub fn embedding(&self, ids: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let axis = self.shape().axis("embedding", 0)?;
        select_rows(OpRef::fixed(&EMBEDDING), self, axis, ids)
    }
}

fn select_rows(op: OpRef, x: &Tensor, axis: usize, ids: &Tensor) -> Result<Tensor> {
    let ids = readable_as(ids, &Shape::within_bounds([ids.n_elems()]))?;
    let rows = three(x.shape(), axis, 1);
    match x.storage_view().1.layout.reshaped(rows) {
        Some(_) => call(op, &[x, &ids]),
        None => call(op, &[&x.copied()?, &ids]),
    }
}

pub(super) fn samples() -> Vec<Sample> {
    let indices = |shape: &[usize], bound: i64| input(shape, Values::Indices(bound));
    vec![
        Sample::new("columns", vec![floats(&[3, 4]), indices(&[5], 4)], |x| x[0].index_select(-1, &x[1]))
            .reference(|x| Array::build(&[3, 5], |i| x[0].at(&[i[0], x[1].at(&i[1..]) as usize])))
            .torch("x0.index_select(-1, x1)")
            .example("x0.index_select(-1, &x1)")
            .refuses(vec![floats(&[3, 4]), floats(&[5])], "int64 or int32")
            .refuses(vec![floats(&[]), indices(&[5], 4)], "a scalar has no axes"),
        Sample::new("middle", vec![floats(&[2, 3, 2]), indices(&[4], 3)], |x| x[0].index_select(1, &x[1]))
            .reference(|x| Array::build(&[2, 4, 2], |i| x[0].at(&[i[0], x[1].at(&i[1..2]) as usize, i[2]])))
            .torch("x0.index_select(1, x1)"),
    ]
}

pub(super) fn embedding_samples() -> Vec<Sample> {
    let indices = |shape: &[usize]| input(shape, Values::Indices(5));
    let call = |x: &[Tensor]| x[0].embedding(&x[1]);
    vec![
        Sample::new("sentence", vec![floats(&[5, 3]), indices(&[7])], call)
            .reference(|x| Array::build(&[7, 3], |i| x[0].at(&[x[1].at(&i[..1]) as usize, i[1]])))
            .torch("F.embedding(x1, x0)")
            .example("x0.embedding(&x1)")
            .refuses(vec![floats(&[5, 3]), floats(&[7])], "int64 or int32")
            .refuses(vec![floats(&[0, 3]), indices(&[7])], "of extent 0; no index is possible"),
        Sample::new("batch", vec![floats(&[5, 2]), indices(&[2, 3])], call)
            .reference(|x| Array::build(&[2, 3, 2], |i| x[0].at(&[x[1].at(&i[..2]) as usize, i[2]])))
            .torch("F.embedding(x1, x0)"),
    ]
}
