//! Groups of inputs of an integer format: the group of each input, and a scale and a zero point for each output and
//! group.

use super::parts::Words;
use crate::weights::WeightError;

/// How the inputs of a matrix are divided into groups.
pub(super) struct Groups<'a> {
    /// Number of groups.
    pub(super) count: usize,
    /// Inputs of a group; the last group may have fewer.
    pub(super) size: usize,
    /// Group of each input, and the name of the tensor that states it; `None`: the inputs are in order.
    pub(super) stored: Option<(Words<'a>, String)>,
    /// Number that stands for "no group". If all inputs have this number in `stored`, the inputs are in order.
    pub(super) empty: Option<u32>,
}

impl Groups<'_> {
    /// Whether the inputs of each group are neighbours. An order that is stored counts only if it differs from that.
    pub(super) fn in_order(&self, k: usize) -> bool {
        let Some((stored, _)) = &self.stored else { return true };
        let mut stored = (0..k).map(|input| stored.at(input)).enumerate();
        let empty = |group: u32| self.empty == Some(group);
        stored.clone().all(|(_, group)| empty(group))
            || stored.all(|(input, group)| group as usize == input / self.size)
    }

    /// Returns the group of each of the `k` inputs.
    ///
    /// # Errors
    /// [`WeightError::Quantized`] if an input is in a group that does not exist.
    pub(super) fn of_inputs(&self, k: usize) -> Result<Vec<usize>, WeightError> {
        let in_order = || (0..k).map(|input| input / self.size).collect();
        let Some((stored, name)) = &self.stored else { return Ok(in_order()) };
        let stored: Vec<u32> = (0..k).map(|input| stored.at(input)).collect();
        if self.empty.is_some_and(|empty| stored.iter().all(|&group| group == empty)) {
            return Ok(in_order());
        }
        match stored.iter().position(|&group| group as usize >= self.count) {
            None => Ok(stored.into_iter().map(|group| group as usize).collect()),
            Some(input) => Err(WeightError::Quantized {
                name: name.clone(),
                found: format!("{} for input {input}", stored[input] as i32),
                expected: format!("a group from 0 to {}", self.count - 1),
            }),
        }
    }
}

/// Scales and zero points of the groups of some rows of a matrix, group by group.
pub(super) struct GroupTable {
    rows: usize,
    /// Scale and zero point of group `g` of row `r` at `g * rows + r`.
    entries: Vec<(f32, f32)>,
}

impl GroupTable {
    /// Reads the scales and zero points of `rows` rows from row `first` on. `entry(group, row)` returns a scale and a
    /// zero point.
    pub(super) fn read(
        groups: usize,
        (first, rows): (usize, usize),
        entry: impl Fn(usize, usize) -> (f32, u32),
    ) -> GroupTable {
        let entries = (0..groups * rows).map(|at| {
            let (scale, zero) = entry(at / rows, first + at % rows);
            (scale, zero as f32)
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

/// Returns packed zero points that are stored less 1, with 1 added to each. GPTQModel subtracts from the whole word, so
/// a zero point of 0 borrows from its neighbour. This function adds to the whole word, which undoes the borrow
/// (`convert_gptq_v1_to_v2_format_module` of GPTQModel).
pub(super) fn add_one_to_each(zeros: u32, bits: usize) -> u32 {
    zeros.wrapping_add(u32::MAX / ((1 << bits) - 1))
}
