//! Interface of the attention kernels, which each instruction set implements.

use super::partial::Softmax;
use super::plan::SPAN;
use crate::cpu::element::Element;
use std::ops::Range;

/// Scores of one query row over one span, by position. The softmax replaces the scores by its numerators.
pub(super) type Scores = [f32; SPAN];

/// KV blocks that hold a span, in order. Position `p` of the span is slot `(p + skip) % block_size` of block
/// `(p + skip) / block_size`. Blocks before the positions that the tile sees are empty slices; blocks after them are
/// left out.
#[derive(Clone, Copy)]
pub(super) struct SpanBlocks<'a, E> {
    /// For each block, the keys of the tile's kv heads, one head after the other.
    pub(super) keys: &'a [&'a [E]],
    /// For each block, the values of the tile's kv heads, one head after the other.
    pub(super) values: &'a [&'a [E]],
    pub(super) kv_heads: usize,
    pub(super) block_size: usize,
    pub(super) head_dim: usize,
    /// Number of positions of the first block that lie before the span; 0 unless blocks straddle spans.
    pub(super) skip: usize,
}

impl<E> SpanBlocks<'_, E> {
    /// Returns the number of key elements (or value elements) of one head in a block.
    pub(super) fn head_len(&self) -> usize {
        self.block_size * self.head_dim
    }
}

/// The three inner loops of attention, for one instruction set. Each output element must be one chain of operations in
/// a fixed order, whatever other rows and positions are in the call. The rows of a call belong to the kv heads of the
/// blocks, in order and the same number to each head.
pub(super) trait Kernel<E: Element>: Copy + Sync {
    /// Computes `scores[row][p] = scale * queries[row] · key[p]` for at least the positions in `range`. An
    /// implementation may compute whole blocks, because scores outside a row's own range are never read.
    fn scores(
        self,
        blocks: SpanBlocks<'_, E>,
        range: Range<usize>,
        queries: &[&[f32]],
        scale: f32,
        scores: &mut [Scores],
    );

    /// Replaces the scores of one row in `range` by their softmax numerators. Returns the maximum and the sum.
    fn softmax(self, scores: &mut Scores, range: Range<usize>) -> Softmax;

    /// Adds weighted values to the output rows: `out[row] += Σ weights[row][p] * value[p]` for `p` in `range`, in
    /// order.
    fn weigh(
        self,
        blocks: SpanBlocks<'_, E>,
        range: Range<usize>,
        weights: &[Scores],
        out: &mut [f32],
    );
}
