//! Element types of packed weights. A panel is [`QUANT_ROWS`] or [`DENSE_ROWS`] output rows stored interleaved, so that
//! one lane of a vector register belongs to one output row.

use crate::SourceType;
use crate::ggml::{half_at, scale_min};
use half::{bf16, f16};

/// Number of output rows in a panel of quantized weights.
pub(crate) const QUANT_ROWS: usize = 8;
/// Number of output rows in a panel of f32 or bf16 weights.
pub(crate) const DENSE_ROWS: usize = 16;
/// Number of neighbouring weights of a row that share a scale in a quantized weight block.
pub(crate) const QUANT_LEN: usize = 32;

/// Weights of one input column in a panel of 16 output rows, f32.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct F32Column(pub(crate) [f32; DENSE_ROWS]);

/// Weights of one input column in a panel of 16 output rows, rounded to bfloat16.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
pub(crate) struct Bf16Column(pub(crate) [bf16; DENSE_ROWS]);

/// Block of 8-bit weights: 32 columns of 8 output rows. The weight in row `r`, column `4 g + j` is
/// `scales[r] * weights[g][4 r + j]`.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(16))]
pub(crate) struct Q8Block {
    pub(crate) scales: [f16; QUANT_ROWS],
    pub(crate) weights: [[i8; 32]; 8],
}

/// Block of 4-bit weights: 32 columns of 8 output rows. The weight in row `r`, column `4 g + j` is
/// `scales[r] * q + mins[r]`. For `g < 4`, `q` is the low nibble of `nibbles[v][4 l + j]`, where `(v, l)` is
/// [`Q4Block::place`] of `r` and `g`. For `g >= 4`, `q` is the high nibble of the byte for `g - 4`.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
pub(crate) struct Q4Block {
    pub(crate) scales: [f16; QUANT_ROWS],
    pub(crate) mins: [f16; QUANT_ROWS],
    pub(crate) nibbles: [[u8; 32]; 4],
}

impl Q8Block {
    pub(crate) fn set_row(&mut self, row: usize, scale: f16, weights: &[i8]) {
        self.scales[row] = scale;
        for (group, four) in self.weights.iter_mut().zip(weights.chunks_exact(4)) {
            group[4 * row..4 * row + 4].copy_from_slice(four);
        }
    }

    /// Returns output row `row` of a block of 8-bit weights, decoded to f32.
    pub(crate) fn row(&self, row: usize) -> [f32; QUANT_LEN] {
        let scale = self.scales[row].to_f32();
        std::array::from_fn(|i| scale * f32::from(self.weights[i / 4][4 * row + i % 4]))
    }
}

impl Q4Block {
    /// Returns where a block of 4-bit weights holds four neighbouring columns (group `group`) of an output row: the
    /// vector and the lane. Groups 0 and 1 share two vectors, and so do groups 2 and 3. The first vector of two holds
    /// the even group of even rows and the odd group of odd rows, each in the lane of its row. The second vector holds
    /// the rest, with neighbouring rows swapped. So in both vectors even lanes hold the even group and odd lanes the
    /// odd group, and a broadcast of eight neighbouring activations to every pair of lanes fits both.
    pub(crate) fn place(row: usize, group: usize) -> (usize, usize) {
        let swap = (row ^ group) & 1;
        (group & !1 | swap, row ^ swap)
    }

    /// Stores one output row in a block of 4-bit weights. `nibbles` holds column `i` in the low half of byte `i` and
    /// column `16 + i` in the high half.
    pub(crate) fn set_row(&mut self, row: usize, scale: f16, min: f16, nibbles: &[u8; 16]) {
        self.scales[row] = scale;
        self.mins[row] = min;
        for (group, four) in nibbles.chunks_exact(4).enumerate() {
            let (vector, lane) = Q4Block::place(row, group);
            self.nibbles[vector][4 * lane..4 * lane + 4].copy_from_slice(four);
        }
    }

    /// Returns output row `row` of a block of 4-bit weights, decoded to f32.
    pub(crate) fn row(&self, row: usize) -> [f32; QUANT_LEN] {
        let (scale, min) = (self.scales[row].to_f32(), self.mins[row].to_f32());
        std::array::from_fn(|i| {
            let (vector, lane) = Q4Block::place(row, i / 4 % 4);
            let byte = self.nibbles[vector][4 * lane + i % 4];
            scale * f32::from(byte >> (i / 16 * 4) & 15) + min
        })
    }
}

/// Quantizes up to 32 weights to 8 bits and returns their common scale and the rounded weights. Fewer than 32, at the
/// end of a row, are padded with zeros.
pub(crate) fn quantize_q8(weights: &[f32]) -> (f16, [i8; QUANT_LEN]) {
    let max = weights.iter().fold(0.0_f32, |max, w| max.max(w.abs()));
    let scale = f16::from_f32(max / 127.0);
    let inverse = if scale > f16::ZERO { 1.0 / scale.to_f32() } else { 0.0 };
    let mut rounded = [0; QUANT_LEN];
    for (q, w) in rounded.iter_mut().zip(weights) {
        // Clamps the quantized weight: because the scale was rounded to f16, the largest weight may land just outside
        // -127..=127.
        *q = (w * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
    }
    (scale, rounded)
}

/// Returns scale, minimum and nibbles of block number `index` of a weight row in one of the 4-bit encodings; the
/// nibbles are in the order that [`Q4Block::set_row`] takes. Q4_K's product of two scales is rounded to f16. The error
/// is at most 2^-11 of the product (unless it is subnormal), far below the step of a 4-bit weight.
pub(crate) fn q4_parts(source: SourceType, row: &[u8], index: usize) -> (f16, f16, [u8; 16]) {
    match source {
        SourceType::Q4_0 => {
            let block = &row[index * 18..][..18];
            let scale = half_at(block, 0);
            let min = f16::from_f32(scale.to_f32() * -8.0);
            (scale, min, block[2..].try_into().expect("16 bytes of nibbles"))
        }
        SourceType::Q4_1 => {
            let block = &row[index * 20..][..20];
            let nibbles = block[4..].try_into().expect("16 bytes of nibbles");
            (half_at(block, 0), half_at(block, 2), nibbles)
        }
        SourceType::Q4K => {
            let (block, group) = (&row[index / 8 * 144..][..144], index % 8);
            let (scale, min) = scale_min(&block[4..16], group);
            let quants = &block[16 + group / 2 * 32..][..32];
            let nibble = |i: usize| quants[i] >> (group % 2 * 4) & 15;
            let product =
                |at: usize, factor: f32| f16::from_f32(half_at(block, at).to_f32() * factor);
            (
                product(0, f32::from(scale)),
                product(2, -f32::from(min)),
                std::array::from_fn(|i| nibble(i) | nibble(i + 16) << 4),
            )
        }
        other => unreachable!("{other:?} is not a 4-bit encoding"),
    }
}
