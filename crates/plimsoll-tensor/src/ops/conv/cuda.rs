//! Convolutions on a GPU: by its library where it has a way, else by kernels of our own (`direct.cu`).
//!
//! The library reads operands that are row-major; an input that lies otherwise is copied into scratch memory. It is not
//! asked about f64, which it computes slowly where at all.

use plimsoll_cuda::{self as cuda, ConvolutionOperands, Direction, Gpu, Grid, Param, Profile, Template};

use super::config::Convolution;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::eager::check::MAX_GPU_EXTENT;
use crate::eager::op::{Meta, Operand, Run};
use crate::ops::Activation;
use crate::ops::cuda::finish::finish;
use crate::ops::cuda::{c_name, code, copy, scalar};

static DIRECT: Template = Template { name: "direct", text: include_str!("direct.cu") };

/// Copies in scratch memory begin at multiples of this.
const ALIGNMENT: usize = 256;
/// The library may take so many times the bytes of all operands for its own use, and at least so many bytes: some of its
/// ways sum in parts whose size does not depend on the operands.
const MOST_TIMES: usize = 4;
const LEAST_BYTES: usize = 4 << 20;
/// The threads of a block.
const THREADS: u32 = 256;

/// The geometry, as the kernel takes it.
#[repr(C)]
struct Geometry {
    n: u32,
    input: [u32; 2],
    output: [u32; 2],
    filter: [u32; 2],
    padding: [u32; 2],
    stride: [u32; 2],
    dilation: [u32; 2],
    c_in: u32,
    c_out: u32,
    groups: u32,
}

// SAFETY: `direct.cu` has the same structure.
unsafe impl Param for Geometry {}

/// Whether the library is asked for convolutions of that dtype.
fn is_in_library(dtype: DType) -> bool {
    dtype != DType::F64
}

/// The library's own scratch memory.
fn library_bytes(of: &Convolution, dtype: DType, profile: &Profile) -> usize {
    if !is_in_library(dtype) {
        return 0;
    }
    let n_elems = of.input().n_elems() + of.weights().n_elems() + of.output().n_elems();
    let bytes = n_elems.saturating_mul(dtype.size() * MOST_TIMES);
    bytes.max(LEAST_BYTES).min(profile.convolution_workspace).next_multiple_of(ALIGNMENT)
}

/// The scratch memory of a convolution that reads these operands.
pub(super) fn workspace(of: &Convolution, inputs: &[&Meta], profile: &Profile) -> usize {
    library_bytes(of, inputs[0].dtype, profile)
        + inputs[..2].iter().map(|meta| copied_bytes(meta)).sum::<usize>()
}

fn copied_bytes(meta: &Meta) -> usize {
    if meta.layout.is_contiguous() { 0 } else { meta.n_bytes().next_multiple_of(ALIGNMENT) }
}

/// What a convolution is asked for on a GPU.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub op: &'static str,
    pub direction: Direction,
    pub activation: Activation,
    /// Whether sums may be made in any order.
    pub unordered: bool,
}

/// Convolves the first two inputs into the first output; a third input is a bias.
pub(super) fn convolve(of: &Convolution, asked: Asked, run: &Run<'_>, gpu: &Gpu) -> Result<()> {
    let Asked { op, direction, activation, unordered } = asked;
    let (y, dtype) = (&run.outputs[0], run.outputs[0].dtype());
    if y.n_elems() == 0 {
        return Ok(());
    }
    if run.inputs[..2].iter().any(|x| x.n_elems() == 0) {
        // SAFETY: the output is fresh and as long as its meta says.
        unsafe { gpu.fill(op, y.ptr(), 0, y.meta.n_bytes()) }?;
        return finish(gpu, op, y, run.inputs.get(2), activation);
    }
    let library_bytes = library_bytes(of, dtype, gpu.profile());
    let mut copies = run.workspace.wrapping_add(library_bytes);
    let mut first = [run.inputs[0].ptr(), run.inputs[1].ptr()];
    for (first, x) in first.iter_mut().zip(run.inputs).filter(|(_, x)| !x.is_contiguous()) {
        *first = copies;
        copy(gpu, op, x, &Operand::new(copies, &Meta::fresh(*x.shape(), dtype)))?;
        copies = copies.wrapping_add(copied_bytes(x.meta));
    }
    let [input, filter, output] = match direction {
        Direction::Forward => [first[0], first[1], y.ptr()],
        Direction::ToInput => [y.ptr(), first[1], first[0]],
        Direction::ToFilter => [first[0], y.ptr(), first[1]],
    };
    let operands = ConvolutionOperands {
        input,
        filter,
        output,
        workspace: run.workspace,
        workspace_bytes: library_bytes,
    };
    let geometry = &of.geometry;
    let numbers = [geometry.stride, geometry.dilation].concat().into_iter().chain(geometry.padding.concat());
    if let Some(longest) = numbers.max().filter(|&longest| longest > MAX_GPU_EXTENT) {
        return Err(Error::argument(
            op,
            format!("a stride, dilation or padding of {longest}; on a GPU it is at most {MAX_GPU_EXTENT}"),
        ));
    }
    let described = cuda::Convolution { unordered, ..describe(of, direction, dtype) };
    // SAFETY: `infer` has checked the shapes, operands that do not lie row-major are copies, the output is fresh, and `workspace`
    // has asked for the library's scratch memory.
    let is_done = is_in_library(dtype) && unsafe { gpu.convolve(op, &described, &operands) }?;
    if !is_done {
        direct(of, direction, y, [input, filter, output], gpu, op)?;
    }
    finish(gpu, op, y, run.inputs.get(2), activation)
}

/// The convolution as the library is told.
fn describe(of: &Convolution, direction: Direction, dtype: DType) -> cuda::Convolution {
    let geometry = &of.geometry;
    cuda::Convolution {
        direction,
        scalar: scalar(dtype),
        n: geometry.batch,
        input: geometry.input,
        output: geometry.output().unwrap_or([0, 0]),
        c_in: geometry.in_channels,
        c_out: geometry.out_channels,
        filter: geometry.kernel,
        padding: geometry.padding.map(|[before, _]| before),
        stride: geometry.stride,
        dilation: geometry.dilation,
        groups: geometry.groups,
        tf32: false,
        unordered: false,
    }
}

/// Convolves by our own kernel.
fn direct(
    of: &Convolution,
    direction: Direction,
    y: &Operand,
    [input, filter, output]: [*mut u8; 3],
    gpu: &Gpu,
    op: &'static str,
) -> Result<()> {
    let described = describe(of, direction, y.dtype());
    let pair = |numbers: [usize; 2]| numbers.map(|number| number as u32);
    let geometry = Geometry {
        n: described.n as u32,
        input: pair(described.input),
        output: pair(described.output),
        filter: pair(described.filter),
        padding: pair(described.padding),
        stride: pair(described.stride),
        dilation: pair(described.dilation),
        c_in: described.c_in as u32,
        c_out: described.c_out as u32,
        groups: described.groups as u32,
    };
    let number = direction as u64;
    let kernel = gpu.kernel(&DIRECT, op, (code(y.dtype()) << 2) | number, || {
        format!("#define T {}\n#define DIRECTION {number}\n", c_name(y.dtype()))
    })?;
    let n = y.n_elems();
    let grid = match direction {
        Direction::ToFilter => Grid::of(n, THREADS),
        Direction::Forward | Direction::ToInput => Grid::covering(n, THREADS),
    };
    // SAFETY: `infer` has checked the shapes, and all operands are row-major.
    unsafe { gpu.launch(&kernel, grid, &[&input, &filter, &output, &geometry, &n]) }?;
    Ok(())
}
