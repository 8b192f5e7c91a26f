//! Scales of keys and values, for element types that have them. The kernels multiply queries and attention weights with
//! the stored elements; a key's scale is then applied to the key's scores, and a value's scale to the value's weights.

use super::kernel::{Scores, SpanBlocks};
use crate::cpu::element::Element;
use std::ops::Range;

/// Multiplies the scores of one query row by the scales of the keys, at the positions `range` of the span. `head` is
/// the row's kv head among those of `blocks`.
pub(super) fn scale_scores<E: Element>(
    blocks: SpanBlocks<'_, E>,
    head: usize,
    range: Range<usize>,
    scores: &mut Scores,
) {
    multiply(blocks, blocks.keys, head, range, scores);
}

/// Multiplies the attention weights of one query row by the scales of the values, at the positions `range` of the span.
/// `head` is the row's kv head among those of `blocks`.
pub(super) fn scale_weights<E: Element>(
    blocks: SpanBlocks<'_, E>,
    head: usize,
    range: Range<usize>,
    weights: &mut Scores,
) {
    multiply(blocks, blocks.values, head, range, weights);
}

/// Multiplies `numbers[p]` by the scale of position `p`, for the positions `p` in `range`. `of_blocks` holds the keys or
/// the values of each block.
fn multiply<E: Element>(
    blocks: SpanBlocks<'_, E>,
    of_blocks: &[&[E]],
    head: usize,
    range: Range<usize>,
    numbers: &mut Scores,
) {
    let SpanBlocks { block_size, head_dim, skip, .. } = blocks;
    if E::SCALE_LEN == 0 || range.is_empty() {
        return;
    }
    let mut position = range.start;
    while position < range.end {
        let (block, slot) = ((position + skip) / block_size, (position + skip) % block_size);
        let end = range.end.min(position + block_size - slot);
        let scales = &of_blocks[block][head * blocks.head_len() + block_size * head_dim..];
        E::multiply(&mut numbers[position..end], &scales[slot * E::SCALE_LEN..]);
        position = end;
    }
}
