//! Measures products with quantized matrices beside products with bf16 matrices of the same sizes.

use crate::CheckError;
use crate::report::Report;
use crate::speed::median_us;
use tiercel_gpu::cuda::{CudaKv, CudaMatrix, CudaOps, CudaOptions, Driver};
use tiercel_gpu::{
    MatrixPart, NumberType, Ops, QuantizedPart, QuantizedShape, SourceType, TensorUse, WeightFormat,
};

/// Matrices that are multiplied one after the other, so that a matrix is not in the GPU's cache from the product
/// before.
const MATRICES: usize = 8;
/// Numbers of rows of activations.
const ROWS: [usize; 7] = [1, 8, 16, 32, 64, 128, 256];
/// Numbers of rows of activations of exact products.
const EXACT_ROWS: [usize; 6] = [1, 8, 32, 64, 256, 2048];
/// Inputs of a group of integers.
const GROUP: usize = 128;

/// Measures the time of a product by the number of rows, for matrices `[n, n]` in bf16 and quantized.
pub(crate) fn measure_products<D: Driver>(
    ops: &mut CudaOps<D>,
    n: usize,
    repeats: usize,
    report: &mut Report,
) -> Result<(), CheckError> {
    let forms = [NumberType::Int4, NumberType::Int8, NumberType::Fp8].map(Some);
    for form in [None].into_iter().chain(forms) {
        measure(ops, "product", (n, form), &ROWS, repeats, report)?;
    }
    Ok(())
}

/// Measures the time of exact products with bf16 matrices `[n, n]` by the number of rows. The op set needs a KV cache,
/// so it gets one dummy block.
pub(crate) fn measure_exact_products<D: Driver>(
    mut driver: D,
    n: usize,
    repeats: usize,
    report: &mut Report,
) -> Result<(), CheckError> {
    let at = driver.allocate(1 << 16)?;
    let kv =
        CudaKv { at, blocks: 1, block_size: 16, layers: 1, kv_heads: 1, head_dim: 64, q8: false };
    let options = CudaOptions { exact: true, threads: 1, scratch: None };
    let mut ops = CudaOps::new(driver, kv, 1, options)?;
    measure(&mut ops, "exact product", (n, None), &EXACT_ROWS, repeats, report)
}

/// Measures the time of products with matrices `[n, n]` of a form, by the number of rows.
fn measure<D: Driver>(
    ops: &mut CudaOps<D>,
    what: &str,
    (n, form): (usize, Option<NumberType>),
    rows: &[usize],
    repeats: usize,
    report: &mut Report,
) -> Result<(), CheckError> {
    let matrices = matrices(ops, n, form)?;
    let mut found = Vec::new();
    for rows in rows.iter().copied() {
        let mut x = ops.tensor(rows, n, TensorUse::Activations)?;
        let mut out = ops.tensor(rows, n, TensorUse::Activations)?;
        let values = (0..rows * n).map(|i| (i * 7919 % 1013) as f32 / 1013.0 - 0.5);
        ops.write(&mut x, &values.collect::<Vec<f32>>())?;
        let us = median_us(repeats, || {
            matrices.iter().for_each(|w| ops.linear(w, None, &x, &mut out));
            Ok(ops.finish().map(drop)?)
        })?;
        found.push(format!("{:.0}", us / MATRICES as f64));
    }
    let form = ops.describe(&matrices[0]);
    let what = format!("{what} with [{n}, {n}], {form}, by rows {rows:?}");
    report.measured(&what, format!("{} us", found.join(", ")));
    Ok(())
}

/// Makes the matrices `[n, n]`, in bf16 or quantized. They are equal, but each has its own memory.
fn matrices<D: Driver>(
    ops: &mut CudaOps<D>,
    n: usize,
    form: Option<NumberType>,
) -> Result<Vec<CudaMatrix>, CheckError> {
    let Some(numbers) = form else {
        let bytes: Vec<u8> = varied(n * n).flat_map(|byte| [byte, 0x3c | byte & 0x80]).collect();
        let part = MatrixPart { n, k: n, source: SourceType::Bf16, bytes: &bytes, row_order: None };
        let made =
            (0..MATRICES).map(|_| Ok(ops.matrix(std::slice::from_ref(&part), WeightFormat::Bf16)?));
        return made.collect();
    };
    let group = if numbers == NumberType::Fp8 { n } else { GROUP };
    let shape = QuantizedShape::new(n, n, numbers, group).expect("a multiple of 32");
    let word = numbers.group_word(0.25, 0).expect("a short scale");
    let groups = vec![word; n * shape.row_groups()];
    // Without this bit, no 8-bit float is NaN.
    let numbers = varied(shape.number_bytes()).map(|byte| byte & 0xbf).collect();
    let parts = [QuantizedPart { shape, numbers, groups }];
    let made = (0..MATRICES).map(|_| Ok(ops.quantized(&parts)?.expect("one part stacks")));
    made.collect()
}

/// Returns bytes that vary without a short period (Knuth's multiplicative hash of their numbers): with equal weights,
/// the matrix units would run faster than with real weights.
fn varied(count: usize) -> impl Iterator<Item = u8> {
    (0..count as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 23) as u8)
}
