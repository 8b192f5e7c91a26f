//! Products of 8-bit activations and quantized panels with AVX2.
//!
//! A vector holds four neighbouring columns of each of eight output rows; activations are broadcast
//! against it. Within a block of 32 the sum is exact in integers; blocks are added in order, fused, so
//! every output element is the same chain whatever the number of rows.

use super::activations::ActBlock;
use crate::cpu::weights::{Q4Block, Q8Block, QUANT_ROWS};
use std::arch::x86_64::{
    __m256, __m256i, _MM_HINT_T0, _mm_load_si128, _mm_prefetch, _mm256_abs_epi8, _mm256_add_epi16,
    _mm256_add_epi32, _mm256_and_si256, _mm256_broadcast_ss, _mm256_cvtepi32_ps, _mm256_cvtph_ps,
    _mm256_fmadd_ps, _mm256_load_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16,
    _mm256_mul_ps, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_epi64x,
    _mm256_setzero_ps, _mm256_setzero_si256, _mm256_shuffle_epi32, _mm256_sign_epi8,
    _mm256_srli_epi16, _mm256_store_ps, _mm256_storeu_ps,
};

/// How far ahead of its use a weight is asked for.
const AHEAD_BYTES: usize = 3072;

/// Sums of one row and panel, aligned so that they never cross a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct Sums(pub(super) [f32; QUANT_ROWS]);

impl Sums {
    pub(super) const ZERO: Sums = Sums([0.0; QUANT_ROWS]);
}

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
fn prefetch<B>(block: &B) {
    let ahead = std::ptr::from_ref(block).cast::<i8>().wrapping_add(AHEAD_BYTES);
    for line in 0..size_of::<B>().div_ceil(64) {
        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line * 64));
    }
}

/// A 4-bit block in registers, where it serves any number of rows.
struct Q4Lanes {
    /// For each pair of neighbouring groups of columns: even lanes hold the first group and odd lanes
    /// the second, of the output rows in order, then of the output rows swapped in twos.
    weights: [[__m256i; 2]; 4],
    scales: __m256,
    mins: __m256,
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn q4_lanes(block: &Q4Block) -> Q4Lanes {
    let mask = _mm256_set1_epi8(15);
    let vectors = block.nibbles.each_ref().map(|nibbles| bytes(nibbles));
    let low = |vector: usize| _mm256_and_si256(vectors[vector], mask);
    let high = |vector: usize| _mm256_and_si256(_mm256_srli_epi16::<4>(vectors[vector]), mask);
    Q4Lanes {
        weights: [[low(0), low(1)], [low(2), low(3)], [high(0), high(1)], [high(2), high(3)]],
        scales: halves(&block.scales),
        mins: halves(&block.mins),
    }
}

/// Adds a block's products with one row's activations to the row's sums. One load of activations serves
/// two vectors of weights.
///
/// # Safety
///
/// `act` points to a block. (A reference would let the compiler merge the broadcasts' loads, and then
/// broadcast from a register, which takes a shuffle more.)
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn q4_add(block: &Q4Lanes, act: *const ActBlock, sums: __m256) -> __m256 {
    // SAFETY: the caller's promise.
    let (act_sum, act_scale) = unsafe { (&(*act).sum, &(*act).scale) };
    // Minimums first: the sums wait for one addition after the integers, not two.
    let sums = _mm256_fmadd_ps(block.mins, _mm256_broadcast_ss(act_sum), sums);
    let scales = _mm256_mul_ps(block.scales, _mm256_broadcast_ss(act_scale));
    let (mut ordered, mut swapped) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    for (pair, [in_order, in_twos]) in block.weights.iter().enumerate() {
        // SAFETY: a block holds 32 bytes, four pairs of groups.
        let eight = unsafe { (&raw const (*act).values).cast::<i64>().add(pair).read_unaligned() };
        let values = _mm256_set1_epi64x(eight);
        // Eight products of at most 2 * 15 * 127, four of each kind, stay below 2^15 together.
        ordered = _mm256_add_epi16(ordered, _mm256_maddubs_epi16(*in_order, values));
        swapped = _mm256_add_epi16(swapped, _mm256_maddubs_epi16(*in_twos, values));
    }
    let pairs = _mm256_add_epi16(ordered, _mm256_shuffle_epi32::<0b10_11_00_01>(swapped));
    let dots = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    _mm256_fmadd_ps(dots, scales, sums)
}

/// Consecutive rows, as many as `sums`, against a 4-bit panel.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4(panel: &[Q4Block], acts: &[ActBlock], sums: &mut [Sums]) {
    match sums {
        [one] => [*one] = q4_tile(panel, acts),
        [one, two] => [*one, *two] = q4_tile(panel, acts),
        many => q4_rows(panel, acts, many),
    }
}

/// `R` consecutive rows against a 4-bit panel, with the sums in registers: for one or two rows.
#[target_feature(enable = "avx2,fma,f16c")]
fn q4_tile<const R: usize>(panel: &[Q4Block], acts: &[ActBlock]) -> [Sums; R] {
    assert_eq!(acts.len(), panel.len() * R, "rows of the panel's width");
    let mut sums = [_mm256_setzero_ps(); R];
    for (index, block) in panel.iter().enumerate() {
        prefetch(block);
        let lanes = q4_lanes(block);
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `R` rows of the panel's length, checked above.
            *sums = unsafe { q4_add(&lanes, acts.as_ptr().add(row * panel.len() + index), *sums) };
        }
    }
    store(sums).map(Sums)
}

/// Each block is decoded once for all rows and stays in registers, so the sums go through memory instead.
#[target_feature(enable = "avx2,fma,f16c")]
fn q4_rows(panel: &[Q4Block], acts: &[ActBlock], sums: &mut [Sums]) {
    assert_eq!(acts.len(), panel.len() * sums.len(), "rows of the panel's width");
    sums.fill(Sums::ZERO);
    for (index, block) in panel.iter().enumerate() {
        prefetch(block);
        let lanes = q4_lanes(block);
        let mut act = acts.as_ptr().wrapping_add(index);
        for sums in &mut *sums {
            // SAFETY: `act` is in the row of these sums: there are as many rows of the panel's length,
            // checked above. The sums are eight floats, aligned by their type.
            unsafe {
                let sum = q4_add(&lanes, act, _mm256_load_ps(sums.0.as_ptr()));
                _mm256_store_ps(sums.0.as_mut_ptr(), sum);
            }
            act = act.wrapping_add(panel.len());
        }
    }
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
        if R <= 2 {
            prefetch(block);
        }
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
