//! `one_hot`: a one at each index, zeros elsewhere.

use plimsoll_cpu::copy::fill;
use plimsoll_cuda::Gpu;

use super::{check_dtype, check_range, for_indices, refusal};
use crate::base::dtype::{DType, Element};
use crate::base::error::Result;
use crate::base::shape::Shape;
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{Gradient, Meta, Op, OpRef, Outputs, Run, one};
use crate::eager::tensor::Tensor;
use crate::ops::cuda::elementwise::Elementwise;
use crate::ops::kernel::{dst, for_all, offset_of};
use crate::ops::registry::{Array, Sample, Values, floats, input};

/// y[.., j] = 1 where ids[..] = j, else 0.
#[derive(Debug)]
struct OneHot {
    n: usize,
    dtype: DType,
}

impl Op for OneHot {
    fn name(&self) -> &'static str {
        "one_hot"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        check_dtype("one_hot", inputs[0])?;
        let dims: Vec<usize> = inputs[0].shape().iter().copied().chain([self.n]).collect();
        one(Shape::new(&dims)?, self.dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (ids, y) = (&run.inputs[0], &run.outputs[0]);
        for_indices!(ids.dtype(), I => for_all!(self.dtype, T => {
            let (first, ones) = (ids.ptr().cast::<I>().cast_const(), y.ptr().cast::<T>());
            // SAFETY: `execute` hands out operands that are valid for their layouts, and the output is fresh; the range
            // of the indices is checked before they are used.
            unsafe {
                check_range::<I>("one_hot", ids, y.shape().rank() - 1, self.n)?;
                fill::<T>(y.shape(), dst(y), T::from_f64(0.0));
                for row in 0..ids.n_elems() {
                    let id = *first.offset(offset_of(ids.shape(), ids.meta.layout.strides(), row));
                    *ones.add(row * self.n + id as usize) = T::from_f64(1.0);
                }
            }
        }));
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let (ids, y) = (&run.inputs[0], &run.outputs[0]);
        let (cell, call) = run.may_refuse("one_hot", refusal(ids.shape(), y.shape().rank() - 1, self.n))?;
        // Each id is repeated along the last axis; whoever has its first place checks it.
        let repeated = Meta { layout: ids.meta.layout.unsqueezed(ids.shape().rank()), dtype: ids.dtype() };
        let kernel = Elementwise {
            op: "one_hot",
            inputs: &[&ids.viewed(&repeated)],
            outputs: &[y],
            numbers: &[],
            words: &[self.n as u64, cell as u64, call],
            variant: 0,
        };
        kernel.run(gpu, || {
            "Index col = (Index)index % (Index)WORD(0); \
             if (col == 0 && (x0 < 0 || x0 >= (i64)WORD(0))) \
             fault((Note*)WORD(1), WORD(2), (u64)index / WORD(0), x0); \
             y0 = (i64)x0 == (i64)col;"
                .to_owned()
        })
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero
    }
}

impl Tensor {
    /// A one at each index and zeros elsewhere: shape `[..]` of indices becomes `[.., n]` of `dtype`.
    ///
    /// # Errors
    /// Indices that are not int64 or int32, or not below `n`; memory that is full.
    #[doc = example!("one_hot")]
    #[track_caller]
    pub fn one_hot(&self, n: usize, dtype: DType) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::shipped(OneHot { n, dtype }), &[self])
    }
}

pub(super) fn samples() -> Vec<Sample> {
    let indices = |shape: &[usize]| vec![input(shape, Values::Indices(4))];
    vec![
        Sample::new("vector", indices(&[6]), |x| x[0].one_hot(4, DType::F32))
            .reference(|x| Array::build(&[6, 4], |i| f64::from(x[0].at(&i[..1]) == i[1] as f64)))
            .torch("F.one_hot(x0, 4).float()")
            .example("x0.one_hot(4, DType::F32)")
            .refuses(vec![floats(&[6])], "int64 or int32"),
        Sample::new("matrix", indices(&[2, 3]), |x| x[0].one_hot(5, DType::I64))
            .reference(|x| Array::build(&[2, 3, 5], |i| f64::from(x[0].at(&i[..2]) == i[2] as f64)))
            .torch("F.one_hot(x0, 5)"),
    ]
}
