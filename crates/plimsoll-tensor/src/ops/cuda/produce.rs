//! Elements that a kernel makes where it would read them: any number of inputs, broadcast and strided as they like, and one body,
//! as in [elementwise](super::elementwise) kernels.
//!
//! What the body makes besides may be written, because a kernel that takes such elements reads each of them once.

use std::fmt::Write;

use plimsoll_cuda::{Generated, Param};

use super::c_name;
use super::elementwise::{Axes, MAX_INPUTS, MAX_NUMBERS, MAX_WORDS};
use crate::base::dtype::DType;
use crate::base::shape::{MAX_RANK, Shape};
use crate::eager::op::{GpuSource, Operand};

/// The most outputs that are written beside.
const MAX_OUTPUTS: usize = 4;

/// Elements, and what makes them.
pub(crate) struct Produce<'a> {
    inputs: &'a [&'a Operand<'a>],
    outputs: &'a [&'a Operand<'a>],
    axes: Axes,
    body: Body<'a>,
    param: Produced,
}

/// What a body says of itself.
#[derive(Clone, Copy)]
pub(crate) struct Body<'a> {
    /// Statements that set `y0`, ... (what is written beside) and after them the element that is read, from `x0`, ....
    pub text: &'a dyn Fn() -> String,
    /// The kernels that it is a part of.
    pub generated: &'a Generated,
    /// The dtype of the elements.
    pub dtype: DType,
    /// Whether it reads `random`.
    pub draws: bool,
    pub numbers: &'a [f64],
    pub words: &'a [u64],
}

/// Where elements lie, and attributes, as a kernel takes them.
#[repr(C)]
struct Produced {
    extents: [u32; MAX_RANK],
    strides: [[i64; MAX_RANK]; MAX_INPUTS],
    inputs: [*mut u8; MAX_INPUTS],
    outputs: [*mut u8; MAX_OUTPUTS],
    numbers: [f64; MAX_NUMBERS],
    words: [u64; MAX_WORDS],
}

// SAFETY: `STRUCT` is the same, and there is no padding.
unsafe impl Param for Produced {}

const STRUCT: &str = "
struct Produced {
    u32 extents[8];
    i64 strides[7][8];
    u64 inputs[7], outputs[4];
    double numbers[16];
    u64 words[8];
};
#define PRODUCED_NUMBER(i) (cast<C>(produced.numbers[i]))
#define PRODUCED_WORD(i) (produced.words[i])
";

/// Where the elements of all inputs begin that belong to element `number`.
const PLACES: &str = "\
    i64 offset[N_PRODUCED + 1] = {}; { \
    Index rest = (Index)(number); \
    _Pragma(\"unroll\") for (int axis = PRODUCED_RANK - 1; axis >= 0; axis--) { \
        Index at = axis == 0 ? rest : rest % produced.extents[axis]; \
        if (axis > 0) rest /= produced.extents[axis]; \
        _Pragma(\"unroll\") for (int input = 0; input < N_PRODUCED; input++) \
            offset[input] += (i64)at * produced.strides[input][axis]; \
    } }
";

/// How the elements of an input are read that belong to several neighbours.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// All at once.
    Vector,
    /// One for all of them.
    Repeated,
    /// One by one.
    Apart,
}

impl<'a> Produce<'a> {
    /// The elements of a shape; outputs are row-major and of that shape.
    pub fn new(
        shape: &Shape,
        inputs: &'a [&'a Operand<'a>],
        outputs: &'a [&'a Operand<'a>],
        body: Body<'a>,
    ) -> Produce<'a> {
        let axes = Axes::of(shape, inputs);
        let mut param = Produced {
            extents: axes.extents.map(|extent| extent as u32),
            strides: axes.strides.map(|of_input| of_input.map(|stride| stride as i64)),
            inputs: [std::ptr::null_mut(); MAX_INPUTS],
            outputs: [std::ptr::null_mut(); MAX_OUTPUTS],
            numbers: [0.0; MAX_NUMBERS],
            words: [0; MAX_WORDS],
        };
        param.inputs.iter_mut().zip(inputs).for_each(|(to, input)| *to = input.ptr());
        param.outputs.iter_mut().zip(outputs).for_each(|(to, output)| *to = output.ptr());
        param.numbers[..body.numbers.len()].copy_from_slice(body.numbers);
        param.words[..body.words.len()].copy_from_slice(body.words);
        Produce { inputs, outputs, axes, body, param }
    }

    fn inner(&self) -> usize {
        self.axes.rank - 1
    }

    /// Whether `n` neighbours never lie on both sides of an axis's end.
    fn is_even(&self, n: usize) -> bool {
        self.axes.rank == 1 || self.axes.extents[self.inner()].is_multiple_of(n)
    }

    fn access(&self, input: usize, n: usize) -> Access {
        let (operand, strides) = (self.inputs[input], &self.axes.strides[input]);
        let is_aligned = is_aligned(operand, n);
        let mut outer = strides[..self.inner()].iter();
        match strides[self.inner()] {
            _ if !self.is_even(n) => Access::Apart,
            0 => Access::Repeated,
            1 if is_aligned && outer.all(|stride| stride % n as isize == 0) => Access::Vector,
            _ => Access::Apart,
        }
    }

    /// How an element of each input is read for one lane.
    fn reads(&self, n: usize) -> String {
        let mut text = String::new();
        for input in 0..self.inputs.len() {
            let at = match (self.is_even(n), self.axes.strides[input][self.inner()]) {
                (true, 1) => " + lane".to_owned(),
                (true, _) => format!(" + lane * produced.strides[{input}][{}]", self.inner()),
                (false, _) => String::new(),
            };
            // Writing to a string cannot fail.
            let _ = match self.access(input, n) {
                Access::Vector => write!(text, "auto x{input} = v{input}[lane]; "),
                Access::Repeated => write!(text, "auto x{input} = v{input}; "),
                Access::Apart => write!(text, "auto x{input} = widen(in{input}[offset[{input}]{at}]); "),
            };
        }
        text
    }

    /// What is read before the lanes.
    fn loads(&self, n: usize) -> String {
        let mut text = String::new();
        for (input, operand) in self.inputs.iter().enumerate() {
            let t = c_name(operand.dtype());
            let _ = write!(text, "const {t}* in{input} = (const {t}*)produced.inputs[{input}]; ");
            let _ = match self.access(input, n) {
                Access::Vector => write!(
                    text,
                    "Compute<{t}> v{input}[{n}]; read_vector<{n}>(in{input} + offset[{input}], v{input}); "
                ),
                Access::Repeated => write!(text, "auto v{input} = widen(in{input}[offset[{input}]]); "),
                Access::Apart => Ok(()),
            };
        }
        text
    }

    /// The element's random word.
    fn random(&self, n: usize) -> [&'static str; 2] {
        match (self.body.draws, n.is_multiple_of(4)) {
            (false, _) => ["", ""],
            (true, true) => [
                "Words drawn[LANES / 4]; _Pragma(\"unroll\") for (int block = 0; block < LANES / 4; block++) \
                 drawn[block] = philox(PRODUCED_WORD(0), PRODUCED_WORD(1), first / 4 + block);",
                "u32 random = drawn[lane / 4].at[lane % 4];",
            ],
            (true, false) => ["", "u32 random = random_word(PRODUCED_WORD(0), PRODUCED_WORD(1), index);"],
        }
    }

    fn define(&self, n: usize) -> String {
        let body = (self.body.text)();
        let body = body.replace("NUMBER(", "PRODUCED_NUMBER(").replace("WORD(", "PRODUCED_WORD(");
        let (mut results, mut keeps, mut writes) = (String::new(), String::new(), String::new());
        for (output, operand) in self.outputs.iter().enumerate() {
            let t = c_name(operand.dtype());
            let _ = write!(results, "Compute<{t}> w{output}[{n}]; ");
            let _ = write!(keeps, "w{output}[lane] = y{output}; ");
            let to = format!("({t}*)produced.outputs[{output}] + first");
            let _ = match is_aligned(operand, n) {
                true => write!(writes, "write_vector<{n}>({to}, w{output}); "),
                false => write!(
                    writes,
                    "for (int lane = 0; lane < {n}; lane++) ({to})[lane] = narrow<{t}>(w{output}[lane]); "
                ),
            };
        }
        let types = self.outputs.iter().map(|output| output.dtype()).chain([self.body.dtype]);
        let made: String =
            types.enumerate().map(|(y, dtype)| format!("Compute<{}> y{y}; ", c_name(dtype))).collect();
        let (to, last) = (c_name(self.body.dtype), self.outputs.len());
        let ([before, random], (loads, reads)) = (self.random(n), (self.loads(n), self.reads(n)));
        let (once, each) = if self.is_even(n) { ("PLACES(first)", "") } else { ("", "PLACES(index)") };
        format!(
            "DEVICE void produce(const Produced& produced, u64 first, Compute<{to}>* to) {{
    {once}
    {loads}
    {results}
    {before}
#pragma unroll
    for (int lane = 0; lane < LANES; lane++) {{
        u64 index = first + lane;
        {each}
        {random}
        {reads}
        {made}
        {{ {body} }}
        {keeps}
        to[lane] = y{last};
    }}
    {writes}
}}
"
        )
    }
}

impl GpuSource for Produce<'_> {
    fn generated(&self) -> &Generated {
        self.body.generated
    }

    fn variant(&self, n: usize) -> u64 {
        let accesses = (0..self.inputs.len()).map(|input| self.access(input, n) as u64);
        let aligned = self.outputs.iter().map(|output| u64::from(is_aligned(output, n)));
        let strides =
            (0..self.inputs.len()).map(|input| u64::from(self.axes.strides[input][self.inner()] == 1));
        let key = [self.axes.rank as u64, u64::from(self.is_even(n)), n as u64];
        let all = key.into_iter().chain(accesses).chain(aligned).chain(strides);
        all.fold(0, |hash: u64, part| (hash ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29))
    }

    fn text(&self, n: usize) -> String {
        let defined = format!(
            "#define PRODUCED_RANK {}\n#define N_PRODUCED {}\n#define LANES {n}\n",
            self.axes.rank,
            self.inputs.len()
        );
        defined + "#define PLACES(number) " + PLACES + STRUCT + &self.define(n)
    }

    fn param(&self) -> &dyn Param {
        &self.param
    }
}

/// Whether `n` neighbours can be moved 16 bytes at a time.
fn is_aligned(operand: &Operand<'_>, n: usize) -> bool {
    (operand.ptr() as usize).is_multiple_of((n * operand.dtype().size()).min(16))
}
