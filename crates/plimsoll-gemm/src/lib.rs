//! Matrix products on the CPU, with all memory given by the caller.
//!
//! This crate owns packing, blocking, micro-kernels chosen at run time by instruction set, and epilogues. It knows
//! no tensors and never allocates: [`workspace`] says how many bytes a product needs, as a formula of its shape,
//! and the caller brings them.
//!
//! The loops and kernels are our own. The crates that we looked at either allocate their packing buffers (`gemm`,
//! `private-gemm-x86`, `matrixmultiply`) or grow a workspace whose size depends on the caches and threads they find
//! (`gemmkit`), and none lets a convolution pack its operand itself.
//!
//! The same bits come out for any number of threads: how a product is cut up, and the order in which each
//! number of C is summed, depend on shape, strides and element alone. They do depend on the instruction set.

mod element;
mod isa;
mod matvec;
mod matvec_kernel;
mod operand;
mod output;
mod pack_kernel;
mod plan;
mod product;
mod simd;
mod tasks;
mod tile;

pub use element::{Element, Real};
pub use isa::Isa;
pub use operand::Operand;
pub use output::Activation;

use element::Access;
use isa::HasKernels;
use matvec::{MatVec, MatVecPlan};
use operand::Strided;
use output::Output;
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
    /// One element for each column of C, or null.
    pub bias: *const E,
    /// Applied to stretches of C of any length; it must treat each number by itself.
    pub activation: Option<Activation<'a, E::Real>>,
    /// Whether the product is added to what C holds.
    pub accumulate: bool,
}

impl<E: Element> Epilogue<'_, E> {
    /// C becomes the product.
    pub const NONE: Self = Self { bias: std::ptr::null(), activation: None, accumulate: false };
}

/// Bytes of workspace that products of this shape need, whatever the strides, threads and processor.
pub fn workspace<E: Element>(shape: &Shape) -> usize {
    match MatVecPlan::new(shape, size_of::<E::Real>()) {
        Some(plan) => plan.workspace(),
        None => workspace_packed::<E>(shape),
    }
}

/// Bytes of workspace that [`gemm_packed`] needs.
pub fn workspace_packed<E: Element>(shape: &Shape) -> usize {
    plan::<E>(shape).workspace()
}

fn plan<E: Element>(shape: &Shape) -> Plan {
    Plan::new(shape, size_of::<E::Real>(), E::NARROW)
}

/// Multiplies matrices in memory.
///
/// # Safety
/// Every element that the shape and strides lead to must be readable (A, B, bias) or readable and writable (C), and
/// C must overlap nothing else.
///
/// # Panics
/// If `workspace` has fewer bytes than [`workspace`] says, or does not begin at a multiple of 64.
pub unsafe fn gemm<E: Element>(
    shape: &Shape,
    a: MatRef<E>,
    b: MatRef<E>,
    c: MatMut<E>,
    epilogue: &Epilogue<'_, E>,
    workspace: &mut [u8],
) {
    // SAFETY: the caller promises what is asked for.
    unsafe { gemm_on(Isa::best(), shape, a, b, c, epilogue, workspace) }
}

/// [`gemm`] with the kernels of a given instruction set.
///
/// # Safety
/// See [`gemm`]; the processor must have the instruction set.
///
/// # Panics
/// See [`gemm`].
pub unsafe fn gemm_on<E: Element>(
    isa: Isa,
    shape: &Shape,
    a: MatRef<E>,
    b: MatRef<E>,
    c: MatMut<E>,
    epilogue: &Epilogue<'_, E>,
    workspace: &mut [u8],
) {
    let (access, kernels) = (Access::of::<E>(), E::Real::kernels(isa));
    let a = Strided {
        first: a.first.cast(),
        lane_stride: a.row_stride,
        depth_stride: a.col_stride,
        batch_stride: a.batch_stride,
        access,
        kernels,
    };
    let b = Strided {
        first: b.first.cast(),
        lane_stride: b.col_stride,
        depth_stride: b.row_stride,
        batch_stride: b.batch_stride,
        access,
        kernels,
    };
    let Some(plan) = MatVecPlan::new(shape, size_of::<E::Real>()) else {
        // SAFETY: the caller promises what is asked for.
        return unsafe { gemm_packed(isa, shape, &a, &b, c, epilogue, workspace) };
    };
    check_workspace(shape, plan.workspace(), workspace);
    let mut output = output(c, epilogue);
    let (matrix, vector) = if shape.n == 1 { (a, b) } else { (b, a) };
    if shape.n == 1 {
        // A column of C is written as if it were a row.
        output =
            Output { row_stride: output.col_stride, col_stride: output.row_stride, bias_stride: 0, ..output };
    }
    let product = MatVec { plan, kernels, matrix, vector, output };
    // SAFETY: the workspace is as large and aligned as the plan asks; the caller promises the rest.
    unsafe { product.run(workspace.as_mut_ptr()) }
}

/// Multiplies operands that pack themselves.
///
/// # Safety
/// The operands must pack every lane and depth of the shape; for C, the epilogue and `isa` see [`gemm_on`].
///
/// # Panics
/// If `workspace` has fewer bytes than [`workspace_packed`] says, or does not begin at a multiple of 64.
pub unsafe fn gemm_packed<E: Element>(
    isa: Isa,
    shape: &Shape,
    a: &dyn Operand<E::Real>,
    b: &dyn Operand<E::Real>,
    c: MatMut<E>,
    epilogue: &Epilogue<'_, E>,
    workspace: &mut [u8],
) {
    let plan = plan::<E>(shape);
    check_workspace(shape, plan.workspace(), workspace);
    let output = output(c, epilogue);
    let product = Product { shape: *shape, plan, kernels: E::Real::kernels(isa), a, b, output };
    // SAFETY: the workspace is as large and aligned as the plan asks; the caller promises the rest.
    unsafe { product.run(workspace.as_mut_ptr()) }
}

fn check_workspace(shape: &Shape, bytes: usize, workspace: &[u8]) {
    assert!(
        workspace.len() >= bytes,
        "{shape:?} needs a workspace of {bytes} bytes, this one has {}",
        workspace.len()
    );
    assert!(
        workspace.as_ptr().addr().is_multiple_of(64) || bytes == 0,
        "the workspace at {:p} must begin at a multiple of 64",
        workspace.as_ptr()
    );
}

fn output<'a, E: Element>(c: MatMut<E>, epilogue: &Epilogue<'a, E>) -> Output<'a, E::Real> {
    Output {
        first: c.first.cast(),
        row_stride: c.row_stride,
        col_stride: c.col_stride,
        batch_stride: c.batch_stride,
        access: Access::of::<E>(),
        accumulate: epilogue.accumulate,
        bias: epilogue.bias.cast(),
        bias_stride: 1,
        activation: epilogue.activation,
    }
}
