//! Upload of a file's weights to device memory: quantized as they are, or as bf16, which host threads convert the
//! weights to in pieces, in a buffer of 16 MiB.

use super::driver::{DevicePtr, Driver};
use super::memory::{CudaMatrix, Held, Quantized};
use crate::cpu::Pool;
use crate::ggml::dequantize_row;
use crate::quantized::{rearranged, shape_of};
use crate::{MatrixPart, NumberType, OpError, QuantizedPart, SourceType, WeightFormat};
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
    let n = parts.iter().map(|part| part.n).sum();
    let at = driver.allocate(n * k * 2).map_err(|error| no_memory(n * k * 2, &error))?;
    let mut to = at;
    for part in parts {
        upload_part(driver, pool, part, to)?;
        to = to.offset(part.n * k * 2);
    }
    Ok(CudaMatrix { held: Held::Bf16(at), n, k })
}

/// Returns the size in device memory of a weight matrix `[n, k]` of the file encoding `source`, bytes, if all parts of
/// the matrix have this encoding.
pub fn held_bytes(n: usize, k: usize, source: SourceType, format: WeightFormat) -> u64 {
    let quantized = shape_of(n, k, source).filter(|_| format == WeightFormat::Auto);
    quantized.map_or(n * k * 2, |shape| shape.bytes()) as u64
}

/// Rearranges the parts of a matrix that a GPU holds quantized; `None` if the matrix is held in bf16.
pub(super) fn quantized_parts(pool: &Pool, parts: &[MatrixPart<'_>]) -> Option<Vec<QuantizedPart>> {
    let source = parts.first()?.source;
    if parts.iter().any(|part| part.source != source) {
        return None;
    }
    parts.iter().map(|part| rearranged(pool, part)).collect()
}

/// Uploads the parts of a quantized matrix, stacked along its rows. `None` if their shapes cannot be stacked.
pub(super) fn upload_quantized<D: Driver>(
    driver: &mut D,
    parts: &[QuantizedPart],
) -> Result<Option<CudaMatrix>, OpError> {
    let Some(mut shape) = parts.first().map(|part| part.shape) else { return Ok(None) };
    if parts.iter().any(|part| !part.shape.stacks(&shape)) {
        return Ok(None);
    }
    shape.n = parts.iter().map(|part| part.shape.n).sum();
    let failed = |error| no_memory(shape.bytes(), &error);
    let numbers = driver.allocate(shape.number_bytes()).map_err(failed)?;
    let groups = driver.allocate(shape.bytes() - shape.number_bytes()).map_err(failed)?;
    let mut numbers_to = numbers;
    for part in parts {
        driver.upload(numbers_to, &part.numbers).map_err(failed)?;
        numbers_to = numbers_to.offset(part.numbers.len());
    }
    driver.upload(groups, &words_by_group(parts, shape.row_groups())).map_err(failed)?;
    let held = Held::Quantized(Quantized { numbers, groups, shape });
    Ok(Some(CudaMatrix { held, n: shape.n, k: shape.k }))
}

/// Returns the words of the groups of stacked parts: for each of the groups of a row, the words of all rows, so that
/// the threads of neighbouring rows read neighbouring words.
fn words_by_group(parts: &[QuantizedPart], row_groups: usize) -> Vec<u8> {
    let rows = || parts.iter().flat_map(|part| part.groups.chunks_exact(row_groups));
    (0..row_groups).flat_map(|group| rows().flat_map(move |row| row[group].to_ne_bytes())).collect()
}

/// Describes the form of a matrix for the log.
pub(super) fn describe(matrix: &CudaMatrix) -> String {
    let Held::Quantized(Quantized { shape, .. }) = &matrix.held else { return "bf16".to_owned() };
    let numbers = match shape.numbers {
        NumberType::Int4 => "int4",
        NumberType::Int8 => "int8",
        NumberType::Fp8 => "fp8",
    };
    match shape.row_groups() {
        1 => format!("{numbers}, a scale for each row"),
        _ => format!("{numbers}, groups of {}", shape.group),
    }
}

/// Checks the sizes of the parts of a matrix.
pub(super) fn check(parts: &[MatrixPart<'_>]) -> Result<(), OpError> {
    let k = parts.first().map_or(0, |part| part.k);
    parts.iter().try_for_each(|part| check_part(part, k))
}

fn check_part(part: &MatrixPart<'_>, k: usize) -> Result<(), OpError> {
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
