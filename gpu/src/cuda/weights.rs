//! Upload of a file's weights to device memory as bf16. Host threads convert the weights in pieces, in a buffer of 16
//! MiB.

use super::driver::{DevicePtr, Driver};
use super::memory::CudaMatrix;
use crate::cpu::Pool;
use crate::ggml::dequantize_row;
use crate::{MatrixPart, OpError, SourceType};
use half::bf16;

/// Size of the buffer for converting weights, bytes: large enough for uploads at the link's full speed.
const CHUNK_BYTES: usize = 16 << 20;

/// Uploads the parts of a weight matrix to the GPU, stacked along its rows.
pub(super) fn upload<D: Driver>(
    driver: &mut D,
    pool: &Pool,
    parts: &[MatrixPart<'_>],
) -> Result<CudaMatrix, OpError> {
    let k = parts.first().map_or(0, |part| part.k);
    for part in parts {
        check(part, k)?;
    }
    let n = parts.iter().map(|part| part.n).sum();
    let at = driver.allocate(n * k * 2).map_err(|error| no_memory(n * k * 2, &error))?;
    let mut to = at;
    for part in parts {
        upload_part(driver, pool, part, to)?;
        to = to.offset(part.n * k * 2);
    }
    Ok(CudaMatrix { at, n, k })
}

fn check(part: &MatrixPart<'_>, k: usize) -> Result<(), OpError> {
    if part.k != k {
        return Err(OpError::Width(k, part.k));
    }
    if !k.is_multiple_of(8) {
        return Err(OpError::Device(format!(
            "rows of {k} weights, where a multiple of 8 is needed"
        )));
    }
    let expected = part.source.matrix_bytes(part.n, k)?;
    if part.bytes.len() != expected {
        let (n, encoding, actual) = (part.n, part.source, part.bytes.len());
        return Err(OpError::Size { n, k, encoding, expected, actual });
    }
    Ok(())
}

fn upload_part<D: Driver>(
    driver: &mut D,
    pool: &Pool,
    part: &MatrixPart<'_>,
    to: DevicePtr,
) -> Result<(), OpError> {
    let failed = |error| no_memory(part.n * part.k * 2, &error);
    if part.source == SourceType::Bf16 && part.row_order.is_none() {
        return driver.upload(to, part.bytes).map_err(failed);
    }
    let row_bytes = part.bytes.len() / part.n.max(1);
    let rows_at_once = (CHUNK_BYTES / (part.k * 2)).max(1);
    let mut chunk = vec![0_u8; rows_at_once.min(part.n) * part.k * 2];
    for first in (0..part.n).step_by(rows_at_once) {
        let rows = rows_at_once.min(part.n - first);
        let chunk = &mut chunk[..rows * part.k * 2];
        pool.rows(chunk, part.k * 2, 1, |row, out| {
            let row = first + row;
            let from = part.row_order.as_ref().map_or(row, |order| order[row] as usize);
            let mut values = vec![0.0; part.k];
            let bytes = &part.bytes[from * row_bytes..(from + 1) * row_bytes];
            dequantize_row(part.source, bytes, &mut values);
            for (out, value) in out.chunks_exact_mut(2).zip(values) {
                out.copy_from_slice(&bf16::from_f32(value).to_le_bytes());
            }
        });
        driver.upload(to.offset(first * part.k * 2), chunk).map_err(failed)?;
    }
    Ok(())
}

fn no_memory(bytes: usize, error: &super::CudaError) -> OpError {
    OpError::Memory { bytes, why: error.to_string() }
}
