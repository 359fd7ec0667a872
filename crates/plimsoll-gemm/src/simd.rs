//! Vectors of numbers, one type per instruction set.
//!
//! [`Simd`] holds the operations that a micro-kernel needs and no more. Its methods are always inlined
//! into a function that enables the instruction set, which is the only place where they compile to what their
//! names say; see `isa`.

/// The most that [`Simd::SIDE`] is.
pub(crate) const MAX_SIDE: usize = 8;

/// A vector type of an instruction set.
pub(crate) trait Simd {
    /// One number of the vector.
    type Real: Copy;
    /// The vector.
    type Vector: Copy;
    /// Numbers in a vector.
    const LANES: usize;

    /// A vector of zeros.
    ///
    /// # Safety
    /// As for every method here: the processor must have the instruction set.
    unsafe fn zero() -> Self::Vector;

    /// The same number in every lane.
    ///
    /// # Safety
    /// See [`Simd::zero`].
    unsafe fn splat(value: Self::Real) -> Self::Vector;

    /// Reads a vector from any address.
    ///
    /// # Safety
    /// See [`Simd::zero`]; `LANES` numbers must be readable.
    unsafe fn load(from: *const Self::Real) -> Self::Vector;

    /// Writes a vector to any address.
    ///
    /// # Safety
    /// See [`Simd::zero`]; `LANES` numbers must be writable.
    unsafe fn store(to: *mut Self::Real, value: Self::Vector);

    /// `x * y + z`, rounded once where the instruction set can.
    ///
    /// # Safety
    /// See [`Simd::zero`].
    unsafe fn mul_add(x: Self::Vector, y: Self::Vector, z: Self::Vector) -> Self::Vector;

    /// `x + y`.
    ///
    /// # Safety
    /// See [`Simd::zero`].
    unsafe fn add(x: Self::Vector, y: Self::Vector) -> Self::Vector;

    /// Side of the squares that [`Simd::transpose`] transposes.
    const SIDE: usize;

    /// Transposes a square: number `p` of row `i` goes to number `i` of the group at `to + p * width`.
    ///
    /// # Safety
    /// See [`Simd::zero`]; each of the first `SIDE` rows must have `SIDE` readable numbers, and each of `SIDE` groups as
    /// many writable ones.
    unsafe fn transpose(rows: &[*const Self::Real; MAX_SIDE], to: *mut Self::Real, width: usize);

    /// Tells the processor that this address will soon be written, where there is a way to say so. The address
    /// need not be valid.
    #[inline(always)]
    fn prefetch(address: *const Self::Real) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch never faults, and every x86-64 processor has it.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(address.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = address;
    }
}

/// Arrays that any compiler turns into whatever vectors the target is sure to have (SSE2, NEON).
pub(crate) struct Portable<T>(std::marker::PhantomData<T>);

macro_rules! portable {
    ($real:ty, $lanes:literal) => {
        impl Simd for Portable<$real> {
            type Real = $real;
            type Vector = [$real; $lanes];
            const LANES: usize = $lanes;
            const SIDE: usize = 4;

            #[inline(always)]
            unsafe fn transpose(rows: &[*const $real; MAX_SIDE], to: *mut $real, width: usize) {
                // SAFETY: the caller promises these numbers; arrays need no more alignment than they do.
                unsafe {
                    let row = |i: usize| rows[i].cast::<[$real; 4]>().read();
                    let (a, b, c, d) = (row(0), row(1), row(2), row(3));
                    for p in 0..4 {
                        to.add(p * width).cast::<[$real; 4]>().write([a[p], b[p], c[p], d[p]]);
                    }
                }
            }

            #[inline(always)]
            unsafe fn zero() -> Self::Vector {
                [0.0; $lanes]
            }

            #[inline(always)]
            unsafe fn splat(value: $real) -> Self::Vector {
                [value; $lanes]
            }

            #[inline(always)]
            unsafe fn load(from: *const $real) -> Self::Vector {
                // SAFETY: the caller promises that many numbers; an array needs no more alignment than they do.
                unsafe { from.cast::<Self::Vector>().read() }
            }

            #[inline(always)]
            unsafe fn store(to: *mut $real, value: Self::Vector) {
                // SAFETY: as for `load`.
                unsafe { to.cast::<Self::Vector>().write(value) }
            }

            #[inline(always)]
            unsafe fn mul_add(x: Self::Vector, y: Self::Vector, mut z: Self::Vector) -> Self::Vector {
                for lane in 0..$lanes {
                    // Without the instruction a fused multiply-add is a slow function call.
                    z[lane] = match cfg!(target_arch = "aarch64") {
                        true => x[lane].mul_add(y[lane], z[lane]),
                        false => x[lane] * y[lane] + z[lane],
                    };
                }
                z
            }

            #[inline(always)]
            unsafe fn add(mut x: Self::Vector, y: Self::Vector) -> Self::Vector {
                for lane in 0..$lanes {
                    x[lane] += y[lane];
                }
                x
            }
        }
    };
}

portable!(f32, 4);
portable!(f64, 2);

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    //! The vectors of AVX2 with FMA, and of AVX-512F.

    use std::arch::x86_64::*;

    use super::{MAX_SIDE, Simd};

    /// Vectors of 256 bits.
    pub(crate) struct Avx2<T>(std::marker::PhantomData<T>);

    /// Vectors of 512 bits.
    pub(crate) struct Avx512<T>(std::marker::PhantomData<T>);

    macro_rules! intrinsics {
        ($simd:ty, $real:ty, $vector:ty, $lanes:literal, $side:literal, $transpose:ident,
         $zero:ident, $splat:ident, $load:ident, $store:ident, $mul_add:ident, $add:ident) => {
            impl Simd for $simd {
                type Real = $real;
                type Vector = $vector;
                const LANES: usize = $lanes;
                const SIDE: usize = $side;

                #[inline(always)]
                unsafe fn transpose(rows: &[*const $real; MAX_SIDE], to: *mut $real, width: usize) {
                    // SAFETY: the caller promises the instruction set and the numbers.
                    unsafe { $transpose(rows, to, width) }
                }

                #[inline(always)]
                unsafe fn zero() -> $vector {
                    // SAFETY: the caller promises the instruction set.
                    unsafe { $zero() }
                }

                #[inline(always)]
                unsafe fn splat(value: $real) -> $vector {
                    // SAFETY: the caller promises the instruction set.
                    unsafe { $splat(value) }
                }

                #[inline(always)]
                unsafe fn load(from: *const $real) -> $vector {
                    // SAFETY: the caller promises the instruction set and readable numbers.
                    unsafe { $load(from) }
                }

                #[inline(always)]
                unsafe fn store(to: *mut $real, value: $vector) {
                    // SAFETY: the caller promises the instruction set and writable numbers.
                    unsafe { $store(to, value) }
                }

                #[inline(always)]
                unsafe fn mul_add(x: $vector, y: $vector, z: $vector) -> $vector {
                    // SAFETY: the caller promises the instruction set.
                    unsafe { $mul_add(x, y, z) }
                }

                #[inline(always)]
                unsafe fn add(x: $vector, y: $vector) -> $vector {
                    // SAFETY: the caller promises the instruction set.
                    unsafe { $add(x, y) }
                }
            }
        };
    }

    /// Transposes eight by eight. Rows four apart share a register from the start, loaded half by half, so that no
    /// number has to cross between halves later.
    ///
    /// # Safety
    /// Eight numbers can be read at each row, and eight written at each of eight groups `width` apart.
    #[target_feature(enable = "avx")]
    unsafe fn transpose_f32(rows: &[*const f32; MAX_SIDE], to: *mut f32, width: usize) {
        // SAFETY: the caller promises eight numbers at each row and group.
        unsafe {
            for half in 0..2 {
                let pair = |i: usize| {
                    let low = _mm_loadu_ps(rows[i].add(4 * half));
                    let high = _mm_loadu_ps(rows[i + 4].add(4 * half));
                    _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(low), high)
                };
                let (a, b, c, d) = (pair(0), pair(1), pair(2), pair(3));
                let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
                let to = to.add(4 * half * width);
                _mm256_storeu_ps(to, _mm256_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low));
                _mm256_storeu_ps(to.add(width), _mm256_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low));
                _mm256_storeu_ps(to.add(2 * width), _mm256_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high));
                _mm256_storeu_ps(to.add(3 * width), _mm256_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high));
            }
        }
    }

    /// Transposes four by four; see `transpose_f32`.
    ///
    /// # Safety
    /// Four numbers can be read at each row, and four written at each of four groups `width` apart.
    #[target_feature(enable = "avx")]
    unsafe fn transpose_f64(rows: &[*const f64; MAX_SIDE], to: *mut f64, width: usize) {
        // SAFETY: the caller promises four numbers at each row and group.
        unsafe {
            for half in 0..2 {
                let pair = |i: usize| {
                    let low = _mm_loadu_pd(rows[i].add(2 * half));
                    let high = _mm_loadu_pd(rows[i + 2].add(2 * half));
                    _mm256_insertf128_pd::<1>(_mm256_castpd128_pd256(low), high)
                };
                let (a, b) = (pair(0), pair(1));
                let to = to.add(2 * half * width);
                _mm256_storeu_pd(to, _mm256_unpacklo_pd(a, b));
                _mm256_storeu_pd(to.add(width), _mm256_unpackhi_pd(a, b));
            }
        }
    }

    intrinsics!(
        Avx2<f32>,
        f32,
        __m256,
        8,
        8,
        transpose_f32,
        _mm256_setzero_ps,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_fmadd_ps,
        _mm256_add_ps
    );
    intrinsics!(
        Avx2<f64>,
        f64,
        __m256d,
        4,
        4,
        transpose_f64,
        _mm256_setzero_pd,
        _mm256_set1_pd,
        _mm256_loadu_pd,
        _mm256_storeu_pd,
        _mm256_fmadd_pd,
        _mm256_add_pd
    );
    intrinsics!(
        Avx512<f32>,
        f32,
        __m512,
        16,
        8,
        transpose_f32,
        _mm512_setzero_ps,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_fmadd_ps,
        _mm512_add_ps
    );
    intrinsics!(
        Avx512<f64>,
        f64,
        __m512d,
        8,
        4,
        transpose_f64,
        _mm512_setzero_pd,
        _mm512_set1_pd,
        _mm512_loadu_pd,
        _mm512_storeu_pd,
        _mm512_fmadd_pd,
        _mm512_add_pd
    );
}
