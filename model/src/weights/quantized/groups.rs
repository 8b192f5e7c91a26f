//! Scales and zero points of an integer format, one for each output and group of inputs.

use super::parts::Floats;

/// Scales and zero points of the groups of some rows of a matrix, group by group.
pub(super) struct GroupTable {
    rows: usize,
    /// Scale and zero point of group `g` of row `r` at `g * rows + r`.
    entries: Vec<(f32, f32)>,
}

impl GroupTable {
    /// Reads the scales, `[groups, n]`, and zero points of `rows` rows from row `first` on. `zero(group, row)` returns a
    /// zero point.
    pub(super) fn read(
        scales: Floats<'_>,
        n: usize,
        groups: usize,
        (first, rows): (usize, usize),
        zero: impl Fn(usize, usize) -> u32,
    ) -> GroupTable {
        let entries = (0..groups).flat_map(|group| {
            let zero = &zero;
            (first..first + rows)
                .map(move |row| (scales.at(group * n + row), zero(group, row) as f32))
        });
        GroupTable { rows, entries: entries.collect() }
    }

    /// Returns the weight of an integer: `scale * (integer - zero point)`, of row `row` of the table's rows.
    pub(super) fn weight(&self, group: usize, row: usize, integer: u32) -> f32 {
        let (scale, zero) = self.entries[group * self.rows + row];
        scale * (integer as f32 - zero)
    }
}

/// Returns number `at` of the unsigned integers of `bits` bits in a word, from the lowest bits on.
pub(super) fn field(word: u32, bits: usize, at: usize) -> u32 {
    word >> (bits * at) & ((1 << bits) - 1)
}

/// Returns packed zero points that are stored less 1, with 1 added to each. The word is added to as a whole, because it is
/// subtracted from as a whole when it is written: a zero point of 0 borrows from its neighbour, and gives back here
/// (`convert_gptq_v1_to_v2_format_module` of GPTQModel).
pub(super) fn add_one_to_each(zeros: u32, bits: usize) -> u32 {
    zeros.wrapping_add(u32::MAX / ((1 << bits) - 1))
}
