//! Products of activations with f32 or bf16 weights with AVX2 and FMA: up to six activation rows against panels of 16
//! output rows.
//!
//! Every output element is one chain of fused multiply-adds over `k` in order, whatever the tile height.

use crate::cpu::weights::{Bf16Column, DENSE_ROWS, F32Column};
use std::arch::x86_64::{
    __m256, _mm_loadu_si128, _mm256_broadcast_ss, _mm256_castsi256_ps, _mm256_cvtepu16_epi32,
    _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_setzero_ps, _mm256_slli_epi32, _mm256_storeu_ps,
};

/// Column of 16 weights that can be loaded as two vectors of f32.
pub(super) trait Column {
    fn load(&self) -> [__m256; 2];
}

impl Column for F32Column {
    #[inline(always)]
    fn load(&self) -> [__m256; 2] {
        // SAFETY: the array holds 16 floats; the kernels that inline this function are compiled for AVX2.
        unsafe {
            let base = self.0.as_ptr();
            [_mm256_loadu_ps(base), _mm256_loadu_ps(base.add(8))]
        }
    }
}

impl Column for Bf16Column {
    #[inline(always)]
    fn load(&self) -> [__m256; 2] {
        // SAFETY: the array holds 16 bf16 numbers; the kernels that inline this function are compiled for AVX2.
        unsafe {
            let base = self.0.as_ptr();
            let widen = |base| {
                let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(base));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
            };
            [widen(base.cast()), widen(base.add(8).cast())]
        }
    }
}

/// Multiplies `R` activation rows with `P` neighbouring panels of weights. With few rows, several panels at once give
/// the eight accumulators that hide the latency of a multiply-add.
#[target_feature(enable = "avx2,fma")]
pub(super) fn tile<const R: usize, const P: usize>(
    panels: &[impl Column],
    rows: [&[f32]; R],
) -> [[[f32; DENSE_ROWS]; P]; R] {
    let k = panels.len() / P;
    assert!(rows.iter().all(|row| row.len() == k), "activation rows of the panel's width");
    let mut sums = [[[_mm256_setzero_ps(); 2]; P]; R];
    for i in 0..k {
        for panel in 0..P {
            // SAFETY: `panels` holds `P` panels of `k` weight columns each.
            let [low, high] = unsafe { panels.get_unchecked(panel * k + i) }.load();
            for (sums, row) in sums.iter_mut().zip(rows) {
                // SAFETY: the function asserts that every activation row has `k` values.
                let x = _mm256_broadcast_ss(unsafe { row.get_unchecked(i) });
                let sum = &mut sums[panel];
                sum[0] = _mm256_fmadd_ps(x, low, sum[0]);
                sum[1] = _mm256_fmadd_ps(x, high, sum[1]);
            }
        }
    }
    let mut out = [[[0.0; DENSE_ROWS]; P]; R];
    for (out, sum) in out.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
        // SAFETY: each output array of a panel has 16 floats, two vectors.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), sum[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), sum[1]);
        }
    }
    out
}
