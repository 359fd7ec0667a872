//! Kernels that work line by line: softmax, cross entropy, the norms.
//!
//! A line, all elements along one axis (the CPU's kernels say lane, which to CUDA is a thread of a warp), has a group of
//! threads: some lanes of a warp where it is short, a block where it is long. Lines of up to [`MAX_KEPT`] numbers per thread
//! are read once and kept in registers. Where lines lie side by side and are many, each has one thread, so that neighbouring
//! threads read neighbouring elements. All of this follows from shapes and strides.

use std::fmt::Write;

use plimsoll_cuda::{Gpu, Grid, Param, Template};
use smallvec::SmallVec;

use super::GROUPS;
use crate::base::error::Result;
use crate::base::layout::Layout;
use crate::base::shape::{MAX_RANK, Shape};
use crate::eager::op::{GpuSource, Operand};

/// The most operands of a kernel.
const MAX_OPERANDS: usize = 7;
/// The threads of a block.
pub(crate) const THREADS: usize = 256;
/// The most numbers of a line that a thread keeps.
const MAX_KEPT: usize = 32;
/// The fewest lines for which a thread each is enough.
const MANY_LINES: usize = 4096;

/// What a kernel has of an operand.
#[derive(Clone, Copy)]
pub(crate) enum Along<'a> {
    /// A line for each line; an operand of fewer axes is repeated.
    Lane(&'a Operand<'a>),
    /// One number for each line along the last axis.
    Number(&'a Operand<'a>),
}

/// The lines of a kernel's operands.
#[derive(Clone, Copy)]
pub(crate) struct Lines {
    /// The number of lines.
    pub n: usize,
    /// The number of elements of each.
    pub len: usize,
    /// Elements that a thread reads at a time.
    pub v: usize,
    /// The threads of a line.
    pub group: usize,
    n_operands: usize,
    rank: usize,
    extents: [usize; MAX_RANK],
    strides: [[isize; MAX_RANK]; MAX_OPERANDS],
    steps: [isize; MAX_OPERANDS],
}

/// Lines, as kernels take them.
#[repr(C)]
struct LinesParam {
    n: u64,
    len: u64,
    extents: [u64; MAX_RANK],
    strides: [[i64; MAX_RANK]; MAX_OPERANDS],
    steps: [i64; MAX_OPERANDS],
}

// SAFETY: `lines.cu` has the same struct.
unsafe impl Param for LinesParam {}

/// How many bits [`Lines::key`] has.
const LINES_BITS: u32 = 17;

impl Lines {
    /// The lines of operands along an axis of `shape`.
    pub fn along(axis: usize, shape: &Shape, operands: &[Along<'_>]) -> Lines {
        let mut lines = Lines {
            n: 1,
            len: shape[axis],
            v: 1,
            group: 1,
            n_operands: operands.len(),
            rank: 0,
            extents: [1; MAX_RANK],
            strides: [[0; MAX_RANK]; MAX_OPERANDS],
            steps: [0; MAX_OPERANDS],
        };
        let layouts: SmallVec<[Layout; MAX_OPERANDS]> =
            operands.iter().map(|operand| operand.stretched(shape)).collect();
        for (step, layout) in lines.steps.iter_mut().zip(&layouts) {
            *step = layout.strides()[axis];
        }
        for (other, &extent) in shape.iter().enumerate().filter(|&(other, _)| other != axis) {
            lines.n *= extent;
            if extent != 1 {
                lines.push(extent, layouts.iter().map(|layout| layout.strides()[other]));
            }
        }
        let mut v = operands.first().map_or(1, |operand| 16 / operand.operand().dtype().size());
        while v > 1 && !lines.fit(v, operands) {
            v /= 2;
        }
        lines.v = v;
        lines.group = lines.group_len();
        lines
    }

    /// Appends an axis inside the others, joined with the last of them where every operand walks both as one.
    fn push(&mut self, extent: usize, strides: impl Iterator<Item = isize> + Clone) {
        let last = self.rank.wrapping_sub(1);
        let mut continues = strides
            .clone()
            .enumerate()
            .map(|(idx, stride)| self.strides[idx][last] == stride * extent as isize);
        if self.rank > 0 && continues.all(|continues| continues) {
            self.extents[last] *= extent;
        } else {
            self.extents[self.rank] = extent;
            self.rank += 1;
        }
        for (of_operand, stride) in self.strides.iter_mut().zip(strides) {
            of_operand[self.rank - 1] = stride;
        }
    }

    /// Whether `v` elements of every line can be moved at once.
    fn fit(&self, v: usize, operands: &[Along<'_>]) -> bool {
        let fits = |(idx, operand): (usize, &Along<'_>)| match operand {
            Along::Number(_) => true,
            Along::Lane(operand) => {
                let is_aligned =
                    (operand.ptr() as usize).is_multiple_of((v * operand.dtype().size()).min(16));
                let mut strides = self.strides[idx][..self.rank].iter();
                self.steps[idx] == 1 && is_aligned && strides.all(|stride| stride % v as isize == 0)
            }
        };
        self.len.is_multiple_of(v) && operands.iter().enumerate().all(fits)
    }

    /// Whether neighbouring lines lie closer than the elements of each.
    pub fn are_beside(&self) -> bool {
        let next_line = if self.rank == 0 { 0 } else { self.strides[0][self.rank - 1] };
        self.rank > 0 && next_line.unsigned_abs() < self.steps[0].unsigned_abs()
    }

    /// The threads that look at a line.
    fn group_len(&self) -> usize {
        match self.len / self.v {
            _ if self.are_beside() && self.n >= MANY_LINES => 1,
            long if long * self.v > 32 * MAX_KEPT => THREADS,
            short => short.max(1).next_power_of_two().min(32),
        }
    }

    /// How many times `v` elements of a line a thread keeps; zero where that is too much.
    fn n_kept(&self) -> usize {
        let n = (self.len / self.v).div_ceil(self.group);
        if n * self.v <= MAX_KEPT { n } else { 0 }
    }

    fn is_wide(&self) -> bool {
        self.n >= 1 << 30 || self.len >= 1 << 30
    }

    /// What tells kernels for these lines from others, in [`LINES_BITS`] bits, for kernels that keep lines or do not.
    fn key(&self, in_registers: bool) -> u64 {
        let mut key = u64::from(self.v.trailing_zeros());
        key = (key << 4) | u64::from(self.group.trailing_zeros());
        key = (key << 1) | u64::from(self.is_wide());
        key = (key << 4) | self.rank as u64;
        // Of up to 32 only few can occur for a `v`, but numbers that are no power of two must be told apart.
        (key << 6) | if in_registers { self.n_kept() as u64 } else { 0 }
    }

    /// The definitions for `lines.cu`, and its text.
    fn define(&self, in_registers: bool) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "#define {name} {value}");
        };
        line("N_OPERANDS", &self.n_operands.to_string());
        line("RANK", &self.rank.to_string());
        line("Index", if self.is_wide() { "u64" } else { "u32" });
        line("V", &self.v.to_string());
        line("GROUP", &self.group.to_string());
        line("K", &if in_registers { self.n_kept() } else { 0 }.to_string());
        text + GROUPS + include_str!("lines.cu")
    }

    /// Enough blocks for all lines.
    fn grid(&self) -> Grid {
        Grid::of(self.n.div_ceil(THREADS / self.group), THREADS as u32)
    }

    /// What the kernel takes.
    fn param(&self) -> LinesParam {
        LinesParam {
            n: self.n as u64,
            len: self.len as u64,
            extents: self.extents.map(|extent| extent as u64),
            strides: self.strides.map(|of_operand| of_operand.map(|stride| stride as i64)),
            steps: self.steps.map(|step| step as i64),
        }
    }
}

/// A kernel over lines.
pub(crate) struct LineKernel<'a> {
    /// Its text, which follows that of `lines.cu`.
    pub template: &'static Template,
    /// The op.
    pub op: &'static str,
    /// Tells apart kernels of the same op and template.
    pub variant: u64,
    /// Whether lines are kept in registers where they are short.
    pub in_registers: bool,
    /// The first operand, if its elements may be made where they are read first.
    pub made: Option<&'a Operand<'a>>,
}

impl LineKernel<'_> {
    /// Starts the kernel. Its parameters are the pointers, the lines, `more`, and what makes elements of the first operand; `define`
    /// states what the text leaves open.
    ///
    /// # Safety
    /// As for [`Gpu::launch`].
    pub unsafe fn launch(
        &self,
        gpu: &Gpu,
        lines: &Lines,
        define: impl Fn() -> String,
        pointers: &[*mut u8],
        more: &[&dyn Param],
    ) -> Result<()> {
        // SAFETY: the caller promises it.
        unsafe { self.launch_on(lines.grid(), gpu, lines, define, pointers, more) }
    }

    /// The same with other threads than a group for each line.
    ///
    /// # Safety
    /// As for [`Gpu::launch`].
    pub unsafe fn launch_on(
        &self,
        grid: Grid,
        gpu: &Gpu,
        lines: &Lines,
        define: impl Fn() -> String,
        pointers: &[*mut u8],
        more: &[&dyn Param],
    ) -> Result<()> {
        let variant = (self.variant << LINES_BITS) | lines.key(self.in_registers);
        let source = self.made.and_then(Operand::gpu_source);
        let define = || {
            let (flag, produce) = match source {
                Some(source) => ("\n#define MADE\n", source.text(lines.v)),
                None => ("\n", String::new()),
            };
            define() + flag + &lines.define(self.in_registers) + &produce
        };
        let kernel = match source {
            Some(source) => {
                let key =
                    variant ^ source.variant(lines.v).rotate_left(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                gpu.generated_kernel(source.generated(), self.template, self.op, key, define)
            }
            None => gpu.kernel(self.template, self.op, variant, define),
        }?;
        let param = lines.param();
        let mut params: SmallVec<[&dyn Param; 12]> = pointers.iter().map(|ptr| ptr as &dyn Param).collect();
        params.push(&param);
        params.extend_from_slice(more);
        params.extend(source.map(GpuSource::param));
        // SAFETY: the caller promises it.
        unsafe { gpu.launch(&kernel, grid, &params) }?;
        Ok(())
    }
}

impl<'a> Along<'a> {
    fn operand(&self) -> &'a Operand<'a> {
        match self {
            Along::Lane(operand) | Along::Number(operand) => operand,
        }
    }

    /// The operand's layout, repeated to the shape of all lines.
    fn stretched(&self, shape: &Shape) -> Layout {
        let layout = match self {
            Along::Lane(operand) => operand.meta.layout.broadcast_to(shape),
            Along::Number(operand) => operand.meta.layout.unsqueezed(shape.rank() - 1).broadcast_to(shape),
        };
        layout.unwrap_or_else(|| unreachable!("`infer` checks the shapes"))
    }
}
