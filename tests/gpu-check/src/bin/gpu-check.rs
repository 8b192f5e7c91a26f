//! Program that checks a GPU from end to end and prints a table of the results; exits with 1 if any check fails.
//!
//! `cargo run --release -p tiercel-gpu-check [GPU] [--quick] [--reference DIR]`
//!
//! Needs NVIDIA's driver, libnvrtc and libcublasLt. The full run needs 40 GB of device memory, for a model of 8B Llama
//! shape with random weights; `--quick` leaves that model out. The reference checkpoints, whose logits Hugging Face
//! transformers computed, are in `tests/reference/tiny` of the project, or in the folder given by `--reference`.

use std::path::PathBuf;
use std::process::ExitCode;
use tiercel_gpu::cuda::{Context, CudaDriver, KernelCache};
use tiercel_gpu_check::{
    CheckError, PremiumPlan, QUANTIZED_CASES, Report, SpeedPlan, check_attention, check_copies,
    check_models, check_quantized, check_reference, check_rows, check_sampling, check_steps,
    measure_premium, measure_speed,
};

/// Model configuration with the shape of Llama 3.1 8B.
const LLAMA_8B: &str = r#"{"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "max_position_embeddings": 8448, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0}"#;

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(unknown) => {
            eprintln!(
                "gpu-check: unknown argument {unknown}; usage: gpu-check [GPU] [--quick] [--reference DIR]"
            );
            return ExitCode::FAILURE;
        }
    };
    let mut report = Report::live();
    match check(&options, &mut report) {
        Ok(name) => println!("{name}\n\n{report}"),
        Err(error) => {
            eprintln!("gpu-check: {error}");
            return ExitCode::FAILURE;
        }
    }
    let failures = report.failures();
    failures.iter().for_each(|failure| eprintln!("not met: {failure}"));
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Command-line options of the GPU check.
struct Options {
    ordinal: u32,
    quick: bool,
    reference: PathBuf,
}

/// Parses the command line of the GPU check; the error is the argument that cannot be used.
fn options(args: impl Iterator<Item = String>) -> Result<Options, String> {
    let reference = PathBuf::from("tests/reference/tiny");
    let mut options = Options { ordinal: 0, quick: false, reference };
    let mut args = args;
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => options.quick = true,
            "--reference" => options.reference = args.next().ok_or(arg)?.into(),
            ordinal => options.ordinal = ordinal.parse().map_err(|_| arg)?,
        }
    }
    Ok(options)
}

/// Runs all parts of the GPU check; an error in one part does not stop the others. Returns the name of the GPU.
fn check(options: &Options, report: &mut Report) -> Result<String, CheckError> {
    let Options { ordinal, quick, ref reference } = *options;
    // Hold one CUDA context until the end; otherwise the GPU would be initialized again for each of about a hundred
    // models of the checks.
    let held = Context::open(ordinal)?;
    let cache = std::env::temp_dir().join("tiercel-gpu-check");
    let driver = |exact| {
        let cache = KernelCache::new(Some(cache.clone()));
        Ok(CudaDriver::open(ordinal, exact, cache)?)
    };
    // Measure the speed first: if the run is cut off, the checks of results can be repeated on any GPU, the speed only
    // on this one.
    if !quick {
        part("speed of an 8B-shape model", report, |report| {
            measure_speed(&|| driver(false), &eight_billion(), report)
        });
    }
    if !quick {
        part("premium requests on a full GPU", report, |report| {
            measure_premium(&|| driver(false), &premium(), report)
        });
    }
    // Check operations and models twice: with matrix products as a server uses them by default (cuBLASLt chooses the
    // algorithm by size), and with exact products (one algorithm for all sizes).
    for (products, exact) in [("by cuBLASLt's choice", false), ("of one algorithm", true)] {
        let open = || driver(exact);
        part(&format!("rows, products {products}"), report, |report| check_rows(&open, report));
        part(&format!("quantized matrices, products {products}"), report, |report| {
            QUANTIZED_CASES
                .into_iter()
                .try_for_each(|case| check_quantized(&open, exact, case, report))
        });
        part(&format!("models, products {products}"), report, |report| {
            check_models(&open, exact, report)
        });
    }
    let open = || driver(true);
    part("attention", report, |report| check_attention(&open, report));
    part("what transformers computed", report, |report| check_reference(&open, reference, report));
    part("sampling", report, |report| check_sampling(&open, report));
    part("steps", report, |report| check_steps(&open, report));
    part("copies", report, |report| check_copies(&open, 1, report));
    Ok(held.name())
}

/// Runs one part of the GPU check; an error of the part becomes a failed line of the report.
fn part(name: &str, report: &mut Report, run: impl FnOnce(&mut Report) -> Result<(), CheckError>) {
    eprintln!("gpu-check: {name}");
    if let Err(error) = run(report) {
        report.broke(name, &error);
    }
}

/// Returns the load of the premium measurement: background requests that need, at their full length, about twice as
/// many KV blocks as there are, so that premium requests must preempt them.
fn premium() -> PremiumPlan {
    PremiumPlan {
        model: LLAMA_8B.to_owned(),
        blocks: (4_096, 4_096),
        background: (64, 1024, 1024),
        premium: (60, 500_000, 512, 64),
        step: (64, 2048),
        warmup_us: 10_000_000,
    }
}

fn eight_billion() -> SpeedPlan {
    SpeedPlan {
        model: LLAMA_8B.to_owned(),
        decodes: vec![(1, 512), (1, 8192), (16, 512), (64, 512), (256, 512)],
        prefills: vec![512, 2048, 8192],
        repeats: 20,
        copied_bytes: 2 << 30,
        resumed_tokens: 8192,
        product: 8192,
        moved_bytes: 2 << 30,
        judged: true,
    }
}
