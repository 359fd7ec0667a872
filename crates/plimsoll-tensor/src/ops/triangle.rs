//! `tril` and `triu`: the lower or upper triangle of matrices, zeros elsewhere.

use plimsoll_cpu::threads::{self, SharedPtr};
use plimsoll_cuda::Gpu;

use crate::base::axes::Integer;
use crate::base::error::{Error, Result};
use crate::eager::context;
use crate::eager::execute::{Arg, call, call_with};
use crate::eager::op::{Meta, Op, OpRef, Operand, Outputs, Run, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::cuda::elementwise;
use crate::ops::kernel::{offset_of, units_per_task};
use crate::ops::registry::{Array, OpInfo, Sample, floats};

/// Which triangle stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Lower,
    Upper,
}

/// y[i, j] = x[i, j] where j - i <= k (lower) or j - i >= k (upper), else 0. The gradient is cut in the same way.
#[derive(Clone, Copy, Debug)]
struct Triangle {
    side: Side,
    k: isize,
}

impl Triangle {
    /// The columns of a row that stay.
    fn kept(self, row: usize, n_cols: usize) -> std::ops::Range<usize> {
        let clamp = |col: isize| col.clamp(0, n_cols as isize) as usize;
        let diagonal = (row as isize).saturating_add(self.k);
        match self.side {
            Side::Lower => 0..clamp(diagonal.saturating_add(1)),
            Side::Upper => clamp(diagonal)..n_cols,
        }
    }
}

impl Op for Triangle {
    fn name(&self) -> &'static str {
        match self.side {
            Side::Lower => "tril",
            Side::Upper => "triu",
        }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let shape = inputs[0].shape();
        if shape.rank() < 2 {
            return Err(Error::shape(
                self.name(),
                format!("takes matrices, not shape {shape}; two dimensions or more are needed"),
            ));
        }
        one(*shape, inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (x, y) = (&run.inputs[0], &run.outputs[0]);
        // SAFETY: `execute` hands out operands that are valid for their layouts; the output is fresh, or the input itself.
        // Elements are moved as bits of their size, and zero bits are zero in every dtype.
        unsafe {
            match x.dtype().size() {
                1 => cut::<u8>(*self, x, y),
                2 => cut::<u16>(*self, x, y),
                4 => cut::<i32>(*self, x, y),
                _ => cut::<i64>(*self, x, y),
            }
        }
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let &[.., n_rows, n_cols] = run.inputs[0].shape().dims() else {
            unreachable!("`infer` asks for matrices")
        };
        let stays = match self.side {
            Side::Lower => "<=",
            Side::Upper => ">=",
        };
        let words = [n_rows as u64, n_cols as u64, self.k as u64];
        // The place is counted in the type that the number of elements needs, because dividing wide numbers is slow.
        elementwise::over(self.name(), run, gpu, &[], &words, || {
            format!(
                "Index at = (Index)index, col = at % (Index)WORD(1), row = at / (Index)WORD(1) % (Index)WORD(0); \
                 y0 = (i64)col - (i64)row {stays} (i64)WORD(2) ? x0 : C(0);"
            )
        })
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = Arg::Given(backward.gradient()?);
        backward.set_grad(0, call_with(OpRef::shipped(*self), smallvec::smallvec![gradient])?)
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }
}

/// # Safety
/// The operands are valid for their layouts, their elements as large as `B`; the output is nobody else's, or the input.
unsafe fn cut<B: Copy + Default>(triangle: Triangle, x: &Operand, y: &Operand) {
    let (&[.., n_rows, n_cols], strides) = (x.shape().dims(), x.meta.layout.strides()) else {
        unreachable!("`infer` asks for matrices")
    };
    if y.n_elems() == 0 {
        return;
    }
    let in_place = x.ptr() == y.ptr();
    let (outer, col_stride) = (strides.len() - 1, strides[strides.len() - 1]);
    let (shape, rows) = (x.shape(), y.n_elems() / n_cols);
    let (from, to) = (SharedPtr::new(x.ptr().cast::<B>()), SharedPtr::new(y.ptr().cast::<B>()));
    let per_task = units_per_task(n_cols);
    threads::parallel(rows.div_ceil(per_task), |task| {
        for row in task * per_task..rows.min((task + 1) * per_task) {
            let kept = triangle.kept(row % n_rows, n_cols);
            // SAFETY: a row of each operand; each row of the output is written by one task, and where it is the row of
            // the input no copy is made.
            unsafe {
                let from = from.get().offset(offset_of(&shape[..outer], &strides[..outer], row));
                let to = std::slice::from_raw_parts_mut(to.get().add(row * n_cols), n_cols);
                to[..kept.start].fill(B::default());
                to[kept.end..].fill(B::default());
                match (in_place, col_stride) {
                    (true, _) => {}
                    (false, 1) => {
                        let from = from.add(kept.start);
                        std::ptr::copy_nonoverlapping(from, to[kept.clone()].as_mut_ptr(), kept.len());
                    }
                    (false, _) => kept.for_each(|col| to[col] = *from.offset(col as isize * col_stride)),
                }
            }
        }
    });
}

impl Tensor {
    /// The lower triangles of the matrices of the last two dimensions, zeros above diagonal `k`; zero is the main one.
    ///
    /// # Errors
    /// Fewer than two dimensions; memory that is full.
    #[doc = example!("tril")]
    #[doc(alias = "band_part")]
    #[track_caller]
    pub fn tril(&self, k: impl Integer) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::shipped(Triangle { side: Side::Lower, k: k.to_isize() }), &[self])
    }

    /// The upper triangles of the matrices of the last two dimensions, zeros below diagonal `k`; zero is the main one.
    ///
    /// # Errors
    /// Fewer than two dimensions; memory that is full.
    #[doc = example!("triu")]
    #[track_caller]
    pub fn triu(&self, k: impl Integer) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::shipped(Triangle { side: Side::Upper, k: k.to_isize() }), &[self])
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &OpInfo { name: "tril", doc: "The lower triangle of matrices.", samples: || samples(Side::Lower) },
    &OpInfo { name: "triu", doc: "The upper triangle of matrices.", samples: || samples(Side::Upper) },
];

fn samples(side: Side) -> Vec<Sample> {
    let sample = |name: &str, shape: &'static [usize], k: isize| {
        let call = move |x: &[Tensor]| if side == Side::Lower { x[0].tril(k) } else { x[0].triu(k) };
        let torch = if side == Side::Lower { "tril" } else { "triu" };
        Sample::new(name, vec![floats(shape)], call)
            .reference(move |x| {
                Array::build(shape, |i| {
                    let above = i[i.len() - 1] as isize - i[i.len() - 2] as isize - k;
                    let stays = if side == Side::Lower { above <= 0 } else { above >= 0 };
                    if stays { x[0].at(i) } else { 0.0 }
                })
            })
            .torch(format!("x0.{torch}({k})"))
            .example(format!("x0.{torch}({k})"))
    };
    vec![
        sample("square", &[4, 4], 0).refuses(vec![floats(&[4])], "takes matrices, not shape [4]"),
        sample("wide", &[2, 3, 5], 1),
        sample("tall", &[5, 2], -2),
    ]
}
