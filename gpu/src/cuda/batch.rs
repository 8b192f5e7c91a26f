//! Description of a batch (positions, block tables, attention work) for GPU kernels, as 32-bit words in device memory
//! that are uploaded once per step.

use super::driver::KernelShape;
use super::shapes::TILE;
use crate::SeqRows;
use std::cmp::Reverse;
use std::ops::Range;

/// Most spans, over all rows, that one launch of the kernel `attention_rows` computes and combines. The buffer of
/// partial results has room for this many.
pub(super) const SPANS_MAX: usize = 4096;

/// Row number that marks a span as padding. In steps that may be replayed as CUDA graphs, the number of spans is
/// rounded up with such padding.
const NO_ROW: u32 = u32::MAX;

/// Parameters by which the attention of a batch on a GPU is divided into spans and tiles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub(super) shape: KernelShape,
    pub(super) block_size: usize,
    /// Length of an attention span, positions.
    pub(super) span: usize,
    /// Sliding window of the attention, positions; 0 if a row attends to all positions up to its own.
    pub(super) window: usize,
    /// Whether the attention of every row is computed by spans, none by tiles, so that a row's result does not depend
    /// on other rows.
    pub(super) exact: bool,
    /// Whether the numbers of spans and of block-table entries are padded to powers of two, so that steps of similar
    /// size have the same layout and can replay the same CUDA graph.
    pub(super) filled: bool,
}

/// Rows whose attention one launch computes by spans. `spans` is the number of spans (with padding); all other fields
/// are indices of lists in the uploaded description of the batch: for each span its row, its number in the row, the
/// index of the row's first span, and the number of the row's spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SpanGroup {
    pub(super) span_rows: usize,
    pub(super) span_numbers: usize,
    pub(super) span_firsts: usize,
    pub(super) span_counts: usize,
    pub(super) spans: usize,
}

/// Attention tiles of the sequences that have several rows in the step (prefill chunks). `tiles` is the number of
/// tiles; all other fields are indices of lists in the uploaded description of the batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tiles {
    pub(super) sequences: usize,
    pub(super) tile_sequences: usize,
    pub(super) tile_numbers: usize,
    pub(super) tiles: usize,
}

/// Description of a batch as 32-bit words to upload, and the index in `words` at which each list of the description
/// starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) words: Vec<u32>,
    /// Index in the uploaded description of the list of positions: for each row, its position in its sequence.
    pub(super) positions: usize,
    /// Index in the uploaded description of the list of KV locations: for each row,
    /// `block * block_size + offset in the block`.
    pub(super) places: usize,
    /// Index in the uploaded description of the list of table starts: for each row, the offset of its block table in
    /// the list `tables`.
    pub(super) table_starts: usize,
    pub(super) tables: usize,
    pub(super) groups: Vec<SpanGroup>,
    pub(super) tiles: Option<Tiles>,
}

/// Description of a batch under construction, as a list of 32-bit words.
#[derive(Default)]
struct Words(Vec<u32>);

impl Words {
    fn put(&mut self, words: impl IntoIterator<Item = usize>) -> usize {
        let at = self.0.len();
        self.0
            .extend(words.into_iter().map(|word| u32::try_from(word).expect("counts fit 32 bits")));
        at
    }
}

/// Builds the description of a batch of `rows` rows, as 32-bit words that are then uploaded. A row need not belong to a
/// sequence.
pub(super) fn lay_out(seqs: &[SeqRows], rows: usize, cut: Cut) -> Layout {
    let (mut positions, mut places, mut table_starts) =
        (vec![0; rows], vec![0; rows], vec![0; rows]);
    let mut tables = Vec::new();
    let mut starts = Vec::with_capacity(seqs.len());
    for seq in seqs {
        starts.push(tables.len());
        for row in seq.rows.clone() {
            let position = seq.first_pos as usize + row - seq.rows.start;
            positions[row] = position;
            let block = seq.table[position / cut.block_size].0 as usize;
            places[row] = block * cut.block_size + position % cut.block_size;
            table_starts[row] = tables.len();
        }
        tables.extend(seq.table.iter().map(|block| block.0 as usize));
    }
    let mut words = Words::default();
    let single = |seq: &&SeqRows| cut.exact || seq.rows.len() == 1;
    let rows_alone = seqs.iter().filter(single).flat_map(|seq| seq.rows.clone());
    let groups = span_groups(rows_alone, &positions, cut, &mut words);
    let tiles = tiles(seqs, &starts, cut, &mut words);
    if cut.filled {
        tables.resize(tables.len().next_power_of_two(), 0);
    }
    Layout {
        positions: words.put(positions),
        places: words.put(places),
        table_starts: words.put(table_starts),
        // Puts the block tables last, so that their length does not move any other list of the batch description.
        tables: words.put(tables),
        groups,
        tiles,
        words: words.0,
    }
}

/// Returns the numbers of the attention spans that a row at `position` attends to.
fn spans_of(position: usize, cut: Cut) -> Range<usize> {
    let first_seen = if cut.window == 0 { 0 } else { (position + 1).saturating_sub(cut.window) };
    first_seen / cut.span..position / cut.span + 1
}

fn span_groups(
    rows: impl Iterator<Item = usize>,
    positions: &[usize],
    cut: Cut,
    words: &mut Words,
) -> Vec<SpanGroup> {
    let mut groups = Vec::new();
    let mut group: Vec<(usize, Range<usize>)> = Vec::new();
    let mut held = 0;
    for row in rows {
        let spans = spans_of(positions[row], cut);
        if held + spans.len() > SPANS_MAX && !group.is_empty() {
            groups.push(span_group(&group, cut, words));
            group.clear();
            held = 0;
        }
        held += spans.len();
        group.push((row, spans));
    }
    if !group.is_empty() {
        groups.push(span_group(&group, cut, words));
    }
    groups
}

fn span_group(rows: &[(usize, Range<usize>)], cut: Cut, words: &mut Words) -> SpanGroup {
    let mut spans = Vec::new();
    for (row, numbers) in rows {
        let first = spans.len();
        spans.extend(numbers.clone().map(|number| (*row, number, first, numbers.len())));
    }
    let filled = if cut.filled { spans.len().next_power_of_two() } else { spans.len() };
    spans.resize(filled, (NO_ROW as usize, 0, 0, 0));
    SpanGroup {
        span_rows: words.put(spans.iter().map(|span| span.0)),
        span_numbers: words.put(spans.iter().map(|span| span.1)),
        span_firsts: words.put(spans.iter().map(|span| span.2)),
        span_counts: words.put(spans.iter().map(|span| span.3)),
        spans: filled,
    }
}

fn tiles(seqs: &[SeqRows], starts: &[usize], cut: Cut, words: &mut Words) -> Option<Tiles> {
    let several = |(seq, _): &(&SeqRows, &usize)| !cut.exact && seq.rows.len() > 1;
    let seqs: Vec<_> = seqs.iter().zip(starts).filter(several).collect();
    let queries = cut.shape.queries;
    let mut tiles: Vec<(usize, usize)> = seqs
        .iter()
        .enumerate()
        .flat_map(|(number, (seq, _))| {
            let tiles = (seq.rows.len() * queries).div_ceil(TILE);
            (0..tiles).map(move |tile| (number, tile))
        })
        .collect();
    // Starts the tiles first that end at the latest positions, because they attend to most keys and take longest.
    tiles.sort_by_key(|(number, tile)| {
        let seq = seqs[*number].0;
        let rows = ((tile + 1) * TILE).div_ceil(queries).min(seq.rows.len());
        Reverse(seq.first_pos as usize + rows)
    });
    (!tiles.is_empty()).then(|| Tiles {
        sequences: words.put(seqs.iter().flat_map(|(seq, start)| {
            [seq.rows.start, seq.rows.len(), seq.first_pos as usize, **start]
        })),
        tile_sequences: words.put(tiles.iter().map(|(seq, _)| *seq)),
        tile_numbers: words.put(tiles.iter().map(|(_, tile)| *tile)),
        tiles: tiles.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_device::BlockId;

    const CUT: Cut = Cut {
        shape: KernelShape { head_dim: 64, queries: 3, q8: false },
        block_size: 16,
        span: 32,
        window: 0,
        exact: false,
        filled: false,
    };

    fn seq(rows: Range<usize>, first_pos: u32, table: &[u32]) -> SeqRows {
        SeqRows { rows, first_pos, table: table.iter().copied().map(BlockId).collect() }
    }

    fn words(layout: &Layout, at: usize, len: usize) -> &[u32] {
        &layout.words[at..at + len]
    }

    #[test]
    fn every_row_knows_its_position_its_place_and_its_table() {
        let layout = lay_out(&[seq(0..1, 17, &[7, 3]), seq(1..3, 15, &[5, 9])], 3, CUT);
        assert_eq!(words(&layout, layout.positions, 3), [17, 15, 16]);
        assert_eq!(words(&layout, layout.places, 3), [3 * 16 + 1, 5 * 16 + 15, 9 * 16]);
        assert_eq!(words(&layout, layout.table_starts, 3), [0, 2, 2]);
        assert_eq!(words(&layout, layout.tables, 4), [7, 3, 5, 9]);
    }

    #[test]
    fn single_rows_go_by_spans_and_several_by_tiles() {
        let table: Vec<u32> = (0..10).collect();
        let seqs = [seq(0..1, 70, &table), seq(1..51, 0, &table), seq(51..52, 31, &table)];
        let layout = lay_out(&seqs, 52, CUT);
        let [group] = &layout.groups[..] else { panic!("one group: {:?}", layout.groups) };
        assert_eq!(words(&layout, group.span_rows, group.spans), [0, 0, 0, 51]);
        assert_eq!(words(&layout, group.span_numbers, group.spans), [0, 1, 2, 0]);
        assert_eq!(words(&layout, group.span_firsts, group.spans), [0, 0, 0, 3]);
        assert_eq!(words(&layout, group.span_counts, group.spans), [3, 3, 3, 1]);
        let tiles = layout.tiles.as_ref().expect("50 rows of 3 query heads");
        assert_eq!(words(&layout, tiles.sequences, 4), [1, 50, 0, 10]);
        assert_eq!(words(&layout, tiles.tile_numbers, tiles.tiles), [1, 0]);
        let exact = lay_out(&seqs, 52, Cut { exact: true, ..CUT });
        assert_eq!((exact.tiles, exact.groups[0].spans), (None, 3 + 32 + 18 * 2 + 1));
    }

    #[test]
    fn tiles_that_end_late_start_first() {
        let table: Vec<u32> = (0..20).collect();
        let seqs = [seq(0..50, 0, &table), seq(50..60, 250, &table), seq(60..150, 20, &table)];
        let tiles = lay_out(&seqs, 150, CUT);
        let list = tiles.tiles.as_ref().expect("tiles of three sequences");
        assert_eq!(words(&tiles, list.tile_sequences, list.tiles), [1, 2, 2, 2, 0, 0]);
        assert_eq!(words(&tiles, list.tile_numbers, list.tiles), [0, 2, 1, 0, 1, 0]);
    }

    #[test]
    fn spans_before_the_window_are_left_out() {
        let windowed = Cut { window: 32, ..CUT };
        assert_eq!(spans_of(95, windowed), 2..3);
        assert_eq!(spans_of(96, windowed), 2..4);
        assert_eq!(spans_of(5, windowed), 0..1);
    }

    #[test]
    fn steps_that_differ_little_have_one_layout_if_they_are_filled_up() {
        let table: Vec<u32> = (0..10).collect();
        let filled = |first, second| {
            let seqs = [seq(0..1, first, &table[..6]), seq(1..2, second, &table)];
            lay_out(&seqs, 2, Cut { filled: true, ..CUT })
        };
        let (one, other) = (filled(70, 31), filled(70, 159));
        assert_eq!((one.groups[0].spans, one.words.len()), (4, other.words.len() - 16));
        assert_eq!(words(&one, one.groups[0].span_rows, 4), [0, 0, 0, 1]);
        let three = filled(40, 31);
        assert_eq!(words(&three, three.groups[0].span_rows, 4), [0, 0, 1, NO_ROW]);
        assert_eq!(
            (three.groups[0].span_counts, three.tables),
            (one.groups[0].span_counts, one.tables)
        );
    }

    #[test]
    fn no_more_spans_are_under_way_than_there_is_memory_for() {
        let table: Vec<u32> = (0..4000).collect();
        let seqs: Vec<SeqRows> =
            (0..5).map(|row| seq(row..row + 1, 63_999 - row as u32 % 2, &table)).collect();
        let layout = lay_out(&seqs, 5, CUT);
        let spans: Vec<usize> = layout.groups.iter().map(|group| group.spans).collect();
        assert_eq!(spans, [4000, 4000, 2000]);
        let last = &layout.groups[1];
        assert_eq!(words(&layout, last.span_firsts + 2000, 1), [2000], "the group's second row");
    }
}
