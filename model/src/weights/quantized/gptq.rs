//! GPTQ weights in the layout of AutoGPTQ and GPTQModel. A word of `qweight` (`[k * bits / 32, n]`) holds the weights
//! of neighbouring inputs of one output; a word of `qzeros` (`[groups, n * bits / 32]`) holds the zero points of
//! neighbouring outputs. A weight is `scale * (q - zero point)`, with `scales` of `[groups, n]`. `g_idx` (`[k]`) has
//! the group of each input.

use super::groups::{GroupTable, Groups, add_one_to_each, field};
use super::parts::{Floats, Parts, Words};
use crate::arch::GptqFormat;
use crate::weights::WeightError;

/// A matrix of 4-bit or 8-bit integers in the layout of GPTQ.
pub(super) struct Gptq<'a> {
    weights: Words<'a>,
    zeros: Words<'a>,
    scales: Floats<'a>,
    format: GptqFormat,
    n: usize,
    pub(super) groups: Groups<'a>,
}

impl<'a> Gptq<'a> {
    /// Checks the parts of a matrix. Returns it with its dimensions `[n, k]`; `None` if the module has no packed
    /// weights.
    pub(super) fn find(
        parts: &Parts<'a, '_>,
        format: GptqFormat,
    ) -> Result<Option<(Gptq<'a>, [usize; 2])>, WeightError> {
        let Some((weights, [rows, n])) = parts.packed("qweight")? else { return Ok(None) };
        let per_word = 32 / format.bits;
        let k = rows.saturating_mul(per_word);
        let size = format.group.unwrap_or(k).max(1);
        let count = k.div_ceil(size);
        if !n.is_multiple_of(per_word) {
            let expected = format!("a number of outputs that is a multiple of {per_word}");
            return Err(parts.wrong("qweight", parts.get("qweight")?.as_ref(), expected));
        }
        let zeros = parts.words("qzeros", &[count, n / per_word])?;
        let scales = parts.floats("scales", &[count, n])?;
        let present = parts.get("g_idx")?.is_some();
        let stored = match present || format.act_order {
            true => Some((parts.words("g_idx", &[k])?, parts.name("g_idx"))),
            false => None,
        };
        // Some programs leave `g_idx` zero if there is no order of activations.
        let empty = (!format.act_order).then_some(0);
        let groups = Groups { count, size, stored, empty };
        Ok(Some((Gptq { weights, zeros, scales, format, n, groups }, [n, k])))
    }

    pub(super) fn bits(&self) -> usize {
        self.format.bits
    }

    /// Returns the scale and the zero point of a group of a row.
    pub(super) fn entry(&self, group: usize, row: usize) -> (f32, u32) {
        let (bits, per_word) = (self.format.bits, 32 / self.format.bits);
        let zeros = self.zeros.at(group * (self.n / per_word) + row / per_word);
        let zeros = match self.format.zeros_less_one {
            true => add_one_to_each(zeros, bits),
            false => zeros,
        };
        let zero = match self.format.symmetric {
            true => 1 << (bits - 1),
            false => field(zeros, bits, row % per_word),
        };
        (self.scales.at(group * self.n + row), zero)
    }

    /// Calls `each(row, input, integer)` for the integers of `rows` rows of `k` inputs from row `first` on; the rows
    /// are counted from `first`.
    pub(super) fn integers(
        &self,
        k: usize,
        (first, rows): (usize, usize),
        mut each: impl FnMut(usize, usize, u32),
    ) {
        let (bits, per_word) = (self.format.bits, 32 / self.format.bits);
        for (row, word) in (0..rows).flat_map(|row| (0..k / per_word).map(move |word| (row, word)))
        {
            let packed = self.weights.at(word * self.n + first + row);
            for place in 0..per_word {
                each(row, word * per_word + place, field(packed, bits, place));
            }
        }
    }

    /// Decodes at most eight rows from row `first` on, a multiple of 8. `groups` has the group of each input.
    pub(super) fn rows(&self, groups: &[usize], first: usize, out: &mut [f32]) {
        let k = groups.len();
        let rows = (first, out.len() / k);
        let table = GroupTable::read(self.groups.count, rows, |group, row| self.entry(group, row));
        self.integers(k, rows, |row, input, integer| {
            out[row * k + input] = table.weight(groups[input], row, integer);
        });
    }
}
