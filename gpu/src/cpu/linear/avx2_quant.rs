//! Products of 8-bit activations and quantized panels with AVX2.
//!
//! A vector holds four neighbouring columns of each of eight output rows; four activations are broadcast
//! against it. Within a block of 32 the sum is exact in integers; blocks are added in order, fused, so
//! every output element is the same chain whatever the tile height.

use super::activations::ActBlock;
use crate::cpu::weights::{Q4Block, Q8Block, QUANT_ROWS};
use std::arch::x86_64::{
    __m256, __m256i, _MM_HINT_T0, _mm_load_si128, _mm_prefetch, _mm256_abs_epi8, _mm256_add_epi16,
    _mm256_add_epi32, _mm256_and_si256, _mm256_broadcast_ss, _mm256_cvtepi32_ps, _mm256_cvtph_ps,
    _mm256_fmadd_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps,
    _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_setzero_ps,
    _mm256_setzero_si256, _mm256_sign_epi8, _mm256_srli_epi16, _mm256_storeu_ps,
};

/// How far ahead of its use a weight is asked for.
const AHEAD_BYTES: usize = 3072;

/// Four activations, in every lane.
#[inline]
#[target_feature(enable = "avx2")]
fn four(act: &ActBlock, group: usize) -> __m256i {
    // SAFETY: a block holds 32 bytes, eight groups of four.
    let word = unsafe { act.values.as_ptr().cast::<i32>().add(group).read_unaligned() };
    _mm256_set1_epi32(word)
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn halves(values: &[half::f16; QUANT_ROWS]) -> __m256 {
    // SAFETY: 16 bytes, aligned to 16 by the blocks' layout.
    _mm256_cvtph_ps(unsafe { _mm_load_si128(values.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx2")]
fn bytes<T>(values: &[T; 32]) -> __m256i {
    const { assert!(size_of::<T>() == 1) };
    // SAFETY: 32 bytes.
    unsafe { _mm256_loadu_si256(values.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx")]
fn store<const R: usize>(sums: [__m256; R]) -> [[f32; QUANT_ROWS]; R] {
    let mut out = [[0.0; QUANT_ROWS]; R];
    for (out, sum) in out.iter_mut().zip(sums) {
        // SAFETY: eight floats.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), sum) };
    }
    out
}

/// Asks for the weights some blocks ahead. Few rows leave no time to wait for memory, and the hardware's
/// prefetcher stops at every page.
#[inline]
#[target_feature(enable = "avx2")]
fn prefetch<const R: usize, B>(block: &B) {
    if R <= 2 {
        let ahead = std::ptr::from_ref(block).cast::<i8>().wrapping_add(AHEAD_BYTES);
        for line in 0..size_of::<B>().div_ceil(64) {
            _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line * 64));
        }
    }
}

/// `R` rows against a 4-bit panel.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_tile<const R: usize>(
    panel: &[Q4Block],
    rows: [&[ActBlock]; R],
) -> [[f32; QUANT_ROWS]; R] {
    assert!(rows.iter().all(|row| row.len() == panel.len()), "rows of the panel's width");
    let (mask, ones) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1));
    let mut sums = [_mm256_setzero_ps(); R];
    for (index, block) in panel.iter().enumerate() {
        // SAFETY: checked above: every row has as many blocks as the panel.
        let act = |row: usize| unsafe { rows[row].get_unchecked(index) };
        prefetch::<R, _>(block);
        // Eight products of at most 2 * 15 * 127 stay below 2^15.
        let mut dots = [_mm256_setzero_si256(); R];
        for group in 0..4 {
            let pairs = bytes(&block.nibbles[group]);
            let low = _mm256_and_si256(pairs, mask);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(pairs), mask);
            for (row, dot) in dots.iter_mut().enumerate() {
                let first = _mm256_maddubs_epi16(low, four(act(row), group));
                let second = _mm256_maddubs_epi16(high, four(act(row), group + 4));
                *dot = _mm256_add_epi16(*dot, _mm256_add_epi16(first, second));
            }
        }
        let (scales, mins) = (halves(&block.scales), halves(&block.mins));
        for (row, sum) in sums.iter_mut().enumerate() {
            let dot = _mm256_cvtepi32_ps(_mm256_madd_epi16(dots[row], ones));
            let scale = _mm256_mul_ps(scales, _mm256_broadcast_ss(&act(row).scale));
            *sum = _mm256_fmadd_ps(dot, scale, *sum);
            *sum = _mm256_fmadd_ps(mins, _mm256_broadcast_ss(&act(row).sum), *sum);
        }
    }
    store(sums)
}

/// `R` rows against an 8-bit panel.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q8_tile<const R: usize>(
    panel: &[Q8Block],
    rows: [&[ActBlock]; R],
) -> [[f32; QUANT_ROWS]; R] {
    assert!(rows.iter().all(|row| row.len() == panel.len()), "rows of the panel's width");
    let ones = _mm256_set1_epi16(1);
    let mut sums = [_mm256_setzero_ps(); R];
    for (index, block) in panel.iter().enumerate() {
        // SAFETY: checked above: every row has as many blocks as the panel.
        let act = |row: usize| unsafe { rows[row].get_unchecked(index) };
        prefetch::<R, _>(block);
        let mut dots = [_mm256_setzero_si256(); R];
        for group in 0..8 {
            // One factor must be unsigned: |w| (128 for -128), and the sign of w goes to the activation.
            // Two products of at most 128 * 127 stay below 2^15.
            let weights = bytes(&block.weights[group]);
            let magnitudes = _mm256_abs_epi8(weights);
            for (row, dot) in dots.iter_mut().enumerate() {
                let signed = _mm256_sign_epi8(four(act(row), group), weights);
                let pairs = _mm256_maddubs_epi16(magnitudes, signed);
                *dot = _mm256_add_epi32(*dot, _mm256_madd_epi16(pairs, ones));
            }
        }
        let scales = halves(&block.scales);
        for (row, sum) in sums.iter_mut().enumerate() {
            let scale = _mm256_mul_ps(scales, _mm256_broadcast_ss(&act(row).scale));
            *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[row]), scale, *sum);
        }
    }
    store(sums)
}
