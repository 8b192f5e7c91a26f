//! Checks a GPU from end to end and prints a table; exits with 1 if anything is not as it must be.
//!
//! `cargo run --release -p tiercel-gpu-check --example gpu-check [GPU] [--quick]`
//!
//! Needs NVIDIA's driver, libnvrtc and libcublasLt, and for all of it 40 GB of device memory: weights of an 8B-shape
//! Llama are made on the spot. `--quick` leaves that part out.

use std::process::ExitCode;
use tiercel_gpu::cuda::{Context, CudaDriver, KernelCache};
use tiercel_gpu_check::{
    CheckError, Report, SpeedPlan, check_attention, check_copies, check_models, check_rows,
    check_sampling, measure_speed,
};

/// Llama 3.1 8B, of random weights.
const LLAMA_8B: &str = r#"{"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "max_position_embeddings": 8448, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0}"#;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let quick = args.iter().any(|arg| arg == "--quick");
    let ordinal = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(0);
    let mut report = Report::default();
    let outcome = check(ordinal, quick, &mut report);
    println!("{report}");
    if let Err(error) = &outcome {
        eprintln!("gpu-check: {error}");
    }
    let failures = report.failures();
    failures.iter().for_each(|failure| eprintln!("not met: {failure}"));
    match outcome.is_ok() && failures.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn check(ordinal: u32, quick: bool, report: &mut Report) -> Result<(), CheckError> {
    println!("{}", Context::open(ordinal)?.name());
    let cache = std::env::temp_dir().join("tiercel-gpu-check");
    let open = || {
        let cache = KernelCache::new(Some(cache.clone()));
        // Exact: one algorithm for all row counts, as the checks of identity need it.
        Ok(CudaDriver::open(ordinal, true, cache)?)
    };
    stage("rows and products");
    check_rows(&open, report)?;
    stage("attention");
    check_attention(&open, report)?;
    stage("models of all families");
    check_models(&open, report)?;
    stage("sampling");
    check_sampling(&open, report)?;
    stage("copies");
    check_copies(&open, 1, report)?;
    if quick {
        return Ok(());
    }
    let fast = || {
        let cache = KernelCache::new(Some(cache.clone()));
        Ok(CudaDriver::open(ordinal, false, cache)?)
    };
    let plan = SpeedPlan {
        model: LLAMA_8B.to_owned(),
        decodes: vec![(1, 512), (1, 8192), (16, 512), (64, 512), (256, 512)],
        prefills: vec![512, 2048, 8192],
        repeats: 20,
        copied_bytes: 2 << 30,
        product: 8192,
        moved_bytes: 2 << 30,
        judged: true,
    };
    stage("speed of an 8B-shape model");
    measure_speed(&fast, &plan, report)
}

/// Says what comes next: the table is printed at the end.
fn stage(name: &str) {
    eprintln!("gpu-check: {name}");
}
