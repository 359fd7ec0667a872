//! Batch norm on a GPU: reductions for the statistics and sums of each channel, and one pass that applies them.

use plimsoll_cuda::{Gpu, Grid, Template};
use smallvec::SmallVec;

use super::batch::Behind;
use super::last_axis_cuda::{Sums, lanes_axes};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::shape::Shape;
use crate::eager::op::{Meta, Operand, Run};
use crate::ops::cuda::lines::{Along, LineKernel, Lines, THREADS};
use crate::ops::cuda::reduce::{self, Fold, Reduction};
use crate::ops::cuda::{c_name, code};

static TEMPLATE: Template = Template { name: "batch_norm", text: include_str!("batch.cu") };

/// About how many blocks are enough for a GPU.
const ENOUGH_BLOCKS: usize = 1024;

/// Rows of scratch memory, one number per channel each, and what a reduction needs behind them.
struct Rows {
    meta: Meta,
    n: usize,
}

impl Rows {
    /// So many rows for the channels of `x`.
    fn new(x: &Meta, n: usize) -> Rows {
        let width = x.shape().last().copied().unwrap_or(0);
        Rows { meta: Meta::fresh(Shape::within_bounds([width]), x.dtype.accumulator()), n }
    }

    fn n_bytes(&self) -> usize {
        self.n * self.meta.n_bytes()
    }

    fn row<'a>(&'a self, run: &Run<'_>, row: usize) -> Operand<'a> {
        Operand::new(run.workspace.wrapping_add(row * self.meta.n_bytes()), &self.meta)
    }

    /// What is behind the rows, on an address for any number.
    fn rest(&self, run: &Run<'_>) -> *mut u8 {
        run.workspace.wrapping_add(self.n_bytes().next_multiple_of(16))
    }

    /// The bytes of the rows and of what is behind them.
    fn with(&self, rest: usize) -> usize {
        self.n_bytes().next_multiple_of(16) + rest
    }
}

/// Mean and variance, and what the norm is applied with: mean and rstd as auxiliary outputs, or rstd alone in scratch memory.
fn statistics_fold(dtype: DType, is_recorded: bool) -> Fold {
    let finish = match is_recorded {
        true => "y0 = y2 = acc.mean; y1 = acc.squares / n; y3 = m::rsqrt(y1 + NUMBER(0));",
        false => "y0 = acc.mean; y1 = acc.squares / n; y2 = m::rsqrt(y1 + NUMBER(0));",
    };
    let acc_bytes = 2 * dtype.accumulator().size();
    Fold { variant: u64::from(is_recorded), text: reduce::MOMENTS, finish, acc_bytes, is_ordered: false }
}

/// The bytes of scratch memory of [`normalise`].
pub(super) fn forward_bytes(x: &Meta) -> usize {
    Rows::new(x, 1).with(reduce::workspace(&[x], lanes_axes(x), &statistics_fold(x.dtype, true)))
}

/// The norm of every channel with what is behind it, its mean and variance; leaves mean and rstd in the auxiliary outputs, if there
/// are any.
pub(super) fn normalise(op: &'static str, eps: f64, behind: Behind, run: &Run<'_>, gpu: &Gpu) -> Result<()> {
    let (x, [_, mean, variance]) = (&run.inputs[0], run.outputs) else { unreachable!("three outputs") };
    let rows = Rows::new(x.meta, 1);
    let spare = rows.row(run, 0);
    let mut outputs: SmallVec<[&Operand; 4]> = SmallVec::from_slice(&[mean, variance]);
    let rstd = match run.aux_outputs {
        [mean, rstd] => {
            outputs.extend([mean, rstd]);
            rstd
        }
        _ => {
            outputs.push(&spare);
            &spare
        }
    };
    let reduction = Reduction {
        op,
        inputs: &[x],
        axes: lanes_axes(x.meta),
        fold: statistics_fold(x.dtype(), !run.aux_outputs.is_empty()),
        outputs: &outputs,
        numbers: &[eps],
        workspace: rows.rest(run),
    };
    reduction.run(gpu)?;
    apply(op, behind, run, [mean, rstd], gpu)
}

/// How lines are cut for threads that stay with their channels.
struct Cut {
    /// Threads side by side.
    width: usize,
    grid: Grid,
    per_block: usize,
}

impl Cut {
    fn new(lines: &Lines) -> Cut {
        let n_vectors = (lines.len / lines.v).max(1);
        let width = n_vectors.next_power_of_two().min(32);
        let (n_across, height) = (n_vectors.div_ceil(width), THREADS / width);
        let n_down = (ENOUGH_BLOCKS / n_across).clamp(1, lines.n.div_ceil(height).max(1));
        let per_block = lines.n.div_ceil(n_down).next_multiple_of(height).max(1);
        let mut grid = Grid::of(n_across, THREADS as u32);
        grid.blocks[1] = lines.n.div_ceil(per_block) as u32;
        if lines.len == 0 {
            grid.blocks[0] = 0;
        }
        Cut { width, grid, per_block }
    }
}

/// What the kernel is told.
fn define(dtype: DType, width: usize, is_backward: bool, has_relu: bool, adds: bool) -> String {
    let [is_backward, has_relu, adds] = [is_backward, has_relu, adds].map(u8::from);
    let dtype = c_name(dtype);
    format!(
        "typedef {dtype} T;\n#define BX {width}\n#define BACKWARD {is_backward}\n#define RELU {has_relu}\n#define ADD {adds}"
    )
}

/// What tells the kernels of an op apart.
fn variant(dtype: DType, cut: &Cut, has_relu: bool) -> u64 {
    (code(dtype) << 4) | (u64::from(cut.width.trailing_zeros()) << 1) | u64::from(has_relu)
}

/// Writes the first output with a given mean and rstd. Inputs: x, gamma and beta.
pub(super) fn apply(
    op: &'static str,
    behind: Behind,
    run: &Run<'_>,
    [mean, rstd]: [&Operand; 2],
    gpu: &Gpu,
) -> Result<()> {
    let (x, gamma, beta, y) = (&run.inputs[0], &run.inputs[1], &run.inputs[2], &run.outputs[0]);
    let mut operands: SmallVec<[&Operand; 7]> = SmallVec::from_slice(&[x, gamma, beta, mean, rstd, y]);
    let (has_relu, adds) = (behind != Behind::Nothing, behind == Behind::AddRelu);
    if adds {
        operands.push(&run.inputs[3]);
    }
    let along: SmallVec<[Along<'_>; 7]> = operands.iter().copied().map(Along::Lane).collect();
    let lines = Lines::along(x.shape().rank() - 1, x.shape(), &along);
    let cut = Cut::new(&lines);
    let variant = variant(x.dtype(), &cut, has_relu);
    let kernel = LineKernel { template: &TEMPLATE, op, variant, in_registers: false, made: None };
    let define = || define(x.dtype(), cut.width, false, has_relu, adds);
    let pointers: SmallVec<[*mut u8; 7]> = operands.iter().map(|operand| operand.ptr()).collect();
    // SAFETY: `execute` hands out operands that are valid for their layouts, the lines are theirs, and the kernel was made
    // for this dtype; where the result is the memory of what is added, each thread writes what it alone has read.
    unsafe { kernel.launch_on(cut.grid, gpu, &lines, define, &pointers, &[&cut.per_block]) }
}

fn sums(has_relu: bool, wanted: [bool; 3]) -> Sums {
    Sums { op: "batch_norm_backward", is_centred: true, has_relu, wanted, has_totals: wanted[0] }
}

/// What the sums are over, of the inputs of [`backward`]: with beta there is relu.
fn summed<T: Copy>(inputs: &[T]) -> SmallVec<[T; 6]> {
    let n = if inputs.len() > 5 { 6 } else { 4 };
    [0, 1, 3, 4, 2, 5].into_iter().take(n).map(|input| inputs[input]).collect()
}

/// The bytes of scratch memory of [`backward`].
pub(super) fn backward_bytes(wanted: [bool; 3], inputs: &[&Meta]) -> usize {
    let (x, has_relu) = (inputs[1], inputs.len() > 5);
    Rows::new(x, 2).with(sums(has_relu, wanted).workspace(&summed(inputs), lanes_axes(x)))
}

/// The gradients that are wanted. Inputs: the gradient of the output, x, gamma, mean and rstd; with relu, beta, too.
pub(super) fn backward(wanted: [bool; 3], run: &Run<'_>, gpu: &Gpu) -> Result<()> {
    let [g, x, gamma, mean, rstd, rest @ ..] = run.inputs else { unreachable!("five operands or six") };
    let has_relu = !rest.is_empty();
    let rows = Rows::new(x.meta, 2);
    let totals = [rows.row(run, 0), rows.row(run, 1)];
    let wanted_totals = if wanted[0] { &totals[..] } else { &[] };
    let inputs: SmallVec<[&Operand; 6]> = run.inputs.iter().collect();
    let (sums, axes) = (sums(has_relu, wanted), lanes_axes(x.meta));
    sums.run(run, &summed(&inputs), axes, wanted_totals, rows.rest(run), gpu)?;
    if !wanted[0] {
        return Ok(());
    }
    let operands = [g, x, gamma, mean, rstd, &run.outputs[0], rest.first().unwrap_or(gamma)];
    let lines = Lines::along(x.shape().rank() - 1, x.shape(), &operands.map(Along::Lane));
    let cut = Cut::new(&lines);
    let variant = variant(x.dtype(), &cut, has_relu);
    let kernel = LineKernel {
        template: &TEMPLATE,
        op: "batch_norm_backward",
        variant,
        in_registers: false,
        made: None,
    };
    let define = || define(x.dtype(), cut.width, true, has_relu, false);
    let mut pointers: SmallVec<[*mut u8; 8]> = operands.iter().map(|operand| operand.ptr()).collect();
    pointers.push(totals[0].ptr());
    // SAFETY: as above; the totals are two rows of the workspace, one behind the other, and where the result is the
    // gradient's memory, each thread writes what it alone has read.
    unsafe { kernel.launch_on(cut.grid, gpu, &lines, define, &pointers, &[&cut.per_block]) }
}
