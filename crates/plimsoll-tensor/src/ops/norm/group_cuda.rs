//! Group norm on a GPU: reductions for the statistics and sums of each group, and an elementwise kernel that applies them.
//!
//! Operands are seen as `[examples, places, groups, channels of a group]`, so that a statistic of `[examples, groups]` is
//! repeated along places and channels, and a parameter along examples and places.

use plimsoll_cuda::Gpu;
use smallvec::{SmallVec, smallvec};

use super::last_axis_cuda::Sums;
use crate::base::axes::Axes;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::{MAX_RANK, Shape};
use crate::eager::op::{Meta, Operand, Run};
use crate::ops::cuda::elementwise::Elementwise;
use crate::ops::cuda::reduce::{self, Fold, Reduction};

/// The views of an input's operands.
#[derive(Clone, Copy)]
struct Views {
    /// The common shape, with places as they are, or as one axis where there would be too many.
    shape: Shape,
    groups: usize,
}

impl Views {
    fn new(x: &Meta, groups: usize) -> Views {
        let &[examples, ref places @ .., channels] = x.shape().dims() else { unreachable!("`infer` checks") };
        let mut dims: SmallVec<[usize; MAX_RANK]> = smallvec![examples];
        match x.shape().rank() < MAX_RANK {
            true => dims.extend_from_slice(places),
            false => dims.push(places.iter().product()),
        }
        dims.extend([groups, channels / groups]);
        Views { shape: Shape::within_bounds(dims), groups }
    }

    /// Something of the input's shape.
    fn whole(&self, op: &'static str, meta: &Meta) -> Result<Meta> {
        let layout = &meta.layout;
        if layout.shape().rank() == MAX_RANK {
            let view = layout.reshaped(self.shape).ok_or_else(|| {
                let detail = "a strided input of 8 axes; call `contiguous` on it first";
                Error::shape(op, detail)
            })?;
            return Ok(meta.with_layout(view));
        }
        let mut strides: SmallVec<[isize; MAX_RANK]> = layout.strides().into();
        let inner = strides.pop().unwrap_or(0);
        strides.extend([inner * self.channels() as isize, inner]);
        Ok(meta.with_layout(Layout::from_parts(self.shape, &strides, layout.offset())))
    }

    /// A number per example and group.
    fn statistic(&self, meta: &Meta) -> Meta {
        let rank = self.shape.rank();
        let strides = meta.layout.strides();
        let (mut dims, mut all) = ([1; MAX_RANK], [0; MAX_RANK]);
        (dims[0], all[0]) = (self.shape[0], strides[0]);
        (dims[rank - 2], all[rank - 2]) = (self.groups, strides[1]);
        let shape = Shape::within_bounds(dims[..rank].iter().copied());
        meta.with_layout(Layout::from_parts(shape, &all[..rank], meta.layout.offset()))
    }

    /// A number per channel.
    fn parameter(&self, meta: &Meta) -> Meta {
        let stride = meta.layout.strides()[0];
        let shape = Shape::within_bounds([self.groups, self.channels()]);
        let strides = [stride * self.channels() as isize, stride];
        meta.with_layout(Layout::from_parts(shape, &strides, meta.layout.offset()))
    }

    /// Channels of a group.
    fn channels(&self) -> usize {
        self.shape[self.shape.rank() - 1]
    }

    /// The axes over which a group's statistics are formed: places and the channels of the group.
    fn within_groups(&self) -> Axes {
        let rank = self.shape.rank();
        Axes::of((1..rank - 2).chain([rank - 1]))
    }

    /// The axes over which a channel's sums are formed: examples and places.
    fn across_channels(&self) -> Axes {
        Axes::of(0..self.shape.rank() - 2)
    }

    /// A fresh number per example and group, in the compute type.
    fn fresh_statistic(&self, dtype: DType) -> Meta {
        Meta::fresh(Shape::within_bounds([self.shape[0], self.groups]), dtype.accumulator())
    }
}

/// Pieces of scratch memory begin at a multiple of this.
const ALIGNMENT: usize = 16;

fn aligned(n_bytes: usize) -> usize {
    n_bytes.next_multiple_of(ALIGNMENT)
}

fn statistics_fold(dtype: DType) -> Fold {
    let finish = "y0 = acc.mean; y1 = m::rsqrt(acc.squares / n + NUMBER(0));";
    let acc_bytes = 2 * dtype.accumulator().size();
    Fold { variant: 0, text: reduce::MOMENTS, finish, acc_bytes, is_ordered: false }
}

/// The bytes of scratch memory of [`normalise`].
pub(super) fn forward_bytes(groups: usize, x: &Meta) -> usize {
    let views = Views::new(x, groups);
    let statistics = 2 * aligned(views.fresh_statistic(x.dtype).n_bytes());
    let reduction = views
        .whole("group_norm", x)
        .map_or(0, |x| reduce::workspace(&[&x], views.within_groups(), &statistics_fold(x.dtype)));
    statistics + reduction
}

/// The norm of every example's groups. Leaves mean and rstd in the auxiliary outputs, if there are any.
pub(super) fn normalise(groups: usize, eps: f64, run: &Run<'_>, gpu: &Gpu) -> Result<()> {
    let x = &run.inputs[0];
    let views = Views::new(x.meta, groups);
    let (meta, whole) = (views.fresh_statistic(x.dtype()), views.whole("group_norm", x.meta)?);
    let spare =
        [0, 1].map(|idx| Operand::new(run.workspace.wrapping_add(idx * aligned(meta.n_bytes())), &meta));
    let [mean, rstd] = match run.aux_outputs {
        [mean, rstd] => [mean, rstd],
        _ => [&spare[0], &spare[1]],
    };
    let reduction = Reduction {
        op: "group_norm",
        inputs: &[&x.viewed(&whole)],
        axes: views.within_groups(),
        fold: statistics_fold(x.dtype()),
        outputs: &[mean, rstd],
        numbers: &[eps],
        workspace: run.workspace.wrapping_add(2 * aligned(meta.n_bytes())),
    };
    reduction.run(gpu)?;
    apply("group_norm", groups, run, [mean, rstd], gpu)
}

/// Writes the first output with a given mean and rstd. Inputs: x, gamma and beta.
pub(super) fn apply(
    op: &'static str,
    groups: usize,
    run: &Run<'_>,
    [mean, rstd]: [&Operand; 2],
    gpu: &Gpu,
) -> Result<()> {
    let (x, gamma, beta, y) = (&run.inputs[0], &run.inputs[1], &run.inputs[2], &run.outputs[0]);
    let views = Views::new(x.meta, groups);
    let (x_meta, y_meta) = (views.whole(op, x.meta)?, views.whole(op, y.meta)?);
    let statistics = [mean, rstd].map(|statistic| views.statistic(statistic.meta));
    let parameters = [gamma, beta].map(|parameter| views.parameter(parameter.meta));
    let kernel = Elementwise {
        op,
        inputs: &[
            &x.viewed(&x_meta),
            &mean.viewed(&statistics[0]),
            &rstd.viewed(&statistics[1]),
            &gamma.viewed(&parameters[0]),
            &beta.viewed(&parameters[1]),
        ],
        outputs: &[&y.viewed(&y_meta)],
        numbers: &[],
        words: &[],
        variant: 0,
    };
    kernel.run(gpu, || "y0 = m::fma((x0 - x1) * x2, x3, x4);".to_owned())
}

fn sums(wanted: [bool; 3]) -> Sums {
    Sums { op: "group_norm_backward", is_centred: true, has_relu: false, wanted, has_totals: false }
}

/// The means over a group of the gradient of the normalised input: times that input, and by itself. Told from the sums of
/// channels, which the same op makes, by its variant.
fn means_fold(dtype: DType) -> Fold {
    let text = "
        struct Acc { C along, shared; };
        DEVICE Acc empty() { return {(C)0, (C)0}; }
        template <int N> DEVICE Acc leaf(const Values<N>& values) {
            Acc acc = empty();
            _Pragma(\"unroll\") for (int i = 0; i < N; i++) {
                C local_grad = values.x0[i] * values.x4[i];
                acc.along += local_grad * ((values.x1[i] - values.x2[i]) * values.x3[i]);
                acc.shared += local_grad;
            }
            return acc;
        }
        DEVICE Acc merge(Acc a, Count, Acc b, Count) { return {a.along + b.along, a.shared + b.shared}; }";
    let acc_bytes = 2 * dtype.accumulator().size();
    Fold {
        variant: 8,
        text,
        finish: "y0 = acc.along / n; y1 = acc.shared / n;",
        acc_bytes,
        is_ordered: false,
    }
}

/// The views of backward's inputs: the gradient of the output, x, mean, rstd and gamma.
fn backward_views(views: &Views, inputs: [&Meta; 5]) -> Result<[Meta; 5]> {
    let [g, x, gamma, mean, rstd] = inputs;
    let op = "group_norm_backward";
    Ok([
        views.whole(op, g)?,
        views.whole(op, x)?,
        views.statistic(mean),
        views.statistic(rstd),
        views.parameter(gamma),
    ])
}

/// The bytes of scratch memory of [`backward`].
pub(super) fn backward_bytes(groups: usize, wanted: [bool; 3], inputs: &[&Meta]) -> usize {
    let Ok(inputs) = <[&Meta; 5]>::try_from(inputs) else { unreachable!("five operands") };
    let views = Views::new(inputs[1], groups);
    let means = 2 * aligned(views.fresh_statistic(inputs[1].dtype).n_bytes());
    let Ok(viewed) = backward_views(&views, inputs) else { return means };
    let [g, x, mean, rstd, gamma] = &viewed;
    let channels = sums(wanted).workspace(&[g, x, mean, rstd], views.across_channels());
    let fold = means_fold(x.dtype);
    let of_groups = reduce::workspace(&[g, x, mean, rstd, gamma], views.within_groups(), &fold);
    means + channels.max(of_groups)
}

/// The gradients that are wanted. Inputs: the gradient of the output, x, gamma, mean and rstd.
pub(super) fn backward(groups: usize, wanted: [bool; 3], run: &Run<'_>, gpu: &Gpu) -> Result<()> {
    let [g, x, gamma, mean, rstd] = run.inputs else { unreachable!("five operands") };
    let views = Views::new(x.meta, groups);
    let viewed = backward_views(&views, [g.meta, x.meta, gamma.meta, mean.meta, rstd.meta])?;
    let [g, x, mean, rstd, gamma] = [
        g.viewed(&viewed[0]),
        x.viewed(&viewed[1]),
        mean.viewed(&viewed[2]),
        rstd.viewed(&viewed[3]),
        gamma.viewed(&viewed[4]),
    ];
    let meta = views.fresh_statistic(x.dtype());
    let [along, shared, rest] =
        [0, 1, 2].map(|idx| run.workspace.wrapping_add(idx * aligned(meta.n_bytes())));
    sums(wanted).run(run, &[&g, &x, &mean, &rstd], views.across_channels(), &[], rest, gpu)?;
    if !wanted[0] {
        return Ok(());
    }
    let (along, shared) = (Operand::new(along, &meta), Operand::new(shared, &meta));
    let reduction = Reduction {
        op: "group_norm_backward",
        inputs: &[&g, &x, &mean, &rstd, &gamma],
        axes: views.within_groups(),
        fold: means_fold(x.dtype()),
        outputs: &[&along, &shared],
        numbers: &[],
        workspace: rest,
    };
    reduction.run(gpu)?;
    let (statistic, dx) = (views.statistic(&meta), views.whole("group_norm_backward", run.outputs[0].meta)?);
    let kernel = Elementwise {
        op: "group_norm_backward",
        inputs: &[&g, &x, &mean, &rstd, &gamma, &along.viewed(&statistic), &shared.viewed(&statistic)],
        outputs: &[&run.outputs[0].viewed(&dx)],
        numbers: &[],
        words: &[],
        variant: 0,
    };
    kernel.run(gpu, || "y0 = (x0 * x4 - x6 - (x1 - x2) * x3 * x5) * x3;".to_owned())
}
