//! Plans that cut an attention call into work items. The cut decides which thread computes a result, but never changes
//! the result: items compute whole spans, and the partial results of spans are always merged in order of position.

use crate::{AttentionShape, SeqRows};
use std::ops::Range;

/// Number of positions in a span. The softmax of a row runs over one span of keys at a time. Spans start at multiples
/// of this number, so that the sums are the same in a decode step and however a prompt is cut.
pub(super) const SPAN: usize = 256;
/// Most query rows (tokens x query heads) of an attention tile. The rows of a tile share one pass over keys and values.
pub(super) const MAX_ROWS: usize = 24;
/// Most components (kv heads x head width) of an attention tile that has several kv heads. At this width, keys and
/// values of a span of 256 positions are 256 KiB in 16 bits, so the values are still in the L2 cache when they are read
/// after the scores are computed.
const MAX_COMPONENTS: usize = 256;
/// Number of work items per thread that an attention plan aims at. With several threads, a tile that is larger than its
/// share of the work is split by spans. Tiles may have several kv heads only if the batch has this many sequences per
/// thread, or there is one thread.
const ITEMS_PER_THREAD: usize = 4;

/// Tile of attention: query rows that are computed together. A tile is consecutive tokens of a sequence times
/// consecutive query heads of one kv head. For a single token, a tile may also have all query heads of several kv
/// heads, whose keys lie side by side in a block and are read together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tile {
    /// Index of the tile's sequence in the batch.
    pub(super) seq: usize,
    /// Rows of the batch tensors that hold the tile's tokens.
    pub(super) tokens: Range<usize>,
    pub(super) kv_heads: Range<usize>,
    /// Query heads of the attention tile. If the tile has several kv heads, these are all query heads of each of them.
    pub(super) heads: Range<usize>,
    /// Spans (256 positions each) that at least one query row of the tile attends to.
    pub(super) spans: Range<usize>,
    /// Index of the tile's first partial attention result, if the tile's spans are split over several work items.
    pub(super) partial: Option<usize>,
}

impl Tile {
    pub(super) fn rows(&self) -> usize {
        self.tokens.len() * self.heads.len()
    }
}

/// Work item of attention: some spans of a tile, computed by one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// Index of the tile in the plan's list of tiles.
    pub(super) tile: usize,
    pub(super) spans: Range<usize>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) tiles: Vec<Tile>,
    pub(super) items: Vec<Item>,
    /// Indices of the attention tiles whose spans are split over several work items.
    pub(super) split: Vec<usize>,
    /// Number of partial attention results (one query row over one span each) of all split tiles.
    pub(super) partial_rows: usize,
}

/// Most attention plans that are kept. The layers of a step differ at most in their sliding window, and the last layer
/// in its rows, so a step needs few plans.
const KEPT_MAX: usize = 4;

/// Attention plans that were made last. The layers of a step ask for the same few plans.
#[derive(Debug, Default)]
pub(super) struct Plans(Vec<Kept>);

#[derive(Debug)]
struct Kept {
    shape: AttentionShape,
    threads: usize,
    /// Rows in the batch tensors and first position of every sequence of the batch: all of the batch that an attention
    /// plan depends on.
    rows: Vec<(Range<usize>, u32)>,
    plan: Plan,
}

impl Plans {
    /// Returns the attention plan for a call: a kept plan with the same shape, threads and rows, or a new one.
    pub(super) fn get(
        &mut self,
        shape: &AttentionShape,
        batch: &[SeqRows],
        threads: usize,
    ) -> &Plan {
        let same = |kept: &Kept| {
            let mut pairs = kept.rows.iter().zip(batch);
            (&kept.shape, kept.threads, kept.rows.len()) == (shape, threads, batch.len())
                && pairs.all(|(kept, seq)| *kept == (seq.rows.clone(), seq.first_pos))
        };
        let Plans(kept) = self;
        let at = kept.iter().position(same).unwrap_or_else(|| {
            if kept.len() == KEPT_MAX {
                kept.remove(0);
            }
            let rows = batch.iter().map(|seq| (seq.rows.clone(), seq.first_pos)).collect();
            let plan = plan(shape, batch, threads);
            kept.push(Kept { shape: *shape, threads, rows, plan });
            kept.len() - 1
        });
        &kept[at].plan
    }
}

/// Returns the positions that a token at `position` attends to.
pub(super) fn visible(shape: &AttentionShape, position: usize) -> Range<usize> {
    let end = position + 1;
    let start = shape.sliding_window.map_or(0, |window| end.saturating_sub(window.max(1) as usize));
    start..end
}

fn plan(shape: &AttentionShape, batch: &[SeqRows], threads: usize) -> Plan {
    let mut plan = Plan::default();
    let enough = threads == 1 || batch.len() >= threads * ITEMS_PER_THREAD;
    let together = if enough { kv_heads_together(shape) } else { 1 };
    for (seq, rows) in batch.iter().enumerate() {
        for tokens in pieces(rows.rows.clone(), (MAX_ROWS / group(shape)).max(1)) {
            let position = |row: usize| rows.first_pos as usize + row - rows.rows.start;
            let first = visible(shape, position(tokens.start)).start / SPAN;
            let last = position(tokens.end - 1) / SPAN;
            let together = if tokens.len() == 1 { together } else { 1 };
            for kv_heads in pieces(0..shape.kv_heads, together) {
                let heads = kv_heads.start * group(shape)..kv_heads.end * group(shape);
                plan.tiles.extend(pieces(heads, MAX_ROWS).map(|heads| Tile {
                    seq,
                    tokens: tokens.clone(),
                    kv_heads: kv_heads.clone(),
                    heads,
                    spans: first..last + 1,
                    partial: None,
                }));
            }
        }
    }
    plan.split(threads);
    plan
}

impl Plan {
    /// Makes the work items of all attention tiles. With several threads, splits a tile by spans if it costs more than
    /// an item's fair share of the work.
    fn split(&mut self, threads: usize) {
        // Cost of an attention tile in units of one query row over one span: reading the keys and values of one kv head
        // in a span costs about as much as the arithmetic of two query rows.
        let cost = |tile: &Tile| (tile.rows() + 2 * tile.kv_heads.len()) * tile.spans.len();
        let total: usize = self.tiles.iter().map(cost).sum();
        let share =
            if threads == 1 { usize::MAX } else { total / (threads * ITEMS_PER_THREAD) + 1 };
        for (index, tile) in self.tiles.iter_mut().enumerate() {
            let parts = cost(tile).div_ceil(share).min(tile.spans.len());
            if parts > 1 {
                tile.partial = Some(self.partial_rows);
                self.split.push(index);
                self.partial_rows += tile.rows() * tile.spans.len();
            }
            let length = tile.spans.len().div_ceil(parts.max(1));
            let spans = pieces(tile.spans.clone(), length);
            self.items.extend(spans.map(|spans| Item { tile: index, spans }));
        }
    }
}

/// Returns the number of query heads per kv head.
fn group(shape: &AttentionShape) -> usize {
    shape.heads / shape.kv_heads
}

/// Returns the number of kv heads that an attention tile of a single token may cover.
fn kv_heads_together(shape: &AttentionShape) -> usize {
    (MAX_ROWS / group(shape)).min(MAX_COMPONENTS / shape.head_dim).max(1)
}

/// Cuts a range into consecutive pieces of `length` each; the last piece may be shorter.
fn pieces(range: Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(length).map(move |start| start..end.min(start + length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn shape(heads: usize, kv_heads: usize, sliding_window: Option<u32>) -> AttentionShape {
        AttentionShape { heads, kv_heads, head_dim: 64, scale: 0.125, sliding_window }
    }

    fn seq(rows: Range<usize>, first_pos: u32) -> SeqRows {
        SeqRows { rows, first_pos, table: Arc::from([]) }
    }

    #[test]
    fn every_row_head_and_span_is_in_exactly_one_item() {
        let batch = [seq(0..1, 5000), seq(1..60, 0), seq(60..61, 10), seq(61..100, 700)];
        for (shape, threads) in [
            (shape(9, 3, None), 1),
            (shape(8, 1, Some(300)), 2),
            (shape(60, 2, None), 8),
            (shape(64, 32, None), 1),
        ] {
            let plan = plan(&shape, &batch, threads);
            let mut seen = std::collections::BTreeSet::new();
            for item in &plan.items {
                let tile = &plan.tiles[item.tile];
                assert!(tile.rows() <= MAX_ROWS);
                assert!(tile.tokens.len() == 1 || tile.kv_heads.len() == 1);
                if tile.kv_heads.len() > 1 {
                    assert_eq!(tile.heads.len(), tile.kv_heads.len() * group(&shape));
                }
                for row in tile.tokens.clone() {
                    for head in tile.heads.clone() {
                        assert!(tile.kv_heads.contains(&(head / group(&shape))));
                        for span in item.spans.clone() {
                            assert!(seen.insert((row, head, span)), "computed twice");
                        }
                    }
                }
            }
            for seq in &batch {
                for row in seq.rows.clone() {
                    let position = seq.first_pos as usize + row - seq.rows.start;
                    for span in visible(&shape, position).start / SPAN..=position / SPAN {
                        for head in 0..shape.heads {
                            assert!(seen.contains(&(row, head, span)), "{row} {head} {span}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_plan_is_made_once_for_the_layers_of_a_step() {
        let mut plans = Plans::default();
        let (all, window) = (shape(9, 3, None), shape(9, 3, Some(300)));
        for step in 0..10 {
            let batch = [seq(0..1, 600 + step), seq(1..30, 0)];
            let sampled = [seq(0..1, 600 + step), seq(29..30, 28)];
            let first: Vec<*const Tile> =
                [&all, &window].map(|shape| plans.get(shape, &batch, 2).tiles.as_ptr()).into();
            for shape in [&all, &window] {
                assert_eq!(*plans.get(shape, &batch, 2), plan(shape, &batch, 2));
                assert!(first.contains(&plans.get(shape, &batch, 2).tiles.as_ptr()));
            }
            assert_eq!(*plans.get(&all, &sampled, 2), plan(&all, &sampled, 2));
            assert_eq!(*plans.get(&all, &batch, 1), plan(&all, &batch, 1));
            assert!(plans.0.len() <= KEPT_MAX);
        }
    }

    #[test]
    fn one_long_sequence_is_spread_and_many_short_ones_are_not_split() {
        let long = plan(&shape(9, 3, None), &[seq(0..1, 8000)], 4);
        assert!(long.items.len() >= 16, "{} items", long.items.len());
        assert_eq!(long.partial_rows, 3 * 3 * 32);
        let short: Vec<SeqRows> = (0..32).map(|row| seq(row..row + 1, 300)).collect();
        let short = plan(&shape(9, 3, None), &short, 2);
        assert_eq!((short.items.len(), short.partial_rows), (32, 0));
        let few = plan(&shape(9, 3, None), &[seq(0..1, 300), seq(1..2, 300)], 2);
        assert_eq!(few.tiles.len(), 6, "enough for both threads");
    }
}
