//! Tensors over memory that is not theirs: pieces that the input pipeline lends, and foreign memory.
//!
//! What such memory is, and when it goes back, is the business of `piece` and `foreign`; here it becomes a tensor.

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::device::Device;
use crate::device::foreign::Foreign;
use crate::device::piece::{Lent, Piece, Return};
use crate::eager::context;
use crate::eager::op::Meta;
use crate::eager::tensor::{Nodes, Tensor};

impl Piece {
    /// Lends the piece to a tensor over its first bytes; `back` gets it when the last holder of the tensor goes.
    ///
    /// # Errors
    /// The piece is too short for the shape, or does not begin at a multiple of the element's size; truth values that
    /// are neither 0 nor 1. The piece then goes to `back` at once.
    pub fn lend(self, shape: Shape, dtype: DType, back: Return) -> Result<Tensor> {
        lent(self, shape, dtype, Some(back))
    }

    /// A tensor over the first bytes of the piece, which stays with it.
    ///
    /// # Errors
    /// As for [`Piece::lend`].
    pub fn into_tensor(self, shape: Shape, dtype: DType) -> Result<Tensor> {
        lent(self, shape, dtype, None)
    }
}

fn lent(piece: Piece, shape: Shape, dtype: DType, back: Option<Return>) -> Result<Tensor> {
    let storage = Lent::new(piece, shape.n_elems() * dtype.size(), back).into_storage(&shape, dtype)?;
    Ok(Tensor::over(storage, Meta::fresh(shape, dtype), Nodes::new()))
}

impl Tensor {
    /// A tensor over memory that somebody else has: `n_bytes` from `ptr` on, in which `layout` names the elements. `keeper` is
    /// dropped when no tensor looks at them any more.
    ///
    /// # Errors
    /// A layout that names elements beyond the bytes; an address that is no multiple of the element's size; a ghost.
    ///
    /// # Safety
    /// Until `keeper` is dropped, the bytes must be readable by `device` (on the CPU by this process, on a GPU by its primary
    /// context), nobody may write them, and what wrote them must be done, or the compute stream wait for it
    /// ([`Device::compute_stream`]). Truth values must be 0 or 1.
    #[track_caller]
    pub unsafe fn from_foreign(
        device: &Device,
        (ptr, n_bytes): (*const u8, usize),
        layout: Layout,
        dtype: DType,
        keeper: impl Send + Sync + 'static,
    ) -> Result<Tensor> {
        let _line = context::at_callers_line();
        // SAFETY: asked of the caller.
        let (storage, layout) =
            unsafe { Foreign::storage(device, (ptr, n_bytes), &layout, dtype, Box::new(keeper)) }?;
        Ok(Tensor::over(storage, Meta { layout, dtype }, Nodes::new()))
    }
}
