//! Quantization of activations to 8 bits, for products with quantized weights.

use crate::cpu::isa::Isa;
use crate::cpu::pool::Pool;
use crate::cpu::tensor::Tensor;
use crate::cpu::weights::QUANT_LEN;
use std::ops::Range;

/// Block of 32 neighbouring activations of one row in 8 bits: `x[i] = scale * values[i]`, with values in -127..=127.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct ActBlock {
    pub(crate) scale: f32,
    /// Sum of the block's dequantized activations, `Σ scale * values[i]`. Products multiply it by the minimum of a
    /// block of 4-bit weights.
    pub(crate) sum: f32,
    /// `128 Σ values[i]`. Products with 8-bit weights plus 128 subtract it.
    pub(crate) excess: i32,
    pub(crate) values: [i8; QUANT_LEN],
}

impl ActBlock {
    pub(crate) const ZERO: ActBlock =
        ActBlock { scale: 0.0, sum: 0.0, excess: 0, values: [0; QUANT_LEN] };
}

/// Rows of activations, quantized to 8 bits. The memory is reused from one matrix product to the next.
#[derive(Debug, Default)]
pub(crate) struct ActRows {
    blocks: Vec<ActBlock>,
    row_blocks: usize,
}

impl ActRows {
    /// Quantizes all rows of the activations `x` to 8 bits. A quantized value depends on the 32 activations of its
    /// block alone.
    pub(crate) fn quantize(&mut self, pool: &Pool, isa: Isa, x: &Tensor) {
        self.row_blocks = x.cols().div_ceil(QUANT_LEN);
        self.blocks.resize(x.rows() * self.row_blocks, ActBlock::ZERO);
        pool.rows(&mut self.blocks, self.row_blocks, 8, |row, blocks| {
            quantize_row(isa, x.row(row), blocks);
        });
    }

    /// Returns the quantized blocks of consecutive activation rows, one row after the other.
    pub(crate) fn rows(&self, rows: Range<usize>) -> &[ActBlock] {
        &self.blocks[rows.start * self.row_blocks..rows.end * self.row_blocks]
    }

    pub(crate) fn row(&self, row: usize) -> &[ActBlock] {
        &self.blocks[row * self.row_blocks..][..self.row_blocks]
    }
}

fn quantize_row(isa: Isa, row: &[f32], blocks: &mut [ActBlock]) {
    match isa {
        Isa::Portable => quantize_row_body(row, blocks),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 => {
            #[expect(unsafe_code, reason = "calls a function compiled for AVX2")]
            // SAFETY: these values of `Isa` exist only where the processor has AVX2.
            unsafe {
                quantize_row_avx2(row, blocks)
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn quantize_row_avx2(row: &[f32], blocks: &mut [ActBlock]) {
    quantize_row_body(row, blocks);
}

#[inline(always)]
fn quantize_row_body(row: &[f32], blocks: &mut [ActBlock]) {
    for (values, block) in row.chunks(QUANT_LEN).zip(blocks) {
        let mut padded = [0.0; QUANT_LEN];
        padded[..values.len()].copy_from_slice(values);
        *block = quantize_block(&padded);
    }
}

#[inline(always)]
fn quantize_block(values: &[f32; QUANT_LEN]) -> ActBlock {
    // Finds the largest |x| by comparing bits as integers: they have the order of |x|, with infinity and NaN above all
    // numbers.
    let max = values.iter().fold(0, |max, x| max.max(x.to_bits() & 0x7fff_ffff));
    let max = f32::from_bits(max);
    if !max.is_finite() {
        // Quantizes a block that holds NaN or infinity to NaN, so that it reaches the logits, where sampling reports
        // it.
        return ActBlock { scale: f32::NAN, sum: f32::NAN, ..ActBlock::ZERO };
    }
    if max < f32::MIN_POSITIVE * 256.0 {
        return ActBlock::ZERO;
    }
    let inverse = 127.0 / max;
    let mut block = ActBlock { scale: max / 127.0, ..ActBlock::ZERO };
    let mut sum = 0;
    for (q, x) in block.values.iter_mut().zip(values) {
        // Rounds to an integer, ties to even, by adding 1.5 * 2^23, which leaves the integer in the low bits.
        let rounded = (x * inverse + 12_582_912.0).to_bits() as i8;
        *q = rounded;
        sum += i32::from(rounded);
    }
    block.sum = block.scale * sum as f32;
    block.excess = 128 * sum;
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_within_half_a_step_and_the_sum_is_theirs() {
        let values: [f32; QUANT_LEN] = std::array::from_fn(|i| (i as f32 - 11.3) * 0.37);
        let block = quantize_block(&values);
        for (q, x) in block.values.iter().zip(values) {
            assert!((f32::from(*q) * block.scale - x).abs() <= block.scale * 0.5001);
        }
        let sum: i32 = block.values.iter().map(|q| i32::from(*q)).sum();
        assert_eq!(block.sum, block.scale * sum as f32);
        assert_eq!(block.excess, 128 * sum);
        assert_eq!(block.values.iter().map(|q| q.unsigned_abs()).max(), Some(127));
    }

    #[test]
    fn zeros_tiny_values_and_faults() {
        assert_eq!(quantize_block(&[0.0; QUANT_LEN]).scale, 0.0);
        assert_eq!(quantize_block(&[1e-40; QUANT_LEN]).values, [0; QUANT_LEN]);
        for fault in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [1.0; QUANT_LEN];
            values[5] = fault;
            let block = quantize_block(&values);
            assert!(block.scale.is_nan() && block.sum.is_nan());
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let row: Vec<f32> = (0..200).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.013).collect();
        let mut plain = vec![ActBlock::ZERO; 7];
        let mut fast = plain.clone();
        quantize_row(Isa::Portable, &row, &mut plain);
        quantize_row(Isa::detect(), &row, &mut fast);
        for (plain, fast) in plain.iter().zip(&fast) {
            assert_eq!(plain.values, fast.values);
            assert_eq!(plain.scale.to_bits(), fast.scale.to_bits());
            assert_eq!(plain.sum.to_bits(), fast.sum.to_bits());
        }
    }
}
