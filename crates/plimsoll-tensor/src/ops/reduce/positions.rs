//! `pick_at` and `place_at`: the elements at one position per result, and the way back.
//!
//! A position counts the elements along some axes in row-major order, as `argmax` does. Each op is the other's
//! gradient; `max` and `min` are made of them.

use plimsoll_cuda::{Gpu, Grid, Param, Template};

use crate::base::axes::Axes;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::{MAX_RANK, Shape};
use crate::eager::check;
use crate::eager::execute::call;
use crate::eager::op::{Meta, Op, OpRef, Operand, Outputs, Refusal, Refused, Run, SavedRef, SavedRefs, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::cuda::{c_name, code};
use crate::ops::kernel::for_floats;
use crate::ops::registry::{Array, OpInfo, Sample, Values, floats, input};

/// The elements of a tensor at one position per result; the reduced axes stay with extent one.
#[derive(Debug)]
struct PickAt {
    axes: Axes,
}

/// Zeros of a shape, with a value at one position per result.
#[derive(Debug)]
struct PlaceAt {
    shape: Shape,
    axes: Axes,
}

/// The elements of `x` at `positions`, which have the shape of `x` with extent one along `axes`.
pub(super) fn pick_at(x: &Tensor, positions: &Tensor, axes: Axes) -> Result<Tensor> {
    call(OpRef::shipped(PickAt { axes }), &[x, positions])
}

/// Zeros of `shape` with `values` at `positions`.
pub(super) fn place_at(values: &Tensor, positions: &Tensor, shape: Shape, axes: Axes) -> Result<Tensor> {
    call(OpRef::shipped(PlaceAt { shape, axes }), &[values, positions])
}

/// Refuses operands that do not fit each other.
fn check(op: &'static str, few: &Shape, positions: &Meta, shape: &Shape, axes: Axes) -> Result<()> {
    axes.iter().try_for_each(|axis| check::axis(op, axis, shape))?;
    let expected = shape.reduced(axes, true);
    if positions.dtype != DType::I64 {
        return Err(Error::dtype(op, format!("positions are int64, not {}", positions.dtype)));
    }
    if *few != expected || *positions.shape() != expected {
        return Err(Error::shape(
            op,
            format!(
                "values {few} and positions {} do not belong to shape {shape} without axes {axes:?}",
                positions.shape()
            ),
        ));
    }
    Ok(())
}

/// The offset of element `flat`, counted in row-major order over `extents`.
fn offset(mut flat: usize, extents: &[usize], strides: &[isize], counts: impl Fn(usize) -> bool) -> isize {
    let mut offset = 0;
    for axis in (0..extents.len()).rev().filter(|&axis| counts(axis)) {
        offset += (flat % extents[axis]) as isize * strides[axis];
        flat /= extents[axis];
    }
    offset
}

/// Calls `f` with the offset of each of the few elements and of its place among the many.
fn for_each_place(
    op: &'static str,
    (many, few, positions): (&Operand, &Operand, &Operand),
    axes: Axes,
    mut f: impl FnMut(isize, isize),
) -> Result<()> {
    let (shape, strides) = (many.shape(), many.meta.layout.strides());
    let extent = super::n_reduced(shape, axes);
    for idx in 0..few.n_elems() {
        let at = |operand: &Operand| offset(idx, operand.shape(), operand.meta.layout.strides(), |_| true);
        // SAFETY: the offset is that of an element of the positions.
        let position = unsafe { *positions.ptr().cast::<i64>().offset(at(positions)) };
        let inner = usize::try_from(position).ok().filter(|&position| position < extent);
        let inner = inner.ok_or_else(|| refusal(positions.shape(), extent).error(op, idx, position))?;
        let outer = offset(idx, shape, strides, |axis| !axes.contains(axis));
        f(at(few), outer + offset(inner, shape, strides, |axis| axes.contains(axis)));
    }
    Ok(())
}

static TEMPLATE: Template = Template { name: "positions", text: include_str!("positions.cu") };

/// Where elements lie, as the kernel takes it.
#[repr(C)]
struct Places {
    n: u64,
    extent: u64,
    few: [u64; MAX_RANK],
    reduced: [u64; MAX_RANK],
    few_strides: [i64; MAX_RANK],
    position_strides: [i64; MAX_RANK],
    many_strides: [i64; MAX_RANK],
    reduced_strides: [i64; MAX_RANK],
    few_rank: u32,
    reduced_rank: u32,
}

// SAFETY: `positions.cu` has the same struct.
unsafe impl Param for Places {}

impl Places {
    fn new((many, few, positions): (&Operand, &Operand, &Operand), axes: Axes) -> Places {
        let strides = |operand: &Operand| {
            let mut all = [0; MAX_RANK];
            for (to, &stride) in all.iter_mut().zip(operand.meta.layout.strides()) {
                *to = stride as i64;
            }
            all
        };
        let (shape, many_strides) = (many.shape(), strides(many));
        let mut places = Places {
            n: few.n_elems() as u64,
            extent: super::n_reduced(shape, axes) as u64,
            few: [1; MAX_RANK],
            reduced: [1; MAX_RANK],
            few_strides: strides(few),
            position_strides: strides(positions),
            many_strides,
            reduced_strides: [0; MAX_RANK],
            few_rank: shape.rank() as u32,
            reduced_rank: axes.len() as u32,
        };
        for (to, &extent) in places.few.iter_mut().zip(few.shape().iter()) {
            *to = extent as u64;
        }
        for (to, axis) in axes.iter().enumerate() {
            (places.reduced[to], places.reduced_strides[to]) = (shape[axis] as u64, many_strides[axis]);
        }
        places
    }
}

/// Picks or places on a GPU.
fn run_cuda(
    op: &'static str,
    run: &Run<'_>,
    operands: (&Operand, &Operand, &Operand),
    axes: Axes,
    gpu: &Gpu,
) -> Result<()> {
    let (many, few, positions) = operands;
    let (dtype, places) = (few.dtype(), Places::new(operands, axes));
    let kernel = gpu.kernel(&TEMPLATE, op, code(dtype), || {
        format!("typedef {} T;\n#define IS_PICK {}", c_name(dtype), u8::from(op == "pick_at"))
    })?;
    let (cell, call) = run.may_refuse(op, refusal(positions.shape(), places.extent as usize))?;
    let grid = Grid::covering(few.n_elems(), 256);
    // SAFETY: `execute` hands out operands that are valid for their layouts, the strides are theirs, and the kernel was made
    // for this dtype; it leaves alone positions that are out of range.
    unsafe {
        gpu.launch(&kernel, grid, &[&few.ptr(), &many.ptr(), &positions.ptr(), &places, &cell, &call])
    }?;
    Ok(())
}

/// What is refused of positions of that shape: those that are not below the number of elements that are counted.
fn refusal(positions: &Shape, extent: usize) -> Refusal {
    let text = |refused: &Refused<'_>| {
        let Refused { value, place, bound, .. } = refused;
        format!("position {value} at {place:?} is not below the {bound} that there are")
    };
    Refusal { of: *positions, axis: 0, bound: extent, text }
}

impl Op for PickAt {
    fn name(&self) -> &'static str {
        "pick_at"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        super::floats_only("pick_at", inputs[0].dtype)?;
        let result = inputs[0].shape().reduced(self.axes, true);
        check("pick_at", &result, inputs[1], inputs[0].shape(), self.axes)?;
        one(result, inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (x, positions, y) = (&run.inputs[0], &run.inputs[1], &run.outputs[0]);
        for_floats!(x.dtype(), T => for_each_place("pick_at", (x, y, positions), self.axes, |few, many| {
            // SAFETY: the offsets are those of elements of the two operands, and the output is fresh.
            unsafe { *y.ptr().cast::<T>().offset(few) = *x.ptr().cast::<T>().offset(many) };
        }))
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let operands = (&run.inputs[0], &run.outputs[0], &run.inputs[1]);
        run_cuda("pick_at", run, operands, self.axes, gpu)
    }

    fn saved(&self, _wanted: &[bool]) -> SavedRefs {
        smallvec::smallvec![SavedRef::Input(1)]
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let (gradient, positions) = (backward.gradient()?, backward.input(1)?);
        let gradient = place_at(&gradient, &positions, *backward.input_shape(0), self.axes)?;
        backward.set_grad(0, gradient)
    }
}

impl Op for PlaceAt {
    fn name(&self) -> &'static str {
        "place_at"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        super::floats_only("place_at", inputs[0].dtype)?;
        check("place_at", inputs[0].shape(), inputs[1], &self.shape, self.axes)?;
        one(self.shape, inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (values, positions, y) = (&run.inputs[0], &run.inputs[1], &run.outputs[0]);
        // SAFETY: the output is fresh and contiguous, and zero bits are the number zero.
        unsafe { y.ptr().write_bytes(0, y.meta.n_bytes()) };
        for_floats!(y.dtype(), T => for_each_place("place_at", (y, values, positions), self.axes, |few, many| {
            // SAFETY: the offsets are those of elements of the two operands.
            unsafe { *y.ptr().cast::<T>().offset(many) = *values.ptr().cast::<T>().offset(few) };
        }))
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let (values, positions, y) = (&run.inputs[0], &run.inputs[1], &run.outputs[0]);
        // SAFETY: the output is fresh and contiguous, and zero bits are the number zero.
        unsafe { gpu.fill("place_at", y.ptr(), 0, y.meta.n_bytes()) }?;
        run_cuda("place_at", run, (y, values, positions), self.axes, gpu)
    }

    fn saved(&self, _wanted: &[bool]) -> SavedRefs {
        smallvec::smallvec![SavedRef::Input(1)]
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = pick_at(&backward.gradient()?, &backward.input(1)?, self.axes)?;
        backward.set_grad(0, gradient)
    }
}

/// The registry's entry of `pick_at`.
pub(super) const PICK_INFO: OpInfo =
    OpInfo { name: "pick_at", doc: "The elements at one position per result.", samples: pick_samples };

/// The registry's entry of `place_at`.
pub(super) const PLACE_INFO: OpInfo = OpInfo {
    name: "place_at",
    doc: "Zeros, with a value at one position per result.",
    samples: place_samples,
};

fn pick_samples() -> Vec<Sample> {
    let rows = Sample::new("rows", vec![floats(&[3, 4]), input(&[3, 1], Values::Indices(4))], |x| {
        pick_at(&x[0], &x[1], Axes::of([1]))
    });
    let two = Sample::new("two axes", vec![floats(&[2, 3, 2]), input(&[1, 3, 1], Values::Indices(4))], |x| {
        pick_at(&x[0], &x[1], Axes::of([0, 2]))
    });
    vec![
        rows.reference(|x| Array::build(&[3, 1], |i| x[0].at(&[i[0], x[1].at(i) as usize])))
            .torch("x0.gather(1, x1)")
            .refuses(
                vec![floats(&[3, 4]), input(&[3, 1], Values::Of(DType::I64, 4.0, 9.0))],
                "is not below the 4",
            )
            .refuses(vec![floats(&[3, 4]), input(&[4, 1], Values::Indices(4))], "do not belong to shape"),
        two.reference(|x| {
            Array::build(&[1, 3, 1], |i| {
                let position = x[1].at(i) as usize;
                x[0].at(&[position / 2, i[1], position % 2])
            })
        })
        .torch("x0.permute(1, 0, 2).reshape(3, 4).gather(1, x1.reshape(3, 1)).reshape(1, 3, 1)"),
    ]
}

fn place_samples() -> Vec<Sample> {
    let call = |shape: [usize; 2], axis: usize| {
        move |x: &[Tensor]| place_at(&x[0], &x[1], Shape::new(&shape)?, Axes::of([axis]))
    };
    let sample = |name: &str, shape: [usize; 2], axis: usize| {
        let mut few = shape;
        few[axis] = 1;
        let inputs = vec![floats(&few), input(&few, Values::Indices(shape[axis] as i64))];
        Sample::new(name, inputs, call(shape, axis)).reference(move |x| {
            Array::build(&shape, |i| match x[1].at(i) == i[axis] as f64 {
                true => x[0].at(i),
                false => 0.0,
            })
        })
    };
    vec![
        sample("rows", [3, 4], 1).torch("torch.zeros(3, 4, dtype=x0.dtype).scatter(1, x1, x0)").refuses(
            vec![floats(&[3, 1]), input(&[3, 1], Values::Of(DType::I64, 4.0, 9.0))],
            "at [0, 0] is not below the 4",
        ),
        sample("columns", [4, 2], 0).torch("torch.zeros(4, 2, dtype=x0.dtype).scatter(0, x1, x0)"),
    ]
}
