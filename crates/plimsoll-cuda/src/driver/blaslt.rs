//! Matrix products by cuBLASLt.
//!
//! The library thinks in columns: a row-major matrix is the transpose of a column-major one, so `c = a · b` is computed as
//! `cᵀ = bᵀ · aᵀ`, and nothing is moved. What a product needs from the library (descriptions, algorithm) is made once for
//! each kind of product and kept within a bound (`plans`). The algorithm is the first that the library's heuristic names; nothing is timed. Splits
//! along k are summed in a fixed order, in the scratch memory, so that the same product has the same bits every time.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

use cudarc::cublaslt::sys::{
    self, cublasComputeType_t as ComputeType, cublasLtEpilogue_t as LtEpilogue, cublasLtHandle_t,
    cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t as Desc,
    cublasLtMatmulHeuristicResult_t, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t as Pref, cublasLtMatrixLayout_t,
    cublasLtMatrixLayoutAttribute_t as Layout, cublasLtReductionScheme_t as Reduction, cublasStatus_t,
    cudaDataType,
};

use super::context::{Context, check as check_driver};
use super::libraries::Library;
use super::plans::Plans;
use crate::error::{Error, Result};
use crate::matmul::{Epilogue, Matmul, MatmulOperands, Matrix, Scalar};

/// Addresses of whole blocks are multiples of more than this; the library asks no further.
const MAX_ALIGNMENT: usize = 256;

/// The most products that are kept, with a few KiB of the host each.
const MAX_PLANS: usize = 4096;

/// The library, and the products that it has planned.
pub(super) struct Blas {
    /// Those that it has no algorithm for are remembered, too.
    plans: Plans<Key, Option<Plan>>,
    handle: cublasLtHandle_t,
    context: Arc<Context>,
}

// SAFETY: the library's objects may be used by any thread, one at a time.
unsafe impl Send for Blas {}

/// What a plan depends on: the kind of product, without its factors; which addresses there are, how they are aligned; and
/// the scratch memory. Blocks are aligned, so that an alignment follows from a view's offset and not from where a block lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    sizes: [usize; 4],
    input: Scalar,
    output: Scalar,
    matrices: [Matrix; 3],
    tf32: bool,
    epilogue: Epilogue,
    alignments: [u16; 3],
    workspace_bytes: usize,
}

impl Key {
    fn new(matmul: &Matmul, operands: &MatmulOperands) -> Key {
        let Matmul { m, n, k, batch, input, output, a, b, c, tf32, epilogue, .. } = *matmul;
        let addresses = [operands.a.addr(), operands.b.addr(), operands.c.addr()];
        Key {
            sizes: [m, n, k, batch],
            input,
            output,
            matrices: [a, b, c],
            tf32,
            epilogue,
            alignments: addresses.map(alignment),
            workspace_bytes: operands.workspace_bytes,
        }
    }
}

/// The largest power of two that an address is a multiple of, up to the most that matters.
fn alignment(address: usize) -> u16 {
    1 << (address | MAX_ALIGNMENT).trailing_zeros()
}

impl Blas {
    pub fn new(context: &Arc<Context>) -> Result<Blas> {
        Library::Matmul.require()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is there and the context is current; the call writes one handle.
        check(unsafe { sys::cublasLtCreate(&raw mut handle) }, "cublasLtCreate")?;
        Ok(Blas { plans: Plans::at_most(MAX_PLANS), handle, context: context.clone() })
    }

    /// Whether there is an algorithm for a product, if it was asked for before.
    pub fn knows(&self, matmul: &Matmul, operands: &MatmulOperands) -> Option<bool> {
        if [matmul.m, matmul.n, matmul.k, matmul.batch].contains(&0) {
            return Some(true);
        }
        self.plans.peek(&Key::new(matmul, operands)).map(Option::is_some)
    }

    /// Starts a product; false says that the library has no algorithm for it.
    ///
    /// # Safety
    /// The addresses must be valid on the device, in stream order.
    pub unsafe fn matmul(&mut self, matmul: &Matmul, operands: &MatmulOperands) -> Result<bool> {
        let Matmul { m, n, k, batch, alpha, beta, .. } = *matmul;
        if m == 0 || n == 0 || batch == 0 {
            return Ok(true);
        }
        if k == 0 {
            // SAFETY: the caller vouches for the addresses.
            return unsafe { self.no_terms(matmul, operands) }.map(|()| true);
        }
        let make = || Plan::new(self.handle, matmul, operands);
        let Some(plan) = self.plans.get_or(Key::new(matmul, operands), true, make)? else { return Ok(false) };
        plan.point_to(matmul, operands)?;
        let (narrow, wide) = ([alpha as f32, beta as f32], [alpha, beta]);
        let factors: [*const c_void; 2] = match matmul.input {
            Scalar::F64 => [(&raw const wide[0]).cast(), (&raw const wide[1]).cast()],
            _ => [(&raw const narrow[0]).cast(), (&raw const narrow[1]).cast()],
        };
        // SAFETY: the plan fits the operands, which the caller vouches for; the factors are read during the call.
        let status = unsafe {
            sys::cublasLtMatmul(
                self.handle,
                plan.desc.0,
                factors[0],
                operands.b.cast(),
                plan.b.0,
                operands.a.cast(),
                plan.a.0,
                factors[1],
                operands.c.cast(),
                plan.c.0,
                operands.c.cast(),
                plan.c.0,
                &raw const plan.algorithm,
                operands.workspace.cast(),
                operands.workspace_bytes,
                self.context.target().cast(),
            )
        };
        check(status, "cublasLtMatmul").map(|()| true)
    }

    /// A product whose sums have no terms, which the library does not know: zero, or what is there already.
    ///
    /// # Safety
    /// As for `matmul`.
    unsafe fn no_terms(&self, matmul: &Matmul, operands: &MatmulOperands) -> Result<()> {
        let Matmul { m, n, batch, output, c, beta, epilogue, .. } = *matmul;
        if epilogue != Epilogue::None || (beta != 0.0 && beta != 1.0) {
            return Err(Error::new(format!(
                "a matrix product of {m} × 0 by 0 × {n} with {epilogue:?} and beta {beta} is not known"
            )));
        }
        let n_filled = if beta == 0.0 { batch } else { 0 };
        for idx in 0..n_filled {
            let start = super::address(operands.c) + (idx * c.batch_stride * output.size()) as u64;
            let (pitch, width) = (c.row_stride * output.size(), n * output.size());
            // SAFETY: the caller vouches for the matrix.
            let status = unsafe {
                match m {
                    1 => cudarc::driver::sys::cuMemsetD8Async(start, 0, width, self.context.target().cast()),
                    _ => cudarc::driver::sys::cuMemsetD2D8Async(
                        start,
                        pitch,
                        0,
                        width,
                        m,
                        self.context.target().cast(),
                    ),
                }
            };
            check_driver(status, "cuMemsetD2D8Async")?;
        }
        Ok(())
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: the handle is ours; no call is under way.
        let _ = unsafe { sys::cublasLtDestroy(self.handle) };
    }
}

/// A planned product: what the library is told of it, and how it is computed.
struct Plan {
    desc: MatmulDesc,
    a: MatrixLayout,
    b: MatrixLayout,
    c: MatrixLayout,
    algorithm: cublasLtMatmulAlgo_t,
}

impl Plan {
    /// Without an algorithm.
    fn described(matmul: &Matmul) -> Result<Plan> {
        let Matmul { m, n, k, batch, input, output, a, b, c, .. } = *matmul;
        Ok(Plan {
            desc: MatmulDesc::new(matmul)?,
            a: MatrixLayout::new(input, [m, k], a, batch)?,
            b: MatrixLayout::new(input, [k, n], b, batch)?,
            c: MatrixLayout::new(output, [m, n], c, batch)?,
            algorithm: cublasLtMatmulAlgo_t { data: [0; 8] },
        })
    }

    /// With the algorithm that the library names first, if it has one.
    fn new(handle: cublasLtHandle_t, matmul: &Matmul, operands: &MatmulOperands) -> Result<Option<Plan>> {
        let mut plan = Plan::described(matmul)?;
        plan.point_to(matmul, operands)?;
        let preference = Preference::new(&Key::new(matmul, operands))?;
        // SAFETY: a plain struct of numbers, for which zeros are valid.
        let mut best: cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
        let mut n_found: c_int = 0;
        // SAFETY: all descriptions are alive; the call writes at most one result.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                handle,
                plan.desc.0,
                plan.b.0,
                plan.a.0,
                plan.c.0,
                plan.c.0,
                preference.0,
                1,
                &raw mut best,
                &raw mut n_found,
            )
        };
        let is_unknown = |status| status == cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED;
        if is_unknown(status) || (n_found > 0 && is_unknown(best.state)) {
            return Ok(None);
        }
        let found = check(status, "cublasLtMatmulAlgoGetHeuristic").and_then(|()| match n_found {
            0 => Ok(()),
            _ => check(best.state, "the algorithm"),
        });
        found.map_err(|error| Error::new(format!("cuBLASLt cannot compute {matmul:?}: {error}")))?;
        plan.algorithm = best.algo;
        Ok((n_found > 0).then_some(plan))
    }

    /// Sets the addresses that are part of the description.
    fn point_to(&mut self, matmul: &Matmul, operands: &MatmulOperands) -> Result<()> {
        if matmul.epilogue != Epilogue::None {
            self.desc.set(Desc::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &operands.bias)?;
        }
        Ok(())
    }
}

/// The description of a product, destroyed on drop.
struct MatmulDesc(cublasLtMatmulDesc_t);

impl MatmulDesc {
    fn new(matmul: &Matmul) -> Result<MatmulDesc> {
        let compute = match (matmul.input, matmul.tf32) {
            (Scalar::F64, _) => ComputeType::CUBLAS_COMPUTE_64F,
            (Scalar::F32, true) => ComputeType::CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => ComputeType::CUBLAS_COMPUTE_32F,
        };
        let factors =
            if matmul.input == Scalar::F64 { cudaDataType::CUDA_R_64F } else { cudaDataType::CUDA_R_32F };
        let mut desc = std::ptr::null_mut();
        // SAFETY: the call writes one handle.
        let status = unsafe { sys::cublasLtMatmulDescCreate(&raw mut desc, compute, factors) };
        check(status, "cublasLtMatmulDescCreate")?;
        let mut desc = MatmulDesc(desc);
        // The library's numbers for "as it lies" and "transposed" are 0 and 1.
        let operation = |matrix: Matrix| i32::from(matrix.transposed);
        desc.set(Desc::CUBLASLT_MATMUL_DESC_TRANSA, &operation(matmul.b))?;
        desc.set(Desc::CUBLASLT_MATMUL_DESC_TRANSB, &operation(matmul.a))?;
        let epilogue = match matmul.epilogue {
            Epilogue::None => LtEpilogue::CUBLASLT_EPILOGUE_DEFAULT,
            Epilogue::Bias => LtEpilogue::CUBLASLT_EPILOGUE_BIAS,
            Epilogue::BiasRelu => LtEpilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
            // Our b is the library's first factor.
            Epilogue::ColumnSums => LtEpilogue::CUBLASLT_EPILOGUE_BGRADA,
        };
        desc.set(Desc::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        Ok(desc)
    }

    fn set<T>(&mut self, attribute: Desc, value: &T) -> Result<()> {
        // SAFETY: the description is alive; the value is read during the call, and has the attribute's type.
        let status = unsafe {
            sys::cublasLtMatmulDescSetAttribute(self.0, attribute, (&raw const *value).cast(), size_of::<T>())
        };
        check(status, "cublasLtMatmulDescSetAttribute")
    }
}

impl Drop for MatmulDesc {
    fn drop(&mut self) {
        // SAFETY: the description is alive and nobody else has it.
        let _ = unsafe { sys::cublasLtMatmulDescDestroy(self.0) };
    }
}

/// The description of a matrix, destroyed on drop.
struct MatrixLayout(cublasLtMatrixLayout_t);

impl MatrixLayout {
    /// Of a matrix with these rows and columns: for the library, the columns and rows of what lies in memory.
    fn new(
        scalar: Scalar,
        [rows, columns]: [usize; 2],
        matrix: Matrix,
        batch: usize,
    ) -> Result<MatrixLayout> {
        let [rows, columns] = if matrix.transposed { [columns, rows] } else { [rows, columns] };
        // From a single row to the next is no distance that means anything.
        let stride = if rows == 1 { columns } else { matrix.row_stride };
        let mut layout = std::ptr::null_mut();
        let kind = data_type(scalar);
        // SAFETY: the call writes one handle.
        let status = unsafe {
            sys::cublasLtMatrixLayoutCreate(&raw mut layout, kind, columns as u64, rows as u64, stride as i64)
        };
        check(status, "cublasLtMatrixLayoutCreate")?;
        let mut layout = MatrixLayout(layout);
        if batch > 1 {
            layout.set(Layout::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &(batch as i32))?;
            let stride = matrix.batch_stride as i64;
            layout.set(Layout::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride)?;
        }
        Ok(layout)
    }

    fn set<T>(&mut self, attribute: Layout, value: &T) -> Result<()> {
        // SAFETY: the description is alive; the value is read during the call, and has the attribute's type.
        let status = unsafe {
            sys::cublasLtMatrixLayoutSetAttribute(
                self.0,
                attribute,
                (&raw const *value).cast(),
                size_of::<T>(),
            )
        };
        check(status, "cublasLtMatrixLayoutSetAttribute")
    }
}

impl Drop for MatrixLayout {
    fn drop(&mut self) {
        // SAFETY: the description is alive and nobody else has it.
        let _ = unsafe { sys::cublasLtMatrixLayoutDestroy(self.0) };
    }
}

/// What algorithms are asked for, destroyed on drop.
struct Preference(cublasLtMatmulPreference_t);

impl Preference {
    fn new(key: &Key) -> Result<Preference> {
        let mut preference = std::ptr::null_mut();
        // SAFETY: the call writes one handle.
        let status = unsafe { sys::cublasLtMatmulPreferenceCreate(&raw mut preference) };
        check(status, "cublasLtMatmulPreferenceCreate")?;
        let mut preference = Preference(preference);
        preference.set(Pref::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &(key.workspace_bytes as u64))?;
        let reduction = Reduction::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        preference.set(Pref::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction)?;
        let [a, b, c] = key.alignments.map(u32::from);
        preference.set(Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &b)?;
        preference.set(Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &a)?;
        preference.set(Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c)?;
        preference.set(Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c)?;
        Ok(preference)
    }

    fn set<T>(&mut self, attribute: Pref, value: &T) -> Result<()> {
        // SAFETY: the preference is alive; the value is read during the call, and has the attribute's type.
        let status = unsafe {
            sys::cublasLtMatmulPreferenceSetAttribute(
                self.0,
                attribute,
                (&raw const *value).cast(),
                size_of::<T>(),
            )
        };
        check(status, "cublasLtMatmulPreferenceSetAttribute")
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: the preference is alive and nobody else has it.
        let _ = unsafe { sys::cublasLtMatmulPreferenceDestroy(self.0) };
    }
}

fn data_type(scalar: Scalar) -> cudaDataType {
    match scalar {
        Scalar::F16 => cudaDataType::CUDA_R_16F,
        Scalar::BF16 => cudaDataType::CUDA_R_16BF,
        Scalar::F32 => cudaDataType::CUDA_R_32F,
        Scalar::F64 => cudaDataType::CUDA_R_64F,
    }
}

fn check(status: cublasStatus_t, call: &str) -> Result<()> {
    if status == cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    // SAFETY: the library returns a constant text that ends in zero.
    let text = unsafe { CStr::from_ptr(sys::cublasLtGetStatusString(status)) };
    Err(Error::new(format!("{call} failed with {status:?} ({})", text.to_string_lossy())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The library checks what it is told of a product when it is told, for which it needs no GPU.
    #[test]
    fn the_library_takes_the_descriptions() {
        let matrix = Matrix { transposed: true, row_stride: 64, batch_stride: 4096 };
        let matmul = Matmul {
            m: 64,
            n: 64,
            k: 64,
            batch: 2,
            input: Scalar::BF16,
            output: Scalar::BF16,
            a: matrix,
            b: matrix,
            c: Matrix { transposed: false, ..matrix },
            alpha: 1.0,
            beta: 0.0,
            tf32: false,
            epilogue: Epilogue::BiasRelu,
        };
        let address = std::ptr::without_provenance_mut(512);
        let operands = MatmulOperands {
            a: address,
            b: address,
            c: address,
            bias: address,
            workspace: address,
            workspace_bytes: 1 << 20,
        };
        match Library::Matmul.find() {
            Ok(_) => {
                let mut plan = Plan::described(&matmul).unwrap();
                plan.point_to(&matmul, &operands).unwrap();
                Preference::new(&Key::new(&matmul, &operands)).unwrap();
            }
            Err(missing) => assert!(missing.to_string().contains("libcublasLt.so.13"), "{missing}"),
        }
    }

    #[test]
    fn alignments_are_powers_of_two_up_to_the_most() {
        assert_eq!([512, 2, 48, 256 + 16, 1].map(alignment), [256, 2, 16, 16, 1]);
    }
}
