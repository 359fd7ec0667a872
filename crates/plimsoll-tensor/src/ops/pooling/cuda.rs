//! Pooling on a GPU: one template for all kinds.

use plimsoll_cuda::{Gpu, Grid, Param, Template};

use super::{Axis, Windows};
use crate::base::error::{Error, Result};
use crate::eager::check::MAX_GPU_EXTENT;
use crate::eager::op::Operand;
use crate::ops::cuda::{CODE_BITS, c_name, code};

static TEMPLATE: Template = Template { name: "pool", text: include_str!("pooling.cu") };

/// The threads of a block.
const THREADS: u32 = 256;
/// The most bytes that a thread moves at a time.
const VECTOR_BYTES: usize = 16;

/// What is computed; `pooling.cu` has the same numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The greatest element of each window, and its position.
    Max = 0,
    /// Gradients brought to positions.
    MaxBackward = 1,
    /// The elements at positions.
    Pick = 2,
    /// The mean of each window.
    Average = 3,
    /// Gradients spread over windows.
    AverageBackward = 4,
}

/// Images in memory, as the kernel takes them.
#[repr(C)]
struct CudaImages {
    first: *mut u8,
    strides: [i64; 4],
}

// SAFETY: `pooling.cu` has the same structure.
unsafe impl Param for CudaImages {}

impl CudaImages {
    fn of(operand: Option<&Operand>) -> CudaImages {
        let Some(operand) = operand else {
            return CudaImages { first: std::ptr::null_mut(), strides: [0; 4] };
        };
        let &[n, row, col, channel] = operand.meta.layout.strides() else {
            unreachable!("images have four axes")
        };
        CudaImages { first: operand.ptr(), strides: [n, row, col, channel].map(|stride| stride as i64) }
    }
}

/// Windows, as the kernel takes them.
#[repr(C)]
struct CudaWindows {
    axes: [[u32; 5]; 2],
    n_rows: u32,
    n_cols: u32,
    channels: u32,
    n_taps: u32,
    n: u64,
}

// SAFETY: `pooling.cu` has the same structure.
unsafe impl Param for CudaWindows {}

/// Starts the kernel: from images or gradients `x`, and `positions` where the kind reads them, to `y`, and `places` where
/// somebody reads them.
pub(super) fn pool(
    gpu: &Gpu,
    op: &'static str,
    kind: Kind,
    windows: &Windows,
    [x, y]: [&Operand; 2],
    positions: Option<&Operand>,
    places: Option<&Operand>,
) -> Result<()> {
    let &[_, n_rows, n_cols, channels] = y.shape().dims() else { unreachable!("images have four axes") };
    if y.n_elems() == 0 {
        return Ok(());
    }
    let v = vector_len(channels, x, positions.filter(|_| kind == Kind::MaxBackward));
    let n = y.n_elems() / v;
    let is_wide = n >= 1 << 31;
    let key = (((v.trailing_zeros() as u64) << 1 | u64::from(is_wide)) << 3 | kind as u64) << CODE_BITS;
    let kernel = gpu.kernel(&TEMPLATE, op, key | code(x.dtype()), || {
        format!(
            "#define T {}\n#define V {v}\n#define Index {}\n#define KIND {}\n",
            c_name(x.dtype()),
            if is_wide { "u64" } else { "u32" },
            kind as u8
        )
    })?;
    let longest =
        [&windows.rows, &windows.cols].into_iter().flat_map(|axis| [axis.kernel, axis.stride]).max();
    if longest > Some(MAX_GPU_EXTENT) {
        return Err(Error::argument(
            op,
            format!("a window or stride of {longest:?}; on a GPU it is at most {MAX_GPU_EXTENT}"),
        ));
    }
    let axis = |axis: &Axis| {
        [axis.extent, axis.kernel, axis.stride, axis.padding, axis.n_windows].map(|number| number as u32)
    };
    let described = CudaWindows {
        axes: [axis(&windows.rows), axis(&windows.cols)],
        n_rows: n_rows as u32,
        n_cols: n_cols as u32,
        channels: channels as u32,
        n_taps: windows.rows.kernel.saturating_mul(windows.cols.kernel).min(u32::MAX as usize) as u32,
        n: n as u64,
    };
    let places = places.map_or(std::ptr::null_mut(), Operand::ptr);
    let (x, positions, to) = (CudaImages::of(Some(x)), CudaImages::of(positions), y.ptr());
    // SAFETY: `execute` hands out operands that are valid for their layouts, `infer` has checked their shapes, and the outputs
    // are fresh; windows are cut at the ends of the images.
    unsafe { gpu.launch(&kernel, Grid::covering(n, THREADS), &[&x, &positions, &to, &places, &described]) }?;
    Ok(())
}

/// How many channels a thread computes: as many as all operands can move at once.
fn vector_len(channels: usize, x: &Operand, positions: Option<&Operand>) -> usize {
    let fits = |operand: &Operand, v: usize| {
        let strides = operand.meta.layout.strides();
        let is_even = strides[..3].iter().all(|stride| stride % v as isize == 0);
        strides[3] == 1 && is_even && (operand.ptr() as usize).is_multiple_of(v * operand.dtype().size())
    };
    let mut v = VECTOR_BYTES / x.dtype().size();
    while v > 1 && !(channels.is_multiple_of(v) && fits(x, v) && positions.is_none_or(|of| fits(of, v))) {
        v /= 2;
    }
    v
}
