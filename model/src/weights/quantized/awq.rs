//! AWQ weights in the layout `gemm` of AutoAWQ. A word of `qweight` (`[k, n / 8]`) holds one input's weights of eight
//! neighbouring outputs, in the order [`PLACE`]; `qzeros` (`[k / group, n / 8]`) holds zero points in the same order. A
//! weight is `scale * (q - zero point)`, with `scales` of `[k / group, n]`.

use super::groups::{GroupTable, field};
use super::parts::{Floats, Parts, Words};
use crate::weights::WeightError;

const BITS: usize = 4;
/// Weights in a word.
const PER_WORD: usize = 8;
/// Place in a word, from the lowest bits on, of each of eight neighbouring outputs. The inverse of the packing order 0,
/// 2, 4, 6, 1, 3, 5, 7.
const PLACE: [usize; PER_WORD] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A matrix of 4-bit integers in the layout of AutoAWQ.
pub(super) struct Awq<'a> {
    weights: Words<'a>,
    zeros: Words<'a>,
    scales: Floats<'a>,
    /// Words of one input: outputs / 8.
    words: usize,
    /// Inputs that share a scale and a zero point.
    group: usize,
    groups: usize,
}

impl<'a> Awq<'a> {
    /// Checks the parts of a matrix. Returns it with its dimensions `[n, k]`; `None` if the module has no packed
    /// weights.
    pub(super) fn find(
        parts: &Parts<'a, '_>,
        group: Option<usize>,
    ) -> Result<Option<(Awq<'a>, [usize; 2])>, WeightError> {
        let Some((weights, [k, words])) = parts.packed("qweight")? else { return Ok(None) };
        let n = words.saturating_mul(PER_WORD);
        let group = group.unwrap_or(k).max(1);
        if !k.is_multiple_of(group) {
            let expected =
                format!("a number of inputs that is a multiple of the group size {group}");
            return Err(parts.wrong("qweight", parts.get("qweight")?.as_ref(), expected));
        }
        let groups = k / group;
        let zeros = parts.words("qzeros", &[groups, words])?;
        let scales = parts.floats("scales", &[groups, n])?;
        Ok(Some((Awq { weights, zeros, scales, words, group, groups }, [n, k])))
    }

    /// Returns the inputs that share a scale and a zero point.
    pub(super) fn group(&self) -> usize {
        self.group
    }

    /// Returns the scale and the zero point of a group of a row.
    pub(super) fn entry(&self, group: usize, row: usize) -> (f32, u32) {
        let zeros = self.zeros.at(group * self.words + row / PER_WORD);
        let scale = self.scales.at(group * self.words * PER_WORD + row);
        (scale, field(zeros, BITS, PLACE[row % PER_WORD]))
    }

    /// Calls `each(row, input, integer)` for the integers of eight rows of `k` inputs from row `first` on, a multiple
    /// of 8; the rows are counted from `first`.
    pub(super) fn integers(&self, k: usize, first: usize, mut each: impl FnMut(usize, usize, u32)) {
        for input in 0..k {
            let packed = self.weights.at(input * self.words + first / PER_WORD);
            for (row, place) in PLACE.into_iter().enumerate() {
                each(row, input, field(packed, BITS, place));
            }
        }
    }

    /// Decodes eight rows of `k` weights from row `first` on, a multiple of 8.
    pub(super) fn rows(&self, k: usize, first: usize, out: &mut [f32]) {
        let rows = (first, PER_WORD);
        let table = GroupTable::read(self.groups, rows, |group, row| self.entry(group, row));
        self.integers(k, first, |row, input, integer| {
            out[row * k + input] = table.weight(input / self.group, row, integer);
        });
    }
}
