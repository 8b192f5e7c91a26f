//! Integer weights as compressed-tensors packs them (format `pack-quantized`). A word of `weight_packed`
//! (`[n, k * bits / 32]`, rounded up) holds the weights of neighbouring inputs of one output, each as
//! `weight + 2^(bits - 1)`. `weight_scale` is `[n, groups]`. `weight_zero_point` (`[n * bits / 32, groups]`, rounded
//! up) holds zero points of neighbouring outputs, each as `zero point + 2^(bits - 1)`; symmetric integers have none.
//! `weight_shape` holds `n` and `k`; `weight_g_idx` (`[k]`) has the group of each input if the inputs are not in order.

use super::groups::{GroupTable, Groups, field};
use super::parts::{Floats, Parts, Words};
use crate::arch::PackedFormat;
use crate::weights::WeightError;
use safetensors::tensor::Dtype;

/// A matrix of packed 4-bit or 8-bit integers.
pub(super) struct Packed<'a> {
    weights: Words<'a>,
    zeros: Option<Words<'a>>,
    scales: Floats<'a>,
    bits: usize,
    /// Words of a row.
    words: usize,
    pub(super) groups: Groups<'a>,
}

impl<'a> Packed<'a> {
    /// Checks the parts of a matrix. Returns it with its dimensions `[n, k]`; `None` if the module has no packed
    /// weights.
    pub(super) fn find(
        parts: &Parts<'a, '_>,
        format: PackedFormat,
    ) -> Result<Option<(Packed<'a>, [usize; 2])>, WeightError> {
        let Some((weights, [n, words])) = parts.packed("weight_packed")? else { return Ok(None) };
        let per_word = 32 / format.bits;
        let k = inputs(parts, [n, words], per_word)?;
        let size = format.group.unwrap_or(k).max(1);
        let count = k.div_ceil(size);
        let scales = parts.floats("weight_scale", &[n, count])?;
        let zeros = match format.symmetric {
            true => None,
            false => Some(parts.words("weight_zero_point", &[n.div_ceil(per_word), count])?),
        };
        let stored = match parts.get("weight_g_idx")? {
            Some(_) => Some((parts.words("weight_g_idx", &[k])?, parts.name("weight_g_idx"))),
            None => None,
        };
        // compressed-tensors fills groups that it does not use with -1.
        let groups = Groups { count, size, stored, empty: Some(u32::MAX) };
        let packed = Packed { weights, zeros, scales, bits: format.bits, words, groups };
        Ok(Some((packed, [n, k])))
    }

    pub(super) fn bits(&self) -> usize {
        self.bits
    }

    /// Returns the scale and the zero point of a group of a row.
    pub(super) fn entry(&self, group: usize, row: usize) -> (f32, u32) {
        let (bits, per_word, count) = (self.bits, 32 / self.bits, self.groups.count);
        let zero = match self.zeros {
            Some(zeros) => field(zeros.at(row / per_word * count + group), bits, row % per_word),
            None => 1 << (bits - 1),
        };
        (self.scales.at(row * count + group), zero)
    }

    /// Calls `each(row, input, integer)` for the integers of `rows` rows of `k` inputs from row `first` on; the rows
    /// are counted from `first`.
    pub(super) fn integers(
        &self,
        k: usize,
        (first, rows): (usize, usize),
        mut each: impl FnMut(usize, usize, u32),
    ) {
        let (bits, per_word) = (self.bits, 32 / self.bits);
        for (row, word) in (0..rows).flat_map(|row| (0..self.words).map(move |word| (row, word))) {
            let packed = self.weights.at((first + row) * self.words + word);
            for place in 0..per_word.min(k - word * per_word) {
                each(row, word * per_word + place, field(packed, bits, place));
            }
        }
    }

    /// Decodes at most eight rows from row `first` on. `groups` has the group of each input.
    pub(super) fn rows(&self, groups: &[usize], first: usize, out: &mut [f32]) {
        let k = groups.len();
        let rows = (first, out.len() / k);
        let table = GroupTable::read(self.groups.count, rows, |group, row| self.entry(group, row));
        self.integers(k, rows, |row, input, integer| {
            out[row * k + input] = table.weight(groups[input], row, integer);
        });
    }
}

/// Returns the number of inputs of a matrix whose packed weights are `[n, words]`: the last word may be partly used.
fn inputs(
    parts: &Parts<'_, '_>,
    [n, words]: [usize; 2],
    per_word: usize,
) -> Result<usize, WeightError> {
    let full = words.saturating_mul(per_word);
    let Some(shape) = parts.get("weight_shape")? else { return Ok(full) };
    let least = full.saturating_sub(per_word - 1);
    let expected = format!("I64 [2] with {n} outputs and {least} to {full} inputs");
    if shape.dtype != Dtype::I64 || shape.shape != [2] {
        return Err(parts.wrong("weight_shape", Some(&shape), expected));
    }
    let number = |at: usize| {
        let bytes = &shape.bytes[8 * at..8 * at + 8];
        u64::from_le_bytes(bytes.try_into().expect("the range has eight bytes"))
    };
    let (rows, inputs) = (number(0), number(1));
    if rows != n as u64 || inputs.div_ceil(per_word as u64) != words as u64 {
        let found = format!("{rows} outputs and {inputs} inputs");
        return Err(WeightError::Quantized { name: parts.name("weight_shape"), found, expected });
    }
    Ok(inputs as usize)
}
