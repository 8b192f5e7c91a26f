//! AWQ weights in the layout `gemm` of AutoAWQ. A word of `qweight` (`[k, n / 8]`) holds one input's weights of eight
//! neighbouring outputs, in the order [`PLACE`]; `qzeros` (`[k / group, n / 8]`) holds zero points in the same order. A
//! weight is `scale * (q - zero point)`, with `scales` of `[k / group, n]`.

use super::groups::{GroupTable, field};
use super::parts::{Floats, Parts, Words};
use crate::weights::WeightError;

const BITS: usize = 4;
/// Weights in a word.
const PER_WORD: usize = 8;
/// Place in a word, from the lowest bits on, of each of eight neighbouring outputs. The inverse of the packing order 0, 2,
/// 4, 6, 1, 3, 5, 7.
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
    /// Checks the parts of a matrix. Returns it with its dimensions `[n, k]`; `None` if the module has no packed weights.
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

    /// Decodes eight rows of `k` weights from row `first` on, a multiple of 8.
    pub(super) fn rows(&self, k: usize, first: usize, out: &mut [f32]) {
        let word = first / PER_WORD;
        let table = GroupTable::read(self.groups, (first, PER_WORD), |group, row| {
            let zeros = self.zeros.at(group * self.words + word);
            let scale = self.scales.at(group * self.words * PER_WORD + row);
            (scale, field(zeros, BITS, PLACE[row - first]))
        });
        for input in 0..k {
            let packed = self.weights.at(input * self.words + word);
            for (row, place) in PLACE.into_iter().enumerate() {
                let integer = field(packed, BITS, place);
                out[row * k + input] = table.weight(input / self.group, row, integer);
            }
        }
    }
}
