//! Packed weight matrices of the CPU device: their layouts in memory, and the packing of weights into them.

mod arena;
mod blocks;
#[cfg(test)]
mod tests;

use super::pool::Pool;
use crate::ggml::dequantize_row;
use crate::{MatrixPart, OpError, SourceType, WeightFormat};
pub(crate) use arena::{Arena, Packed};
pub(crate) use blocks::{
    Bf16Column, DENSE_ROWS, F32Column, Q4Block, Q8Block, QUANT_LEN, QUANT_ROWS,
};
use blocks::{q4_parts, quantize_q8};
use half::bf16;
use std::sync::atomic::{AtomicBool, Ordering};

/// Packed weight matrix `[n, k]`: `n` output features of `k` weights.
#[derive(Debug)]
pub struct Matrix {
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// Parts of the matrix that are stacked along its output features (such as q, k and v), in order.
    pub(crate) segments: Vec<Segment>,
}

/// One of the stacked parts of a packed weight matrix (such as q of q, k, v). All weights of the part have the same
/// number format in memory (such as 8-bit blocks or bf16).
#[derive(Debug)]
pub(crate) struct Segment {
    /// Output feature of the matrix at which the stacked part begins.
    pub(crate) first: usize,
    /// Number of output features of the stacked part.
    pub(crate) n: usize,
    pub(crate) panels: Panels,
}

/// Packed weights of one stacked part of a matrix: panels (groups of output rows stored interleaved), one after the
/// other. Rows beyond `n` in the last panel are zero.
#[derive(Debug)]
pub(crate) enum Panels {
    /// Panels of f32 weights, `k` columns each.
    F32(Packed<F32Column>),
    /// Panels of bf16 weights, `k` columns each.
    Bf16(Packed<Bf16Column>),
    /// Panels of 8-bit weights, `k / 32` blocks each, rounded up; columns beyond `k` are zero.
    Q8(Packed<Q8Block>),
    /// Panels of 4-bit weights, `k / 32` blocks each.
    Q4(Packed<Q4Block>),
}

/// Number format in which the CPU holds the weights of a matrix in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    F32,
    Bf16,
    Q8,
    Q4,
}

fn form(source: SourceType, format: WeightFormat) -> Form {
    use SourceType as S;
    match format {
        WeightFormat::F32 => Form::F32,
        WeightFormat::Bf16 => Form::Bf16,
        WeightFormat::Q8_0 => Form::Q8,
        WeightFormat::Auto | WeightFormat::Native => match source {
            S::F32 | S::F16 => Form::F32,
            S::Bf16 => Form::Bf16,
            S::Q4_0 | S::Q4_1 | S::Q4K => Form::Q4,
            S::Q8_0 => Form::Q8,
            // Stores all remaining encodings in 8 bits: they have at most 6 bits, so this adds an error far below their
            // own.
            _ if format == WeightFormat::Auto => Form::Q8,
            _ => Form::F32,
        },
    }
}

/// Returns the size of a weight matrix `[n, k]` of the file encoding `source` once it is packed as `format` asks,
/// bytes.
pub fn packed_bytes(n: usize, k: usize, source: SourceType, format: WeightFormat) -> u64 {
    let (columns, blocks) = (dense_columns(n, k) as u64, quant_blocks(n, k) as u64);
    match form(source, format) {
        Form::F32 => columns * size_of::<F32Column>() as u64,
        Form::Bf16 => columns * size_of::<Bf16Column>() as u64,
        Form::Q8 => blocks * size_of::<Q8Block>() as u64,
        Form::Q4 => blocks * size_of::<Q4Block>() as u64,
    }
}

/// Returns the number of weight columns in all f32 or bf16 panels of a matrix.
fn dense_columns(n: usize, k: usize) -> usize {
    n.div_ceil(DENSE_ROWS) * k
}

/// Returns the number of weight blocks in all quantized panels of a matrix.
fn quant_blocks(n: usize, k: usize) -> usize {
    n.div_ceil(QUANT_ROWS) * k.div_ceil(QUANT_LEN)
}

impl Panels {
    /// Returns the number of output rows in each of these weight panels.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Panels::F32(_) | Panels::Bf16(_) => DENSE_ROWS,
            Panels::Q8(_) | Panels::Q4(_) => QUANT_ROWS,
        }
    }

    fn is_quantized(&self) -> bool {
        matches!(self, Panels::Q8(_) | Panels::Q4(_))
    }

    fn name(&self) -> &'static str {
        match self {
            Panels::F32(_) => "f32",
            Panels::Bf16(_) => "bf16",
            Panels::Q8(_) => "q8",
            Panels::Q4(_) => "q4",
        }
    }
}

impl Segment {
    /// Decodes one output row of a stacked part of the matrix to f32.
    fn row(&self, row: usize, out: &mut [f32]) {
        let (panel, lane) = (row / self.panels.rows(), row % self.panels.rows());
        let (k, blocks) = (out.len(), out.len().div_ceil(QUANT_LEN));
        let chunks = out.chunks_mut(QUANT_LEN);
        match &self.panels {
            Panels::F32(columns) => {
                let columns = &columns[panel * k..][..k];
                out.iter_mut().zip(columns).for_each(|(out, column)| *out = column.0[lane]);
            }
            Panels::Bf16(columns) => {
                let columns = &columns[panel * k..][..k];
                out.iter_mut()
                    .zip(columns)
                    .for_each(|(out, column)| *out = column.0[lane].to_f32());
            }
            Panels::Q8(packed) => chunks
                .zip(&packed[panel * blocks..][..blocks])
                .for_each(|(out, block)| out.copy_from_slice(&block.row(lane)[..out.len()])),
            Panels::Q4(packed) => chunks
                .zip(&packed[panel * blocks..][..blocks])
                .for_each(|(out, block)| out.copy_from_slice(&block.row(lane)[..out.len()])),
        }
    }
}

impl Matrix {
    /// Whether at least one part of the weight matrix is quantized, so that multiplying by the matrix needs quantized
    /// activations.
    pub(crate) fn is_quantized(&self) -> bool {
        self.segments.iter().any(|segment| segment.panels.is_quantized())
    }

    /// Decodes output row `row` of the packed matrix, `k` weights, to f32.
    pub(crate) fn row(&self, row: usize, out: &mut [f32]) {
        let segment = self
            .segments
            .iter()
            .find(|segment| (segment.first..segment.first + segment.n).contains(&row))
            .unwrap_or_else(|| panic!("row {row} of a matrix of {}", self.n));
        segment.row(row - segment.first, out);
    }

    /// Returns a description of the forms in which the matrix's parts are packed, for example `"q4+q8 panels"`.
    pub(crate) fn describe(&self) -> String {
        let mut names: Vec<_> = self.segments.iter().map(|s| s.panels.name()).collect();
        names.dedup();
        format!("{} panels", names.join("+"))
    }
}

/// Packs stacked parts of weights (such as q, k and v) into one matrix.
pub(crate) fn pack(
    pool: &Pool,
    arena: &mut Arena,
    parts: &[MatrixPart<'_>],
    format: WeightFormat,
) -> Result<Matrix, OpError> {
    let k = parts.first().map_or(0, |part| part.k);
    let mut matrix = Matrix { n: 0, k, segments: Vec::with_capacity(parts.len()) };
    for part in parts {
        if part.k != k {
            return Err(OpError::Width(k, part.k));
        }
        let (n, encoding, actual) = (part.n, part.source, part.bytes.len());
        let expected = encoding.matrix_bytes(n, k)?;
        if actual != expected {
            return Err(OpError::Size { n, k, encoding, expected, actual });
        }
        if let Some(order) = &part.row_order {
            assert_eq!(order.len(), n, "row order and rows");
        }
        let panels = pack_part(pool, arena, part, form(encoding, format))?;
        matrix.segments.push(Segment { first: matrix.n, n, panels });
        matrix.n += n;
    }
    Ok(matrix)
}

fn pack_part(
    pool: &Pool,
    arena: &mut Arena,
    part: &MatrixPart<'_>,
    form: Form,
) -> Result<Panels, OpError> {
    let (n, k) = (part.n, part.k);
    let blocks = k.div_ceil(QUANT_LEN);
    let (dense_columns, quant_blocks) = (dense_columns(n, k), quant_blocks(n, k));
    // Flag that some scale was too large for f16, set by the threads that pack. The end of the pool's job orders the
    // stores before the check of the flag.
    let too_large = AtomicBool::new(false);
    let panels = match form {
        Form::F32 => Panels::F32(arena.pack(dense_columns, |columns| {
            pool.rows(columns, k, 1, |panel, columns: &mut [F32Column]| {
                each_row(part, panel, DENSE_ROWS, |lane, row| {
                    columns.iter_mut().zip(row).for_each(|(column, w)| column.0[lane] = *w);
                });
            });
        })?),
        Form::Bf16 => Panels::Bf16(arena.pack(dense_columns, |columns| {
            pool.rows(columns, k, 1, |panel, columns: &mut [Bf16Column]| {
                each_row(part, panel, DENSE_ROWS, |lane, row| {
                    let columns = columns.iter_mut().zip(row);
                    columns.for_each(|(column, w)| column.0[lane] = bf16::from_f32(*w));
                });
            });
        })?),
        Form::Q8 => Panels::Q8(arena.pack(quant_blocks, |packed| {
            pool.rows(packed, blocks, 1, |panel, packed| pack_q8(part, panel, packed, &too_large));
        })?),
        Form::Q4 => Panels::Q4(arena.pack(quant_blocks, |packed| {
            pool.rows(packed, blocks, 1, |panel, packed| pack_q4(part, panel, packed, &too_large));
        })?),
    };
    match too_large.into_inner() {
        true => Err(OpError::Scale { n, k, encoding: part.source }),
        false => Ok(panels),
    }
}

fn pack_q4(part: &MatrixPart<'_>, panel: usize, packed: &mut [Q4Block], too_large: &AtomicBool) {
    for (lane, bytes) in rows_of(part, panel, QUANT_ROWS).enumerate() {
        for (index, block) in packed.iter_mut().enumerate() {
            let (scale, min, nibbles) = q4_parts(part.source, bytes, index);
            if !(scale.is_finite() && min.is_finite()) {
                too_large.store(true, Ordering::Relaxed);
            }
            block.set_row(lane, scale, min, &nibbles);
        }
    }
}

fn pack_q8(part: &MatrixPart<'_>, panel: usize, packed: &mut [Q8Block], too_large: &AtomicBool) {
    if part.source == SourceType::Q8_0 {
        for (lane, bytes) in rows_of(part, panel, QUANT_ROWS).enumerate() {
            for (block, bytes) in packed.iter_mut().zip(bytes.chunks_exact(34)) {
                let weights: [i8; QUANT_LEN] = std::array::from_fn(|i| bytes[2 + i] as i8);
                block.set_row(lane, crate::ggml::half_at(bytes, 0), &weights);
            }
        }
    } else {
        each_row(part, panel, QUANT_ROWS, |lane, row| {
            for (block, weights) in packed.iter_mut().zip(row.chunks(QUANT_LEN)) {
                let (scale, weights) = quantize_q8(weights);
                if !scale.is_finite() {
                    too_large.store(true, Ordering::Relaxed);
                }
                block.set_row(lane, scale, &weights);
            }
        });
    }
}

/// Returns the bytes, as encoded in the file, of each output row of a weight panel; fewer than `rows` rows in the last
/// panel.
fn rows_of<'a>(
    part: &'a MatrixPart<'a>,
    panel: usize,
    rows: usize,
) -> impl Iterator<Item = &'a [u8]> {
    let row_bytes = part.bytes.len() / part.n;
    (panel * rows..part.n.min((panel + 1) * rows)).map(move |row| {
        let from = part.row_order.as_ref().map_or(row, |order| order[row] as usize);
        &part.bytes[from * row_bytes..][..row_bytes]
    })
}

/// Calls `each(lane, weights)` for every output row of a weight panel, with the weights decoded to f32.
fn each_row(part: &MatrixPart<'_>, panel: usize, rows: usize, mut each: impl FnMut(usize, &[f32])) {
    let mut row = vec![0.0; part.k];
    for (lane, bytes) in rows_of(part, panel, rows).enumerate() {
        dequantize_row(part.source, bytes, &mut row);
        each(lane, &row);
    }
}
