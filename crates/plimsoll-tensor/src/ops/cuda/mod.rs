//! What the CUDA code of all ops shares: the names of types in CUDA C, and kernels for whole families.
//!
//! An op's own kernel is a `.cu` file beside the op. What belongs to a family has one template here, and the op's file
//! brings an expression for it.

pub(crate) mod elementwise;
pub(crate) mod finish;
pub(crate) mod lines;
pub(crate) mod moves;
pub(crate) mod produce;
pub(crate) mod reduce;
pub(crate) mod tables;

use plimsoll_cuda::{Gpu, Scalar};

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::eager::op::Operand;
use elementwise::Elementwise;

/// Groups of threads, for kernels that give one to each result.
const GROUPS: &str = include_str!("group.cu");

/// The name of a dtype in the kernels.
pub(crate) fn c_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::F64 => "double",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::I64 => "i64",
        DType::I32 => "i32",
        DType::U8 => "u8",
        DType::Bool => "bool",
    }
}

/// The bits by which a kernel's variant names a dtype, and how many they are.
pub(crate) fn code(dtype: DType) -> u64 {
    dtype as u64
}

/// How many bits [`code`] has.
pub(crate) const CODE_BITS: u32 = 3;

/// A float dtype for matrix products and convolutions.
pub(crate) fn scalar(dtype: DType) -> Scalar {
    match dtype {
        DType::F32 => Scalar::F32,
        DType::F64 => Scalar::F64,
        DType::F16 => Scalar::F16,
        DType::BF16 => Scalar::BF16,
        other => unreachable!("`infer` refuses {other}"),
    }
}

/// Copies an operand of an op into scratch memory, row-major; `to` has its shape.
pub(crate) fn copy(gpu: &Gpu, op: &'static str, from: &Operand, to: &Operand) -> Result<()> {
    let kernel = Elementwise { op, inputs: &[from], outputs: &[to], numbers: &[], words: &[], variant: 0 };
    kernel.run(gpu, || "y0 = x0;".to_owned())
}
