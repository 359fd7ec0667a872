//! Elementwise kernels: any number of inputs, broadcast and strided as they like, one expression, row-major outputs.
//!
//! Axes that can be walked as one are joined first. Where the innermost axis lies contiguously (or repeats one element) in
//! every operand, a thread moves 16 bytes at a time; else one element. The choice depends on shapes, strides and the
//! alignment of views, and never changes a bit of the result.

use std::fmt::Write;

use plimsoll_cuda::{Generated, Gpu, Grid, Param, Template};
use smallvec::SmallVec;

use super::{CODE_BITS, c_name, code};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::layout::Layout;
use crate::base::shape::{MAX_RANK, Shape};
use crate::eager::op::{Op, Operand, Run};

static TEMPLATE: Template = Template { name: "elementwise", text: include_str!("elementwise.cu") };

/// The most inputs that a kernel has.
pub(crate) const MAX_INPUTS: usize = 7;
/// The most numbers and words that it is given.
pub(crate) const MAX_NUMBERS: usize = 16;
pub(crate) const MAX_WORDS: usize = 8;
/// The most bytes that a thread moves at a time.
const VECTOR_BYTES: usize = 16;
/// The threads of a block.
const THREADS: u32 = 256;
/// The variants of [`fill`] and [`convert`], which ops with a body of their own call, too.
const FILL: u64 = (1 << 12) - 1;
const CONVERT: u64 = FILL - 1;

/// An elementwise kernel on its way.
pub(crate) struct Elementwise<'a> {
    /// The op.
    pub op: &'static str,
    /// The inputs, each broadcast to the outputs' shape; in the body they are `x0`, `x1`, ... in their compute types.
    pub inputs: &'a [&'a Operand<'a>],
    /// The outputs, row-major and of one shape; the body sets `y0`, `y1`, ...
    pub outputs: &'a [&'a Operand<'a>],
    /// Attributes; in the body they are `NUMBER(0)`, ... as numbers of the compute type `C`.
    pub numbers: &'a [f64],
    /// Further attributes, such as a random draw; in the body they are `WORD(0)`, ...
    pub words: &'a [u64],
    /// Tells apart bodies of the same op; up to 12 bits.
    pub variant: u64,
}

/// Where elements lie, as the kernel takes it.
#[repr(C)]
struct Places {
    n: u64,
    extents: [u32; MAX_RANK],
    strides: [[i64; MAX_RANK]; MAX_INPUTS],
}

// SAFETY: `elementwise.cu` has the same struct.
unsafe impl Param for Places {}

#[repr(C)]
struct Numbers {
    numbers: [f64; MAX_NUMBERS],
    words: [u64; MAX_WORDS],
}

// SAFETY: `elementwise.cu` has the same struct.
unsafe impl Param for Numbers {}

/// The axes of a kernel after joining: extents and, for each input, strides.
pub(crate) struct Axes {
    pub rank: usize,
    pub extents: [usize; MAX_RANK],
    pub strides: [[isize; MAX_RANK]; MAX_INPUTS],
}

impl Axes {
    /// The axes over which a kernel runs: those of one element are left out, neighbours that every input walks as one are
    /// joined.
    pub fn of(shape: &Shape, inputs: &[&Operand<'_>]) -> Axes {
        let stretched: SmallVec<[Layout; 3]> = inputs
            .iter()
            .map(|input| {
                let layout = input.meta.layout.broadcast_to(shape);
                layout.unwrap_or_else(|| unreachable!("`infer` checks the shapes"))
            })
            .collect();
        let mut axes = Axes { rank: 0, extents: [1; MAX_RANK], strides: [[0; MAX_RANK]; MAX_INPUTS] };
        for (axis, &extent) in shape.dims().iter().enumerate().filter(|(_, extent)| **extent != 1) {
            let last = axes.rank.wrapping_sub(1);
            let continues = |(input, layout): (usize, &Layout)| {
                axes.strides[input][last] == layout.strides()[axis] * extent as isize
            };
            if axes.rank > 0 && stretched.iter().enumerate().all(continues) {
                axes.extents[last] *= extent;
            } else {
                axes.extents[axes.rank] = extent;
                axes.rank += 1;
            }
            let at = axes.rank - 1;
            for (input, layout) in stretched.iter().enumerate() {
                axes.strides[input][at] = layout.strides()[axis];
            }
        }
        axes.rank = axes.rank.max(1);
        axes
    }
}

/// Starts the kernel of a [pointwise](Op::pointwise) op.
pub(crate) fn start(op: &dyn Op, run: &Run<'_>, gpu: &Gpu) -> Result<()> {
    let Some(pointwise) = op.pointwise() else { unreachable!("{} is no pointwise op", op.name()) };
    over(op.name(), run, gpu, &pointwise.numbers, &pointwise.words, || pointwise.body.concat())
}

/// Starts a kernel over all inputs and outputs of an op; see [`Elementwise`] for the body.
pub(crate) fn over(
    op: &'static str,
    run: &Run<'_>,
    gpu: &Gpu,
    numbers: &[f64],
    words: &[u64],
    body: impl Fn() -> String,
) -> Result<()> {
    let inputs: SmallVec<[&Operand; 3]> = run.inputs.iter().collect();
    let outputs: SmallVec<[&Operand; 1]> = run.outputs.iter().collect();
    Elementwise { op, inputs: &inputs, outputs: &outputs, numbers, words, variant: 0 }.run(gpu, body)
}

/// Copies the elements of an operand to a row-major one of the same shape, converting them if the dtypes differ.
pub(crate) fn convert(op: &'static str, gpu: &Gpu, from: &Operand, to: &Operand) -> Result<()> {
    let kernel =
        Elementwise { op, inputs: &[from], outputs: &[to], numbers: &[], words: &[], variant: CONVERT };
    kernel.run(gpu, || format!("y0 = cast<Compute<{}>>(x0);", c_name(to.dtype())))
}

/// Sets every element of a row-major operand to a number, for an op.
pub(crate) fn fill(op: &'static str, gpu: &Gpu, to: &Operand, value: f64) -> Result<()> {
    let n_bytes = to.n_elems() * to.dtype().size();
    if n_bytes > 0 && value.to_bits() == 0 {
        // SAFETY: `execute` hands out operands that are valid for their layouts; zero is no bits in every dtype.
        return Ok(unsafe { gpu.fill(op, to.ptr(), 0, n_bytes) }?);
    }
    let kernel =
        Elementwise { op, inputs: &[], outputs: &[to], numbers: &[value], words: &[], variant: FILL };
    kernel.run(gpu, || "y0 = NUMBER(0);".to_owned())
}

impl Elementwise<'_> {
    /// Starts the kernel. `body` is C++: statements that set `y0`, ... from `x0`, ..., `index` (the element's number),
    /// `NUMBER(i)`, `WORD(i)` and `random` (the element's word of the draw whose seed and number are `WORD(0)` and
    /// `WORD(1)`); it must depend on the op, the dtypes and `variant` alone.
    pub fn run(&self, gpu: &Gpu, body: impl Fn() -> String) -> Result<()> {
        self.run_with(gpu, "", body)
    }

    /// Starts a kernel whose body calls device functions; `functions` is their text.
    pub fn run_with(&self, gpu: &Gpu, functions: &'static str, body: impl Fn() -> String) -> Result<()> {
        self.launch(gpu, None, functions, body)
    }

    /// Starts a kernel that does the work of several ops; kernels of its body are those of `generated`.
    pub fn run_fused(&self, gpu: &Gpu, generated: &Generated, body: impl Fn() -> String) -> Result<()> {
        self.launch(gpu, Some(generated), "", body)
    }

    fn launch(
        &self,
        gpu: &Gpu,
        generated: Option<&Generated>,
        functions: &'static str,
        body: impl Fn() -> String,
    ) -> Result<()> {
        let shape = self.outputs[0].shape();
        let n = shape.n_elems();
        if n == 0 {
            return Ok(());
        }
        let axes = Axes::of(shape, self.inputs);
        let v = self.vector_len(&axes, n);
        let is_wide = n >= 1 << 31;
        let key = self.key(&axes, v, is_wide);
        let define = || self.define(&axes, v, is_wide, &body()) + functions;
        let kernel = match generated {
            Some(generated) => gpu.generated_kernel(generated, &TEMPLATE, self.op, key, define),
            None => gpu.kernel(&TEMPLATE, self.op, key, define),
        }?;
        let mut places = Places { n: n as u64, extents: [0; MAX_RANK], strides: [[0; MAX_RANK]; MAX_INPUTS] };
        for axis in 0..axes.rank {
            places.extents[axis] = axes.extents[axis] as u32;
            for input in 0..self.inputs.len() {
                places.strides[input][axis] = axes.strides[input][axis] as i64;
            }
        }
        let mut numbers = Numbers { numbers: [0.0; MAX_NUMBERS], words: [0; MAX_WORDS] };
        numbers.numbers[..self.numbers.len()].copy_from_slice(self.numbers);
        numbers.words[..self.words.len()].copy_from_slice(self.words);
        let pointers: SmallVec<[*mut u8; 8]> =
            self.outputs.iter().chain(self.inputs).map(|operand| operand.ptr()).collect();
        let mut params: SmallVec<[&dyn Param; 10]> = pointers.iter().map(|ptr| ptr as &dyn Param).collect();
        params.push(&places);
        params.push(&numbers);
        // SAFETY: `execute` hands out operands that are valid for their layouts, the strides are theirs, and the kernel
        // was made for these dtypes; an output may be an input of the same shape, which is read before it is written.
        unsafe { gpu.launch(&kernel, Grid::covering(n.div_ceil(v), THREADS), &params) }?;
        Ok(())
    }

    /// How many elements a thread computes.
    fn vector_len(&self, axes: &Axes, n: usize) -> usize {
        let inner = axes.rank - 1;
        let widest = self.operands().map(|operand| operand.dtype().size()).max().unwrap_or(1);
        let fits = |v: usize| {
            let divides = axes.rank == 1 || axes.extents[inner].is_multiple_of(v);
            let output_fits = |output: &&Operand| is_aligned(output, v);
            let input_fits = |(idx, input): (usize, &&Operand)| match axes.strides[idx][inner] {
                0 => true,
                1 => {
                    let outer = axes.strides[idx][..inner].iter();
                    is_aligned(input, v) && outer.clone().all(|stride| stride % v as isize == 0)
                }
                _ => false,
            };
            divides && self.outputs.iter().all(output_fits) && self.inputs.iter().enumerate().all(input_fits)
        };
        let mut v = VECTOR_BYTES / widest;
        // A tensor of a few elements is not worth a kernel of its own.
        while v > 1 && (v > n || !fits(v)) {
            v /= 2;
        }
        v
    }

    fn operands(&self) -> impl Iterator<Item = &Operand<'_>> {
        self.outputs.iter().chain(self.inputs).copied()
    }

    /// What tells this kernel from others of the op.
    fn key(&self, axes: &Axes, v: usize, is_wide: bool) -> u64 {
        let mut key = self.variant;
        key = (key << 3) | (axes.rank as u64 - 1);
        key = (key << 3) | u64::from(v.trailing_zeros());
        key = (key << 1) | u64::from(is_wide);
        for operand in self.operands() {
            key = (key << CODE_BITS) | code(operand.dtype());
        }
        for input in 0..self.inputs.len() {
            key = (key << 1) | u64::from(v > 1 && axes.strides[input][axes.rank - 1] == 1);
        }
        (key << 3) | self.inputs.len() as u64
    }

    /// The definitions that the template leaves open.
    fn define(&self, axes: &Axes, v: usize, is_wide: bool, body: &str) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "#define {name} {value}");
        };
        let compute = self.inputs.first().or(self.outputs.first()).map_or(DType::F32, |x| x.dtype());
        let is_vector = |input: usize| v > 1 && axes.strides[input][axes.rank - 1] == 1;
        let step = |input: usize| if axes.strides[input][axes.rank - 1] == 0 { "0" } else { "lane" };
        line("V", &v.to_string());
        line("RANK", &axes.rank.to_string());
        line("N_INPUTS", &self.inputs.len().to_string());
        line("Index", if is_wide { "u64" } else { "u32" });
        let of_outputs = |f: &dyn Fn(usize, &str) -> String| {
            let texts = self.outputs.iter().enumerate().map(|(idx, y)| f(idx, c_name(y.dtype())));
            texts.collect::<String>()
        };
        let of_inputs = |f: &dyn Fn(usize, &str) -> String| {
            let texts = self.inputs.iter().enumerate().map(|(idx, x)| f(idx, c_name(x.dtype())));
            texts.collect::<String>()
        };
        let params =
            of_outputs(&|i, t| format!("{t}* out{i}, ")) + &of_inputs(&|i, t| format!("const {t}* in{i}, "));
        line("PARAMS", &params);
        let loads = of_inputs(&|i, t| match is_vector(i) {
            true => format!("auto v{i} = *(const Vector<{t}, V>*)(in{i} + offset[{i}]); "),
            false => format!("auto v{i} = in{i}[offset[{i}]]; "),
        });
        line("LOAD_VECTORS", &(loads + &of_outputs(&|i, t| format!("Vector<{t}, V> w{i}; "))));
        line(
            "READ(lane)",
            &of_inputs(&|i, _| match is_vector(i) {
                true => format!("auto x{i} = widen(v{i}.at[lane]); "),
                false => format!("auto x{i} = widen(v{i}); "),
            }),
        );
        let results = of_outputs(&|i, t| format!("Compute<{t}> y{i}; "));
        line("BODY", &format!("{results} {}", body.replace('\n', " ")));
        line("WRITE(lane)", &of_outputs(&|i, t| format!("w{i}.at[lane] = narrow<{t}>(y{i}); ")));
        line("STORE_VECTORS", &of_outputs(&|i, t| format!("*(Vector<{t}, V>*)(out{i} + first) = w{i}; ")));
        line(
            "READ_ONE",
            &of_inputs(&|i, _| format!("auto x{i} = widen(in{i}[offset[{i}] + {}]); ", step(i))),
        );
        line("WRITE_ONE", &of_outputs(&|i, t| format!("out{i}[first + lane] = narrow<{t}>(y{i}); ")));
        // No macro: a body of several ops has one for each.
        let _ = writeln!(text, "typedef Compute<{}> C;", c_name(compute));
        text
    }
}

/// Whether `v` elements can be moved at once from the first element on.
fn is_aligned(operand: &Operand, v: usize) -> bool {
    (operand.ptr() as usize).is_multiple_of(v * operand.dtype().size())
}
