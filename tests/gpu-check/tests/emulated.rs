//! Runs all GPU checks on the emulated GPU. The tests cover the results of the kernels (not their speed) and the checks
//! themselves.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use proptest::prelude::*;
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tiercel_emulated::{EmulatedDriver, Fault};
use tiercel_gpu::NumberType;
use tiercel_gpu::cuda::tested_shapes;
use tiercel_gpu_check::{
    CheckError, PremiumPlan, QUANTIZED_CASES, QuantizedCase, Report, SpeedPlan, check_attention,
    check_copies, check_faults, check_models, check_quantized, check_reference, check_rows,
    check_sampling, check_steps, check_swaps, measure_premium, measure_speed, run_each_step,
};

const MEMORY_BYTES: usize = 1 << 30;
/// Configuration of a model that is tiny enough to run fast on the emulator.
const TINY: &str = r#"{"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5}"#;

fn open() -> Result<EmulatedDriver, CheckError> {
    Ok(EmulatedDriver::new(MEMORY_BYTES))
}

/// Asserts that the report has `lines` lines, none of them failed.
fn assert_met(report: &Report, lines: usize) {
    assert_eq!(report.failures(), Vec::<String>::new(), "{report}");
    assert_eq!(report.len(), lines, "{report}");
}

#[test]
fn rows_and_products() {
    let mut report = Report::default();
    check_rows(&open, &mut report).unwrap();
    assert_met(&report, 5 * 7 + 7 * (4 + 5) + 4);
}

#[test]
fn quantized_matrices() {
    for exact in [false, true] {
        let mut report = Report::default();
        for case in QUANTIZED_CASES {
            check_quantized(&open, exact, case, &mut report).unwrap();
        }
        // Activations have multiples of 8 columns. Exact results are also compared with those of single rows, and those
        // of more than 128 rows with the product of a bf16 matrix.
        let lines = |case: QuantizedCase| {
            let uses = if (case.parts[0] + case.parts[1]).is_multiple_of(8) { 2 } else { 1 };
            2 + uses * (1 + usize::from(exact) + usize::from(case.rows > 128))
        };
        assert_met(&report, QUANTIZED_CASES.into_iter().map(lines).sum());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    /// Also checks that the result of a row does not depend on the other rows.
    #[test]
    fn exact_products_with_quantized_matrices_of_any_shape(
        numbers in prop_oneof![Just(NumberType::Int4), Just(NumberType::Int8), Just(NumberType::Fp8)],
        parts in [1_usize..40, 1_usize..40],
        eighths in 1_usize..80,
        units in 1_usize..5,
        rows in 1_usize..40,
    ) {
        let case = QuantizedCase { numbers, parts, k: 8 * eighths, group: 32 * units, rows };
        let mut report = Report::default();
        check_quantized(&open, true, case, &mut report).unwrap();
        prop_assert_eq!(report.failures(), Vec::<String>::new());
        prop_assert!(report.len() >= 4);
    }
}

#[test]
fn attention() {
    let mut report = Report::default();
    check_attention(&open, &mut report).unwrap();
    assert_met(&report, tested_shapes().count() * 2 * 2 + 5 + 5 * 3 + 2 * 2);
}

#[test]
fn models_of_all_families() {
    let mut report = Report::default();
    check_models(&open, &mut report).unwrap();
    assert_met(&report, 5 * (2 * 2 + 3));
}

#[test]
fn what_transformers_computed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/tiny");
    let mut report = Report::default();
    check_reference(&open, &folder, &mut report).unwrap();
    assert_met(&report, 5 * 2 * 3);
    let nowhere = check_reference(&open, Path::new("nowhere"), &mut report).unwrap_err();
    assert!(nowhere.to_string().contains("--reference"), "{nowhere}");
}

#[test]
fn sampling() {
    let mut report = Report::default();
    check_sampling(&open, &mut report).unwrap();
    assert_met(&report, 8 * 2 * 2 + 2 + 2 + 2);
}

#[test]
fn steps() {
    let replayed: Cell<Vec<Arc<AtomicUsize>>> = Cell::default();
    let open = || {
        let driver = EmulatedDriver::new(MEMORY_BYTES);
        let mut counts = replayed.take();
        counts.push(driver.replayed());
        replayed.set(counts);
        Ok(driver)
    };
    let mut report = Report::default();
    check_steps(&open, &mut report).unwrap();
    assert_met(&report, 4 * 3 + 1);
    let counts = replayed.take();
    let counts: Vec<usize> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    // Each run has 20 steps, which two slots (the buffers of the two steps in flight) take in turn. The prompt step is
    // launched kernel by kernel, and so is the first decode step of each of two row layouts in each slot; all others
    // are replayed as CUDA graphs: 20 - 1 - 2 * 2 = 15. Steps that the host samples never use graphs.
    assert_eq!(counts[..12], [[0, 0, 15, 15]; 3].concat());
    assert_eq!(counts[12..], [0; 5]);
}

#[test]
fn where_no_graph_can_be_made_steps_are_launched() {
    let open = || Ok(EmulatedDriver::new(MEMORY_BYTES).with_fault(Fault::Graphs));
    let mut report = Report::default();
    check_steps(&open, &mut report).unwrap();
    assert_met(&report, 4 * 3 + 1);
}

#[test]
fn copies() {
    let mut report = Report::default();
    check_copies(&open, 64, &mut report).unwrap();
    assert_met(&report, 1 + 2 * 2 + 1);
}

#[test]
fn swaps() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/tiny");
    let mut report = Report::default();
    check_swaps(&open, &folder, 30, &mut report).unwrap();
    assert_met(&report, 3);
}

#[test]
fn faults() {
    let mut report = Report::default();
    check_faults(&open, &mut report).unwrap();
    assert_met(&report, 5);
}

/// Checks only that each step of a plan runs, because the emulator has no profiler.
#[test]
fn each_step_for_a_profiler() {
    run_each_step(&open, &tiny_speed()).unwrap();
}

/// Checks only that all premium requests are served, because the emulator's speed means nothing.
#[test]
fn premium_among_background() {
    let plan = PremiumPlan {
        model: TINY.to_owned(),
        blocks: (12, 24),
        background: (4, 30, 40),
        premium: (4, 150_000, 24, 6),
        step: (8, 64),
        warmup_us: 300_000,
    };
    let mut report = Report::default();
    measure_premium(&open, &plan, &mut report).unwrap();
    assert_met(&report, 5);
}

fn tiny_speed() -> SpeedPlan {
    SpeedPlan {
        model: TINY.to_owned(),
        decodes: vec![(1, 20), (3, 40)],
        prefills: vec![24],
        repeats: 1,
        copied_bytes: 64 << 10,
        resumed_tokens: 64,
        product: 32,
        moved_bytes: 256 << 10,
        judged: false,
    }
}

/// Checks only that the speed measurement runs to its end, because the emulator's speed means nothing.
#[test]
fn speed() {
    let plan = tiny_speed();
    let mut report = Report::default();
    measure_speed(&open, &plan, &mut report).unwrap();
    assert_met(&report, 2 + 4 + 1 + 2 * 2 + 1 + (2 * 3 + 2) + 2 + 5);
}
