//! What the CPU kernels of all ops share: from run-time dtypes and strides to the typed loops of `plimsoll-cpu`.

use plimsoll_cpu::operand::{self as strided, Dst, Format, Src};
use smallvec::SmallVec;

use crate::base::dtype::{DType, Element};
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::eager::op::{Operand, Run};

/// Runs an expression with `$T` standing for the element type of a float dtype.
macro_rules! for_floats {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::base::dtype::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::base::dtype::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::base::dtype::DType::F16 => {
                type $T = half::f16;
                $body
            }
            $crate::base::dtype::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            other => unreachable!("`infer` refuses {other}"),
        }
    };
}

/// Runs an expression with `$T` standing for the element type of a dtype that can be added up.
macro_rules! for_numbers {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::base::dtype::DType::I64 => {
                type $T = i64;
                $body
            }
            $crate::base::dtype::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::base::dtype::DType::U8 => {
                type $T = u8;
                $body
            }
            float => $crate::ops::kernel::for_floats!(float, $T => $body),
        }
    };
}

/// Runs an expression with `$T` standing for the element type of any dtype.
macro_rules! for_all {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::base::dtype::DType::Bool => {
                type $T = bool;
                $body
            }
            number => $crate::ops::kernel::for_numbers!(number, $T => $body),
        }
    };
}

/// Runs an expression with `$C` standing for the type in which elements of a float dtype are computed: those that compute
/// alike share the code.
macro_rules! for_computed_floats {
    ($dtype:expr, $C:ident => $body:expr) => {
        match $dtype {
            $crate::base::dtype::DType::F64 => {
                type $C = f64;
                $body
            }
            $crate::base::dtype::DType::F32
            | $crate::base::dtype::DType::F16
            | $crate::base::dtype::DType::BF16 => {
                type $C = f32;
                $body
            }
            other => unreachable!("`infer` refuses {other}"),
        }
    };
}

/// Runs an expression with `$C` standing for the type in which elements of a dtype that can be added up are computed.
macro_rules! for_computed_numbers {
    ($dtype:expr, $C:ident => $body:expr) => {
        match $dtype {
            $crate::base::dtype::DType::I64 => {
                type $C = i64;
                $body
            }
            $crate::base::dtype::DType::I32 => {
                type $C = i32;
                $body
            }
            $crate::base::dtype::DType::U8 => {
                type $C = u8;
                $body
            }
            float => $crate::ops::kernel::for_computed_floats!(float, $C => $body),
        }
    };
}

/// Runs an expression with `$C` standing for the type in which elements of any dtype are computed.
macro_rules! for_computed {
    ($dtype:expr, $C:ident => $body:expr) => {
        match $dtype {
            $crate::base::dtype::DType::Bool => {
                type $C = bool;
                $body
            }
            number => $crate::ops::kernel::for_computed_numbers!(number, $C => $body),
        }
    };
}

pub(crate) use {for_all, for_computed, for_computed_floats, for_computed_numbers, for_floats, for_numbers};

/// The values of a kernel's inputs and outputs.
pub type Slices<'a, T> = (SmallVec<[&'a [T]; 3]>, SmallVec<[&'a mut [T]; 1]>);

impl Run<'_> {
    /// Inputs and outputs as plain slices: the safe way to write a kernel of one's own on the CPU, for operands of one
    /// element type that lie contiguously.
    ///
    /// # Errors
    /// An operand of another type, or one that is strided (call `contiguous` before the op); an op that may overwrite
    /// an input and does.
    pub fn slices<T: Element>(&mut self, op: &'static str) -> Result<Slices<'_, T>> {
        if !self.device.is_host() {
            return Err(Error::device(op, format!("{} is not the host; `slices` is for `run`", self.device)));
        }
        for operand in self.inputs.iter().chain(self.outputs) {
            if operand.dtype() != T::DTYPE {
                return Err(Error::dtype(op, format!("an operand is {}, not {}", operand.dtype(), T::DTYPE)));
            }
            if !operand.is_contiguous() {
                return Err(Error::shape(op, "an operand is strided; call `contiguous` on it first"));
            }
        }
        let shared = |output: &Operand<'_>| self.inputs.iter().any(|input| input.ptr() == output.ptr());
        if self.outputs.iter().any(|output| output.n_elems() > 0 && shared(output)) {
            return Err(Error::argument(
                op,
                "an output is written over an input; such a kernel takes raw operands",
            ));
        }
        let empty = |operand: &Operand<'_>| operand.n_elems() == 0;
        let read = |operand: &Operand<'_>| match empty(operand) {
            true => &[][..],
            // SAFETY: `execute` hands out operands that are valid for their layouts, this one is contiguous and of
            // type `T` (checked above), and nothing writes to an input while the kernel runs.
            false => unsafe { std::slice::from_raw_parts(operand.ptr().cast::<T>(), operand.n_elems()) },
        };
        if T::DTYPE == DType::Bool {
            for output in self.outputs.iter().filter(|output| !empty(output)) {
                // SAFETY: as above; what the memory held before need not be truth values, and zeros are.
                unsafe { output.ptr().write_bytes(0, output.n_elems()) };
            }
        }
        let write = |operand: &Operand<'_>| match empty(operand) {
            true => &mut [][..],
            // SAFETY: as above; outputs are blocks of their own and not inputs (checked above), and `self` is borrowed
            // exclusively for as long as the slices live, so each is made once.
            false => unsafe { std::slice::from_raw_parts_mut(operand.ptr().cast::<T>(), operand.n_elems()) },
        };
        Ok((self.inputs.iter().map(read).collect(), self.outputs.iter().map(write).collect()))
    }
}

impl<'a> Run<'a> {
    /// The scratch memory.
    ///
    /// # Safety
    /// The slice must not be made twice at a time.
    pub unsafe fn workspace_bytes(&self) -> &'a mut [u8] {
        if self.workspace_len == 0 {
            return &mut [];
        }
        // SAFETY: the block is as long as it says and belongs to this call; the caller makes no second slice of it.
        unsafe { std::slice::from_raw_parts_mut(self.workspace, self.workspace_len) }
    }
}

/// How elements of a dtype are stored.
pub(crate) fn format(dtype: DType) -> Format {
    for_all!(dtype, T => Format::of::<T>())
}

/// An operand for a loop of its compute type.
pub(crate) fn computed<'a>(operand: &Operand<'a>) -> strided::Operand<'a> {
    strided::Operand::with_format(operand.ptr(), operand.meta.layout.strides(), format(operand.dtype()))
}

/// The same with another layout's strides: an operand that is broadcast.
pub(crate) fn stretched<'a>(operand: &Operand<'_>, layout: &'a Layout) -> strided::Operand<'a> {
    strided::Operand::with_format(operand.ptr(), layout.strides(), format(operand.dtype()))
}

/// An operand that a loop reads.
pub(crate) fn src<'a, T>(operand: &Operand<'a>) -> Src<'a, T> {
    Src { ptr: operand.ptr().cast::<T>().cast_const(), strides: operand.meta.layout.strides() }
}

/// An operand that a loop writes.
pub(crate) fn dst<'a, T>(operand: &Operand<'a>) -> Dst<'a, T> {
    Dst { ptr: operand.ptr().cast::<T>(), strides: operand.meta.layout.strides() }
}

/// The distance, in elements, from the first element of a layout to the one that is number `flat` in row-major order.
#[inline]
pub(crate) fn offset_of(shape: &[usize], strides: &[isize], flat: usize) -> isize {
    let mut rest = flat;
    let mut offset = 0;
    for (&extent, &stride) in shape.iter().zip(strides).rev() {
        offset += (rest % extent) as isize * stride;
        rest /= extent;
    }
    offset
}

/// How many equal units of work one task takes, so that waking a thread for it pays; by shape alone.
pub(crate) fn units_per_task(unit_len: usize) -> usize {
    const TASK_LEN: usize = 32 * 1024;
    (TASK_LEN / unit_len.max(1)).max(1)
}
