//! Decoders of the weight encodings in model files (GGUF, bf16, f16, f32), one matrix row at a time.

mod k_quants;
mod legacy;

use crate::{OpError, SourceType};
use half::{bf16, f16};

impl SourceType {
    /// Returns the number of weights per block of this encoding. A matrix row is a whole number of blocks.
    pub fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Returns the size of a weight block of this encoding, bytes.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Returns the size of a `[n, k]` weight matrix in this encoding, bytes.
    ///
    /// # Errors
    /// [`OpError::Block`] if rows of `k` are not whole blocks, [`OpError::Size`] if the size overflows.
    pub fn matrix_bytes(self, n: usize, k: usize) -> Result<usize, OpError> {
        let block = self.block_len();
        if k == 0 || !k.is_multiple_of(block) {
            return Err(OpError::Block { k, encoding: self, block });
        }
        (k / block)
            .checked_mul(self.block_bytes())
            .and_then(|row| row.checked_mul(n))
            .ok_or(OpError::Size { n, k, encoding: self, expected: usize::MAX, actual: 0 })
    }
}

/// Decodes one row of encoded weights to f32. `bytes` holds exactly `out.len()` weights.
pub(crate) fn dequantize_row(source: SourceType, bytes: &[u8], out: &mut [f32]) {
    let len = source.block_len();
    let blocks = bytes.chunks_exact(source.block_bytes()).zip(out.chunks_exact_mut(len));
    for (block, out) in blocks {
        match source {
            SourceType::F32 => out[0] = f32::from_le_bytes(array(block)),
            SourceType::F16 => out[0] = f16::from_le_bytes(array(block)).to_f32(),
            SourceType::Bf16 => out[0] = bf16::from_le_bytes(array(block)).to_f32(),
            SourceType::Q4_0 => legacy::q4_0(block, out),
            SourceType::Q4_1 => legacy::q4_1(block, out),
            SourceType::Q5_0 => legacy::q5_0(block, out),
            SourceType::Q5_1 => legacy::q5_1(block, out),
            SourceType::Q8_0 => legacy::q8_0(block, out),
            SourceType::Q2K => k_quants::q2k(block, out),
            SourceType::Q3K => k_quants::q3k(block, out),
            SourceType::Q4K => k_quants::q4k(block, out),
            SourceType::Q5K => k_quants::q5k(block, out),
            SourceType::Q6K => k_quants::q6k(block, out),
        }
    }
}

pub(crate) use k_quants::scale_min;

/// Returns the first `N` bytes of `bytes` as an array.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes[..N].try_into().expect("the range has N bytes")
}

/// Returns the little-endian f16 number at byte offset `at` of encoded weights.
pub(crate) fn half_at(bytes: &[u8], at: usize) -> f16 {
    f16::from_le_bytes(array(&bytes[at..]))
}
