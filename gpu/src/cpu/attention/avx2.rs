//! Attention kernels with AVX2 and FMA. Keys are stored transposed: a vector register holds one component of eight
//! neighbouring keys, so no sum crosses lanes. Values are stored plain: a vector register holds eight components of one
//! value.

use super::kernel::{Kernel, Scores, SpanBlocks};
use super::partial::Softmax;
use super::plan::SPAN;
use super::softmax::softmax;
use crate::cpu::element::Element;
use crate::cpu::isa::Isa;
use std::arch::x86_64::{
    __m256, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch, _mm256_broadcast_ss, _mm256_fmadd_ps,
    _mm256_loadu_ps, _mm256_mul_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps,
};
use std::ops::Range;

/// Number of f32 lanes of an AVX2 vector register.
const LANES: usize = 8;

/// Proof that the processor has AVX2, FMA and F16C: only a check of the processor makes a value of this type.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    /// Returns the AVX2 kernels if the processor has AVX2, FMA and F16C and the kernels support the block size and head
    /// width.
    pub(super) fn new(isa: Isa, block_size: usize, head_dim: usize) -> Option<Avx2> {
        let has_avx2 = matches!(isa, Isa::Avx2 | Isa::Avx512);
        (has_avx2 && Self::fits(block_size, head_dim)).then_some(Avx2(()))
    }

    /// Whether the kernels support the block size and head width: both are multiples of eight, and no block straddles
    /// two spans.
    fn fits(block_size: usize, head_dim: usize) -> bool {
        block_size.is_multiple_of(LANES)
            && SPAN.is_multiple_of(block_size)
            && head_dim.is_multiple_of(LANES)
    }
}

impl<E: Element> Kernel<E> for Avx2 {
    fn scores(
        self,
        blocks: SpanBlocks<'_, E>,
        range: Range<usize>,
        queries: &[&[f32]],
        scale: f32,
        scores: &mut [Scores],
    ) {
        // SAFETY: an `Avx2` value exists only if the processor has AVX2, FMA and F16C.
        unsafe { span_scores(blocks, range, queries, scale, scores) }
    }

    fn softmax(self, scores: &mut Scores, range: Range<usize>) -> Softmax {
        // SAFETY: an `Avx2` value exists only if the processor has AVX2, FMA and F16C.
        unsafe { span_softmax(scores, range) }
    }

    fn weigh(
        self,
        blocks: SpanBlocks<'_, E>,
        range: Range<usize>,
        weights: &[Scores],
        out: &mut [f32],
    ) {
        // SAFETY: an `Avx2` value exists only if the processor has AVX2, FMA and F16C.
        unsafe { span_weigh(blocks, range, weights, out) }
    }
}

#[target_feature(enable = "avx2")]
fn span_softmax(scores: &mut Scores, range: Range<usize>) -> Softmax {
    softmax(scores, range)
}

/// Cuts `$rows` query rows into tiles of 4 rows, then one tile of the 1 to 3 rows that are left, and runs `$call` for
/// each tile with its height as a constant. Four rows need eight accumulators: enough to hide the latency of a
/// multiply-add, and few enough to stay in registers.
macro_rules! row_tiles {
    ($rows:expr, |$first:ident, $height:ident| $call:expr) => {{
        let rows: usize = $rows;
        let mut $first = 0;
        macro_rules! step {
            ($h:literal) => {
                while rows - $first >= $h {
                    const $height: usize = $h;
                    $call;
                    $first += $h;
                }
            };
        }
        step!(4);
        step!(3);
        step!(2);
        step!(1);
    }};
}

#[target_feature(enable = "avx2,fma,f16c")]
fn span_scores<E: Element>(
    blocks: SpanBlocks<'_, E>,
    range: Range<usize>,
    queries: &[&[f32]],
    scale: f32,
    scores: &mut [Scores],
) {
    let size = blocks.block_size;
    assert!(queries.len() == scores.len() && range.end <= SPAN);
    assert!(Avx2::fits(size, blocks.head_dim), "an even number of components");
    assert!(queries.iter().all(|query| query.len() == blocks.head_dim), "queries of a head");
    let group = queries.len() / blocks.kv_heads;
    let all = blocks_of(&range, size);
    for block in all.clone() {
        let keys = blocks.keys[block].chunks_exact(blocks.head_len());
        assert!(keys.len() == blocks.kv_heads && keys.remainder().is_empty(), "a block of keys");
        let (start, slots) = slots_of(&range, size, block);
        let next = if block + 1 < all.end { block + 1 } else { block };
        for (head, keys) in keys.enumerate() {
            let part = head * blocks.head_len();
            let ahead = Ahead {
                keys: blocks.keys[next].as_ptr().wrapping_add(part),
                values: blocks.values[block].as_ptr().wrapping_add(part),
            };
            let rows = head * group..(head + 1) * group;
            head_scores(
                keys,
                (size, start, slots.clone()),
                (&queries[rows.clone()], scale),
                &mut scores[rows],
                ahead,
            );
        }
    }
}

/// Addresses to prefetch while the keys of one head in a KV block are multiplied. Blocks lie anywhere in memory, so a
/// hardware prefetcher cannot predict them.
#[derive(Clone, Copy)]
struct Ahead<E> {
    /// Address of the head's keys in the next KV block.
    keys: *const E,
    /// Address of the head's values in the KV block whose keys are being multiplied; the values are read when the
    /// scores of the span are done.
    values: *const E,
}

/// Computes the attention scores of the queries of one kv head against the head's keys in the token slots `slots` of a
/// KV block. The block has `size` token slots, and its first slot is at position `start` of the span.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn head_scores<E: Element>(
    keys: &[E],
    (size, start, slots): (usize, usize, Range<usize>),
    (queries, scale): (&[&[f32]], f32),
    scores: &mut [Scores],
    ahead: Ahead<E>,
) {
    let step = if size.is_multiple_of(2 * LANES) { 2 * LANES } else { LANES };
    for slot in (slots.start / step * step..slots.end).step_by(step) {
        let ahead =
            Ahead { keys: ahead.keys.wrapping_add(slot), values: ahead.values.wrapping_add(slot) };
        row_tiles!(queries.len(), |first, ROWS| {
            let queries: &[&[f32]; ROWS] = queries[first..].first_chunk().expect("ROWS left");
            let scores: &mut [Scores; ROWS] =
                scores[first..].first_chunk_mut().expect("as many as queries");
            let (keys, position) = (&keys[slot..], start + slot);
            if step == LANES {
                tile_scores::<E, ROWS, 1>(keys, size, (queries, scale), scores, position, ahead);
            } else {
                tile_scores::<E, ROWS, 2>(keys, size, (queries, scale), scores, position, ahead);
            }
        });
    }
}

/// Returns the indices of the KV blocks that hold a range of positions.
fn blocks_of(range: &Range<usize>, size: usize) -> Range<usize> {
    range.start / size..range.end.div_ceil(size)
}

/// Returns the position of a KV block's first token slot, and the token slots of the block that lie in the position
/// range `range`.
fn slots_of(range: &Range<usize>, size: usize, block: usize) -> (usize, Range<usize>) {
    let start = block * size;
    (start, range.start.max(start) - start..range.end.min(start + size) - start)
}

/// Computes the attention scores of `R` queries against `8 * V` keys of neighbouring positions. Component `i` of the
/// keys starts at `keys[i * size]`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tile_scores<E: Element, const R: usize, const V: usize>(
    keys: &[E],
    size: usize,
    (queries, scale): (&[&[f32]; R], f32),
    scores: &mut [Scores; R],
    position: usize,
    ahead: Ahead<E>,
) {
    let mut dots = [[_mm256_setzero_ps(); V]; R];
    for pair in (0..queries[0].len()).step_by(2) {
        for i in [pair, pair + 1] {
            // Prefetches once for each pair of components if the keys of one component take less than a cache line (64
            // bytes), otherwise once for each component. A cache line can be prefetched more than once: with 8-bit
            // elements and blocks of 16 slots, a line holds keys of four components.
            if i == pair || size * size_of::<E>() >= 64 {
                let at = i * size;
                _mm_prefetch::<_MM_HINT_T0>(ahead.keys.wrapping_add(at).cast());
                _mm_prefetch::<_MM_HINT_T1>(ahead.values.wrapping_add(at).cast());
            }
            // SAFETY: `span_scores` asserts that each head of a block has `size` keys for each component, and that
            // every query has `head_dim` components, a multiple of eight. `head_scores` passes the keys from a slot on
            // that is a multiple of `8 * V`, and `size` is a multiple of `8 * V` too. So the `8 * V` keys end at or
            // before the end of the component's `size` keys.
            let (keys, query) = unsafe {
                let keys: [__m256; V] =
                    std::array::from_fn(|v| load(keys.as_ptr().add(i * size + v * LANES)));
                (keys, |row: usize| queries[row].get_unchecked(i))
            };
            for (row, dots) in dots.iter_mut().enumerate() {
                let query = _mm256_broadcast_ss(query(row));
                for (dot, keys) in dots.iter_mut().zip(keys) {
                    *dot = _mm256_fmadd_ps(query, keys, *dot);
                }
            }
        }
    }
    let scale = _mm256_set1_ps(scale);
    for (scores, dots) in scores.iter_mut().zip(dots) {
        let scores = &mut scores[position..position + V * LANES];
        for (scores, dot) in scores.chunks_exact_mut(LANES).zip(dots) {
            // SAFETY: each chunk of the attention scores has eight floats, one vector.
            unsafe { _mm256_storeu_ps(scores.as_mut_ptr(), _mm256_mul_ps(dot, scale)) };
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn span_weigh<E: Element>(
    blocks: SpanBlocks<'_, E>,
    range: Range<usize>,
    weights: &[Scores],
    out: &mut [f32],
) {
    let (size, dim) = (blocks.block_size, blocks.head_dim);
    assert!(range.end <= SPAN && Avx2::fits(size, dim) && out.len() == weights.len() * dim);
    let group = weights.len() / blocks.kv_heads;
    for block in blocks_of(&range, size) {
        let values = blocks.values[block].chunks_exact(blocks.head_len());
        assert!(values.len() == blocks.kv_heads, "a block of values");
        let (start, slots) = slots_of(&range, size, block);
        for (head, values) in values.enumerate() {
            let rows = head * group..(head + 1) * group;
            head_weigh(
                &values[slots.start * dim..slots.end * dim],
                dim,
                (&weights[rows.clone()], start + slots.start..start + slots.end),
                &mut out[rows.start * dim..rows.end * dim],
            );
        }
    }
}

/// Adds the values of neighbouring positions, times their attention weights, to the output rows of one kv head.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn head_weigh<E: Element>(
    values: &[E],
    dim: usize,
    (weights, positions): (&[Scores], Range<usize>),
    out: &mut [f32],
) {
    row_tiles!(weights.len(), |first, ROWS| {
        let weights: [&[f32]; ROWS] =
            std::array::from_fn(|row| &weights[first + row][positions.clone()]);
        let out = &mut out[first * dim..(first + ROWS) * dim];
        let mut column = 0;
        while column + 2 * LANES <= dim {
            tile_weigh::<E, ROWS, 2>(values, weights, dim, column, out);
            column += 2 * LANES;
        }
        if column < dim {
            tile_weigh::<E, ROWS, 1>(values, weights, dim, column, out);
        }
    });
}

/// Adds the values of neighbouring positions, times their attention weights, to `R` output rows, for the `8 * V`
/// components that start at `column`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tile_weigh<E: Element, const R: usize, const V: usize>(
    values: &[E],
    weights: [&[f32]; R],
    dim: usize,
    column: usize,
    out: &mut [f32],
) {
    let slots = weights[0].len();
    assert!(out.len() == R * dim && column + V * LANES <= dim && values.len() == slots * dim);
    assert!(weights.iter().all(|weights| weights.len() == slots), "a weight for every value");
    let place = |row: usize, v: usize| row * dim + column + v * LANES;
    let mut sums = [[_mm256_setzero_ps(); V]; R];
    for (row, sums) in sums.iter_mut().enumerate() {
        for (v, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the function asserts the length of `out`, so the eight floats from each `place` are inside `out`.
            *sum = unsafe { _mm256_loadu_ps(out.as_ptr().add(place(row, v))) };
        }
    }
    for slot in 0..slots {
        // SAFETY: the function asserts that each row has `slots` weights, that there are `slots * dim` values, and that
        // the columns are inside a value.
        let (values, weight) = unsafe {
            let values: [__m256; V] =
                std::array::from_fn(|v| load(values.as_ptr().add(slot * dim + column + v * LANES)));
            (values, |row: usize| weights[row].get_unchecked(slot))
        };
        for (row, sums) in sums.iter_mut().enumerate() {
            let weight = _mm256_broadcast_ss(weight(row));
            for (sum, values) in sums.iter_mut().zip(values) {
                *sum = _mm256_fmadd_ps(weight, values, *sum);
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (v, sum) in sums.iter().enumerate() {
            // SAFETY: the function asserts the length of `out`, so the eight floats from each `place` are inside `out`.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(place(row, v)), *sum) };
        }
    }
}

/// Loads eight elements and converts them to f32.
///
/// # Safety
/// `from` must point to eight readable elements.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn load<E: Element>(from: *const E) -> __m256 {
    // SAFETY: the caller promises that `from` points to eight readable elements; an array has the alignment of its
    // elements.
    E::load(unsafe { &*from.cast::<[E; LANES]>() })
}
