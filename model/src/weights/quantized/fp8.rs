//! FP8 weights: a matrix of 8-bit floats (E4M3) that are multiplied by scales. DeepSeek and Qwen3 publish a scale for
//! each block of 128 rows and columns (`weight_scale_inv`). compressed-tensors publishes a scale for the matrix, for
//! each row or for each block (`weight_scale`). Both names stand for the factor by which a stored weight is multiplied.

use super::parts::{Floats, Parts};
use crate::weights::WeightError;
use crate::weights::hf_dir::FileTensor;

/// Names of the scales of a matrix.
const SCALES: [&str; 2] = ["weight_scale_inv", "weight_scale"];

/// A matrix of 8-bit floats with its scales.
pub(super) struct Fp8<'a> {
    weights: &'a [u8],
    scales: Floats<'a>,
    /// Rows and columns of a block that shares a scale; the blocks at the edges may be smaller.
    block: [usize; 2],
    /// Number of scales of a row of blocks.
    across: usize,
}

impl<'a> Fp8<'a> {
    /// Checks the parts of a matrix of 8-bit floats. `block` are the rows and columns of blocks, if the checkpoint has
    /// scales per block. Returns the matrix and its dimensions.
    pub(super) fn find(
        parts: &Parts<'a, '_>,
        weight: &FileTensor<'a>,
        block: Option<[usize; 2]>,
    ) -> Result<(Fp8<'a>, [usize; 2]), WeightError> {
        let &[n, k] = weight.shape else {
            let expected = "F8_E4M3 with two dimensions".to_owned();
            return Err(parts.wrong("weight", Some(weight), expected));
        };
        let mut scales = None;
        for name in SCALES {
            scales = scales.or(parts.get(name)?.map(|tensor| (name, tensor)));
        }
        let Some((name, scales)) = scales else {
            let name = SCALES[usize::from(block.is_none())];
            return Err(parts.wrong(name, None, "a scale for the F8_E4M3 weights".to_owned()));
        };
        let in_blocks = block.map(|[rows, columns]| [n.div_ceil(rows), k.div_ceil(columns)]);
        let shared = match *scales.shape {
            _ if !Floats::reads(scales.dtype) => None,
            [] | [1] | [1, 1] => Some([n, k]),
            [rows, columns] if in_blocks == Some([rows, columns]) => block,
            // transformers drops the dimension of one block.
            [blocks] if in_blocks == Some([1, blocks]) || in_blocks == Some([blocks, 1]) => block,
            [rows] | [rows, 1] if rows == n => Some([1, k]),
            _ => None,
        };
        let Some(shared) = shared else {
            let blocks = in_blocks.map_or(String::new(), |[rows, columns]| {
                format!(" or [{rows}, {columns}] (a block)")
            });
            let expected = format!(
                "F16, BF16 or F32 of the shape [1] (one scale for the matrix), [{n}, 1] (a row){blocks}"
            );
            return Err(parts.wrong(name, Some(&scales), expected));
        };
        if let Some(zeros) = parts.get("weight_zero_point")?
            && zeros.bytes.iter().any(|&byte| byte != 0)
        {
            return Err(parts.wrong("weight_zero_point", Some(&zeros), "all zero".to_owned()));
        }
        let block = shared.map(|side| side.max(1));
        let across = k.div_ceil(block[1]);
        Ok((Fp8 { weights: weight.bytes, scales: Floats::new(&scales), block, across }, [n, k]))
    }

    /// Returns the columns of a block.
    pub(super) fn group(&self) -> usize {
        self.block[1]
    }

    /// Returns the scale of the block of a row that is number `column` from the left.
    pub(super) fn scale(&self, column: usize, row: usize) -> f32 {
        self.scales.at(row / self.block[0] * self.across + column)
    }

    /// Returns the stored floats of a row of `k` weights.
    pub(super) fn floats(&self, k: usize, row: usize) -> &'a [u8] {
        &self.weights[row * k..][..k]
    }

    /// Decodes rows of `k` weights from row `first` on.
    pub(super) fn rows(&self, k: usize, first: usize, out: &mut [f32]) {
        for (row, out) in (first..).zip(out.chunks_exact_mut(k)) {
            let weights = self.floats(k, row).chunks(self.block[1]);
            for (column, (out, weights)) in out.chunks_mut(self.block[1]).zip(weights).enumerate() {
                let scale = self.scale(column, row);
                for (out, weight) in out.iter_mut().zip(weights) {
                    *out = E4M3[usize::from(*weight)] * scale;
                }
            }
        }
    }
}

/// Values of all 8-bit floats of the type E4M3 without infinities (`float8_e4m3fn`).
static E4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut bits = 0;
    while bits < 256 {
        table[bits] = e4m3(bits as u32);
        bits += 1;
    }
    table
};

/// Returns the value of an 8-bit float: a sign, four bits of exponent with bias 7, three bits of fraction. If all bits
/// of exponent and fraction are 1, the value is NaN. With the exponent 0, the value is the fraction times 2^-9.
const fn e4m3(bits: u32) -> f32 {
    let (sign, exponent, fraction) = (bits >> 7 << 31, bits >> 3 & 15, bits & 7);
    if exponent == 15 && fraction == 7 {
        return f32::NAN;
    }
    if exponent == 0 {
        let value = fraction as f32 / 512.0;
        return if sign == 0 { value } else { -value };
    }
    f32::from_bits(sign | (exponent + 127 - 7) << 23 | fraction << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_e4m3() {
        for (bits, value) in [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x07, 0.013_671_875),
            (0x08, 0.015_625),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0x40, 2.0),
            (0xb9, -1.125),
            (0x7e, 448.0),
            (0xfe, -448.0),
        ] {
            assert_eq!(E4M3[bits], value, "{bits:#x}");
        }
        assert!(E4M3[0x7f].is_nan() && E4M3[0xff].is_nan());
        assert_eq!(E4M3[0x80].to_bits(), (-0.0_f32).to_bits());
    }
}
