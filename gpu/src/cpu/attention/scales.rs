//! Scales of keys and values, for element types that have them. The kernels multiply queries and attention weights with
//! the stored elements; a key's scale is then applied to the key's scores, and a value's scale to the value's weights.

use super::kernel::{Scores, SpanBlocks};
use super::plan::SPAN;
use crate::cpu::element::Element;
use std::ops::Range;

/// Multiplies the numbers of each row of a tile (scores, or attention weights) by the scales of the positions in the
/// row's range: `numbers[row][p] *= scale[p]`. `of_blocks` holds the keys or the values of each block of the span, and
/// `all` contains the ranges of all rows. Does nothing for element types without scales.
pub(super) fn apply<E: Element>(
    blocks: SpanBlocks<'_, E>,
    of_blocks: &[&[E]],
    (all, ranges): (&Range<usize>, &[Range<usize>]),
    numbers: &mut [Scores],
) {
    if E::SCALE_LEN == 0 {
        return;
    }
    let group = ranges.len() / blocks.kv_heads;
    let mut scales = [0.0; SPAN];
    for head in 0..blocks.kv_heads {
        collect(blocks, of_blocks, head, all, &mut scales);
        let rows = head * group..(head + 1) * group;
        for (numbers, range) in numbers[rows.clone()].iter_mut().zip(&ranges[rows]) {
            let scales = &scales[range.clone()];
            numbers[range.clone()].iter_mut().zip(scales).for_each(|(number, scale)| {
                *number *= scale;
            });
        }
    }
}

/// Copies the scales of one kv head at the positions `all` of a span to `scales`.
fn collect<E: Element>(
    blocks: SpanBlocks<'_, E>,
    of_blocks: &[&[E]],
    head: usize,
    all: &Range<usize>,
    scales: &mut Scores,
) {
    let SpanBlocks { block_size, head_dim, skip, .. } = blocks;
    let mut position = all.start;
    while position < all.end {
        let (block, slot) = ((position + skip) / block_size, (position + skip) % block_size);
        let end = all.end.min(position + block_size - slot);
        let from = head * blocks.head_len() + block_size * head_dim + slot * E::SCALE_LEN;
        E::scales(&of_blocks[block][from..], &mut scales[position..end]);
        position = end;
    }
}
