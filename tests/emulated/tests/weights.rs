//! Tests that a file's weights are converted and uploaded to the device correctly.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use half::f16;
use tiercel_emulated::EmulatedDriver;
use tiercel_gpu::cuda::{CudaKv, CudaOps, CudaOptions, DevicePtr, Driver};
use tiercel_gpu::{
    MatrixPart, NumberType, Ops, QuantizedPart, QuantizedShape, RowInput, SourceType, TensorUse,
    WeightFormat,
};

/// Number of rows of the test matrix: more than fit into one conversion buffer, so that several are used.
const ROWS: usize = 2_500;
const COLS: usize = 4_096;

fn number(row: usize, col: usize) -> f32 {
    // Use numbers up to 250, because bf16 represents all integers up to 250 exactly.
    ((row * 7 + col) % 251) as f32
}

fn op_set() -> CudaOps<EmulatedDriver> {
    let mut driver = EmulatedDriver::new(1 << 28);
    let mut kv = CudaKv {
        at: DevicePtr::default(),
        blocks: 1,
        block_size: 16,
        layers: 1,
        kv_heads: 2,
        head_dim: 16,
        q8: false,
    };
    kv.at = driver.allocate(kv.block_bytes()).unwrap();
    let options = CudaOptions { exact: false, threads: 3, scratch: None };
    CudaOps::new(driver, kv, 2, options).unwrap()
}

#[test]
fn rows_are_converted_by_all_threads_and_keep_the_order_that_is_asked_for() {
    let mut ops = op_set();
    let bytes: Vec<u8> = (0..ROWS)
        .flat_map(|row| (0..COLS).flat_map(move |col| number(row, col).to_le_bytes()))
        .collect();
    let backwards: Vec<u32> = (0..ROWS as u32).rev().collect();
    let part = MatrixPart {
        n: ROWS,
        k: COLS,
        source: SourceType::F32,
        bytes: &bytes,
        row_order: Some(backwards),
    };
    let table = ops.matrix(&[part], WeightFormat::Auto).unwrap();
    let rows = [0, 1, 2_047, 2_048, 2_499];
    let mut out = ops.tensor(rows.len(), COLS, TensorUse::Residual).unwrap();
    ops.embed(&table, &rows.map(|row| RowInput::Token(row as u32)), &mut out);
    let found = ops.read(&out).unwrap();
    for (place, row) in rows.into_iter().enumerate() {
        for col in [0, 1, 777, COLS - 1] {
            let expected = number(ROWS - 1 - row, col);
            assert_eq!(found[place * COLS + col], expected, "row {row}, column {col}");
        }
    }
}

/// Returns all weights of a matrix of `n` rows as a GPU holds it in a format, and the description of the form.
fn held(parts: &[MatrixPart<'_>], format: WeightFormat) -> (Vec<f32>, String) {
    let mut ops = op_set();
    let (n, k) = (parts.iter().map(|part| part.n).sum(), parts[0].k);
    let table = ops.matrix(parts, format).unwrap();
    let mut out = ops.tensor(n, k, TensorUse::Residual).unwrap();
    let rows: Vec<RowInput> = (0..n as u32).map(RowInput::Token).collect();
    ops.embed(&table, &rows, &mut out);
    (ops.read(&out).unwrap(), ops.describe(&table))
}

#[test]
fn blocks_of_gguf_files_stay_quantized_with_the_same_weights_in_bf16() {
    let (n, k) = (5, 96);
    let bytes_of = |source: SourceType| -> Vec<u8> {
        let bytes = (0..source.matrix_bytes(n, k).unwrap()).map(|at| (at * 89 % 251) as u8);
        let mut bytes: Vec<u8> = bytes.collect();
        for (at, block) in bytes.chunks_exact_mut(source.block_bytes()).enumerate() {
            let scale = f16::from_f32(0.01 * (at as f32 - 3.5));
            block[..2].copy_from_slice(&scale.to_le_bytes());
        }
        bytes
    };
    let [four, eight, five] = [SourceType::Q4_0, SourceType::Q8_0, SourceType::Q5_0].map(bytes_of);
    let part =
        |source, bytes| MatrixPart { n, k, source, bytes, row_order: Some(vec![3, 1, 4, 0, 2]) };
    let four = || part(SourceType::Q4_0, &four[..]);
    let eight = || part(SourceType::Q8_0, &eight[..]);
    for (parts, form) in [
        (vec![four(), four()], "int4, groups of 32"),
        (vec![eight()], "int8, groups of 32"),
        (vec![four(), eight()], "bf16"),
        (vec![part(SourceType::Q5_0, &five[..])], "bf16"),
    ] {
        let (found, described) = held(&parts, WeightFormat::Auto);
        let (decoded, bf16) = held(&parts, WeightFormat::Bf16);
        assert_eq!((described.as_str(), bf16.as_str()), (form, "bf16"));
        assert!(found == decoded && found.iter().any(|weight| *weight != 0.0), "{form}");
    }
}

#[test]
fn every_8_bit_float_has_its_value() {
    let shape = QuantizedShape::new(1, 256, NumberType::Fp8, 256).unwrap();
    let groups = vec![NumberType::Fp8.group_word(1.0, 0).unwrap()];
    let part = QuantizedPart { shape, numbers: (0..=255).collect(), groups };
    let mut ops = op_set();
    let table = ops.quantized(&[part]).unwrap().unwrap();
    assert_eq!(ops.describe(&table), "fp8, a scale for each row");
    let mut out = ops.tensor(1, 256, TensorUse::Residual).unwrap();
    ops.embed(&table, &[RowInput::Token(0)], &mut out);
    for (bits, found) in (0_u32..).zip(ops.read(&out).unwrap()) {
        let (exponent, fraction) = ((bits >> 3 & 15) as i32, (bits & 7) as f32 / 8.0);
        let size = match exponent {
            0 => fraction * 2_f32.powi(-6),
            _ => (1.0 + fraction) * 2_f32.powi(exponent - 7),
        };
        if bits & 0x7f == 0x7f {
            assert!(found.is_nan(), "{bits:#x}");
        } else {
            let signed = if bits & 0x80 == 0 { size } else { -size };
            assert_eq!(found.to_bits(), signed.to_bits(), "{bits:#x}");
        }
    }
}
