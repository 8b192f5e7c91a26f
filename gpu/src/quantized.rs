//! Quantized weight matrices in the form in which a GPU holds them: numbers of 4 or 8 bits, and a 32-bit word for each
//! group of neighbouring inputs of a row. `gpu/kernels/quantized.cu` reads this form.

use crate::cpu::Pool;
use crate::ggml::half_at;
use crate::{MatrixPart, SourceType};

/// Numbers of a unit: a row is padded with zeros to whole units, and a group is a whole number of units.
pub const UNIT: usize = 32;
/// Bit positions of eight 4-bit numbers in a 32-bit word: the position of the lowest bit of each number.
const PLACES: [u32; 8] = [0, 16, 4, 20, 8, 24, 12, 28];

/// Type of the numbers of a quantized matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NumberType {
    /// Unsigned integers of 4 bits.
    Int4,
    /// Unsigned integers of 8 bits.
    Int8,
    /// Floats of 8 bits: E4M3 without infinities (`float8_e4m3fn`).
    Fp8,
}

impl NumberType {
    /// Returns the size of a row of `k` numbers, bytes.
    pub fn row_bytes(self, k: usize) -> usize {
        let bits = if self == NumberType::Int4 { 4 } else { 8 };
        k.div_ceil(UNIT) * UNIT * bits / 8
    }

    /// Packs the numbers of a row, one a byte, into [`NumberType::row_bytes`] bytes that are zero. Four bytes have
    /// eight 4-bit numbers, from the lowest bits on the numbers 0, 2, 4, 6, 1, 3, 5 and 7: the numbers of a pair are 16
    /// bits apart, so that the kernels decode both at once.
    pub fn pack(self, numbers: &[u8], row: &mut [u8]) {
        if self == NumberType::Int4 {
            for (bytes, eight) in row.chunks_exact_mut(4).zip(numbers.chunks(8)) {
                let shifted = |(at, number): (usize, &u8)| u32::from(*number) << PLACES[at];
                let word: u32 = eight.iter().enumerate().map(shifted).sum();
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        } else {
            row[..numbers.len()].copy_from_slice(numbers);
        }
    }

    /// Returns the word of a group whose weights are `scale * (number - zero)`: of integers, the scale as the upper 24
    /// bits of an f32, and the zero point; of floats, the scale. `None` if the word cannot hold scale and zero point
    /// exactly, or if the kernels could not compute the weights of 4-bit integers exactly: their scales have at most 11
    /// significant bits and their zero points at most 5. The word can hold every scale that a file stores as f16 or
    /// bf16.
    pub fn group_word(self, scale: f32, zero: u32) -> Option<u32> {
        let bits = scale.to_bits();
        let short = |rest_bits: u32, zero_bits: u32| {
            (bits.trailing_zeros() >= rest_bits && zero >> zero_bits == 0).then_some(bits | zero)
        };
        match self {
            NumberType::Fp8 => (zero == 0).then_some(bits),
            NumberType::Int8 => short(8, 8),
            NumberType::Int4 => short(13, 5),
        }
    }

    /// Returns the number that stands for this type in the kernels.
    pub(crate) fn code(self) -> u32 {
        match self {
            NumberType::Int4 => 0,
            NumberType::Int8 => 1,
            NumberType::Fp8 => 2,
        }
    }
}

/// Shape of a quantized matrix `[n, k]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantizedShape {
    /// Number of output features (rows).
    pub n: usize,
    /// Number of input features: the numbers of a row, a multiple of 8.
    pub k: usize,
    /// Type of the numbers.
    pub numbers: NumberType,
    /// Neighbouring inputs of a row that share a word, a multiple of [`UNIT`]; the last group of a row may be smaller.
    pub group: usize,
}

impl QuantizedShape {
    /// Returns the shape of a matrix with groups of `group` inputs; `None` if the kernels do not support the shape.
    pub fn new(n: usize, k: usize, numbers: NumberType, group: usize) -> Option<QuantizedShape> {
        // A group of at least all inputs is one group, of whatever size.
        let group = if group >= k { k.next_multiple_of(UNIT) } else { group };
        let supported = n > 0 && k > 0 && k.is_multiple_of(8) && group.is_multiple_of(UNIT);
        supported.then_some(QuantizedShape { n, k, numbers, group })
    }

    /// Returns the number of groups of a row.
    pub fn row_groups(&self) -> usize {
        self.k.div_ceil(self.group)
    }

    /// Returns the size of all numbers, bytes.
    pub fn number_bytes(&self) -> usize {
        self.n * self.numbers.row_bytes(self.k)
    }

    /// Returns the size of the matrix, bytes: numbers and words of groups.
    pub fn bytes(&self) -> usize {
        self.number_bytes() + self.n * self.row_groups() * 4
    }

    /// Whether the rows of a matrix of the shape `other` can follow the rows of this one in one matrix.
    pub(crate) fn stacks(&self, other: &QuantizedShape) -> bool {
        *self == QuantizedShape { n: self.n, ..*other }
    }
}

/// A quantized matrix, or a part of one that is stacked with others along the rows (q, k and v).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantizedPart {
    /// Shape of the part.
    pub shape: QuantizedShape,
    /// Numbers, row by row ([`NumberType::pack`]).
    pub numbers: Vec<u8>,
    /// Words of the groups, row by row ([`NumberType::group_word`]).
    pub groups: Vec<u32>,
}

/// Returns the shape in which a GPU holds a matrix of a GGUF file as it is, without decoding it to bf16; `None` if it
/// does not.
pub(crate) fn shape_of(n: usize, k: usize, source: SourceType) -> Option<QuantizedShape> {
    let numbers = match source {
        SourceType::Q4_0 => NumberType::Int4,
        SourceType::Q8_0 => NumberType::Int8,
        _ => return None,
    };
    QuantizedShape::new(n, k, numbers, source.block_len())
}

/// Rearranges a matrix of a GGUF file for a GPU; `None` if [`shape_of`] has no shape for it. The part's bytes must have
/// the size that its encoding implies.
pub(crate) fn rearranged(pool: &Pool, part: &MatrixPart<'_>) -> Option<QuantizedPart> {
    let (k, source) = (part.k, part.source);
    let shape = shape_of(part.n, k, source)?;
    let row_bytes = part.bytes.len() / part.n;
    let blocks = |row: usize| {
        let from = part.row_order.as_ref().map_or(row, |order| order[row] as usize);
        part.bytes[from * row_bytes..][..row_bytes].chunks_exact(source.block_bytes())
    };
    let mut numbers = vec![0; shape.number_bytes()];
    pool.rows(&mut numbers, shape.numbers.row_bytes(k), 1, |row, out| {
        let out = out.chunks_exact_mut(shape.numbers.row_bytes(source.block_len()));
        blocks(row).zip(out).for_each(|(block, out)| set_block(source, &block[2..], out));
    });
    let zero = if source == SourceType::Q4_0 { 8 } else { 128 };
    let mut groups = vec![0; shape.n * shape.row_groups()];
    pool.rows(&mut groups, shape.row_groups(), 1, |row, out| {
        for (block, word) in blocks(row).zip(out) {
            let scale = half_at(block, 0).to_f32();
            *word = shape.numbers.group_word(scale, zero).expect("the upper bits hold an f16");
        }
    });
    Some(QuantizedPart { shape, numbers, groups })
}

/// Copies the 32 numbers of a block of Q4_0, whose zero point is 8, or of Q8_0, whose zero point becomes 128.
fn set_block(source: SourceType, from: &[u8], out: &mut [u8]) {
    if source == SourceType::Q8_0 {
        // A signed integer plus 128 is the same bits with the first inverted.
        out.iter_mut().zip(from).for_each(|(out, byte)| *out = byte ^ 0x80);
        return;
    }
    // A byte of the file has the numbers `i` and `i + 16`.
    let numbers: [u8; 32] = std::array::from_fn(|at| from[at % 16] >> (at / 16 * 4) & 15);
    NumberType::Int4.pack(&numbers, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ggml::dequantize_row;
    use half::{bf16, f16};
    use proptest::prelude::*;

    /// Returns the weights of a part of integers, row by row.
    fn weights(part: &QuantizedPart) -> Vec<f32> {
        let QuantizedShape { n, k, numbers, group } = part.shape;
        let mut weights = Vec::new();
        for (row, at) in (0..n).flat_map(|row| (0..k).map(move |at| (row, at))) {
            let line = &part.numbers[row * numbers.row_bytes(k)..][..numbers.row_bytes(k)];
            let number = match numbers {
                NumberType::Int4 => {
                    let place = PLACES[at % 8] as usize;
                    line[at / 8 * 4 + place / 8] >> (place % 8) & 15
                }
                _ => line[at],
            };
            let word = part.groups[row * part.shape.row_groups() + at / group];
            let (scale, zero) = (f32::from_bits(word & !0xff), (word & 0xff) as f32);
            weights.push(scale * (f32::from(number) - zero));
        }
        weights
    }

    #[test]
    fn rearranged_blocks_have_the_weights_of_the_file() {
        let pool = Pool::start(2).unwrap();
        for source in [SourceType::Q4_0, SourceType::Q8_0] {
            let (n, k) = (3, 64);
            let mut bytes: Vec<u8> =
                (0..source.matrix_bytes(n, k).unwrap()).map(|at| (at * 89 % 251) as u8).collect();
            for (at, block) in bytes.chunks_exact_mut(source.block_bytes()).enumerate() {
                let scale = f16::from_f32(0.001 * (at as f32 - 2.5));
                block[..2].copy_from_slice(&scale.to_le_bytes());
            }
            let order = vec![2, 0, 1];
            let mut expected = vec![0.0; n * k];
            for (row, out) in order.iter().zip(expected.chunks_exact_mut(k)) {
                let row_bytes = bytes.len() / n;
                dequantize_row(source, &bytes[*row as usize * row_bytes..][..row_bytes], out);
            }
            let part = MatrixPart { n, k, source, bytes: &bytes, row_order: Some(order) };
            assert_eq!(weights(&rearranged(&pool, &part).unwrap()), expected, "{source:?}");
        }
        assert_eq!(shape_of(1, 256, SourceType::Q4K), None);
    }

    #[test]
    fn shapes_that_the_kernels_do_not_support_are_refused() {
        let shape = |k, group| QuantizedShape::new(2, k, NumberType::Int4, group);
        assert!(shape(64, 48).is_none() && shape(60, 32).is_none() && shape(0, 32).is_none());
        assert_eq!(shape(72, 100).map(|shape| (shape.group, shape.row_groups())), Some((96, 1)));
        let odd = shape(72, 32).unwrap();
        assert_eq!((odd.row_groups(), odd.number_bytes(), odd.bytes()), (3, 96, 120));
    }

    proptest! {
        #[test]
        fn a_group_word_holds_every_short_scale_and_every_zero_point(bits: u16, zero in 0_u32..256) {
            for scale in [f16::from_bits(bits).to_f32(), bf16::from_bits(bits).to_f32()] {
                for (numbers, zero) in [(NumberType::Int4, zero % 32), (NumberType::Int8, zero)] {
                    let word = numbers.group_word(scale, zero).unwrap();
                    prop_assert_eq!(word & 0xff, zero);
                    prop_assert_eq!(word & !0xff, scale.to_bits());
                }
                prop_assert_eq!(NumberType::Int4.group_word(scale, 32 + zero), None);
                prop_assert_eq!(NumberType::Fp8.group_word(scale, 0), Some(scale.to_bits()));
            }
            let of_12_bits = f32::from_bits(u32::from(bits) << 16 | 1 << 12);
            prop_assert_eq!(NumberType::Int4.group_word(of_12_bits, 0), None);
            let long = f32::from_bits(u32::from(bits) << 16 | 1);
            prop_assert_eq!(NumberType::Int8.group_word(long, zero), None);
            prop_assert_eq!(NumberType::Fp8.group_word(long, 0), Some(long.to_bits()));
        }
    }
}
