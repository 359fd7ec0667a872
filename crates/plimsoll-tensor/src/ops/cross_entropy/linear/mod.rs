//! `linear_cross_entropy`: the mean cross entropy of a linear function of rows, whose logits are never there whole.
//!
//! The logits of a language model are its largest tensor, and nobody but the loss reads them. Here they are made a few
//! rows at a time in scratch memory. When the op is recorded, each such chunk becomes its own gradient in place and is
//! multiplied on into the gradients of rows and weights at once; they are what is saved, and backward only scales them.
//! No product is recomputed, and nothing of the logits' size is saved. How many rows a chunk has follows from the shapes.

mod cpu;
mod cuda;
mod samples;
mod scale;

use plimsoll_cuda::{Gpu, Profile};
use smallvec::{SmallVec, smallvec};

use super::sparse::check_labels;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{
    AuxOutput, Cost, Form, Meta, Op, OpRef, Outputs, Run, SavedRef, SavedRefs, Tensors, bytes_moved, one,
    saturating_product,
};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::activation::Activation;
use crate::ops::kernel::for_floats;
use crate::ops::matmul::as_rows;

pub(super) use samples::{INFO, SCALE_INFO};

/// From rows `[rows, k]`, weights and labels `[rows]` to the mean loss of the rows that are not ignored.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinearCrossEntropy {
    /// Whether the weights are `[classes, k]`, as those of a table of embeddings, and not `[k, classes]`.
    by_class: bool,
    ignored: Option<i64>,
    /// The shape that the labels had, for errors.
    labels: Shape,
}

/// The extents of a call.
#[derive(Clone, Copy)]
struct Extents {
    rows: usize,
    k: usize,
    classes: usize,
}

/// The auxiliary outputs, in this order: the gradients of rows and weights of the sum of the losses, times some power of two,
/// each empty if it is not wanted; and the factor that makes them those of the mean.
const ROWS_GRADIENT: usize = 0;
const WEIGHTS_GRADIENT: usize = 1;
const FACTOR: usize = 2;

impl LinearCrossEntropy {
    fn extents(&self, inputs: &[&Meta]) -> Result<Extents> {
        let [x, w, _] = inputs else { unreachable!("three operands") };
        if x.dtype != w.dtype {
            return Err(Error::mixed_dtypes(self.name(), x.dtype, w.dtype));
        }
        let (&[rows, k], &[first, second]) = (x.shape().dims(), w.shape().dims()) else {
            return Err(Error::shape(
                self.name(),
                format!("shapes {} and {}; rows and weights are matrices", x.shape(), w.shape()),
            ));
        };
        let (inner, classes) = if self.by_class { (second, first) } else { (first, second) };
        if inner != k {
            return Err(Error::shape(
                self.name(),
                format!("rows of {k} numbers, but weights of shape {} for rows of {inner}", w.shape()),
            ));
        }
        Ok(Extents { rows, k, classes })
    }

    /// The logits that would be, to check labels against.
    fn logits(&self, inputs: &[&Meta]) -> Result<Meta> {
        let Extents { rows, classes, .. } = self.extents(inputs)?;
        Ok(Meta::fresh(Shape::new(&[rows, classes])?, inputs[0].dtype))
    }
}

impl Extents {
    /// The rows of a chunk whose logits take about `budget` bytes; all chunks but the last have as many.
    fn chunk(&self, dtype: DType, budget: usize) -> usize {
        let most = (budget / (self.classes * dtype.size()).max(1)).max(1);
        self.rows.div_ceil(self.rows.div_ceil(most).max(1)).max(1)
    }

    /// The first row of each chunk, and how many it has.
    fn chunks(self, chunk: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..self.rows).step_by(chunk).map(move |first| (first, chunk.min(self.rows - first)))
    }
}

impl Op for LinearCrossEntropy {
    fn name(&self) -> &'static str {
        "linear_cross_entropy"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        check_labels(self.name(), &self.logits(inputs)?, inputs[2])?;
        if let Some(strided) = inputs.iter().find(|input| !input.layout.is_contiguous()) {
            return Err(Error::shape(
                self.name(),
                format!("an operand of shape {} is strided; call `contiguous` on it first", strided.shape()),
            ));
        }
        one(Shape::SCALAR, inputs[0].dtype.accumulator())
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[0].dtype(), T => cpu::run::<T>(*self, run))
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        let Ok(extents) = self.extents(inputs) else { return 0 };
        for_floats!(inputs[0].dtype, T => cpu::Room::of::<T>(&extents).n_bytes())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::run(*self, run, gpu)
    }

    fn workspace_cuda(&self, inputs: &[&Meta], profile: &Profile) -> usize {
        let Ok(extents) = self.extents(inputs) else { return 0 };
        cuda::Room::of(&extents, inputs[0].dtype, profile).n_bytes()
    }

    fn aux_outputs(&self, inputs: &[&Meta], wanted: &[bool]) -> SmallVec<[AuxOutput; 2]> {
        let nothing = Shape::within_bounds([0]);
        let gradient = |input: usize| {
            let shape = if wanted[input] { *inputs[input].shape() } else { nothing };
            AuxOutput { form: Form::Gradients, meta: Meta::fresh(shape, inputs[input].dtype) }
        };
        let factor = Meta::fresh(Shape::SCALAR, inputs[0].dtype.accumulator());
        smallvec![gradient(0), gradient(1), AuxOutput { form: Form::Statistics, meta: factor }]
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        let gradient = |input: usize, aux: usize| wanted[input].then_some(SavedRef::Aux(aux));
        [gradient(0, ROWS_GRADIENT), gradient(1, WEIGHTS_GRADIENT), Some(SavedRef::Aux(FACTOR))]
            .into_iter()
            .flatten()
            .collect()
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let factor = backward.gradient()?.mul(&backward.aux(FACTOR)?)?;
        for (input, aux) in [(1, WEIGHTS_GRADIENT), (0, ROWS_GRADIENT)] {
            if backward.wants(input) {
                let gradient = scale::scaled(backward.take_aux(aux)?, &factor)?;
                backward.set_grad(input, gradient)?;
            }
        }
        Ok(())
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let mean = || {
            let w = if self.by_class { inputs[1].t()? } else { inputs[1].clone() };
            let logits = inputs[0].linear(&w, None, Activation::None)?;
            let logits = logits.cast(logits.dtype().accumulator())?;
            match self.ignored {
                None => logits.sparse_cross_entropy(inputs[2])?.mean(..),
                Some(ignored) => logits.mean_sparse_cross_entropy_ignoring(inputs[2], ignored),
            }
        };
        Some(mean().map(|mean| smallvec![mean]))
    }

    fn cost(&self, inputs: &[&Meta], _outputs: &[&Meta]) -> Cost {
        let bytes = bytes_moved(inputs, &[]);
        let flops = self.extents(inputs).map_or(0, |e| saturating_product([6, e.rows, e.k, e.classes]));
        // When it is recorded, the two products of backward are made, too.
        Cost { flops, bytes: bytes.saturating_mul(3) }
    }
}

impl Tensor {
    /// The mean cross entropy of the logits `self · weights` and class indices, for rows `[.., k]`, weights `[k, classes]`
    /// and labels `[..]`; a scalar in f32, in f64 for f64. It is `linear`, `sparse_cross_entropy` and `mean` in one, and
    /// the logits are never there whole. Weights that are a transposed view, such as those of a table of embeddings, are
    /// read as they lie. Rows whose label is `ignored` do not count.
    ///
    /// # Errors
    /// Shapes that do not fit, labels that are no class, operands that are not floats of one dtype; memory that is full.
    #[doc = example!("linear_cross_entropy")]
    #[doc(alias = "fused_linear_cross_entropy")]
    #[track_caller]
    pub fn linear_cross_entropy(
        &self,
        weights: &Tensor,
        labels: &Tensor,
        ignored: Option<i64>,
    ) -> Result<Tensor> {
        let _line = context::at_callers_line();
        if self.rank() == 0 || weights.rank() != 2 {
            return Err(Error::shape(
                "linear_cross_entropy",
                format!(
                    "shapes {} and {}; rows are [.., k], weights [k, classes]",
                    self.shape(),
                    weights.shape()
                ),
            ));
        }
        let by_class = is_transposed(weights.layout());
        let weights = if by_class { weights.t()? } else { weights.contiguous()? };
        let n_rows: usize = self.shape()[..self.rank() - 1].iter().product();
        if labels.n_elems() != n_rows || labels.shape().dims() != &self.shape()[..self.rank() - 1] {
            return Err(Error::shape(
                "linear_cross_entropy",
                format!("rows {} have one label each, but labels are {}", self.shape(), labels.shape()),
            ));
        }
        let op = LinearCrossEntropy { by_class, ignored, labels: *labels.shape() };
        let labels = labels.reshape([n_rows])?.contiguous()?;
        let rows = as_rows(self)?.contiguous()?;
        call(OpRef::shipped(op), &[&rows, &weights, &labels])
    }
}

/// Whether a matrix is the transpose of one that lies contiguously, and not contiguous itself.
fn is_transposed(layout: &Layout) -> bool {
    !layout.is_contiguous() && layout.permuted(&[1, 0]).is_contiguous()
}
