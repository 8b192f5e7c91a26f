//! One work item: some spans of one tile.

use super::Attention;
use super::kernel::{Kernel, Scores, SpanBlocks};
use super::partial::{RowSums, Softmax, merge};
use super::plan::{Item, SPAN, Tile, visible};
use crate::cpu::element::Element;
use std::ops::Range;

/// A tile with what its rows read.
pub(super) struct TileRows<'a> {
    call: &'a Attention<'a>,
    tile: &'a Tile,
    queries: Vec<&'a [f32]>,
    /// Positions each row sees.
    visible: Vec<Range<usize>>,
}

impl<'a> TileRows<'a> {
    pub(super) fn new(call: &'a Attention<'a>, tile: &'a Tile) -> TileRows<'a> {
        let dim = call.shape.head_dim;
        let mut queries = Vec::with_capacity(tile.rows());
        let mut ranges = Vec::with_capacity(tile.rows());
        for (token, head, position) in call.rows_of(tile) {
            queries.push(&call.qkv.row(token)[head * dim..(head + 1) * dim]);
            ranges.push(visible(call.shape, position));
        }
        TileRows { call, tile, queries, visible: ranges }
    }

    /// Computes the spans of `item` in order and calls `each(span, row, softmax, values)` for every row
    /// that sees something of a span.
    pub(super) fn run<E: Element, K: Kernel<E>>(
        &self,
        kernel: K,
        item: &Item,
        mut each: impl FnMut(usize, usize, &Softmax, &[f32]),
    ) {
        let (rows, dim) = (self.queries.len(), self.call.shape.head_dim);
        let mut scores: Vec<Scores> = vec![[0.0; SPAN]; rows];
        let mut sums = RowSums::new(rows, dim);
        for span in item.spans.clone() {
            sums.values.fill(0.0);
            let ranges: Vec<Range<usize>> =
                self.visible.iter().map(|visible| within(visible, span)).collect();
            self.span(kernel, span, &ranges, &mut scores, &mut sums);
            for (row, range) in ranges.iter().enumerate() {
                if !range.is_empty() {
                    let values = &sums.values[row * dim..(row + 1) * dim];
                    each(span, row, &sums.softmax[row], values);
                }
            }
        }
    }

    fn span<E: Element, K: Kernel<E>>(
        &self,
        kernel: K,
        span: usize,
        ranges: &[Range<usize>],
        scores: &mut [Scores],
        sums: &mut RowSums,
    ) {
        let seen = ranges.iter().filter(|range| !range.is_empty());
        let start = seen.clone().map(|range| range.start).min().unwrap_or(0);
        let all = start..seen.map(|range| range.end).max().unwrap_or(start);
        let mut places = (Vec::new(), Vec::new());
        let blocks = self.blocks::<E>(span, &all, &mut places);
        kernel.scores(blocks, all, &self.queries, self.call.shape.scale, scores);
        for (row, range) in ranges.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
            sums.softmax[row] = kernel.softmax(&mut scores[row], range.clone());
        }
        weigh(kernel, blocks, ranges, scores, &mut sums.values);
    }

    /// The blocks of a span, of which `all` is read.
    fn blocks<'b, E: Element>(
        &self,
        span: usize,
        all: &Range<usize>,
        places: &'b mut (Vec<&'a [E]>, Vec<&'a [E]>),
    ) -> SpanBlocks<'b, E> {
        let Attention { kv, layer, batch, .. } = *self.call;
        let (block_size, head) = (kv.layout().block_size, self.tile.kv_head);
        let first_block = span * SPAN / block_size;
        let skip = span * SPAN % block_size;
        let (keys, values) = places;
        for index in 0..(all.end + skip).div_ceil(block_size) {
            if index < (all.start + skip) / block_size {
                keys.push(&[]);
                values.push(&[]);
                continue;
            }
            let block = batch[self.tile.seq].table[first_block + index];
            // SAFETY: `attention` chose `E` by the layout's type; the KV writes of this layer are done,
            // and the step names these blocks, so nothing writes them before it ends.
            unsafe {
                keys.push(kv.elements::<E>(kv.keys(block, layer, head)));
                values.push(kv.elements::<E>(kv.values(block, layer, head)));
            }
        }
        SpanBlocks { keys, values, block_size, head_dim: kv.layout().head_dim, skip }
    }
}

/// The part of a span (counted from its start) that a row sees.
fn within(visible: &Range<usize>, span: usize) -> Range<usize> {
    let clamp = |position: usize| position.saturating_sub(span * SPAN).min(SPAN);
    clamp(visible.start)..clamp(visible.end)
}

/// Weighs the positions that all rows see together, and the rest row by row, each in order. A row never
/// touches a position it does not see: a fault there must not reach it.
fn weigh<E: Element, K: Kernel<E>>(
    kernel: K,
    blocks: SpanBlocks<'_, E>,
    ranges: &[Range<usize>],
    weights: &[Scores],
    out: &mut [f32],
) {
    let start = ranges.iter().map(|range| range.start).max().unwrap_or(0);
    let end = ranges.iter().map(|range| range.end).min().unwrap_or(0).max(start);
    let dim = blocks.head_dim;
    let alone = |limits: &dyn Fn(&Range<usize>) -> Range<usize>, out: &mut [f32]| {
        for (row, range) in ranges.iter().enumerate() {
            let out = &mut out[row * dim..(row + 1) * dim];
            let range = limits(range);
            if !range.is_empty() {
                kernel.weigh(blocks, range, &weights[row..=row], out);
            }
        }
    };
    alone(&|range| range.start..range.end.min(start), out);
    if start < end {
        kernel.weigh(blocks, start..end, weights, out);
    }
    alone(&|range| range.start.max(end)..range.end, out);
}

/// Collects the spans of rows, in order.
pub(super) struct Merged {
    pub(super) sums: RowSums,
    head_dim: usize,
    begun: Vec<bool>,
}

impl Merged {
    pub(super) fn new(rows: usize, head_dim: usize) -> Merged {
        Merged { sums: RowSums::new(rows, head_dim), head_dim, begun: vec![false; rows] }
    }

    pub(super) fn add(&mut self, row: usize, softmax: &Softmax, values: &[f32]) {
        let into = &mut self.sums.values[row * self.head_dim..(row + 1) * self.head_dim];
        if self.begun[row] {
            merge((&mut self.sums.softmax[row], into), (softmax, values));
        } else {
            self.begun[row] = true;
            self.sums.softmax[row] = *softmax;
            into.copy_from_slice(values);
        }
    }
}
