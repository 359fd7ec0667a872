//! The norm on a GPU: a sum of squares per chunk, all tensors of one dtype in one launch, then one block for the rest.

use plimsoll_cuda::{Gpu, Grid, Template};
use smallvec::SmallVec;

use super::parts::NOTHING;
use super::{NORM_CHUNK, is_dense, n_chunks};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::eager::op::{Operand, Run};
use crate::ops::cuda::tables::{Strided, for_each_table, is_aligned};
use crate::ops::cuda::{c_name, code};

static SQUARES: Template = Template { name: "squares", text: include_str!("squares.cu") };
static TOTAL: Template = Template { name: "total", text: include_str!("total.cu") };

const OP: &str = "global_norm";
/// The entries of a launch: with the other parameters they stay below 4 KiB.
const N_ENTRIES: usize = 80;

/// The bytes that a chunk leaves: its sum, and whether it has a bad value.
pub(super) const PARTIAL_BYTES: usize = 2 * size_of::<f64>();

/// A tensor, as `squares.cu` takes it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    x: *mut u8,
    n: u64,
    first_chunk: u64,
    number: f64,
    is_aligned: u64,
}

pub(super) fn run(run: &Run<'_>, gpu: &Gpu) -> Result<()> {
    square_sums(run, gpu, run.workspace, 0)?;
    total(run, gpu, run.workspace, run.inputs.iter().map(|input| n_chunks(input.n_elems())).sum())
}

/// Writes the partial sums of all inputs, whose numbers begin with `n_before`.
pub(super) fn square_sums(run: &Run<'_>, gpu: &Gpu, partials: *mut u8, n_before: usize) -> Result<()> {
    let mut dtypes: SmallVec<[DType; 4]> = SmallVec::new();
    for (number, input) in run.inputs.iter().enumerate() {
        if !is_dense(input) {
            squares(run, gpu, (partials, n_before), input.dtype(), Some(number))?;
        } else if !dtypes.contains(&input.dtype()) {
            dtypes.push(input.dtype());
            squares(run, gpu, (partials, n_before), input.dtype(), None)?;
        }
    }
    Ok(())
}

/// Adds the partial sums of `n` chunks up.
pub(super) fn total(run: &Run<'_>, gpu: &Gpu, partials: *mut u8, n: usize) -> Result<()> {
    let (norm, first_bad) = (&run.outputs[0], &run.outputs[1]);
    let kernel =
        gpu.kernel(&TOTAL, OP, code(norm.dtype()), || format!("typedef {} Norm;", c_name(norm.dtype())))?;
    // SAFETY: there is a partial for each chunk, which the launches before wrote; the outputs are single elements of these
    // types.
    unsafe {
        gpu.launch(&kernel, Grid::of(1, 1024), &[&partials, &n, &NOTHING, &norm.ptr(), &first_bad.ptr()])
    }?;
    Ok(())
}

/// The partial sums of all dense tensors of a dtype, or of one that is strided.
fn squares(
    run: &Run<'_>,
    gpu: &Gpu,
    (partials, n_before): (*mut u8, usize),
    dtype: DType,
    strided: Option<usize>,
) -> Result<()> {
    let kernel = gpu.kernel(&SQUARES, OP, code(dtype) * 2 + u64::from(strided.is_some()), || {
        let constants = [
            ("T", c_name(dtype).to_owned()),
            ("STRIDED", u8::from(strided.is_some()).to_string()),
            ("N_ENTRIES", N_ENTRIES.to_string()),
            ("CHUNK", NORM_CHUNK.to_string()),
        ];
        constants.map(|(name, value)| format!("#define {name} {value}\n")).concat()
    })?;
    let places = strided.map_or(Strided::UNUSED, |number| Strided::of(&run.inputs[number]));
    let is_wanted = |(number, input): &(usize, &Operand<'_>)| match strided {
        Some(wanted) => *number == wanted,
        None => input.dtype() == dtype && is_dense(input),
    };
    let numbered = run.inputs.iter().enumerate();
    let with_chunks = numbered.scan(0, |chunks, (number, input)| {
        let first_chunk = *chunks;
        *chunks += n_chunks(input.n_elems());
        Some((first_chunk, (number, input)))
    });
    let entries =
        with_chunks.filter(|(_, numbered)| is_wanted(numbered)).map(|(first_chunk, (number, x))| {
            let entry = Entry {
                x: x.ptr(),
                n: x.n_elems() as u64,
                first_chunk: first_chunk as u64,
                number: (n_before + number) as f64,
                is_aligned: u64::from(is_aligned(x.ptr())),
            };
            (entry, n_chunks(x.n_elems()))
        });
    for_each_table::<Entry, N_ENTRIES>(entries, |table, n_blocks| {
        // SAFETY: the inputs are of this dtype and hold as many elements, where the strides say if they are strided; the
        // partials have a place for each chunk.
        unsafe { gpu.launch(&kernel, Grid::of(n_blocks, 256), &[table, &partials, &NOTHING, &places]) }?;
        Ok(())
    })
}
