//! Products of 8-bit activations and quantized weights with AVX-512 and its dot products of bytes (VNNI).
//!
//! Two weight panels are multiplied at a time: a vector of weights holds four neighbouring columns of each of sixteen
//! output rows. The same block of two panels is decoded once, into eight such vectors, for all activation rows of a
//! pass. The sum of a block's 32 columns is an integer, so it is exact. The sums of blocks are added in order, by the
//! same multiply-adds as in the AVX2 kernels. So an output element has the same bits as with the AVX2 kernels.

use super::activations::ActBlock;
use super::avx2_quant::{bytes, prefetch};
use super::{Product, cached};
use crate::cpu::isa::Isa;
use crate::cpu::weights::{Q4Block, Q8Block, QUANT_LEN, QUANT_ROWS, Segment};
use std::arch::x86_64::{
    __m128i, __m512, __m512i, _mm_loadu_si128, _mm256_set_m128i, _mm512_add_epi32,
    _mm512_and_si512, _mm512_castsi256_si512, _mm512_cvtepi32_ps, _mm512_cvtph_ps,
    _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_inserti64x4, _mm512_load_ps,
    _mm512_mask_shuffle_epi32, _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setzero_si512, _mm512_srli_epi32, _mm512_store_ps, _mm512_sub_epi32, _mm512_xor_si512,
};
use std::ops::Range;

/// Number of output rows of two weight panels.
const PAIR_ROWS: usize = 2 * QUANT_ROWS;
/// Least number of activation rows for which decoding the blocks of two panels pays. The AVX2 kernels compute one row.
pub(super) const ROWS_MIN: usize = 2;
/// Largest size of the quantized activations in one pass (of at least 8 rows) over two weight panels, bytes. The
/// activations stay in the L1 cache beside the panels.
const PASS_BYTES: usize = 24 << 10;
/// Most activation rows in one pass over two weight panels, so that the sums of the rows also stay in the L1 cache.
const PASS_ROWS: usize = 24;

/// Sums of products of one activation row and two weight panels (sixteen output rows), aligned to a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Sums([f32; PAIR_ROWS]);

/// Type of the blocks of a panel of quantized weights. A kernel decodes two blocks of this type into vectors: those of
/// the same 32 columns in two neighbouring panels.
pub(super) trait Block: Copy {
    /// Vectors of two decoded blocks.
    type Lanes;

    /// Decodes two blocks: those of the same 32 columns in two neighbouring panels.
    ///
    /// # Safety
    ///
    /// The processor has AVX-512 F and VNNI, and F16C.
    unsafe fn decode(blocks: [&Self; 2]) -> Self::Lanes;

    /// Adds the products of two decoded blocks and one row's activations to the row's sums.
    ///
    /// # Safety
    ///
    /// The processor has AVX-512 F and VNNI, and F16C. `act` points to an activation block. (If `act` were a reference,
    /// the compiler would merge the loads of the broadcasts and then broadcast from a register, which takes one more
    /// shuffle.)
    unsafe fn add(lanes: &Self::Lanes, act: *const ActBlock, sums: __m512) -> __m512;
}

/// Two blocks of 4-bit weights.
pub(super) struct Q4Lanes {
    /// Weights (0 to 15), a vector for each group of four neighbouring columns.
    weights: [__m512i; 8],
    scales: __m512,
    mins: __m512,
}

/// Two blocks of 8-bit weights.
pub(super) struct Q8Lanes {
    /// Weights plus 128 (0 to 255), a vector for each group of four neighbouring columns.
    weights: [__m512i; 8],
    scales: __m512,
}

/// Returns 32 bytes of a block of one panel, followed by the same 32 bytes of the block of the next panel.
#[inline]
#[target_feature(enable = "avx512f")]
fn joined<T>(low: &[T; 32], high: &[T; 32]) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(bytes(low)), bytes(high))
}

/// Returns eight numbers (scales or minimums) of a block of one panel, followed by those of the block of the next
/// panel.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves(low: &[half::f16; QUANT_ROWS], high: &[half::f16; QUANT_ROWS]) -> __m512 {
    let half = |values: &[half::f16; QUANT_ROWS]| -> __m128i {
        // SAFETY: `values` is eight f16 numbers, 16 bytes.
        unsafe { _mm_loadu_si128(values.as_ptr().cast()) }
    };
    _mm512_cvtph_ps(_mm256_set_m128i(half(high), half(low)))
}

/// Returns the dot product of each output row's weights (unsigned bytes, eight groups of four columns) and a row's
/// activations.
///
/// # Safety
///
/// `act` points to an activation block.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn dots(weights: &[__m512i; 8], act: *const ActBlock) -> __m512i {
    // Two sums, because each addition to a sum waits for the sum's previous addition.
    let mut dots = [_mm512_setzero_si512(); 2];
    for (group, weights) in weights.iter().enumerate() {
        // SAFETY: the caller promises that `act` points to an activation block. An activation block holds eight groups
        // of four bytes, and `group` is at most 7.
        let four = unsafe { (&raw const (*act).values).cast::<i32>().add(group).read_unaligned() };
        dots[group % 2] = _mm512_dpbusd_epi32(dots[group % 2], *weights, _mm512_set1_epi32(four));
    }
    _mm512_add_epi32(dots[0], dots[1])
}

impl Block for Q4Block {
    type Lanes = Q4Lanes;

    #[inline]
    #[target_feature(enable = "avx512f,f16c")]
    unsafe fn decode([low, high]: [&Q4Block; 2]) -> Q4Lanes {
        let mask = _mm512_set1_epi8(15);
        let vector = |index: usize| joined(&low.nibbles[index], &high.nibbles[index]);
        let mut weights = [_mm512_setzero_si512(); 8];
        for even_group in [0, 2] {
            // `Q4Block::place` tells where the groups are. The first vector holds even rows of the even group and odd
            // rows of the odd group, in the lanes of the rows. The second vector holds odd rows of the even group and
            // even rows of the odd group, each in the lane of the neighbouring row.
            let (first, second) = (vector(even_group), vector(even_group + 1));
            let even = _mm512_mask_shuffle_epi32::<0b10_11_00_01>(first, 0xaaaa, second);
            let odd = _mm512_mask_shuffle_epi32::<0b10_11_00_01>(first, 0x5555, second);
            for (group, both) in [(even_group, even), (even_group + 1, odd)] {
                weights[group] = _mm512_and_si512(both, mask);
                weights[group + 4] = _mm512_and_si512(_mm512_srli_epi32::<4>(both), mask);
            }
        }
        let scales = halves(&low.scales, &high.scales);
        Q4Lanes { weights, scales, mins: halves(&low.mins, &high.mins) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn add(lanes: &Q4Lanes, act: *const ActBlock, sums: __m512) -> __m512 {
        // SAFETY: the caller promises that `act` points to an activation block.
        let (act_sum, act_scale) = unsafe { ((*act).sum, (*act).scale) };
        let sums = _mm512_fmadd_ps(lanes.mins, _mm512_set1_ps(act_sum), sums);
        let scales = _mm512_mul_ps(lanes.scales, _mm512_set1_ps(act_scale));
        // SAFETY: the caller promises that `act` points to an activation block.
        let dots = unsafe { dots(&lanes.weights, act) };
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scales, sums)
    }
}

impl Block for Q8Block {
    type Lanes = Q8Lanes;

    #[inline]
    #[target_feature(enable = "avx512f,f16c")]
    unsafe fn decode([low, high]: [&Q8Block; 2]) -> Q8Lanes {
        // Flipping the sign bit of a byte adds 128.
        let signs = _mm512_set1_epi8(-128);
        let weights = |group: usize| joined(&low.weights[group], &high.weights[group]);
        Q8Lanes {
            weights: std::array::from_fn(|group| _mm512_xor_si512(weights(group), signs)),
            scales: halves(&low.scales, &high.scales),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn add(lanes: &Q8Lanes, act: *const ActBlock, sums: __m512) -> __m512 {
        // SAFETY: the caller promises that `act` points to an activation block.
        let (excess, act_scale) = unsafe { ((*act).excess, (*act).scale) };
        let scales = _mm512_mul_ps(lanes.scales, _mm512_set1_ps(act_scale));
        // SAFETY: the caller promises that `act` points to an activation block.
        let dots = unsafe { dots(&lanes.weights, act) };
        let dots = _mm512_sub_epi32(dots, _mm512_set1_epi32(excess));
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scales, sums)
    }
}

/// Multiplies consecutive activation rows, as many as `sums`, with two weight panels.
///
/// # Safety
///
/// The processor has AVX-512 F and VNNI, and F16C.
#[target_feature(enable = "avx512f,avx512vnni,f16c")]
unsafe fn pair<B: Block>(panels: [&[B]; 2], acts: &[ActBlock], sums: &mut [Sums]) {
    let [low, high] = panels;
    assert!(low.len() == high.len(), "panels of one width");
    assert!(acts.len() == low.len() * sums.len(), "rows of the panels' width");
    sums.fill(Sums([0.0; PAIR_ROWS]));
    for (index, blocks) in low.iter().zip(high).enumerate() {
        prefetch(blocks.0);
        prefetch(blocks.1);
        // SAFETY: the caller promises that the processor has AVX-512 F and VNNI, and F16C.
        let lanes = unsafe { B::decode([blocks.0, blocks.1]) };
        let mut act = acts.as_ptr().wrapping_add(index);
        for sums in &mut *sums {
            // SAFETY: the caller promises that the processor has AVX-512 F and VNNI, and F16C. `act` points into the
            // activation row of these sums: the function asserts that `acts` holds as many rows of the panels' length
            // as there are sums. The sums are sixteen floats, aligned by their type.
            unsafe {
                let sum = B::add(&lanes, act, _mm512_load_ps(sums.0.as_ptr()));
                _mm512_store_ps(sums.0.as_mut_ptr(), sum);
            }
            act = act.wrapping_add(low.len());
        }
    }
}

impl Product<'_> {
    /// Computes the outputs of pairs of neighbouring weight panels for the activation rows `rows`. With fewer rows than
    /// [`ROWS_MIN`], computes no output. Returns the panels whose outputs are left to compute.
    pub(super) fn avx512_pairs<B: Block>(
        &self,
        segment: &Segment,
        all: &[B],
        panels: Range<usize>,
        rows: Range<usize>,
    ) -> Range<usize> {
        debug_assert_eq!(self.isa, Isa::Avx512);
        if rows.len() < ROWS_MIN {
            return panels;
        }
        let blocks = self.k.div_ceil(QUANT_LEN);
        let most = (PASS_BYTES / (blocks * size_of::<ActBlock>())).clamp(8, PASS_ROWS);
        // Choose the number of activation rows per pass over the weight panels so that the passes have about equally
        // many rows.
        let pass = rows.len().div_ceil(rows.len().div_ceil(most));
        let pairs = panels.start..panels.end - panels.len() % 2;
        let mut sums = [Sums([0.0; PAIR_ROWS]); PASS_ROWS];
        for pairs in cached::<B>(pairs.clone(), blocks, 2) {
            for first in rows.clone().step_by(pass) {
                let near = first..rows.end.min(first + pass);
                let sums = &mut sums[..near.len()];
                let acts = self.acts.rows(near.clone());
                for panel in pairs.clone().step_by(2) {
                    let (low, high) = all[panel * blocks..][..2 * blocks].split_at(blocks);
                    // SAFETY: this code runs only for `Isa::Avx512`, a value that exists only if the processor has
                    // AVX-512 F and VNNI, and F16C.
                    unsafe { pair([low, high], acts, sums) };
                    for (row, sums) in near.clone().zip(&*sums) {
                        self.emit(segment, panel * QUANT_ROWS, row, &sums.0);
                    }
                }
            }
        }
        pairs.end..panels.end
    }
}
