//! Indexing by tensors of whole numbers: elements (`gather`, `scatter_add`) and whole rows (`index_select`, `embedding`,
//! `index_add`), and `one_hot`.
//!
//! Indices are i64 or i32 and count from zero; one that is out of range is an error that names it and its place, never a
//! wild read. The two of each pair are each other's gradients, so derivatives of any order exist, and all that is kept is
//! the indices. Sums are made in the order of the indices, one thread per sum, so the bits are the same for any number of
//! threads.

mod cuda;
mod gather;
mod lanes;
mod one_hot;
mod rows;
mod scatter_add;
mod select;

use plimsoll_cpu::element::{CastTo, Element};
use plimsoll_cpu::simd;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::op::{Meta, Operand, Refusal, Refused};
use crate::eager::tensor::Tensor;
use crate::ops::kernel::offset_of;
use crate::ops::registry::OpInfo;

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &OpInfo { name: "gather", doc: "Elements by their indices along an axis.", samples: gather::samples },
    &OpInfo {
        name: "scatter_add",
        doc: "Elements added at their indices along an axis.",
        samples: scatter_add::samples,
    },
    &OpInfo { name: "index_select", doc: "Rows by their indices.", samples: select::samples },
    &OpInfo {
        name: "embedding",
        doc: "The rows of a table that ids name.",
        samples: select::embedding_samples,
    },
    &OpInfo { name: "index_add", doc: "Rows added at their indices.", samples: rows::samples },
    &OpInfo { name: "one_hot", doc: "A one at each index, zeros elsewhere.", samples: one_hot::samples },
];

/// A type of indices.
trait Index: Element + CastTo<i64> {}
impl Index for i64 {}
impl Index for i32 {}

/// Runs an expression with `$I` standing for the type of the indices.
macro_rules! for_indices {
    ($dtype:expr, $I:ident => $body:expr) => {
        match $dtype {
            $crate::base::dtype::DType::I64 => {
                type $I = i64;
                $body
            }
            $crate::base::dtype::DType::I32 => {
                type $I = i32;
                $body
            }
            other => unreachable!("`infer` refuses indices of {other}"),
        }
    };
}
use for_indices;

/// Refuses indices that are not i64 or i32.
fn check_dtype(op: &'static str, index: &Meta) -> Result<()> {
    match index.dtype {
        DType::I64 | DType::I32 => Ok(()),
        other => Err(Error::dtype(
            op,
            format!("indices are int64 or int32, not {other}; convert them with `cast(DType::I64)`"),
        )),
    }
}

/// Refuses an index that names no position of an axis of that extent: the first such in row-major order.
///
/// # Safety
/// The operand is valid for its layout, and its elements are of type `I`.
unsafe fn check_range<I: Index>(op: &'static str, index: &Operand, axis: usize, extent: usize) -> Result<()> {
    let (shape, strides) = (index.shape(), index.meta.layout.strides());
    let first = index.ptr().cast::<I>().cast_const();
    let is_good = |index: I| (0..extent as i64).contains(&index.cast());
    let bad = if index.is_contiguous() {
        // SAFETY: a contiguous operand is a slice.
        let indices = unsafe { std::slice::from_raw_parts(first, index.n_elems()) };
        let all_good = simd::vectorize(
            #[inline(always)]
            || indices.iter().fold(true, |good, &index| good & is_good(index)),
        );
        if all_good { None } else { indices.iter().position(|&index| !is_good(index)) }
    } else {
        // SAFETY: the offset is that of an element.
        (0..index.n_elems()).find(|&flat| !is_good(unsafe { *first.offset(offset_of(shape, strides, flat)) }))
    };
    let Some(flat) = bad else { return Ok(()) };
    // SAFETY: the offset is that of an element.
    let value: i64 = unsafe { *first.offset(offset_of(shape, strides, flat)) }.cast();
    Err(refusal(shape, axis, extent).error(op, flat, value))
}

/// What is refused of indices of that shape: those that name no position of an axis of that extent.
fn refusal(indices: &Shape, axis: usize, extent: usize) -> Refusal {
    Refusal { of: *indices, axis, bound: extent, text: out_of_range }
}

/// What is wrong with an index.
fn out_of_range(refused: &Refused<'_>) -> String {
    let Refused { value, place, axis, bound } = refused;
    let allowed = match bound {
        0 => "no index is possible".to_owned(),
        n => format!("indices go from 0 to {}", n - 1),
    };
    format!("index {value} at {place:?} is out of range for axis {axis} of extent {bound}; {allowed}")
}

/// The tensor if it can be read as that shape where it lies, else a copy of it.
fn readable_as(x: &Tensor, shape: &Shape) -> Result<Tensor> {
    let (_, meta) = x.storage_view();
    match meta.layout.reshaped(*shape) {
        Some(_) => Ok(x.clone()),
        None => x.copied(),
    }
}

#[cfg(test)]
mod tests;
