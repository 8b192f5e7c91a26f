//! Tests of packed weights on the CPU: every encoding against candle's decoder, and packed matrices against decoded
//! ones.

use super::*;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::borrow::Cow;

const QUANTIZED: [(SourceType, GgmlDType); 10] = [
    (SourceType::Q4_0, GgmlDType::Q4_0),
    (SourceType::Q4_1, GgmlDType::Q4_1),
    (SourceType::Q5_0, GgmlDType::Q5_0),
    (SourceType::Q5_1, GgmlDType::Q5_1),
    (SourceType::Q8_0, GgmlDType::Q8_0),
    (SourceType::Q2K, GgmlDType::Q2K),
    (SourceType::Q3K, GgmlDType::Q3K),
    (SourceType::Q4K, GgmlDType::Q4K),
    (SourceType::Q5K, GgmlDType::Q5K),
    (SourceType::Q6K, GgmlDType::Q6K),
];

/// Returns a random weight matrix quantized by candle: its bytes, and the weights that candle decodes from them.
fn quantized(kind: GgmlDType, n: usize, k: usize) -> (Vec<u8>, Vec<f32>) {
    let mut rng = SmallRng::seed_from_u64(n as u64);
    let values: Vec<f32> = (0..n * k).map(|_| rng.random_range(-0.3_f32..0.4).powi(3)).collect();
    let tensor = Tensor::from_vec(values, (n, k), &Device::Cpu).unwrap();
    let quantized = QTensor::quantize(&tensor, kind).unwrap();
    let decoded = quantized.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap();
    let bytes: Cow<'_, [u8]> = quantized.data().unwrap();
    (bytes.to_vec(), decoded.to_vec1().unwrap())
}

fn decoded(matrix: &Matrix) -> Vec<f32> {
    let mut out = vec![0.0; matrix.n * matrix.k];
    out.chunks_exact_mut(matrix.k).enumerate().for_each(|(row, out)| matrix.row(row, out));
    out
}

fn largest_error(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn decoding_agrees_with_candle_for_every_encoding() {
    let (n, k) = (3, 512);
    for (source, kind) in QUANTIZED {
        let (bytes, expected) = quantized(kind, n, k);
        assert_eq!(bytes.len(), source.matrix_bytes(n, k).unwrap(), "{source:?}");
        let mut actual = vec![0.0; n * k];
        for (bytes, out) in bytes.chunks_exact(bytes.len() / n).zip(actual.chunks_exact_mut(k)) {
            dequantize_row(source, bytes, out);
        }
        // Allows a rounding error: this decoder and candle's multiply the same numbers, but in a different order.
        let error = largest_error(&actual, &expected);
        assert!(error <= 1e-8, "{source:?}: {error}");
    }
}

#[test]
fn packing_keeps_what_each_format_promises() {
    let (n, k) = (21, 512);
    let pool = Pool::start(2).unwrap();
    for (source, kind) in QUANTIZED {
        let (bytes, expected) = quantized(kind, n, k);
        let part = MatrixPart { n, k, source, bytes: &bytes, row_order: None };
        let error_of = |format| {
            let matrix =
                pack(&pool, &mut Arena::default(), std::slice::from_ref(&part), format).unwrap();
            (largest_error(&decoded(&matrix), &expected), matrix.describe())
        };
        let max = expected.iter().copied().map(f32::abs).fold(0.0, f32::max);
        assert!(error_of(WeightFormat::F32).0 <= 1e-8, "{source:?}");
        assert!(error_of(WeightFormat::Bf16).0 <= max / 256.0, "{source:?}");
        assert!(error_of(WeightFormat::Q8_0).0 <= max / 250.0, "{source:?}");
        let (native, form) = error_of(WeightFormat::Native);
        match source {
            // Checks the error of packed Q4_K, which is largest where `d * scale` rounded to f16 is multiplied by 15,
            // the largest 4-bit number.
            SourceType::Q4K => assert!(form == "q4 panels" && native <= max / 1024.0),
            SourceType::Q4_0 | SourceType::Q4_1 => assert!(form == "q4 panels" && native <= 1e-8),
            SourceType::Q8_0 => assert!(form == "q8 panels" && native == 0.0),
            _ => assert!(form == "f32 panels" && native <= 1e-8, "{source:?} {form} {native}"),
        }
        let (auto, form) = error_of(WeightFormat::Auto);
        assert!(auto <= max / 250.0, "{source:?} {form} {auto}");
    }
}

#[test]
fn plain_floats_pack_exactly_and_in_the_order_asked_for() {
    let (n, k) = (19, 5);
    let pool = Pool::start(1).unwrap();
    let values: Vec<f32> = (0..n * k).map(|i| i as f32 - 31.0).collect();
    let order: Vec<u32> = (0..n as u32).rev().collect();
    let f16: Vec<u8> = values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
    let bf16_bytes: Vec<u8> =
        values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
    let f32_bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    for (source, bytes, form) in [
        (SourceType::F32, &f32_bytes, "f32 panels"),
        (SourceType::F16, &f16, "f32 panels"),
        (SourceType::Bf16, &bf16_bytes, "bf16 panels"),
    ] {
        let part = MatrixPart { n, k, source, bytes, row_order: Some(order.clone()) };
        let matrix = pack(&pool, &mut Arena::default(), &[part], WeightFormat::Auto).unwrap();
        assert_eq!(matrix.describe(), form);
        let rows = decoded(&matrix);
        for (row, from) in rows.chunks_exact(k).zip((0..n).rev()) {
            assert_eq!(row, &values[from * k..(from + 1) * k]);
        }
    }
}

#[test]
fn q4k_scales_in_f16_cost_nothing_next_to_8_bit_activations() {
    let (n, k) = (64, 1024);
    let pool = Pool::start(1).unwrap();
    let (bytes, exact) = quantized(GgmlDType::Q4K, n, k);
    let part = MatrixPart { n, k, source: SourceType::Q4K, bytes: &bytes, row_order: None };
    let packed = decoded(&pack(&pool, &mut Arena::default(), &[part], WeightFormat::Auto).unwrap());
    let square =
        |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
    let error = square(&mut packed.iter().zip(&exact).map(|(a, b)| a - b));
    let relative = (error / square(&mut exact.iter().copied())).sqrt();
    // Checks that the error of packed Q4_K weights is small beside that of rounding activations to 8 bits in blocks of
    // 32, whose relative error is about 5e-3.
    assert!(relative < 6e-4, "relative error {relative}");
}

#[test]
fn weights_whose_scale_does_not_fit_are_refused() {
    let pool = Pool::start(1).unwrap();
    let pack = |scale: f32, source, format| {
        let mut bytes = half::f16::from_f32(scale).to_le_bytes().to_vec();
        bytes.resize(source_bytes(source), 0);
        let part = MatrixPart { n: 1, k: 32, source, bytes: &bytes, row_order: None };
        pack(&pool, &mut Arena::default(), &[part], format).map(|matrix| decoded(&matrix)[0])
    };
    let refused = Err(OpError::Scale { n: 1, k: 32, encoding: SourceType::Q4_0 });
    assert_eq!(pack(8000.0, SourceType::Q4_0, WeightFormat::Auto), Ok(-64_000.0));
    assert_eq!(pack(9000.0, SourceType::Q4_0, WeightFormat::Auto), refused);
    assert_eq!(pack(9000.0, SourceType::Q4_0, WeightFormat::F32), Ok(-72_000.0));
    let infinite = pack(f32::INFINITY, SourceType::Q4_1, WeightFormat::Auto);
    assert!(matches!(infinite, Err(OpError::Scale { .. })), "{infinite:?}");
}

fn source_bytes(source: SourceType) -> usize {
    source.matrix_bytes(1, 32).unwrap()
}

#[test]
fn the_size_told_beforehand_is_the_size_packed() {
    let (n, k) = (21, 512);
    let pool = Pool::start(1).unwrap();
    for (source, kind) in QUANTIZED {
        let (bytes, _) = quantized(kind, n, k);
        let part = MatrixPart { n, k, source, bytes: &bytes, row_order: None };
        for format in [
            WeightFormat::Auto,
            WeightFormat::F32,
            WeightFormat::Bf16,
            WeightFormat::Q8_0,
            WeightFormat::Native,
        ] {
            let part = std::slice::from_ref(&part);
            let matrix = pack(&pool, &mut Arena::default(), part, format).unwrap();
            let packed = match &matrix.segments[0].panels {
                Panels::F32(packed) => size_of_val::<[_]>(packed),
                Panels::Bf16(packed) => size_of_val::<[_]>(packed),
                Panels::Q8(packed) => size_of_val::<[_]>(packed),
                Panels::Q4(packed) => size_of_val::<[_]>(packed),
            };
            assert_eq!(packed_bytes(n, k, source, format), packed as u64, "{source:?} {format:?}");
        }
    }
}

#[test]
fn bad_sizes_are_refused() {
    let pool = Pool::start(1).unwrap();
    let bytes = vec![0; 1000];
    let part = |n, k, source| MatrixPart { n, k, source, bytes: &bytes, row_order: None };
    let pack = |parts: &[MatrixPart<'_>]| {
        pack(&pool, &mut Arena::default(), parts, WeightFormat::Auto).map(|_| ())
    };
    assert_eq!(
        pack(&[part(2, 48, SourceType::Q4_1)]),
        Err(OpError::Block { k: 48, encoding: SourceType::Q4_1, block: 32 })
    );
    assert!(matches!(
        pack(&[part(2, 64, SourceType::Q8_0)]),
        Err(OpError::Size { expected: 136, actual: 1000, .. })
    ));
    assert!(matches!(pack(&[part(usize::MAX, 32, SourceType::F32)]), Err(OpError::Size { .. })));
    assert!(matches!(pack(&[part(1, 0, SourceType::F32)]), Err(OpError::Block { .. })));
    let parts = [part(5, 50, SourceType::F32), part(5, 25, SourceType::Bf16)];
    assert_eq!(pack(&parts), Err(OpError::Width(50, 25)));
}
