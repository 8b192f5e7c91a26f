//! Measures products with quantized matrices beside products with bf16 matrices of the same sizes.

use crate::CheckError;
use crate::report::Report;
use crate::speed::median_us;
use tiercel_gpu::cuda::{CudaMatrix, CudaOps, Driver};
use tiercel_gpu::{
    MatrixPart, NumberType, Ops, QuantizedPart, QuantizedShape, SourceType, TensorUse, WeightFormat,
};

/// Matrices that are multiplied one after the other, so that a matrix is not in the GPU's cache from the product before.
const MATRICES: usize = 8;
/// Numbers of rows of activations.
const ROWS: [usize; 5] = [1, 8, 32, 64, 256];
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
        let matrices = (0..MATRICES).map(|_| matrix(ops, n, form));
        let matrices = matrices.collect::<Result<Vec<_>, _>>()?;
        let mut found = Vec::new();
        for rows in ROWS {
            let mut x = ops.tensor(rows, n, TensorUse::Activations)?;
            let mut out = ops.tensor(rows, n, TensorUse::Activations)?;
            ops.write(&mut x, &vec![0.5; rows * n])?;
            let us = median_us(repeats, || {
                matrices.iter().for_each(|w| ops.linear(w, None, &x, &mut out));
                Ok(ops.finish().map(drop)?)
            })?;
            found.push(format!("{:.0}", us / MATRICES as f64));
        }
        let form = ops.describe(&matrices[0]);
        let what = format!("product with [{n}, {n}], {form}, by rows {ROWS:?}");
        report.measured(&what, format!("{} us", found.join(", ")));
    }
    Ok(())
}

fn matrix<D: Driver>(
    ops: &mut CudaOps<D>,
    n: usize,
    form: Option<NumberType>,
) -> Result<CudaMatrix, CheckError> {
    let Some(numbers) = form else {
        let bytes = vec![0x3c; n * n * 2];
        let part = MatrixPart { n, k: n, source: SourceType::Bf16, bytes: &bytes, row_order: None };
        return Ok(ops.matrix(&[part], WeightFormat::Bf16)?);
    };
    let group = if numbers == NumberType::Fp8 { n } else { GROUP };
    let shape = QuantizedShape::new(n, n, numbers, group).expect("a multiple of 16");
    let word = numbers.group_word(0.25, 0).expect("a short scale");
    let groups = vec![word; n * shape.row_groups()];
    let part = QuantizedPart { shape, numbers: vec![0x34; shape.number_bytes()], groups };
    Ok(ops.quantized(&[part])?.expect("one part stacks"))
}
