//! `matmul`: products of matrices and batches of them; transposed and repeated operands are read where they lie.

pub(super) mod cuda;

use plimsoll_cuda::{Gpu, Profile};
use plimsoll_gemm as gemm;

use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{
    Cost, Meta, Op, OpRef, Operand, Outputs, Run, SavedRef, SavedRefs, bytes_moved, one, saturating_product,
};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::kernel::for_floats;
use crate::ops::registry::{Array, OpInfo, Sample, floats};

/// C = A B over the last two dimensions; the dimensions before them broadcast. The derivative by each operand is
/// the other one, saved only where it is wanted.
#[derive(Debug)]
struct MatMul;

/// The extents of a product.
#[derive(Clone, Copy)]
struct Extents {
    batch: Shape,
    m: usize,
    n: usize,
    k: usize,
}

impl Extents {
    fn of(inputs: &[&Meta]) -> Result<Extents> {
        let [lhs, rhs] = inputs else { unreachable!("two operands") };
        if lhs.dtype != rhs.dtype {
            return Err(Error::mixed_dtypes("matmul", lhs.dtype, rhs.dtype));
        }
        if !lhs.dtype.is_float() {
            return Err(Error::dtype(
                "matmul",
                format!("takes floats, not {}; convert with `cast`", lhs.dtype),
            ));
        }
        let (a, b) = (lhs.shape(), rhs.shape());
        let (&[.., m, k], &[.., inner, n]) = (a.dims(), b.dims()) else {
            return Err(Error::shape(
                "matmul",
                format!("shapes {a} and {b}; both operands need two dimensions or more (see `unsqueeze`)"),
            ));
        };
        if k != inner {
            return Err(Error::shape(
                "matmul",
                format!(
                    "shapes {a} and {b}; the columns of the first, {k}, must equal the rows of the second, {inner}"
                ),
            ));
        }
        let leading = |shape: &Shape| shape.leading(shape.rank() - 2);
        let batch =
            leading(a).broadcast(&leading(b)).ok_or_else(|| Error::not_broadcastable("matmul", a, b))?;
        if batch.rank() > 0 {
            batch.followed_by(&[m, k])?;
            batch.followed_by(&[k, n])?;
        }
        Ok(Extents { batch, m, n, k })
    }

    fn output(&self) -> Result<Shape> {
        self.batch.followed_by(&[self.m, self.n])
    }
}

/// How the kernel is called: products whose operands lie at even distances go in one call.
struct Calls {
    /// Batch dimensions that are walked one by one.
    outer: Shape,
    /// The products of one call.
    shape: gemm::Shape,
    /// The operands, repeated to the batch's shape.
    layouts: [Layout; 2],
}

impl Calls {
    fn of(inputs: &[&Meta]) -> Result<Calls> {
        let Extents { batch, m, n, k } = Extents::of(inputs)?;
        let layouts = [0, 1].map(|idx| {
            let own = inputs[idx].shape();
            let wanted = Shape::within_bounds(batch.iter().chain(&own[own.rank() - 2..]).copied());
            let stretched = inputs[idx].layout.broadcast_to(&wanted);
            stretched.unwrap_or_else(|| unreachable!("`Extents::of` checks the shapes"))
        });
        let rank = batch.rank();
        let one_rhs = layouts[1].strides()[..rank].iter().all(|&stride| stride == 0);
        let rows = Shape::within_bounds([batch.n_elems() * m, k]);
        if let (true, Some(lhs)) = (one_rhs && rank > 0, layouts[0].reshaped(rows)) {
            // One matrix for all batches: a single product with more rows.
            let rhs = Layout::from_parts(
                Shape::within_bounds([k, n]),
                &layouts[1].strides()[rank..],
                layouts[1].offset(),
            );
            let shape = gemm::Shape { batch: 1, m: rows[0], n, k };
            return Ok(Calls { outer: Shape::SCALAR, shape, layouts: [lhs, rhs] });
        }
        let mut joined = 1;
        let mut axis = rank;
        while axis > 0 {
            let even = |layout: &Layout| {
                axis == rank || layout.strides()[axis - 1] == layout.strides()[axis] * batch[axis] as isize
            };
            if !layouts.iter().all(even) {
                break;
            }
            axis -= 1;
            joined *= batch[axis];
        }
        let outer = batch.leading(axis);
        Ok(Calls { outer, shape: gemm::Shape { batch: joined, m, n, k }, layouts })
    }

    /// The element where operand `operand` of call `call` begins.
    fn start(&self, operand: usize, call: usize) -> isize {
        let (mut at, mut rest) = (0, call);
        for axis in (0..self.outer.rank()).rev() {
            at += (rest % self.outer[axis]) as isize * self.layouts[operand].strides()[axis];
            rest /= self.outer[axis];
        }
        at
    }
}

impl Op for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        one(Extents::of(inputs)?.output()?, inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let metas = [run.inputs[0].meta, run.inputs[1].meta];
        for_floats!(run.inputs[0].dtype(), T => product::<T>(run, &metas, &gemm::Epilogue::NONE))
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let metas = [run.inputs[0].meta, run.inputs[1].meta];
        cuda::product(run, gpu, "matmul", &metas, cuda::After::default())
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        workspace(inputs)
    }

    fn workspace_cuda(&self, inputs: &[&Meta], profile: &Profile) -> usize {
        cuda::workspace(&[inputs[0], inputs[1]], profile)
    }

    fn cost(&self, inputs: &[&Meta], outputs: &[&Meta]) -> Cost {
        let k = inputs[0].shape().last().copied().unwrap_or(0);
        let bytes = bytes_moved(inputs, outputs);
        Cost { flops: saturating_product([2, k, outputs[0].n_elems()]), bytes }
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        let other = |input: usize| wanted[input].then_some(SavedRef::Input(1 - input));
        [other(0), other(1)].into_iter().flatten().collect()
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        if backward.wants(1) {
            let shape = *backward.input_shape(1);
            let result = match (shape.rank(), backward.input(0)?) {
                // One matrix for all batches: a single product over all rows, not one per batch and their sum.
                (2, lhs) if lhs.rank() > 2 => as_rows(&lhs)?.t()?.matmul(&as_rows(&gradient)?)?,
                (_, lhs) => lhs.t()?.matmul(&gradient)?.sum_to(&shape)?,
            };
            backward.set_grad(1, result)?;
        }
        if backward.wants(0) {
            let shape = *backward.input_shape(0);
            let result = gradient.matmul(&backward.input(1)?.t()?)?.sum_to(&shape)?;
            backward.set_grad(0, result)?;
        }
        Ok(())
    }
}

/// All rows of all matrices under each other.
pub(super) fn as_rows(x: &Tensor) -> Result<Tensor> {
    let width = x.shape()[x.rank() - 1];
    let rows = x.shape()[..x.rank() - 1].iter().product();
    x.reshape([rows, width])
}

/// The scratch memory that [`product`] needs for operands of that form.
pub(super) fn workspace(operands: &[&Meta]) -> usize {
    let Ok(calls) = Calls::of(operands) else { return 0 };
    for_floats!(operands[0].dtype, T => gemm::workspace::<T>(&calls.shape))
}

/// Multiplies the first two inputs, seen as `operands` says, into the first output; `epilogue` comes after each sum.
pub(super) fn product<T: gemm::Element>(
    run: &Run<'_>,
    operands: &[&Meta; 2],
    epilogue: &gemm::Epilogue<'_, T>,
) -> Result<()> {
    let (a, b, c) = (&run.inputs[0], &run.inputs[1], &run.outputs[0]);
    let calls = Calls::of(operands)?;
    let gemm::Shape { batch, m, n, .. } = calls.shape;
    // SAFETY: this is the only slice of the call's scratch memory.
    let workspace = unsafe { run.workspace_bytes() };
    let matrix = |operand: &Operand, idx: usize, call: usize| {
        let strides = calls.layouts[idx].strides();
        let inner = strides.len() - 2;
        gemm::MatRef {
            first: operand.ptr().cast::<T>().cast_const().wrapping_offset(calls.start(idx, call)),
            row_stride: strides[inner],
            col_stride: strides[inner + 1],
            batch_stride: if inner > 0 { strides[inner - 1] } else { 0 },
        }
    };
    for call in 0..calls.outer.n_elems() {
        let c = gemm::MatMut {
            first: c.ptr().cast::<T>().wrapping_add(call * batch * m * n),
            row_stride: n as isize,
            col_stride: 1,
            batch_stride: (m * n) as isize,
        };
        let (a, b) = (matrix(a, 0, call), matrix(b, 1, call));
        // SAFETY: the addresses and strides are those of layouts that `execute` has checked; the output is fresh, and
        // the products of this call are a part of it that no other call writes.
        unsafe { gemm::gemm::<T>(&calls.shape, a, b, c, epilogue, workspace) };
    }
    Ok(())
}

impl Tensor {
    /// The matrix product over the last two dimensions; the dimensions before them broadcast.
    ///
    /// # Errors
    /// Shapes that do not fit, dtypes that differ or are not floats; memory that is full.
    #[doc = example!("matmul")]
    #[doc(alias("mm", "bmm", "dot"))]
    #[track_caller]
    pub fn matmul(&self, rhs: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::fixed(&MatMul), &[self, rhs])
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[&OpInfo { name: "matmul", doc: "The product of two matrices.", samples }];

fn samples() -> Vec<Sample> {
    let call = |x: &[Tensor]| x[0].matmul(&x[1]);
    let sample = |name: &str, lhs: &[usize], rhs: &[usize], out: &'static [usize]| {
        Sample::new(name, vec![floats(lhs), floats(rhs)], call)
            .reference(move |x| {
                let k = x[0].shape[x[0].shape.len() - 1];
                Array::build(out, |idx| {
                    let (row, col) = (idx[idx.len() - 2], idx[idx.len() - 1]);
                    let entry = |row, col| [&idx[..idx.len() - 2], &[row, col]].concat();
                    (0..k).map(|k| x[0].at(&entry(row, k)) * x[1].at(&entry(k, col))).sum()
                })
            })
            .torch("x0 @ x1")
            .example("x0.matmul(&x1)")
    };
    vec![
        sample("matrices", &[3, 4], &[4, 5], &[3, 5])
            .refuses(vec![floats(&[3, 4]), floats(&[5, 2])], "columns of the first, 4")
            .refuses(vec![floats(&[3]), floats(&[3, 2])], "two dimensions or more"),
        sample("batches", &[2, 3, 4], &[2, 4, 2], &[2, 3, 2]),
        sample("one matrix for all batches", &[2, 2, 3, 4], &[4, 2], &[2, 2, 3, 2]),
        sample("both repeated", &[2, 1, 3, 4], &[3, 4, 2], &[2, 3, 3, 2]),
    ]
}
