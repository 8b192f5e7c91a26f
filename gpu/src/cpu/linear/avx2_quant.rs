//! Products of 8-bit activations and quantized panels with AVX2.
//!
//! A vector of weights holds four neighbouring columns of each of eight output rows; activations are broadcast against
//! it. Within a block of 32 columns the sum is exact, in integers. Blocks are added in order, with fused multiply-adds.
//! So every output element is the same chain of operations whatever the number of activation rows.

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

/// Distance between the weights in use and the weights that a matrix product prefetches, bytes.
const AHEAD_BYTES: usize = 3072;

/// Sums of products of one activation row and one weight panel (eight output rows), aligned so that they never cross a
/// cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct Sums(pub(super) [f32; QUANT_ROWS]);

impl Sums {
    pub(super) const ZERO: Sums = Sums([0.0; QUANT_ROWS]);
}

/// Broadcasts four neighbouring activations of a quantized block (its group number `group`) to every lane of a vector.
#[inline]
#[target_feature(enable = "avx2")]
fn four(act: &ActBlock, group: usize) -> __m256i {
    // SAFETY: an activation block holds 32 bytes, eight groups of four, and `q8_tile`, the only caller, passes a group
    // number below 8.
    let word = unsafe { act.values.as_ptr().cast::<i32>().add(group).read_unaligned() };
    _mm256_set1_epi32(word)
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn halves(values: &[half::f16; QUANT_ROWS]) -> __m256 {
    // SAFETY: `values` is eight f16 numbers (16 bytes), aligned to 16 by the layout of the weight blocks.
    _mm256_cvtph_ps(unsafe { _mm_load_si128(values.as_ptr().cast()) })
}

/// Loads 32 elements of one byte each.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn bytes<T>(values: &[T; 32]) -> __m256i {
    const { assert!(size_of::<T>() == 1) };
    // SAFETY: `values` is 32 elements of one byte each.
    unsafe { _mm256_loadu_si256(values.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx")]
fn store<const R: usize>(sums: [__m256; R]) -> [[f32; QUANT_ROWS]; R] {
    let mut out = [[0.0; QUANT_ROWS]; R];
    for (out, sum) in out.iter_mut().zip(sums) {
        // SAFETY: the store writes one vector of eight floats, and each row of `out` has eight floats.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), sum) };
    }
    out
}

/// Prefetches the weights that lie `AHEAD_BYTES` after `block`. With few activation rows there is too little arithmetic
/// to hide the latency of memory, and the hardware prefetcher stops at every page boundary.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn prefetch<B>(block: &B) {
    let ahead = std::ptr::from_ref(block).cast::<i8>().wrapping_add(AHEAD_BYTES);
    for line in 0..size_of::<B>().div_ceil(64) {
        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line * 64));
    }
}

/// Block of 4-bit weights decoded into registers, to be used for any number of activation rows.
struct Q4Lanes {
    /// Weights as two vectors for each pair of neighbouring groups of four columns. Even lanes hold the first group and
    /// odd lanes the second. The first vector has the output rows in order, the second has neighbouring output rows
    /// swapped.
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

/// Adds the products of a 4-bit weight block and one row's activations to the row's sums. Each load of activations is
/// used for two vectors of weights.
///
/// # Safety
///
/// `act` points to an activation block. (With a reference, the compiler would merge the loads of the broadcasts and
/// then broadcast from a register, which takes one more shuffle.)
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn q4_add(block: &Q4Lanes, act: *const ActBlock, sums: __m256) -> __m256 {
    // SAFETY: the caller promises that `act` points to an activation block.
    let (act_sum, act_scale) = unsafe { (&(*act).sum, &(*act).scale) };
    // Adds the blocks' minimums first, so that after the integer arithmetic the sums wait for one addition, not two.
    let sums = _mm256_fmadd_ps(block.mins, _mm256_broadcast_ss(act_sum), sums);
    let scales = _mm256_mul_ps(block.scales, _mm256_broadcast_ss(act_scale));
    let (mut ordered, mut swapped) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    for (pair, [in_order, in_twos]) in block.weights.iter().enumerate() {
        // SAFETY: a block of activations holds 32 bytes, read here as four times 8 bytes, and `pair` is at most 3.
        let eight = unsafe { (&raw const (*act).values).cast::<i64>().add(pair).read_unaligned() };
        let values = _mm256_set1_epi64x(eight);
        // Adds up eight 16-bit results of `maddubs` per lane, four in `ordered` and four in `swapped`, without
        // overflow: each result is at most `2 * 15 * 127`, and together they stay below 2^15.
        ordered = _mm256_add_epi16(ordered, _mm256_maddubs_epi16(*in_order, values));
        swapped = _mm256_add_epi16(swapped, _mm256_maddubs_epi16(*in_twos, values));
    }
    let pairs = _mm256_add_epi16(ordered, _mm256_shuffle_epi32::<0b10_11_00_01>(swapped));
    let dots = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    _mm256_fmadd_ps(dots, scales, sums)
}

/// Multiplies consecutive activation rows, as many as `sums`, with a panel of 4-bit weights.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4(panel: &[Q4Block], acts: &[ActBlock], sums: &mut [Sums]) {
    match sums {
        [one] => [*one] = q4_tile(panel, acts),
        [one, two] => [*one, *two] = q4_tile(panel, acts),
        many => q4_rows(panel, acts, many),
    }
}

/// Multiplies `R` consecutive activation rows with a panel of 4-bit weights, with the sums in registers: for one or two
/// rows.
#[target_feature(enable = "avx2,fma,f16c")]
fn q4_tile<const R: usize>(panel: &[Q4Block], acts: &[ActBlock]) -> [Sums; R] {
    assert_eq!(acts.len(), panel.len() * R, "rows of the panel's width");
    let mut sums = [_mm256_setzero_ps(); R];
    for (index, block) in panel.iter().enumerate() {
        prefetch(block);
        let lanes = q4_lanes(block);
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the function asserts that `acts` holds `R` rows of the panel's length.
            *sums = unsafe { q4_add(&lanes, acts.as_ptr().add(row * panel.len() + index), *sums) };
        }
    }
    store(sums).map(Sums)
}

/// Multiplies consecutive activation rows with a panel of 4-bit weights. Each weight block is decoded once for all rows
/// and stays in registers, while the sums of the rows are loaded and stored for every block.
#[target_feature(enable = "avx2,fma,f16c")]
fn q4_rows(panel: &[Q4Block], acts: &[ActBlock], sums: &mut [Sums]) {
    assert_eq!(acts.len(), panel.len() * sums.len(), "rows of the panel's width");
    sums.fill(Sums::ZERO);
    for (index, block) in panel.iter().enumerate() {
        prefetch(block);
        let lanes = q4_lanes(block);
        let mut act = acts.as_ptr().wrapping_add(index);
        for sums in &mut *sums {
            // SAFETY: `act` is in the activation row of these sums: the function asserts that `acts` holds as many rows
            // of the panel's length as there are sums. The sums are eight floats, aligned by their type.
            unsafe {
                let sum = q4_add(&lanes, act, _mm256_load_ps(sums.0.as_ptr()));
                _mm256_store_ps(sums.0.as_mut_ptr(), sum);
            }
            act = act.wrapping_add(panel.len());
        }
    }
}

/// Multiplies `R` activation rows with a panel of 8-bit weights.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q8_tile<const R: usize>(
    panel: &[Q8Block],
    rows: [&[ActBlock]; R],
) -> [[f32; QUANT_ROWS]; R] {
    assert!(rows.iter().all(|row| row.len() == panel.len()), "rows of the panel's width");
    let ones = _mm256_set1_epi16(1);
    let mut sums = [_mm256_setzero_ps(); R];
    for (index, block) in panel.iter().enumerate() {
        // SAFETY: the function asserts that every activation row has as many blocks as the panel.
        let act = |row: usize| unsafe { rows[row].get_unchecked(index) };
        if R <= 2 {
            prefetch(block);
        }
        let mut dots = [_mm256_setzero_si256(); R];
        for group in 0..8 {
            // Multiplies |w| (128 for w = -128) by the activation with the sign of w, because one factor of `maddubs`
            // must be unsigned. The sum of two products of at most 128 * 127 stays below 2^15.
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
