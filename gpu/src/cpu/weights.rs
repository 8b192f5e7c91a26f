//! Weight matrices in memory.

use crate::ggml::dequantize_row;
use crate::{MatrixPart, OpError, WeightFormat};

/// Packed weights `[n, k]`.
#[derive(Debug)]
pub struct Matrix {
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) rows: Vec<f32>,
}

/// Packs stacked parts.
pub(crate) fn pack(parts: &[MatrixPart<'_>], _format: WeightFormat) -> Result<Matrix, OpError> {
    let k = parts.first().map_or(0, |part| part.k);
    let mut rows = Vec::new();
    for part in parts {
        if part.k != k {
            return Err(OpError::Width(k, part.k));
        }
        let expected = part.source.matrix_bytes(part.n, k)?;
        if part.bytes.len() != expected {
            let (n, encoding, actual) = (part.n, part.source, part.bytes.len());
            return Err(OpError::Size { n, k, encoding, expected, actual });
        }
        let row_bytes = expected / part.n.max(1);
        for i in 0..part.n {
            let from = part.row_order.as_ref().map_or(i, |order| order[i] as usize);
            let at = rows.len();
            rows.resize(at + k, 0.0);
            let bytes = &part.bytes[from * row_bytes..][..row_bytes];
            dequantize_row(part.source, bytes, &mut rows[at..]);
        }
    }
    Ok(Matrix { n: rows.len() / k.max(1), k, rows })
}
