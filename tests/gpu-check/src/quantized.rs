//! Checks quantized matrices on a GPU. Decoded weights are compared with the formula. Products with a quantized matrix
//! are compared with products with its decoded weights, which the CPU and the GPU compute.

use crate::CheckError;
use crate::pair::{Pair, PairOptions, Setting, shape};
use crate::report::Report;
use half::{bf16, f16};
use tiercel_gpu::cuda::{CudaMatrix, Driver};
use tiercel_gpu::{
    MatrixPart, NumberType, Ops, QuantizedPart, QuantizedShape, RowInput, SourceType, TensorUse,
    WeightFormat,
};

/// Limits of the difference between products on GPU and CPU, as in the checks of bf16 matrices.
const LIMITS: (f32, f32) = (5e-3, 1e-2);
/// Rows of activations that are multiplied by decoded weights.
const MANY_ROWS: usize = 129;

/// A product with a quantized matrix `[n, k]`.
#[derive(Debug, Clone, Copy)]
pub struct QuantizedCase {
    /// Type of the numbers.
    pub numbers: NumberType,
    /// Output features of each of the parts that the matrix is stacked of.
    pub parts: [usize; 2],
    /// Input features.
    pub k: usize,
    /// Inputs of a group.
    pub group: usize,
    /// Rows of activations.
    pub rows: usize,
}

/// Products with few and many rows, with sizes that are no multiples of tiles, units and groups.
pub const QUANTIZED_CASES: [QuantizedCase; 17] = [
    case(NumberType::Int4, [1, 2], 8, 32, 1),
    case(NumberType::Int4, [130, 40], 264, 32, 5),
    case(NumberType::Int4, [17, 16], 2056, 128, 33),
    case(NumberType::Int8, [64, 64], 128, 128, 8),
    case(NumberType::Int8, [9, 150], 616, 96, 9),
    case(NumberType::Int8, [3, 30], 72, 32, MANY_ROWS),
    case(NumberType::Fp8, [16, 1], 1032, 1032, 2),
    case(NumberType::Fp8, [200, 57], 136, 128, MANY_ROWS),
    case(NumberType::Int4, [300, 4], 96, 64, MANY_ROWS + 32),
    case(NumberType::Int4, [40, 9], 296, 32, 12),
    case(NumberType::Int4, [40, 9], 1176, 128, 20),
    case(NumberType::Int4, [40, 9], 1176, 96, 100),
    case(NumberType::Int8, [40, 9], 1176, 128, 20),
    case(NumberType::Int8, [40, 9], 296, 64, 100),
    case(NumberType::Fp8, [40, 9], 296, 296, 12),
    case(NumberType::Fp8, [40, 9], 1176, 1176, 20),
    case(NumberType::Fp8, [40, 9], 296, 128, 100),
];

const fn case(
    numbers: NumberType,
    parts: [usize; 2],
    k: usize,
    group: usize,
    rows: usize,
) -> QuantizedCase {
    QuantizedCase { numbers, parts, k, group, rows }
}

/// Checks a product with a quantized matrix, and embeddings by the matrix, on a GPU: with `exact`, with products that
/// do not depend on the number of rows.
///
/// # Errors
/// [`CheckError`] if something could not be run at all.
pub fn check_quantized<D: Driver>(
    open: &dyn Fn() -> Result<D, CheckError>,
    exact: bool,
    case: QuantizedCase,
    report: &mut Report,
) -> Result<(), CheckError> {
    let options = PairOptions { exact, ..PairOptions::default() };
    let setting = Setting { shape: shape(16, 2, 2), blocks: 1, options };
    let mut pair = Pair::new(open()?, setting, case.k as u64)?;
    let (mut parts, mut weights) = (Vec::new(), Vec::new());
    for n in case.parts {
        let (part, decoded) = random(&mut pair, n, case);
        parts.push(part);
        weights.extend(decoded);
    }
    let held = pair.cuda.quantized(&parts)?;
    let what = format!("{case:?}, exact {exact}");
    report.holds(&format!("the GPU holds {what}"), held.is_some());
    let Some(matrix) = held else { return Ok(()) };
    let found = embeddings(&mut pair, &matrix, case)?;
    report.holds(&format!("weights of {what}"), bits(&found) == bits(&weights));
    products(&mut pair, &matrix, &weights, case, exact, report)
}

fn products<D: Driver>(
    pair: &mut Pair<D>,
    matrix: &CudaMatrix,
    weights: &[f32],
    case: QuantizedCase,
    exact: bool,
    report: &mut Report,
) -> Result<(), CheckError> {
    let (n, k, rows) = (case.parts.iter().sum(), case.k, case.rows);
    let what = format!("{case:?}, exact {exact}");
    let bytes: Vec<u8> = weights.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
    let twin = || MatrixPart { n, k, source: SourceType::Bf16, bytes: &bytes, row_order: None };
    let cpu_twin = pair.cpu.matrix(&[twin()], WeightFormat::F32)?;
    let twin = pair.cuda.matrix(&[twin()], WeightFormat::Auto)?;
    let x = pair.random(rows, k, TensorUse::Activations)?;
    for holds in [TensorUse::Activations, TensorUse::Logits] {
        if holds == TensorUse::Activations && !n.is_multiple_of(8) {
            continue;
        }
        let mut out = pair.empty(rows, n, holds)?;
        pair.cuda.linear(matrix, None, &x.cuda, &mut out.cuda);
        pair.cpu.linear(&cpu_twin, None, &x.cpu, &mut out.cpu);
        let found = pair.cuda.read(&out.cuda)?;
        report.compare(&format!("{holds:?} of {what}"), &found, out.cpu.values(), LIMITS);
        if rows >= MANY_ROWS {
            pair.cuda.linear(&twin, None, &x.cuda, &mut out.cuda);
            let same = bits(&found) == bits(&pair.cuda.read(&out.cuda)?);
            report.holds(&format!("the bits of decoded weights, {holds:?} of {what}"), same);
        }
        if exact {
            let same = (0..rows).map(|row| {
                let mut one = pair.cuda.tensor(1, k, TensorUse::Activations)?;
                pair.cuda.gather_rows(&x.cuda, &[row], &mut one);
                let mut alone = pair.cuda.tensor(1, n, holds)?;
                pair.cuda.linear(matrix, None, &one, &mut alone);
                Ok(bits(&pair.cuda.read(&alone)?) == bits(&found[row * n..][..n]))
            });
            let same = same.collect::<Result<Vec<bool>, CheckError>>()?;
            report.holds(&format!("rows alone, {holds:?} of {what}"), !same.contains(&false));
        }
    }
    pair.cuda.finish()?;
    Ok(())
}

/// Returns all weights of a matrix, looked up as embeddings.
fn embeddings<D: Driver>(
    pair: &mut Pair<D>,
    matrix: &CudaMatrix,
    case: QuantizedCase,
) -> Result<Vec<f32>, CheckError> {
    let n: usize = case.parts.iter().sum();
    let mut rows = pair.cuda.tensor(n, case.k, TensorUse::Residual)?;
    let tokens: Vec<RowInput> = (0..n as u32).map(RowInput::Token).collect();
    pair.cuda.embed(matrix, &tokens, &mut rows);
    Ok(pair.cuda.read(&rows)?)
}

/// Returns a random part of a quantized matrix, and its weights, rounded to bf16.
fn random<D: Driver>(
    pair: &mut Pair<D>,
    n: usize,
    case: QuantizedCase,
) -> (QuantizedPart, Vec<f32>) {
    let QuantizedCase { numbers, k, group, .. } = case;
    let shape = QuantizedShape::new(n, k, numbers, group).expect("cases have supported shapes");
    let groups = shape.row_groups();
    let mut below = |len: usize, end: f32| -> Vec<u8> {
        pair.numbers(len, 1.0)
            .iter()
            .map(|v| ((v + 1.0) / 2.0 * end).min(end - 1.0) as u8)
            .collect()
    };
    let most = if numbers == NumberType::Int4 { 16.0 } else { 256.0 };
    let mut stored = below(n * k, most);
    let mut zeros = below(n * groups, most);
    if numbers == NumberType::Fp8 {
        // Numbers that are not NaN, all 254 of them if there is room.
        for (at, number) in stored.iter_mut().enumerate() {
            *number = number.wrapping_add(at as u8);
            *number -= u8::from(*number & 0x7f == 0x7f);
        }
        zeros.fill(0);
    }
    let size = if numbers == NumberType::Int4 { 0.02 } else { 0.001 };
    let scales: Vec<f32> = pair
        .numbers(2 * n * groups, size)
        .chunks_exact(2)
        .map(|two| f16::from_f32(two[0] + two[1] / 512.0).to_f32())
        .collect();
    let value = |number: u8, zero: u8| match numbers {
        NumberType::Fp8 => e4m3(number),
        _ => f32::from(number) - f32::from(zero),
    };
    let weight = |at: usize| {
        let entry = at / k * groups + at % k / shape.group;
        bf16::from_f32(scales[entry] * value(stored[at], zeros[entry])).to_f32()
    };
    let weights = (0..n * k).map(weight).collect();
    let mut packed = vec![0; shape.number_bytes()];
    for (row, stored) in packed.chunks_exact_mut(numbers.row_bytes(k)).zip(stored.chunks_exact(k)) {
        numbers.pack(stored, row);
    }
    let words = scales.iter().zip(&zeros).map(|(scale, zero)| {
        numbers.group_word(*scale, u32::from(*zero)).expect("the scale is an f16 number")
    });
    (QuantizedPart { shape, numbers: packed, groups: words.collect() }, weights)
}

/// Returns the value of an 8-bit float that is not NaN.
fn e4m3(bits: u8) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 3 & 15), f32::from(bits & 7) / 8.0);
    let size = match exponent {
        0 => fraction * 2_f32.powi(-6),
        _ => (1.0 + fraction) * 2_f32.powi(exponent - 7),
    };
    if bits & 0x80 == 0 { size } else { -size }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
