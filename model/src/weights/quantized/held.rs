//! Quantized matrices in the form in which a GPU holds them, without decoding their weights.

use super::groups::Groups;
use super::{Method, Quantized, TILE_ROWS, in_tiles};
use tiercel_gpu::{NumberType, QuantizedPart, QuantizedShape};

impl Quantized<'_> {
    /// Returns the shape in which a GPU holds the matrix quantized, if its scales fit. `None` if it does not: the
    /// inputs of a group are not neighbours (GPTQ with `desc_act`), or the kernels do not support the sizes.
    pub(in crate::weights) fn held_shape(&self) -> Option<QuantizedShape> {
        let of_bits = |bits| if bits == 4 { NumberType::Int4 } else { NumberType::Int8 };
        let in_order = |groups: &Groups<'_>| groups.in_order(self.k).then_some(groups.size);
        let (numbers, group) = match &self.method {
            Method::Fp8(fp8) => (NumberType::Fp8, fp8.group()),
            Method::Awq(awq) => (NumberType::Int4, awq.group()),
            Method::Gptq(gptq) => (of_bits(gptq.bits()), in_order(&gptq.groups)?),
            Method::Packed(packed) => (of_bits(packed.bits()), in_order(&packed.groups)?),
        };
        QuantizedShape::new(self.n, self.k, numbers, group)
    }

    /// Returns the matrix as a GPU holds it. `None` if [`Quantized::held_shape`] has no shape for it, or if a scale
    /// or zero point of integers has too many bits ([`NumberType::group_word`]).
    pub(in crate::weights) fn held(&self) -> Option<QuantizedPart> {
        let shape = self.held_shape()?;
        let groups = (0..self.n).flat_map(|row| (0..shape.row_groups()).map(move |at| (at, row)));
        let groups: Option<Vec<u32>> = groups.map(|(at, row)| self.word(&shape, at, row)).collect();
        let mut numbers = vec![0; shape.number_bytes()];
        let row_bytes = shape.numbers.row_bytes(self.k);
        in_tiles(&mut numbers, row_bytes, self.k, |first, tile, values: &mut [u8]| {
            self.numbers(first, values);
            for (row, values) in tile.chunks_exact_mut(row_bytes).zip(values.chunks_exact(self.k)) {
                shape.numbers.pack(values, row);
            }
        });
        Some(QuantizedPart { shape, numbers, groups: groups? })
    }

    /// Returns the word of a group of a row.
    fn word(&self, shape: &QuantizedShape, group: usize, row: usize) -> Option<u32> {
        let (scale, zero) = match &self.method {
            Method::Fp8(fp8) => (fp8.scale(group, row), 0),
            Method::Awq(awq) => awq.entry(group, row),
            Method::Gptq(gptq) => gptq.entry(group, row),
            Method::Packed(packed) => packed.entry(group, row),
        };
        shape.numbers.group_word(scale, zero)
    }

    /// Reads the stored numbers of neighbouring rows from row `first` on, a multiple of [`TILE_ROWS`], one a byte.
    fn numbers(&self, first: usize, out: &mut [u8]) {
        let k = self.k;
        let rows = (first, out.len() / k);
        debug_assert!(rows.1 <= TILE_ROWS && first.is_multiple_of(TILE_ROWS), "{rows:?}");
        let each = |row: usize, input: usize, integer: u32| out[row * k + input] = integer as u8;
        match &self.method {
            Method::Awq(awq) => awq.integers(k, first, each),
            Method::Gptq(gptq) => gptq.integers(k, rows, each),
            Method::Packed(packed) => packed.integers(k, rows, each),
            Method::Fp8(fp8) => {
                for (row, out) in (first..).zip(out.chunks_exact_mut(k)) {
                    out.copy_from_slice(fp8.floats(k, row));
                }
            }
        }
    }
}
