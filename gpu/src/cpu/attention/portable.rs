//! Attention kernels in plain Rust, for any shape: the reference that the vector kernels are compared with.

use super::kernel::{Kernel, Scores, SpanBlocks};
use super::partial::Softmax;
use super::softmax::softmax;
use crate::cpu::element::Element;
use std::ops::Range;

#[derive(Debug, Clone, Copy)]
pub(super) struct Portable;

impl<E: Element> Kernel<E> for Portable {
    fn scores(
        self,
        blocks: SpanBlocks<'_, E>,
        range: Range<usize>,
        queries: &[&[f32]],
        scale: f32,
        scores: &mut [Scores],
    ) {
        let size = blocks.block_size;
        for position in range {
            let (block, slot) = ((position + blocks.skip) / size, (position + blocks.skip) % size);
            let group = queries.len() / blocks.kv_heads;
            for (row, (query, scores)) in queries.iter().zip(scores.iter_mut()).enumerate() {
                let keys = &blocks.keys[block][row / group * blocks.head_len()..];
                let key = keys.iter().skip(slot).step_by(size);
                let dot = query.iter().zip(key).fold(0.0, |dot, (q, k)| dot + q * k.widen());
                scores[position] = dot * scale;
            }
        }
    }

    fn softmax(self, scores: &mut Scores, range: Range<usize>) -> Softmax {
        softmax(scores, range)
    }

    fn weigh(
        self,
        blocks: SpanBlocks<'_, E>,
        range: Range<usize>,
        weights: &[Scores],
        out: &mut [f32],
    ) {
        let (size, dim) = (blocks.block_size, blocks.head_dim);
        for position in range {
            let (block, slot) = ((position + blocks.skip) / size, (position + blocks.skip) % size);
            let group = weights.len() / blocks.kv_heads;
            for (row, (weights, out)) in weights.iter().zip(out.chunks_exact_mut(dim)).enumerate() {
                let head = row / group * blocks.head_len();
                let value = &blocks.values[block][head + slot * dim..][..dim];
                let weight = weights[position];
                out.iter_mut().zip(value).for_each(|(out, v)| *out += weight * v.widen());
            }
        }
    }
}
