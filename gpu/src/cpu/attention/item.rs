//! Computation of one work item of attention: some spans (runs of 256 positions) of one tile (query rows that are
//! computed together).

use super::Attention;
use super::kernel::{Kernel, Scores, SpanBlocks};
use super::partial::{RowSums, Softmax, merge};
use super::plan::{Item, SPAN, Tile, visible};
use super::scales;
use crate::cpu::element::Element;
use std::cell::RefCell;
use std::mem::take;
use std::ops::Range;

/// Scratch memory of one compute thread for attention, reused from work item to work item, because a step has thousands
/// of items.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) span: SpanScratch,
    pub(super) merged: Merged,
}

/// Scratch memory for computing attention over one span of positions. The vectors of references are empty between work
/// items: only their allocations are reused.
#[derive(Default)]
pub(super) struct SpanScratch {
    queries: Vec<&'static [f32]>,
    visible: Vec<Range<usize>>,
    ranges: Vec<Range<usize>>,
    scores: Vec<Scores>,
    sums: RowSums,
    places: Places<'static, u8>,
}

/// Keys and values of the KV blocks that hold a span (256 positions), each as a list with one slice per block.
type Places<'a, E> = (Vec<&'a [E]>, Vec<&'a [E]>);

/// Calls `work` with the attention scratch memory of the calling thread. Panics if `work` calls this function again.
pub(super) fn with_scratch(work: impl FnOnce(&mut Scratch)) {
    thread_local!(static SCRATCH: RefCell<Scratch> = RefCell::default());
    SCRATCH.with_borrow_mut(work);
}

/// Returns an empty list that reuses the allocation of `list`: collecting into elements of the same size keeps the
/// allocation.
fn emptied<'a, A, B>(mut list: Vec<&[A]>) -> Vec<&'a [B]> {
    list.clear();
    list.into_iter().map(|_| -> &'a [B] { &[] }).collect()
}

impl<'a> Attention<'a> {
    /// Computes attention for the spans (256 positions each) of the work item `item`, in order; `tile` has the item's
    /// query rows. Calls `each(span, row, softmax, values)` with the partial result of every row that attends to a
    /// position of the span.
    pub(super) fn spans<E: Element, K: Kernel<E>>(
        &'a self,
        kernel: K,
        (tile, item): (&Tile, &Item),
        scratch: &mut SpanScratch,
        mut each: impl FnMut(usize, usize, &Softmax, &[f32]),
    ) {
        let (rows, dim) = (tile.rows(), self.shape.head_dim);
        let SpanScratch { queries, visible: seen, ranges, scores, sums, places } = scratch;
        let mut tile_queries: Vec<&[f32]> = emptied(take(queries));
        let mut tile_places: Places<'_, E> =
            (emptied(take(&mut places.0)), emptied(take(&mut places.1)));
        seen.clear();
        for (token, head, position) in self.rows_of(tile) {
            tile_queries.push(&self.qkv.row(token)[head * dim..(head + 1) * dim]);
            seen.push(visible(self.shape, position));
        }
        if scores.len() < rows {
            scores.resize(rows, [0.0; SPAN]);
        }
        sums.resize(rows, dim);
        for span in item.spans.clone() {
            sums.values.fill(0.0);
            ranges.clear();
            ranges.extend(seen.iter().map(|visible| within(visible, span)));
            let all = hull(ranges);
            let blocks = self.blocks(tile, span, &all, &mut tile_places);
            self.span(kernel, blocks, (&tile_queries, ranges), &mut scores[..rows], sums);
            for (row, range) in ranges.iter().enumerate() {
                if !range.is_empty() {
                    let values = &sums.values[row * dim..(row + 1) * dim];
                    each(span, row, &sums.softmax[row], values);
                }
            }
        }
        *queries = emptied(tile_queries);
        *places = (emptied(tile_places.0), emptied(tile_places.1));
    }

    fn span<E: Element, K: Kernel<E>>(
        &self,
        kernel: K,
        blocks: SpanBlocks<'_, E>,
        (queries, ranges): (&[&[f32]], &[Range<usize>]),
        scores: &mut [Scores],
        sums: &mut RowSums,
    ) {
        let all = hull(ranges);
        kernel.scores(blocks, all.clone(), queries, self.shape.scale, scores);
        scales::apply(blocks, blocks.keys, (&all, ranges), scores);
        for (row, range) in ranges.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
            sums.softmax[row] = kernel.softmax(&mut scores[row], range.clone());
        }
        scales::apply(blocks, blocks.values, (&all, ranges), scores);
        weigh(kernel, blocks, ranges, scores, &mut sums.values);
    }

    /// Returns the keys and values of the KV blocks that hold a span, for the attention kernels. Only the positions
    /// `all` of the span are read, so blocks before them are empty slices, and blocks after them are left out.
    fn blocks<'b, E: Element>(
        &'a self,
        tile: &Tile,
        span: usize,
        all: &Range<usize>,
        places: &'b mut Places<'a, E>,
    ) -> SpanBlocks<'b, E> {
        let Attention { kv, layer, batch, .. } = *self;
        let (block_size, heads) = (kv.layout().block_size, tile.kv_heads.len());
        assert!(tile.kv_heads.end <= kv.layout().kv_heads, "heads of the layer");
        let first_block = span * SPAN / block_size;
        let skip = span * SPAN % block_size;
        let (keys, values) = places;
        keys.clear();
        values.clear();
        for index in 0..(all.end + skip).div_ceil(block_size) {
            if index < (all.start + skip) / block_size {
                keys.push(&[]);
                values.push(&[]);
                continue;
            }
            let block = batch[tile.seq].table[first_block + index];
            // SAFETY: `attention` chose `E` by the layout's element type. The function asserts that the layer has these
            // heads. The KV writes of the layer are done. By the sharing rule of `cpu::kv`, which the engine keeps, no
            // copy writes a block that the step names, so nothing writes the keys and values of the layer before the
            // step ends.
            unsafe {
                keys.push(kv.elements::<E>(kv.keys(block, layer, tile.kv_heads.start), heads));
                values.push(kv.elements::<E>(kv.values(block, layer, tile.kv_heads.start), heads));
            }
        }
        let head_dim = kv.layout().head_dim;
        SpanBlocks { keys, values, kv_heads: heads, block_size, head_dim, skip }
    }
}

/// Returns the smallest range that contains all non-empty `ranges`.
fn hull(ranges: &[Range<usize>]) -> Range<usize> {
    let seen = ranges.iter().filter(|range| !range.is_empty());
    let start = seen.clone().map(|range| range.start).min().unwrap_or(0);
    start..seen.map(|range| range.end).max().unwrap_or(start)
}

/// Returns the positions of a span that a query row attends to, counted from the start of the span.
fn within(visible: &Range<usize>, span: usize) -> Range<usize> {
    let clamp = |position: usize| position.saturating_sub(span * SPAN).min(SPAN);
    clamp(visible.start)..clamp(visible.end)
}

/// Adds the values of one span, times their attention weights, to the output rows. Positions that all rows attend to
/// are added for all rows together, other positions row by row; for every row, in order of position. A row never reads
/// a position that it does not attend to, so that a NaN there cannot reach the row. If a tile has several kv heads, all
/// its rows are of one token and attend to the same positions.
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
                debug_assert_eq!(blocks.kv_heads, 1, "rows of several kv heads that see the same");
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

/// Attention results of a tile's query rows, merged over the spans that are done so far, in order of position.
#[derive(Default)]
pub(super) struct Merged {
    pub(super) sums: RowSums,
    head_dim: usize,
    begun: Vec<bool>,
}

impl Merged {
    /// Discards all merged attention results and makes room for `rows` query rows.
    pub(super) fn clear(&mut self, rows: usize, head_dim: usize) {
        self.head_dim = head_dim;
        self.sums.resize(rows, head_dim);
        self.begun.clear();
        self.begun.resize(rows, false);
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
