//! The norms on a GPU.
//!
//! Statistics of lines are found while a line is in registers; those of channels and groups are reductions. The gradients of
//! gamma and beta are sums over lines: a reduction of the gradient, the input and its statistics together.

use plimsoll_cuda::{Gpu, Param, Template};
use smallvec::SmallVec;

use super::add::AddLastAxisNorm;
use super::last_axis::{LastAxisNorm, LastAxisNormBackward};
use crate::base::axes::Axes;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::eager::op::{Meta, Op, Operand, Run};
use crate::ops::cuda::lines::{Along, LineKernel, Lines};
use crate::ops::cuda::reduce::{self, Fold, Reduction};
use crate::ops::cuda::{CODE_BITS, c_name, code};
use crate::ops::dropout::Dropout;

static LINE: Template = Template { name: "line_norm", text: include_str!("last_axis.cu") };

/// What the kernels of norms along the last axis are told.
fn define_line(what: &str, dtype: DType, is_centred: bool) -> String {
    format!("#define {what}\ntypedef {} T;\n#define IS_CENTRED {}", c_name(dtype), u8::from(is_centred))
}

/// The norm of every line. Inputs: x, gamma and, if it is centred, beta. Leaves the statistics in the auxiliary outputs, if
/// any.
pub(super) fn normalise_lanes(op: &'static str, norm: LastAxisNorm, run: &Run<'_>, gpu: &Gpu) -> Result<()> {
    let (x, gamma, y) = (&run.inputs[0], &run.inputs[1], &run.outputs[0]);
    let beta = run.inputs.get(2).unwrap_or(gamma);
    let last = x.shape().rank() - 1;
    let lines = Lines::along(last, x.shape(), &[x, gamma, beta, y].map(Along::Lane));
    let [mean, rstd] = saved_statistics(run);
    let pointers = [x.ptr(), gamma.ptr(), beta.ptr(), y.ptr(), mean, rstd];
    let kernel =
        LineKernel { template: &LINE, op, variant: code(x.dtype()), in_registers: true, made: Some(x) };
    // SAFETY: `execute` hands out operands that are valid for their layouts, the lines are theirs, auxiliary outputs have one
    // element per line, and the kernel was made for this dtype.
    unsafe {
        kernel.launch(
            gpu,
            &lines,
            || define_line("FORWARD", x.dtype(), norm.is_centred),
            &pointers,
            &[&norm.eps],
        )
    }
}

/// The sum of x and a branch, and its norm. Inputs: x, the branch, and the norm's parameters; outputs: the sum, which may lie
/// in the branch's memory, and the norm. Leaves the statistics in the auxiliary outputs, if any.
pub(super) fn add_and_normalise_lanes(op: &AddLastAxisNorm, run: &Run<'_>, gpu: &Gpu) -> Result<()> {
    let (x, branch, gamma) = (&run.inputs[0], &run.inputs[1], &run.inputs[2]);
    let beta = run.inputs.get(3).unwrap_or(gamma);
    let (sum, y) = (&run.outputs[0], &run.outputs[1]);
    let last = x.shape().rank() - 1;
    let lines = Lines::along(last, x.shape(), &[x, gamma, beta, y, branch, sum].map(Along::Lane));
    let [mean, rstd] = saved_statistics(run);
    let pointers = [x.ptr(), gamma.ptr(), beta.ptr(), y.ptr(), branch.ptr(), sum.ptr(), mean, rstd];
    let variant = (u64::from(op.dropout.is_some()) << CODE_BITS) | code(x.dtype());
    let kernel = LineKernel { template: &LINE, op: op.name(), variant, in_registers: true, made: None };
    let define = || define_dropout(op.dropout) + &define_line("ADD", x.dtype(), op.norm.is_centred);
    // SAFETY: as above; where the sum lies in the branch's memory, each thread writes what it alone has read.
    unsafe { kernel.launch(gpu, &lines, define, &pointers, &[&op.norm.eps, &Drop::of(op.dropout)]) }
}

/// Where the mean and the rstd of lines are left; nowhere where they are not wanted.
fn saved_statistics(run: &Run<'_>) -> [*mut u8; 2] {
    [2, 1].map(|from_end| {
        let aux = run.aux_outputs.len().checked_sub(from_end).map(|idx| run.aux_outputs[idx].ptr());
        aux.unwrap_or(std::ptr::null_mut())
    })
}

/// Dropout, as kernels take it.
#[repr(C)]
struct Drop {
    seed: u64,
    number: u64,
    scale: f64,
    threshold: u64,
}

// SAFETY: `last_axis.cu` has the same struct.
unsafe impl Param for Drop {}

impl Drop {
    fn of(dropout: Option<Dropout>) -> Drop {
        match dropout {
            Some(dropout) => Drop {
                seed: dropout.draw.seed,
                number: dropout.draw.number,
                scale: dropout.scale(),
                threshold: u64::from(dropout.threshold()),
            },
            None => Drop { seed: 0, number: 0, scale: 1.0, threshold: 0 },
        }
    }
}

/// Whether a kernel drops elements.
fn define_dropout(dropout: Option<Dropout>) -> String {
    format!("#define HAS_DROPOUT {}\n", u8::from(dropout.is_some()))
}

/// The norm of every line with given statistics. Inputs: those of the norm, then its auxiliary outputs.
pub(super) fn apply_to_lanes(op: &'static str, is_centred: bool, run: &Run<'_>, gpu: &Gpu) -> Result<()> {
    let (x, gamma, y) = (&run.inputs[0], &run.inputs[1], &run.outputs[0]);
    let rstd = &run.inputs[run.inputs.len() - 1];
    let (beta, mean) = if is_centred { (&run.inputs[2], &run.inputs[3]) } else { (gamma, rstd) };
    let operands = [
        Along::Lane(x),
        Along::Lane(gamma),
        Along::Lane(beta),
        Along::Lane(y),
        Along::Number(mean),
        Along::Number(rstd),
    ];
    let lines = Lines::along(x.shape().rank() - 1, x.shape(), &operands);
    let pointers = [x.ptr(), gamma.ptr(), beta.ptr(), y.ptr(), mean.ptr(), rstd.ptr()];
    let kernel = LineKernel { template: &LINE, op, variant: code(x.dtype()), in_registers: true, made: None };
    // SAFETY: `execute` hands out operands that are valid for their layouts, the lines are theirs, and the kernel was made
    // for this dtype.
    unsafe { kernel.launch(gpu, &lines, || define_line("APPLY", x.dtype(), is_centred), &pointers, &[]) }
}

/// The gradients that are wanted. Inputs: the gradient of the output, x, gamma, the norm's auxiliary outputs, and a gradient
/// that x has from elsewhere, if there is one.
pub(super) fn backward_of_lanes(op: &LastAxisNormBackward, run: &Run<'_>, gpu: &Gpu) -> Result<()> {
    let (is_centred, n_aux) = (op.norm.is_centred, op.norm.n_aux());
    let (g, x, gamma) = (&run.inputs[0], &run.inputs[1], &run.inputs[2]);
    let (mean, rstd) = (&run.inputs[3], &run.inputs[2 + n_aux]);
    let columns = [mean, rstd].map(|statistic| column(statistic.meta));
    let statistics = [mean.viewed(&columns[0]), rstd.viewed(&columns[1])];
    let sums = Sums { op: op.name(), is_centred, has_relu: false, wanted: op.wanted, has_totals: false };
    // The gradient of the input may be written over that of the output, so it is the last to be made.
    let inputs = [g, x, &statistics[0], &statistics[1]];
    sums.run(run, &inputs, lanes_axes(x.meta), &[], run.workspace, gpu)?;
    if !op.wanted[0] {
        return Ok(());
    }
    let dx = &run.outputs[0];
    let joined = run.inputs.get(3 + n_aux);
    let operands = [
        Along::Lane(g),
        Along::Lane(x),
        Along::Lane(gamma),
        Along::Number(mean),
        Along::Number(rstd),
        Along::Lane(dx),
        Along::Lane(joined.unwrap_or(g)),
    ];
    let lines = Lines::along(x.shape().rank() - 1, x.shape(), &operands);
    // The gradient of what was dropped is fresh, so its lines follow each other.
    let dropped = run.outputs.last().unwrap_or(dx);
    let is_joined = joined.is_some();
    let pointers = [g, x, gamma, mean, rstd, dx, joined.unwrap_or(g), dropped].map(Operand::ptr);
    let variant = (u64::from(op.dropout.is_some()) << (CODE_BITS + 1))
        | (u64::from(is_joined) << CODE_BITS)
        | code(x.dtype());
    let kernel = LineKernel { template: &LINE, op: op.name(), variant, in_registers: true, made: None };
    let define = || {
        let joined = format!("#define IS_JOINED {}\n", u8::from(is_joined));
        joined + &define_dropout(op.dropout) + &define_line("BACKWARD", x.dtype(), is_centred)
    };
    // SAFETY: as above; where the result is the gradient's memory, each thread writes what it alone has read.
    unsafe { kernel.launch(gpu, &lines, define, &pointers, &[&Drop::of(op.dropout)]) }
}

/// The bytes of scratch memory of [`backward_of_lanes`].
pub(super) fn backward_of_lanes_workspace(is_centred: bool, wanted: [bool; 3], inputs: &[&Meta]) -> usize {
    let (mean, rstd) = (column(inputs[3]), column(inputs[3 + usize::from(is_centred)]));
    let sums = Sums { op: "", is_centred, has_relu: false, wanted, has_totals: false };
    sums.workspace(&[inputs[0], inputs[1], &mean, &rstd], lanes_axes(inputs[1]))
}

/// The axes along which lines follow each other: all but the last.
pub(super) fn lanes_axes(x: &Meta) -> Axes {
    Axes::of(0..x.shape().rank() - 1)
}

/// A number per line as a column beside the lines.
fn column(statistic: &Meta) -> Meta {
    statistic.with_layout(statistic.layout.unsqueezed(statistic.shape().rank()))
}

/// The sums for gamma and beta over lines: of the gradient times the normalised input, and of the gradient.
pub(super) struct Sums {
    /// The op.
    pub op: &'static str,
    /// Whether the mean is taken away.
    pub is_centred: bool,
    /// Whether the gradient is that of relu of the norm, which tells where it passes from gamma and beta.
    pub has_relu: bool,
    /// Which gradients are wanted: of the input, of gamma, of beta.
    pub wanted: [bool; 3],
    /// Whether both sums are wanted in the compute type, too, for the gradient of the input.
    pub has_totals: bool,
}

impl Sums {
    /// Over the gradient, the input, and its mean and rstd, both repeated; with relu, gamma and beta, too.
    pub fn run(
        &self,
        run: &Run<'_>,
        inputs: &[&Operand],
        axes: Axes,
        totals: &[Operand],
        workspace: *mut u8,
        gpu: &Gpu,
    ) -> Result<()> {
        // That of the input comes first, and what else an op makes comes last.
        let first = usize::from(self.wanted[0]);
        let n_results = usize::from(self.wanted[1]) + usize::from(self.wanted[2]);
        let results = &run.outputs[first..first + n_results];
        let outputs: SmallVec<[&Operand; 4]> = totals.iter().chain(results).collect();
        if outputs.is_empty() {
            return Ok(());
        }
        let fold = self.fold(inputs[1].dtype());
        let reduction =
            Reduction { op: self.op, inputs, axes, fold, outputs: &outputs, numbers: &[], workspace };
        reduction.run(gpu)
    }

    /// The bytes of scratch memory that it needs.
    pub fn workspace(&self, inputs: &[&Meta], axes: Axes) -> usize {
        match self.has_totals || self.wanted[1] || self.wanted[2] {
            true => reduce::workspace(inputs, axes, &self.fold(inputs[1].dtype)),
            false => 0,
        }
    }

    fn fold(&self, dtype: DType) -> Fold {
        let (variant, finish) = match (self.has_totals, self.wanted[1], self.wanted[2]) {
            (false, true, true) => (0, "y0 = acc.gamma; y1 = acc.beta;"),
            (false, true, false) => (1, "y0 = acc.gamma;"),
            (false, false, _) => (2, "y0 = acc.beta;"),
            (true, true, true) => (3, "y0 = y2 = acc.gamma; y1 = y3 = acc.beta;"),
            (true, true, false) => (4, "y0 = y2 = acc.gamma; y1 = acc.beta;"),
            (true, false, true) => (5, "y0 = acc.gamma; y1 = y2 = acc.beta;"),
            (true, false, false) => (6, "y0 = acc.gamma; y1 = acc.beta;"),
        };
        let text = match (self.is_centred, self.has_relu) {
            (true, true) => RELU_SUMS,
            (true, false) => CENTRED_SUMS,
            (false, _) => RMS_SUMS,
        };
        let variant = variant | (u64::from(self.has_relu) << 3);
        Fold { variant, text, finish, acc_bytes: 2 * dtype.accumulator().size(), is_ordered: false }
    }
}

/// The text of the fold, given the normalised input and what else is done to the gradient before.
macro_rules! sums_fold {
    ($normal:literal, $gate:literal) => {
        concat!(
            "struct Acc { C gamma, beta; }; DEVICE Acc empty() { return {(C)0, (C)0}; } ",
            "template <int N> DEVICE Acc leaf(const Values<N>& values) { Acc acc = empty(); ",
            "_Pragma(\"unroll\") for (int i = 0; i < N; i++) { ",
            "C g = values.x0[i], x = values.x1[i], mean = values.x2[i], rstd = values.x3[i]; ",
            $gate,
            "acc.gamma += g * (",
            $normal,
            "); acc.beta += g; } return acc; } ",
            "DEVICE Acc merge(Acc a, Count, Acc b, Count) { return {a.gamma + b.gamma, a.beta + b.beta}; }"
        )
    };
}

const CENTRED_SUMS: &str = sums_fold!("(x - mean) * rstd", "");
const RMS_SUMS: &str = sums_fold!("x * rstd", "");
/// The sign of the norm is found exactly as `batch.cu` finds the norm.
const RELU_SUMS: &str = sums_fold!(
    "(x - mean) * rstd",
    "g *= m::fma(x - mean, values.x4[i] * rstd, values.x5[i]) > (C)0 ? (C)1 : (C)0; "
);
