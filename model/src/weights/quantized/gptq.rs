//! GPTQ weights in the layout of AutoGPTQ and GPTQModel. A word of `qweight` (`[k * bits / 32, n]`) holds the weights of
//! neighbouring inputs of one output; a word of `qzeros` (`[groups, n * bits / 32]`) holds the zero points of neighbouring
//! outputs. A weight is `scale * (q - zero point)`, with `scales` of `[groups, n]`. `g_idx` (`[k]`) has the group of each
//! input.

use super::groups::{GroupTable, add_one_to_each, field};
use super::parts::{Floats, Parts, Words};
use crate::arch::GptqFormat;
use crate::weights::WeightError;

/// A matrix of 4-bit or 8-bit integers in the layout of GPTQ.
pub(super) struct Gptq<'a> {
    weights: Words<'a>,
    zeros: Words<'a>,
    scales: Floats<'a>,
    /// Group of each input; `None`: inputs are in order, and the groups of one size.
    group_of_input: Option<Words<'a>>,
    /// Name of the tensor of `group_of_input`, for errors.
    group_name: String,
    format: GptqFormat,
    n: usize,
    groups: usize,
    /// Inputs of a group.
    group: usize,
}

impl<'a> Gptq<'a> {
    /// Checks the parts of a matrix. Returns it with its dimensions `[n, k]`; `None` if the module has no packed weights.
    pub(super) fn find(
        parts: &Parts<'a, '_>,
        format: GptqFormat,
    ) -> Result<Option<(Gptq<'a>, [usize; 2])>, WeightError> {
        let Some((weights, [rows, n])) = parts.packed()? else { return Ok(None) };
        let per_word = 32 / format.bits;
        let k = rows.saturating_mul(per_word);
        let group = format.group.unwrap_or(k).max(1);
        let groups = k.div_ceil(group);
        if !n.is_multiple_of(per_word) {
            let expected = format!("a number of outputs that is a multiple of {per_word}");
            return Err(parts.wrong("qweight", parts.get("qweight")?.as_ref(), expected));
        }
        let zeros = parts.words("qzeros", &[groups, n / per_word])?;
        let scales = parts.floats("scales", &[groups, n])?;
        let present = parts.get("g_idx")?.is_some();
        let group_of_input = match present || format.act_order {
            true => Some(parts.words("g_idx", &[k])?),
            false => None,
        };
        let group_name = parts.name("g_idx");
        let found =
            Gptq { weights, zeros, scales, group_of_input, group_name, format, n, groups, group };
        Ok(Some((found, [n, k])))
    }

    /// Returns the group of each of the `k` inputs. Without `desc_act`, a `g_idx` of zeros says nothing: some programs
    /// leave it empty.
    ///
    /// # Errors
    /// [`WeightError::Quantized`] if an input is in a group that does not exist.
    pub(super) fn groups_of_inputs(&self, k: usize) -> Result<Vec<usize>, WeightError> {
        let in_order = || (0..k).map(|input| input / self.group).collect();
        let Some(stored) = self.group_of_input else { return Ok(in_order()) };
        let stored: Vec<usize> = (0..k).map(|input| stored.at(input) as usize).collect();
        if !self.format.act_order && stored.iter().all(|&group| group == 0) {
            return Ok(in_order());
        }
        match stored.iter().position(|&group| group >= self.groups) {
            None => Ok(stored),
            Some(input) => Err(WeightError::Quantized {
                name: self.group_name.clone(),
                found: format!("{} for input {input}", stored[input] as u32 as i32),
                expected: format!("a group from 0 to {}", self.groups - 1),
            }),
        }
    }

    /// Decodes at most eight rows from row `first` on, a multiple of 8. `groups` has the group of each input.
    pub(super) fn rows(&self, groups: &[usize], first: usize, out: &mut [f32]) {
        let (bits, per_word, k) = (self.format.bits, 32 / self.format.bits, groups.len());
        let zero = |group: usize, row: usize| {
            let zeros = self.zeros.at(group * (self.n / per_word) + row / per_word);
            let zeros = match self.format.zeros_less_one {
                true => add_one_to_each(zeros, bits),
                false => zeros,
            };
            field(zeros, bits, row % per_word)
        };
        let table =
            GroupTable::read(self.scales, self.n, self.groups, (first, out.len() / k), zero);
        for (row, out) in out.chunks_exact_mut(k).enumerate() {
            let words = out.chunks_exact_mut(per_word).zip(groups.chunks_exact(per_word));
            for (word, (out, groups)) in words.enumerate() {
                let packed = self.weights.at(word * self.n + first + row);
                for (place, (out, group)) in out.iter_mut().zip(groups).enumerate() {
                    *out = table.weight(*group, row, field(packed, bits, place));
                }
            }
        }
    }
}
