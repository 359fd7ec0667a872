//! Reductions over any axes of inputs that are broadcast to one shape.
//!
//! An op brings a [`Fold`]: what is known of some elements, and how two such things become one. How memory is walked is
//! decided here, from shapes and strides alone. Where the reduced elements lie side by side, a group of threads folds each
//! result; where results lie side by side, threads take neighbouring results, so that reads are coalesced either way.
//! Few results of many elements are split among blocks, which leave what they know in the workspace, and a second kernel
//! joins that in a fixed order.

use std::fmt::Write;

use plimsoll_cuda::{Gpu, Grid, Param, Template};
use smallvec::SmallVec;

use super::{CODE_BITS, GROUPS, c_name, code};
use crate::base::axes::Axes;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::shape::{MAX_RANK, Shape};
use crate::eager::op::{GpuSource, Meta, Operand};

static TEMPLATE: Template = Template { name: "reduce", text: include_str!("reduce.cu") };

/// The most inputs that a kernel has.
const MAX_INPUTS: usize = 6;
/// The most outputs.
const MAX_OUTPUTS: usize = 4;
/// The threads of a block.
const THREADS: usize = 256;
/// The most elements that a thread reads at a time.
const MAX_VECTOR: usize = 8;
/// About how many blocks are enough for a GPU. By shape alone, so that every model gives the same bits.
const ENOUGH_BLOCKS: usize = 1024;

/// A reduction of many elements to one.
#[derive(Clone, Copy)]
pub(crate) struct Fold {
    /// Tells apart folds of the same op; up to 4 bits.
    pub variant: u64,
    /// In CUDA C, without line comments: `struct Acc`, `empty()`, `leaf(values)` and `merge(a, n_a, b, n_b)`. Values are
    /// `values.x0[i]`, ... for i below N, and `values.at(i)` is the number of one along the reduced axes. There are the types
    /// `C`, that of the first input's numbers, and `Wide`, in which they are summed up.
    pub text: &'static str,
    /// Statements that set `y0`, ... from `acc`, the number `n` of elements, and `NUMBER(i)`.
    pub finish: &'static str,
    /// The bytes of an `Acc`.
    pub acc_bytes: usize,
    /// Whether `values.at(i)` is used, so that reduced axes are walked in their own order.
    pub is_ordered: bool,
}

/// The text of a fold of one number: its type, what is known of nothing, of one number `x`, and of `a` and `b` together.
macro_rules! plain_fold {
    ($type:literal, $empty:literal, $one:literal, $both:literal) => {
        concat!(
            "struct Acc { ",
            $type,
            " value; }; ",
            "DEVICE ",
            $type,
            " both(",
            $type,
            " a, ",
            $type,
            " b) { return ",
            $both,
            "; } ",
            "DEVICE Acc empty() { return {(",
            $type,
            ")",
            $empty,
            "}; } ",
            "template <int N> DEVICE Acc leaf(const Values<N>& values) { ",
            $type,
            " known = (",
            $type,
            ")",
            $empty,
            "; ",
            "_Pragma(\"unroll\") for (int i = 0; i < N; i++) { auto x = values.x0[i]; known = both(known, (",
            $type,
            ")(",
            $one,
            ")); } ",
            "return {known}; } ",
            "DEVICE Acc merge(Acc a, Count, Acc b, Count) { return {both(a.value, b.value)}; }"
        )
    };
}
pub(crate) use plain_fold;

/// A reduction on its way.
pub(crate) struct Reduction<'a> {
    /// The op.
    pub op: &'static str,
    /// The inputs; each broadcasts to the shape of the first.
    pub inputs: &'a [&'a Operand<'a>],
    /// The axes that are reduced.
    pub axes: Axes,
    /// What is made of the elements.
    pub fold: Fold,
    /// The outputs, row-major, with one element per result.
    pub outputs: &'a [&'a Operand<'a>],
    /// Attributes; `finish` knows them as `NUMBER(0)`, ...
    pub numbers: &'a [f64],
    /// Scratch memory of as many bytes as [`workspace`] says.
    pub workspace: *mut u8,
}

/// The bytes of scratch memory that a reduction needs.
pub(crate) fn workspace(inputs: &[&Meta], axes: Axes, fold: &Fold) -> usize {
    let plan = ReducePlan::new(inputs, axes, fold.is_ordered);
    if plan.n_splits > 1 { plan.n_splits * plan.n_kept * fold.acc_bytes } else { 0 }
}

/// Where elements lie, as the kernel takes it.
#[repr(C)]
struct Places {
    n_kept: u64,
    n_reduced: u64,
    per_split: u64,
    n_splits: u64,
    kept: [u64; MAX_RANK],
    reduced: [u64; MAX_RANK],
    kept_strides: [[i64; MAX_RANK]; MAX_INPUTS],
    reduced_strides: [[i64; MAX_RANK]; MAX_INPUTS],
}

// SAFETY: `reduce.cu` has the same struct.
unsafe impl Param for Places {}

#[repr(C)]
struct Numbers([f64; 4]);

// SAFETY: `reduce.cu` has the same struct.
unsafe impl Param for Numbers {}

/// Some axes of all inputs, outermost first; neighbours that every input walks as one are joined.
#[derive(Clone, Copy)]
struct AxisGroup {
    rank: usize,
    extents: [usize; MAX_RANK],
    strides: [[isize; MAX_RANK]; MAX_INPUTS],
}

impl AxisGroup {
    fn new() -> AxisGroup {
        AxisGroup { rank: 0, extents: [1; MAX_RANK], strides: [[0; MAX_RANK]; MAX_INPUTS] }
    }

    fn push(&mut self, extent: usize, strides: [isize; MAX_INPUTS]) {
        if extent == 1 {
            return;
        }
        let last = self.rank.wrapping_sub(1);
        let continues = |input: usize| self.strides[input][last] == strides[input] * extent as isize;
        if self.rank > 0 && (0..MAX_INPUTS).all(continues) {
            self.extents[last] *= extent;
        } else {
            self.extents[self.rank] = extent;
            self.rank += 1;
        }
        for (of_input, stride) in self.strides.iter_mut().zip(strides) {
            of_input[self.rank - 1] = stride;
        }
    }

    fn n_elems(&self) -> usize {
        self.extents[..self.rank].iter().product()
    }

    /// The last axis: its extent, and the stride of an input; none is one element.
    fn inner(&self, input: usize) -> (usize, isize) {
        match self.rank {
            0 => (1, 0),
            rank => (self.extents[rank - 1], self.strides[input][rank - 1]),
        }
    }

    /// The strides of an input along all axes but the last `n`.
    fn outer_strides(&self, input: usize, n: usize) -> &[isize] {
        &self.strides[input][..self.rank.saturating_sub(n)]
    }
}

/// Which threads fold what.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// So many neighbouring threads fold one result.
    Rows(usize),
    /// So many threads lie side by side along the results.
    Columns(usize),
    /// Like columns, over what blocks left in the workspace.
    Partials(usize),
}

struct ReducePlan {
    kept: AxisGroup,
    reduced: AxisGroup,
    n_kept: usize,
    n_reduced: usize,
    mode: Mode,
    /// Elements that a thread reads at a time.
    v: usize,
    n_splits: usize,
    per_split: usize,
}

impl ReducePlan {
    /// A function of shapes, strides and offsets alone.
    fn new(inputs: &[&Meta], axes: Axes, is_ordered: bool) -> ReducePlan {
        let (kept, reduced) = axis_groups(inputs, axes, is_ordered);
        let (n_kept, n_reduced) = (kept.n_elems(), reduced.n_elems());
        let is_far = |group: &AxisGroup| group.inner(0).1.unsigned_abs();
        let in_columns = kept.rank > 0 && (reduced.rank == 0 || is_far(&kept) < is_far(&reduced));
        let (lanes, others) = if in_columns { (&kept, &reduced) } else { (&reduced, &kept) };
        let v = vector_len(inputs, lanes, others);
        let (mode, n_blocks, least) = match in_columns {
            true => {
                let width = (n_kept / v).max(1).next_power_of_two().min(32);
                (Mode::Columns(width), n_kept.div_ceil(width * v), THREADS / width * 16)
            }
            false => {
                let group = group_len(n_reduced / v, n_kept);
                let least = if group == THREADS { 8 * THREADS * v } else { usize::MAX };
                (Mode::Rows(group), n_kept.div_ceil(THREADS / group), least)
            }
        };
        let wanted = ENOUGH_BLOCKS / n_blocks.max(1);
        let n_splits = wanted.min(n_reduced.div_ceil(least)).max(1);
        let per_split = n_reduced.div_ceil(n_splits).next_multiple_of(v).max(v);
        // Rounding up may have left nothing for the last of them.
        let n_splits = n_reduced.div_ceil(per_split).max(1);
        ReducePlan { kept, reduced, n_kept, n_reduced, mode, v, n_splits, per_split }
    }
}

/// The threads that fold a result of so many vectors.
fn group_len(n_vectors: usize, n_kept: usize) -> usize {
    const FEW_RESULTS: usize = 1024;
    match n_vectors {
        many if many >= 1024 || (many >= 256 && n_kept <= FEW_RESULTS) => THREADS,
        few => few.div_ceil(4).max(1).next_power_of_two().min(32),
    }
}

/// The kept and the reduced axes.
fn axis_groups(inputs: &[&Meta], axes: Axes, is_ordered: bool) -> (AxisGroup, AxisGroup) {
    let shape = inputs[0].shape();
    let strides_along = |axis: usize| {
        let mut strides = [0; MAX_INPUTS];
        for (stride, input) in strides.iter_mut().zip(inputs) {
            *stride = stride_along(input, shape, axis);
        }
        strides
    };
    let (mut kept, mut reduced) = (AxisGroup::new(), AxisGroup::new());
    (0..shape.rank()).filter(|&axis| !axes.contains(axis)).for_each(|axis| {
        kept.push(shape[axis], strides_along(axis));
    });
    let mut order: SmallVec<[usize; MAX_RANK]> = axes.iter().collect();
    if !is_ordered {
        order.sort_by_key(|&axis| std::cmp::Reverse(strides_along(axis)[0].unsigned_abs()));
    }
    order.into_iter().for_each(|axis| reduced.push(shape[axis], strides_along(axis)));
    (kept, reduced)
}

/// The stride of an input along an axis of the shape that it is broadcast to.
fn stride_along(input: &Meta, shape: &Shape, axis: usize) -> isize {
    let missing = shape.rank() - input.shape().rank();
    match axis.checked_sub(missing) {
        Some(own) if input.shape()[own] == shape[axis] => input.layout.strides()[own],
        _ => 0,
    }
}

/// How many elements along the lanes' last axis a thread can read at a time.
fn vector_len(inputs: &[&Meta], lanes: &AxisGroup, others: &AxisGroup) -> usize {
    let fits = |v: usize| {
        let input_fits = |(idx, input): (usize, &&Meta)| match lanes.inner(idx).1 {
            0 => true,
            1 => {
                let mut strides = lanes.outer_strides(idx, 1).iter().chain(others.outer_strides(idx, 0));
                input.layout.offset().is_multiple_of(v) && strides.all(|stride| stride % v as isize == 0)
            }
            _ => false,
        };
        lanes.inner(0).0.is_multiple_of(v) && inputs.iter().enumerate().all(input_fits)
    };
    let mut v = (16 / inputs[0].dtype.size()).min(MAX_VECTOR);
    while v > 1 && !fits(v) {
        v /= 2;
    }
    v
}

impl Reduction<'_> {
    /// Starts the kernels.
    pub fn run(&self, gpu: &Gpu) -> Result<()> {
        let metas: SmallVec<[&Meta; MAX_INPUTS]> = self.inputs.iter().map(|input| input.meta).collect();
        let mut plan = ReducePlan::new(&metas, self.axes, self.fold.is_ordered);
        if plan.n_kept == 0 {
            return Ok(());
        }
        self.launch(gpu, &plan)?;
        if plan.n_splits > 1 {
            let width = plan.n_kept.next_power_of_two().min(32);
            (plan.mode, plan.v) = (Mode::Partials(width), 1);
            self.launch(gpu, &plan)?;
        }
        Ok(())
    }

    fn launch(&self, gpu: &Gpu, plan: &ReducePlan) -> Result<()> {
        let source = self.source(plan);
        let (key, define) = (self.key(plan), || self.define(plan));
        let kernel = match source {
            Some(source) => {
                let variant = source.variant(plan.v) ^ u64::from(self.is_written());
                let key = key ^ variant.rotate_left(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                gpu.generated_kernel(source.generated(), &TEMPLATE, self.op, key, define)
            }
            None => gpu.kernel(&TEMPLATE, self.op, key, define),
        }?;
        let (is_last, is_split) = (matches!(plan.mode, Mode::Partials(_)), plan.n_splits > 1);
        let mut pointers: SmallVec<[*mut u8; 10]> = SmallVec::new();
        if is_last || !is_split {
            pointers.extend(self.outputs.iter().map(|output| output.ptr()));
        }
        pointers.extend(is_split.then_some(self.workspace));
        if !is_last {
            pointers.extend(self.inputs_in_memory(plan).map(|(_, input)| input.ptr()));
        }
        let (places, mut numbers) = (places(plan), Numbers([0.0; 4]));
        numbers.0[..self.numbers.len()].copy_from_slice(self.numbers);
        let mut params: SmallVec<[&dyn Param; 12]> = pointers.iter().map(|ptr| ptr as &dyn Param).collect();
        params.extend(source.map(GpuSource::param));
        params.push(&places);
        params.push(&numbers);
        let n_blocks = match plan.mode {
            Mode::Rows(group) => plan.n_kept.div_ceil(THREADS / group),
            Mode::Columns(width) | Mode::Partials(width) => plan.n_kept.div_ceil(width * plan.v),
        };
        let mut grid = Grid::of(n_blocks, THREADS as u32);
        grid.blocks[1] = if is_last { 1 } else { plan.n_splits as u32 };
        // SAFETY: `execute` hands out operands that are valid for their layouts, the strides are theirs, the workspace is as
        // large as `workspace` says, and the kernel was made for these dtypes.
        unsafe { gpu.launch(&kernel, grid, &params) }?;
        Ok(())
    }

    /// What makes the elements of the first input, if they are not there yet; the last of two kernels reads none.
    fn source(&self, plan: &ReducePlan) -> Option<&dyn GpuSource> {
        self.inputs[0].gpu_source().filter(|_| !matches!(plan.mode, Mode::Partials(_)))
    }

    /// Whether elements that are made are written to the first input's memory.
    fn is_written(&self) -> bool {
        !self.inputs[0].ptr().is_null()
    }

    /// The inputs that the kernel is given addresses of, with their numbers.
    fn inputs_in_memory(&self, plan: &ReducePlan) -> impl Iterator<Item = (usize, &Operand<'_>)> {
        let is_nowhere = self.source(plan).is_some() && !self.is_written();
        self.inputs.iter().copied().enumerate().skip(usize::from(is_nowhere))
    }

    fn is_wide(&self, plan: &ReducePlan) -> bool {
        plan.n_kept * plan.n_reduced.max(1) >= 1 << 31
    }

    /// How an input is read.
    fn access(&self, plan: &ReducePlan, input: usize) -> Access {
        let (lanes, is_fixed) = match plan.mode {
            Mode::Rows(_) => (&plan.reduced, false),
            _ => (&plan.kept, plan.reduced.outer_strides(input, 0).iter().all(|&stride| stride == 0)),
        };
        Access {
            // What is made is made once, by one thread.
            is_fixed: is_fixed && self.inputs.len() > 1 && (input > 0 || self.source(plan).is_none()),
            is_vector: plan.v > 1 && lanes.inner(input).1 == 1,
        }
    }

    /// What tells this kernel from others of the op.
    fn key(&self, plan: &ReducePlan) -> u64 {
        const N_BITS: u32 = 22 + CODE_BITS * (MAX_INPUTS + MAX_OUTPUTS) as u32 + 2 * MAX_INPUTS as u32;
        const { assert!(N_BITS <= u64::BITS, "two kernels would have the same key") };
        let (mode, threads) = match plan.mode {
            Mode::Rows(group) => (0, group),
            Mode::Columns(width) => (1, width),
            Mode::Partials(width) => (2, width),
        };
        let mut key = self.fold.variant;
        key = (key << 2) | mode;
        key = (key << 4) | u64::from(threads.trailing_zeros());
        key = (key << 2) | (u64::from(plan.n_splits > 1) << 1) | u64::from(self.is_wide(plan));
        key = (key << 4) | plan.kept.rank as u64;
        key = (key << 4) | plan.reduced.rank as u64;
        key = (key << 2) | u64::from(plan.v.trailing_zeros());
        for operand in self.inputs.iter().chain(self.outputs) {
            key = (key << CODE_BITS) | code(operand.dtype());
        }
        for input in 0..self.inputs.len() {
            let access = self.access(plan, input);
            key = (key << 2) | (u64::from(access.is_fixed) << 1) | u64::from(access.is_vector);
        }
        key
    }

    /// The definitions that the template leaves open.
    fn define(&self, plan: &ReducePlan) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "#define {name} {}", value.replace('\n', " "));
        };
        let (mode, group) = match plan.mode {
            Mode::Rows(group) => ("ROWS", group),
            Mode::Columns(width) => ("COLUMNS", width),
            Mode::Partials(width) => ("PARTIALS", width),
        };
        let (is_last, is_split) = (matches!(plan.mode, Mode::Partials(_)), plan.n_splits > 1);
        line(mode, "");
        line("GROUP", &group.to_string());
        line("BX", &group.to_string());
        line("V", &plan.v.to_string());
        line("UNROLL", if self.inputs.len() > 1 { "2" } else { "4" });
        line("KEPT_RANK", &plan.kept.rank.to_string());
        line("REDUCED_RANK", &plan.reduced.rank.to_string());
        line("N_INPUTS", &self.inputs.len().to_string());
        line("Index", if self.is_wide(plan) { "u64" } else { "u32" });
        line("ACC_BYTES", &self.fold.acc_bytes.to_string());
        line("FOLD", self.fold.text);
        line("FINISH", &(self.of_outputs(|i, t| format!("Compute<{t}> y{i}; ")) + self.fold.finish));
        line("WRITE(output)", &self.of_outputs(|i, t| format!("out{i}[output] = narrow<{t}>(y{i}); ")));
        if is_split && !is_last {
            line("IS_SPLIT", "");
        }
        let outputs = self.of_outputs(|i, t| format!("{t}* out{i}, "));
        let inputs = self.inputs_in_memory(plan).map(|(i, x)| {
            let access = if i == 0 && self.source(plan).is_some() { "" } else { "const " };
            format!("{access}{}* in{i}, ", c_name(x.dtype()))
        });
        let produced = self.source(plan).map(|_| "const Produced produced, ".to_owned());
        let inputs: String = inputs.chain(produced).collect();
        let params = match (is_last, is_split) {
            (true, _) => outputs + "const Acc* partials, ",
            (false, true) => "Acc* partials, ".to_owned() + &inputs,
            (false, false) => outputs + &inputs,
        };
        line("PARAMS", &params);
        line("T0", c_name(self.inputs[0].dtype()));
        self.define_reading(plan, &mut line);
        text + GROUPS + &self.source(plan).map_or(String::new(), |source| source.text(plan.v))
    }

    fn define_reading(&self, plan: &ReducePlan, line: &mut impl FnMut(&str, &str)) {
        let read = |input: usize, place: &str, to: &str| match self.access(plan, input).is_vector {
            is_vector if input == 0 && self.source(plan).is_some() => {
                let made = format!("produce(produced, {place}[0], {to}); ");
                match (self.is_written(), is_vector) {
                    (false, _) => made,
                    (true, true) => made + &format!("write_vector<V>(in0 + {place}[0], {to}); "),
                    (true, false) => made + &format!("in0[{place}[0]] = narrow<T0>(*({to})); "),
                }
            }
            true => format!("read_vector<V>(in{input} + {place}[{input}], {to}); "),
            false => format!(
                "{{ auto one = widen(in{input}[{place}[{input}]]); for (int v = 0; v < V; v++) ({to})[v] = one; }} "
            ),
        };
        let fixed = |input: usize| self.access(plan, input).is_fixed;
        line("FIELDS(N)", &self.of_inputs(|i, t| format!("Compute<{t}> x{i}[N]; ")));
        line(
            "READ_FIXED",
            &self.of_inputs(
                |i, _| if fixed(i) { read(i, "base", &format!("fixed.x{i}")) } else { String::new() },
            ),
        );
        line(
            "READ(u)",
            &self.of_inputs(|i, _| match fixed(i) {
                true => format!("for (int v = 0; v < V; v++) x.x{i}[(u) * V + v] = fixed.x{i}[v]; "),
                false => read(i, "offset", &format!("x.x{i} + (u) * V")),
            }),
        );
        line("PICK(v)", &self.of_inputs(|i, _| format!("column.x{i}[u] = x.x{i}[u * V + v]; ")));
    }

    fn of_inputs(&self, f: impl Fn(usize, &str) -> String) -> String {
        self.inputs.iter().enumerate().map(|(idx, x)| f(idx, c_name(x.dtype()))).collect()
    }

    fn of_outputs(&self, f: impl Fn(usize, &str) -> String) -> String {
        self.outputs.iter().enumerate().map(|(idx, y)| f(idx, c_name(y.dtype()))).collect()
    }
}

/// How an input is read: before the loop or in it, and several neighbours at a time or one.
struct Access {
    is_fixed: bool,
    is_vector: bool,
}

fn places(plan: &ReducePlan) -> Places {
    let numbers = |extents: [usize; MAX_RANK]| extents.map(|extent| extent as u64);
    let strides = |group: &AxisGroup| group.strides.map(|of_input| of_input.map(|stride| stride as i64));
    Places {
        n_kept: plan.n_kept as u64,
        n_reduced: plan.n_reduced as u64,
        per_split: plan.per_split as u64,
        n_splits: plan.n_splits as u64,
        kept: numbers(plan.kept.extents),
        reduced: numbers(plan.reduced.extents),
        kept_strides: strides(&plan.kept),
        reduced_strides: strides(&plan.reduced),
    }
}

/// The sum of the first input.
pub(crate) const SUM: &str = plain_fold!("Wide", "0", "x", "a + b");

/// Mean and squared distances of the first input: those of a few numbers are found one after the other, and joined by the
/// formula of Chan, Golub and LeVeque. Nothing is subtracted that was summed up large.
pub(crate) const MOMENTS: &str = "
    struct Acc { C mean, squares; };
    DEVICE Acc empty() { return {(C)0, (C)0}; }
    template <int N> DEVICE Acc leaf(const Values<N>& values) {
        C sum = 0, squares = 0;
        _Pragma(\"unroll\") for (int i = 0; i < N; i++) sum += values.x0[i];
        C mean = sum * (C)(1.0 / N);
        _Pragma(\"unroll\") for (int i = 0; i < N; i++) squares += (values.x0[i] - mean) * (values.x0[i] - mean);
        return {mean, squares};
    }
    DEVICE Acc merge(Acc a, Count n_a, Acc b, Count n_b) {
        C share = (C)(n_b / (n_a + n_b)), delta = b.mean - a.mean;
        return {a.mean + delta * share, a.squares + b.squares + delta * delta * (share * (C)n_a)};
    }";

/// The bytes of a sum of numbers of a dtype.
pub(crate) fn wide_bytes(dtype: DType) -> usize {
    if dtype.is_float() { dtype.accumulator().size() } else { 8 }
}
