//! Tests that a file's weights are converted and uploaded to the device correctly.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use tiercel_emulated::EmulatedDriver;
use tiercel_gpu::cuda::{CudaKv, CudaOps, CudaOptions, DevicePtr, Driver};
use tiercel_gpu::{MatrixPart, Ops, RowInput, SourceType, TensorUse, WeightFormat};

/// Number of rows of the test matrix: more than fit into one conversion buffer, so that several are used.
const ROWS: usize = 2_500;
const COLS: usize = 4_096;

fn number(row: usize, col: usize) -> f32 {
    // Use numbers up to 250, because bf16 represents all integers up to 250 exactly.
    ((row * 7 + col) % 251) as f32
}

#[test]
fn rows_are_converted_by_all_threads_and_keep_the_order_that_is_asked_for() {
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
    let mut ops = CudaOps::new(driver, kv, 2, options).unwrap();
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
