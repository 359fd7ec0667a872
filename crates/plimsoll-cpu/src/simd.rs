//! Vector instructions under cargo's default flags.
//!
//! The compiler may only use what every machine of the target has (SSE2 on x86-64). [`vectorize`] runs a closure inside
//! a function that is compiled for a wider instruction set, chosen once per process by what the machine has; plain
//! loops inlined into it become wide loops. Products and sums are never contracted into fused ones, so the chosen set
//! changes the speed and not the bits.

/// The instruction sets for which there is compiled code, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// What the target guarantees.
    Baseline,
    /// AVX2 and its contemporaries: 256-bit vectors.
    #[cfg(target_arch = "x86_64")]
    V3,
    /// AVX-512 with its byte, doubleword and vector-length parts: 512-bit vectors.
    #[cfg(target_arch = "x86_64")]
    V4,
}

/// The widest level that this machine has.
#[inline]
pub fn level() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        // The standard library keeps the answers, so each test is one load and one mask.
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && has_v3()
        {
            return Level::V4;
        }
        if has_v3() {
            return Level::V3;
        }
    }
    Level::Baseline
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn has_v3() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2") && is_x86_feature_detected!("f16c")
}

/// Runs `f` with the widest instructions of this machine.
///
/// Whatever should use them must be inlined into `f`: mark closures and helper functions `#[inline(always)]`.
#[inline(always)]
pub fn vectorize<R>(f: impl FnOnce() -> R) -> R {
    match level() {
        Level::Baseline => f(),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `level` has just said that the machine has these instructions.
        Level::V3 => unsafe { with_v3(f) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `level` has just said that the machine has these instructions.
        Level::V4 => unsafe { with_v4(f) },
    }
}

/// Asks for the cache lines of `n_bytes` from an address on, where the hardware would not foresee that they are needed.
///
/// Nothing is read; the address need not even be valid.
#[inline(always)]
pub fn prefetch(first: *const u8, n_bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        for offset in (0..n_bytes).step_by(64) {
            // SAFETY: every x86-64 machine has this instruction, and it never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(offset).cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (first, n_bytes);
}

/// # Safety
/// The machine has AVX2, BMI2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi2,f16c")]
unsafe fn with_v3<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// # Safety
/// The machine has AVX2, BMI2, F16C and AVX-512 F, BW, DQ, VL.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn with_v4<R>(f: impl FnOnce() -> R) -> R {
    f()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_available_level_gives_the_same_bits() {
        let xs: Vec<f32> = (0..1000).map(|i| (i as f32 - 500.0) * 0.37).collect();
        let kernel = || xs.iter().map(|x| x * 1.7 + x * x).map(f32::to_bits).fold(0u32, u32::wrapping_add);
        let plain = kernel();
        assert_eq!(vectorize(kernel), plain);
        #[cfg(target_arch = "x86_64")]
        if level() != Level::Baseline {
            // SAFETY: every level above the baseline includes these instructions.
            assert_eq!(unsafe { with_v3(kernel) }, plain);
        }
    }
}
