//! Interface of the CPU's attention kernels, implemented once for each instruction set.

use super::partial::Softmax;
use super::plan::SPAN;
use crate::cpu::element::Element;
use std::ops::Range;

/// Attention scores of one query row over the positions of one span. The softmax replaces each score by its numerator
/// `exp(score - max)`.
pub(super) type Scores = [f32; SPAN];

/// KV blocks that hold a span of 256 positions, in order. Position `p` of the span is in token slot
/// `(p + skip) % block_size` of block `(p + skip) / block_size`. Blocks before the positions that the tile attends to
/// are empty slices; blocks after them are left out.
#[derive(Clone, Copy)]
pub(super) struct SpanBlocks<'a, E> {
    /// Keys of the tile's kv heads, one slice for each KV block of the span; in a slice one head after the other.
    pub(super) keys: &'a [&'a [E]],
    /// Values of the tile's kv heads, one slice for each KV block of the span; in a slice one head after the other.
    pub(super) values: &'a [&'a [E]],
    pub(super) kv_heads: usize,
    pub(super) block_size: usize,
    pub(super) head_dim: usize,
    /// Number of positions of the first KV block that lie before the span; 0 unless blocks straddle spans.
    pub(super) skip: usize,
}

impl<E: Element> SpanBlocks<'_, E> {
    /// Returns the number of elements that the keys (or the values) of one head take in a KV block, with the scales
    /// that follow them.
    pub(super) fn head_len(&self) -> usize {
        self.block_size * (self.head_dim + E::SCALE_LEN)
    }
}

/// The three inner loops of attention (scores, softmax, weighted sum of values), for one instruction set. Each output
/// element must be one chain of operations in a fixed order, whatever other rows and positions are in the call. The
/// query rows of a call belong to the kv heads of the blocks, in order and the same number to each head.
pub(super) trait Kernel<E: Element>: Copy + Sync {
    /// Computes attention scores: `scores[row][p] = scale * queries[row] · key[p]` for at least the positions `p` in
    /// `range`, with keys as stored (the scales of a type with scales are not applied). An implementation may compute
    /// whole blocks, because scores outside a row's own range are never read.
    fn scores(
        self,
        blocks: SpanBlocks<'_, E>,
        range: Range<usize>,
        queries: &[&[f32]],
        scale: f32,
        scores: &mut [Scores],
    );

    /// Replaces the attention scores of one row in `range` by their softmax numerators `exp(score - max)`. Returns the
    /// maximum of the scores and the sum of the numerators.
    fn softmax(self, scores: &mut Scores, range: Range<usize>) -> Softmax;

    /// Adds values times attention weights to the output rows: `out[row] += Σ weights[row][p] * value[p]` for the
    /// positions `p` in `range`, in order, with values as stored (the weights include the scales of a type with
    /// scales).
    fn weigh(
        self,
        blocks: SpanBlocks<'_, E>,
        range: Range<usize>,
        weights: &[Scores],
        out: &mut [f32],
    );
}
