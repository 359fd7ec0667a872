//! Matrix products, described without a library's words.

/// The types of numbers that matrix products and convolutions know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// 16 bits with 5 of exponent.
    F16,
    /// 16 bits with 8 of exponent.
    BF16,
    /// 32 bits.
    F32,
    /// 64 bits.
    F64,
}

impl Scalar {
    /// The bytes of a number.
    pub fn size(self) -> usize {
        match self {
            Scalar::F16 | Scalar::BF16 => 2,
            Scalar::F32 => 4,
            Scalar::F64 => 8,
        }
    }
}

/// How a matrix lies in memory: row-major, or the transpose of a row-major one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// Whether memory holds the transpose, row-major.
    pub transposed: bool,
    /// Elements from one row in memory to the next.
    pub row_stride: usize,
    /// Elements from one matrix of a batch to the next; zero repeats it.
    pub batch_stride: usize,
}

/// What is done to the product before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// Nothing.
    None,
    /// A number per column is added.
    Bias,
    /// A number per column is added, then negative numbers become zero.
    BiasRelu,
    /// Nothing; but the sums of b's columns are written, too, to where a bias would be read.
    ColumnSums,
}

/// `c = epilogue(alpha · a · b + beta · c)` for each matrix of a batch, with a of `m × k`, b of `k × n`, c of `m × n`.
///
/// Sums are kept in f32, in f64 for f64. With `tf32`, products of f32 are rounded to TF32 before they are multiplied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matmul {
    /// Rows of a and c.
    pub m: usize,
    /// Columns of b and c.
    pub n: usize,
    /// Columns of a, rows of b.
    pub k: usize,
    /// Matrices of the batch.
    pub batch: usize,
    /// The type of a and b.
    pub input: Scalar,
    /// The type of c.
    pub output: Scalar,
    /// How a lies.
    pub a: Matrix,
    /// How b lies.
    pub b: Matrix,
    /// How c lies; never transposed.
    pub c: Matrix,
    /// The factor of the product.
    pub alpha: f64,
    /// The factor of what c holds; zero means that c is not read.
    pub beta: f64,
    /// Whether f32 is multiplied as TF32.
    pub tf32: bool,
    /// What is done to the product before it is written.
    pub epilogue: Epilogue,
}

/// The addresses of a product's operands on the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatmulOperands {
    /// The first factor.
    pub a: *const u8,
    /// The second factor.
    pub b: *const u8,
    /// The result.
    pub c: *mut u8,
    /// A number per column, of the result's type: the bias, or where the sums of columns are written; null without either.
    pub bias: *mut u8,
    /// Scratch memory.
    pub workspace: *mut u8,
    /// Its length.
    pub workspace_bytes: usize,
}
