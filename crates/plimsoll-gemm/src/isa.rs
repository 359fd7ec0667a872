//! Instruction sets, and the kernels of each.
//!
//! Kernels are generic over [`Simd`] and written once; here each is instantiated inside a function that enables an
//! instruction set, and put into a table. Which table is used is decided at run time, once per product.

use std::cell::Cell;

use crate::element::Real;
use crate::matvec_kernel::{self, ByVector, Pairs};
use crate::pack_kernel::{self, Groups};
#[cfg(target_arch = "x86_64")]
use crate::simd::x86::{Avx2, Avx512};
use crate::simd::{Portable, Simd};
use crate::tile::{self, InPlace, InPlaceTile, Target, Tile};

/// An instruction set with kernels of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Whatever the target is sure to have.
    Portable,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512F.
    Avx512,
}

impl Isa {
    /// Every instruction set, the best last.
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    /// The best that this processor has.
    pub fn best() -> Self {
        Self::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Self::Portable)
    }

    /// The one that kernels called from this thread use: the best, unless [`with_isa`] asked for another.
    pub fn current() -> Self {
        ASKED.get().unwrap_or_else(Self::best)
    }

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => is_x86_feature_detected!("avx512f"),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }
}

thread_local! {
    /// What `with_isa` asked for on this thread.
    static ASKED: Cell<Option<Isa>> = const { Cell::new(None) };
}

/// Runs `f` with kernels called from this thread using a given instruction set. Results differ between instruction
/// sets in their last bits; tests use this to check each.
///
/// # Panics
/// If this processor does not have it.
pub fn with_isa<R>(isa: Isa, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<Isa>);
    impl Drop for Restore {
        fn drop(&mut self) {
            ASKED.set(self.0);
        }
    }
    assert!(isa.is_available(), "this processor has no {isa:?}; its best is {:?}", Isa::best());
    let _restore = Restore(ASKED.replace(Some(isa)));
    f()
}

/// The kernels of a type for an instruction set.
pub struct Kernels<T: 'static> {
    /// Numbers in a vector; a tile is one or two vectors wide.
    pub(crate) lanes: usize,
    /// By rows of the tile less one, then by vectors of a row less one.
    pub(crate) tiles: &'static [[Tile<T>; 2]],
    /// The same for operands that are not packed.
    pub(crate) in_place: &'static [[InPlaceTile<T>; 2]],
    /// Packs lanes that lie side by side.
    pub(crate) copy: unsafe fn(groups: Groups<T>, width: usize, panel: &mut [T]),
    /// Packs lanes each of which has its depths side by side.
    pub(crate) transpose: unsafe fn(lanes: &[*const T], width: usize, panel: &mut [T]),
    /// Adds products number by number.
    pub(crate) add_products: unsafe fn(Pairs<'_, T>),
    /// Matrix times vector along the depth.
    pub(crate) dots: unsafe fn(ByVector<T>),
    /// Matrix times vector along the lanes.
    pub(crate) combine: unsafe fn(ByVector<T>),
}

impl<T> Kernels<T> {
    /// Rows of the tallest tile.
    pub(crate) fn max_rows(&self) -> usize {
        self.tiles.len()
    }

    /// Columns of the widest tile.
    pub(crate) fn max_cols(&self) -> usize {
        2 * self.lanes
    }

    /// Columns of the narrowest tile that holds `cols` columns.
    pub(crate) fn width(&self, cols: usize) -> usize {
        if cols <= self.lanes { self.lanes } else { 2 * self.lanes }
    }
}

/// Defines functions that enable an instruction set around the kernels, and the tables of their instances.
macro_rules! kernels {
    ($name:ident, $simd:ident, $feature:literal, $($rows:literal)+) => {
        mod $name {
            use super::*;

            /// # Safety
            /// See `tile::tile`.
            #[cfg_attr(target_arch = "x86_64", target_feature(enable = $feature))]
            unsafe fn tile<S: Simd, const ROWS: usize, const VECTORS: usize>(
                depth: usize,
                a: *const S::Real,
                b: *const S::Real,
                target: Target<S::Real>,
            ) {
                // SAFETY: the caller promises what the kernel asks for.
                unsafe { tile::tile::<S, ROWS, VECTORS>(depth, a, b, target) }
            }

            /// # Safety
            /// See `tile::in_place`.
            #[cfg_attr(target_arch = "x86_64", target_feature(enable = $feature))]
            unsafe fn in_place<S: Simd, const ROWS: usize, const VECTORS: usize>(
                operands: &InPlace<S::Real>,
                target: Target<S::Real>,
            ) {
                // SAFETY: the caller promises what the kernel asks for.
                unsafe { tile::in_place::<S, ROWS, VECTORS>(operands, target) }
            }

            /// # Safety
            /// See `pack_kernel::copy`.
            #[cfg_attr(target_arch = "x86_64", target_feature(enable = $feature))]
            unsafe fn copy<T: Real>(groups: Groups<T>, width: usize, panel: &mut [T]) {
                // SAFETY: the caller promises what the kernel asks for.
                unsafe { pack_kernel::copy(groups, width, panel) }
            }

            /// # Safety
            /// See `pack_kernel::transpose`.
            #[cfg_attr(target_arch = "x86_64", target_feature(enable = $feature))]
            unsafe fn transpose<S: Simd<Real: Real>>(lanes: &[*const S::Real], width: usize, panel: &mut [S::Real]) {
                // SAFETY: the caller promises what the kernel asks for.
                unsafe { pack_kernel::transpose::<S>(lanes, width, panel) }
            }

            /// # Safety
            /// See `matvec_kernel::add_products`.
            #[cfg_attr(target_arch = "x86_64", target_feature(enable = $feature))]
            unsafe fn add_products<S: Simd<Real: Real>>(pairs: Pairs<'_, S::Real>) {
                // SAFETY: the caller promises what the kernel asks for.
                unsafe { matvec_kernel::add_products::<S>(pairs) }
            }

            /// # Safety
            /// See `matvec_kernel::dots`.
            #[cfg_attr(target_arch = "x86_64", target_feature(enable = $feature))]
            unsafe fn dots<S: Simd<Real: Real>>(by: ByVector<S::Real>) {
                // SAFETY: the caller promises what the kernel asks for.
                unsafe { matvec_kernel::dots::<S>(by) }
            }

            /// # Safety
            /// See `matvec_kernel::combine`.
            #[cfg_attr(target_arch = "x86_64", target_feature(enable = $feature))]
            unsafe fn combine<S: Simd<Real: Real>>(by: ByVector<S::Real>) {
                // SAFETY: the caller promises what the kernel asks for.
                unsafe { matvec_kernel::combine::<S>(by) }
            }

            pub(super) static F32: Kernels<f32> = Kernels {
                lanes: $simd::<f32>::LANES,
                tiles: &[$([tile::<$simd<f32>, $rows, 1>, tile::<$simd<f32>, $rows, 2>]),+],
                in_place: &[$([in_place::<$simd<f32>, $rows, 1>, in_place::<$simd<f32>, $rows, 2>]),+],
                copy: copy::<f32>,
                transpose: transpose::<$simd<f32>>,
                add_products: add_products::<$simd<f32>>,
                dots: dots::<$simd<f32>>,
                combine: combine::<$simd<f32>>,
            };
            pub(super) static F64: Kernels<f64> = Kernels {
                lanes: $simd::<f64>::LANES,
                tiles: &[$([tile::<$simd<f64>, $rows, 1>, tile::<$simd<f64>, $rows, 2>]),+],
                in_place: &[$([in_place::<$simd<f64>, $rows, 1>, in_place::<$simd<f64>, $rows, 2>]),+],
                copy: copy::<f64>,
                transpose: transpose::<$simd<f64>>,
                add_products: add_products::<$simd<f64>>,
                dots: dots::<$simd<f64>>,
                combine: combine::<$simd<f64>>,
            };
        }
    };
}

kernels!(portable, Portable, "sse2", 1 2 3 4);
#[cfg(target_arch = "x86_64")]
kernels!(avx2, Avx2, "avx2,fma", 1 2 3 4 5 6);
#[cfg(target_arch = "x86_64")]
kernels!(avx512, Avx512, "avx512f", 1 2 3 4 5 6 7 8 9 10 11 12 13 14);

/// A type that has kernels.
pub trait HasKernels: Sized + 'static {
    /// The kernels of this type for the current instruction set.
    fn kernels() -> &'static Kernels<Self>;
}

impl HasKernels for f32 {
    fn kernels() -> &'static Kernels<f32> {
        match Isa::current() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &avx512::F32,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &avx2::F32,
            _ => &portable::F32,
        }
    }
}

impl HasKernels for f64 {
    fn kernels() -> &'static Kernels<f64> {
        match Isa::current() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &avx512::F64,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &avx2::F64,
            _ => &portable::F64,
        }
    }
}
