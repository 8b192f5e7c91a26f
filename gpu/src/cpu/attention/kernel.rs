//! What attention needs from an instruction set.

use super::partial::Softmax;
use super::plan::SPAN;
use crate::cpu::element::Element;
use std::ops::Range;

/// Scores (then softmax numerators) of the rows of a tile over one span.
pub(super) type Scores = [f32; SPAN];

/// The blocks that hold a span, in order. Position `p` of the span is slot `(p + skip) % block_size` of
/// block `(p + skip) / block_size`; blocks outside the range that a tile sees are empty slices.
#[derive(Clone, Copy)]
pub(super) struct SpanBlocks<'a, E> {
    /// Of each block the keys of the tile's kv heads, one head after the other.
    pub(super) keys: &'a [&'a [E]],
    /// Likewise.
    pub(super) values: &'a [&'a [E]],
    pub(super) kv_heads: usize,
    pub(super) block_size: usize,
    pub(super) head_dim: usize,
    /// Positions of the first block that lie before the span: 0 unless blocks straddle spans.
    pub(super) skip: usize,
}

impl<E> SpanBlocks<'_, E> {
    /// Elements of one head of a block.
    pub(super) fn head_len(&self) -> usize {
        self.block_size * self.head_dim
    }
}

/// The three inner loops of attention. Each output element must be one chain of operations in a fixed
/// order, whatever other rows and positions are in the call. The rows of a call belong to its kv heads in
/// order, the same number to each.
pub(super) trait Kernel<E: Element>: Copy + Sync {
    /// `scores[row][p] = scale * queries[row] · key[p]` for at least the positions in `range` (whole
    /// blocks may be computed: what lies outside a row's own range is never read).
    fn scores(
        self,
        blocks: SpanBlocks<'_, E>,
        range: Range<usize>,
        queries: &[&[f32]],
        scale: f32,
        scores: &mut [Scores],
    );

    /// Softmax numerators of one row, in place.
    fn softmax(self, scores: &mut Scores, range: Range<usize>) -> Softmax;

    /// `out[row] += Σ weights[row][p] * value[p]` over `range` in order.
    fn weigh(
        self,
        blocks: SpanBlocks<'_, E>,
        range: Range<usize>,
        weights: &[Scores],
        out: &mut [f32],
    );
}
