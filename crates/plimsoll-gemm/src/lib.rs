//! Matrix products on the CPU, with all memory given by the caller.
//!
//! This crate owns packing, blocking, micro-kernels chosen at run time by instruction set, epilogues, and convolution
//! as products that read their operands from the image. It knows no tensors and never allocates: [`workspace`] says
//! how many bytes a product needs, as a formula of its shape, and the caller brings them.
//!
//! The loops and kernels are our own. The crates that we looked at either allocate their packing buffers (`gemm`,
//! `private-gemm-x86`, `matrixmultiply`) or grow a workspace whose size depends on the caches and threads they find
//! (`gemmkit`), and none lets a convolution supply its operand itself.
//!
//! The same bits come out for any number of threads: how a product is cut up, and the order in which each
//! number of C is summed, depend on shape, strides and element alone. They do depend on the instruction set.

mod conv;
mod count;
mod depthwise;
mod element;
mod isa;
mod matvec;
mod matvec_kernel;
mod operand;
mod output;
mod pack_kernel;
mod packed;
mod patches;
mod plan;
mod product;
mod simd;
mod staging;
mod strip;
mod strip_conv;
mod strip_weights;
mod tasks;
mod tile;

pub use conv::{Conv2d, ConvPass, Image, conv2d_backward_input, conv2d_backward_weights, conv2d_forward};
pub use element::{Element, Real};
pub use isa::{Isa, with_isa};
pub use output::Activation;
pub use packed::PackedB;

use isa::HasKernels;
use matvec::{MatVec, MatVecPlan};
use operand::Strided;
use output::{Output, Rows};
use plan::Plan;
use product::Product;

/// The shape of a batch of products: `batch` times `[m, k] x [k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Products.
    pub batch: usize,
    /// Rows of A and of C.
    pub m: usize,
    /// Columns of B and of C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
}

/// A matrix that is read. Strides count elements; they may be zero or negative.
#[derive(Clone, Copy, Debug)]
pub struct MatRef<E> {
    /// The element at row 0, column 0 of product 0.
    pub first: *const E,
    /// Elements from one row to the next.
    pub row_stride: isize,
    /// Elements from one column to the next.
    pub col_stride: isize,
    /// Elements from one product to the next.
    pub batch_stride: isize,
}

/// A matrix that is written. Strides count elements; no two places may be the same.
#[derive(Clone, Copy, Debug)]
pub struct MatMut<E> {
    /// The element at row 0, column 0 of product 0.
    pub first: *mut E,
    /// Elements from one row to the next.
    pub row_stride: isize,
    /// Elements from one column to the next.
    pub col_stride: isize,
    /// Elements from one product to the next.
    pub batch_stride: isize,
}

/// What happens to the sums before they are written: C becomes `activation(A B + bias + C)`, where the last term is
/// there if `accumulate` is set.
#[derive(Clone, Copy)]
pub struct Epilogue<'a, E: Element> {
    /// One element for each column of C.
    pub bias: Option<*const E>,
    /// Applied to stretches of C of any length; it must treat each number by itself.
    pub activation: Option<Activation<'a, E::Real>>,
    /// Whether the product is added to what C holds.
    pub accumulate: bool,
}

impl<E: Element> Epilogue<'_, E> {
    /// C becomes the product.
    pub const NONE: Self = Self { bias: None, activation: None, accumulate: false };
}

/// Bytes of workspace that products of this shape need, whatever the strides, threads and processor.
pub fn workspace<E: Element>(shape: &Shape) -> usize {
    match MatVecPlan::new::<E>(shape) {
        Some(plan) => plan.workspace(),
        None => Plan::new::<E>(shape).workspace(),
    }
}

/// Multiplies matrices in memory.
///
/// # Safety
/// Every element that the shape and strides lead to must be readable (A, B, bias) or readable and writable (C), and
/// C must overlap nothing else.
///
/// # Panics
/// If `memory` has fewer bytes than [`workspace`] says, or does not begin at a multiple of 64.
///
/// # Example
/// ```
/// use plimsoll_gemm::{Epilogue, MatMut, MatRef, Shape, gemm, workspace};
///
/// #[repr(align(64))]
/// struct Memory([u8; 1 << 16]);
///
/// let (a, b, mut c) = ([1.0f32, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [0.0; 4]);
/// let shape = Shape { batch: 1, m: 2, n: 2, k: 2 };
/// let rows = |first| MatRef { first, row_stride: 2, col_stride: 1, batch_stride: 0 };
/// let to = MatMut { first: c.as_mut_ptr(), row_stride: 2, col_stride: 1, batch_stride: 0 };
/// let mut memory = Memory([0; 1 << 16]);
/// let memory = &mut memory.0[..workspace::<f32>(&shape)];
/// // SAFETY: all three matrices have two rows of two elements.
/// unsafe { gemm(&shape, rows(a.as_ptr()), rows(b.as_ptr()), to, &Epilogue::NONE, memory) };
/// assert_eq!(c, [19.0, 22.0, 43.0, 50.0]);
/// ```
pub unsafe fn gemm<E: Element>(
    shape: &Shape,
    a: MatRef<E>,
    b: MatRef<E>,
    c: MatMut<E>,
    epilogue: &Epilogue<'_, E>,
    memory: &mut [u8],
) {
    let kernels = E::Real::kernels();
    let a = Strided::new(a.first, [a.row_stride, a.col_stride, a.batch_stride], kernels);
    let b = Strided::new(b.first, [b.col_stride, b.row_stride, b.batch_stride], kernels);
    let output = Output {
        col_stride: c.col_stride,
        batch_stride: c.batch_stride,
        accumulate: epilogue.accumulate,
        bias: epilogue.bias.map_or(std::ptr::null(), |bias| bias.cast()),
        activation: epilogue.activation,
        ..Output::new(c.first, Rows::Even(c.row_stride), 0)
    };
    if let Some(plan) = MatVecPlan::new::<E>(shape) {
        check_workspace(shape, plan.workspace(), memory);
        let (matrix, vector, output) = match shape.n {
            // A column of C is written as if it were a row, with the same bias everywhere.
            1 => (a, b, Output { col_stride: c.row_stride, bias_stride: 0, ..output }),
            _ => (b, a, output),
        };
        let product = MatVec { plan, kernels, matrix, vector, output };
        // SAFETY: the workspace has been checked; the caller promises the rest.
        return unsafe { product.run(memory.as_mut_ptr()) };
    }
    let plan = Plan::new::<E>(shape);
    check_workspace(shape, plan.workspace(), memory);
    let product = Product { shape: *shape, plan, kernels, a: &a, b: &b, output };
    // SAFETY: the workspace has been checked; the caller promises the rest.
    unsafe { product.run(memory.as_mut_ptr()) }
}

/// Refuses memory that is too small or not aligned for what is to be computed.
fn check_workspace(what: &dyn std::fmt::Debug, bytes: usize, memory: &[u8]) {
    assert!(
        memory.len() >= bytes,
        "{what:?} needs a workspace of {bytes} bytes, this one has {}",
        memory.len()
    );
    assert!(
        memory.as_ptr().addr().is_multiple_of(64) || bytes == 0,
        "the workspace at {:p} must begin at a multiple of 64",
        memory.as_ptr()
    );
}
