//! Program that checks a GPU from end to end and prints a table of the results; exits with 1 if any check fails.
//!
//! `cargo run --release -p tiercel-gpu-check [GPU] [--quick] [--reference DIR] [PART...]`
//!
//! Needs NVIDIA's driver, libnvrtc and libcublasLt. The full run needs 40 GB of device memory, for a model of 8B Llama
//! shape with random weights; `--quick` leaves that model out. `PART...` names the parts to run. They run in this
//! order: `speed`, `premium`, `rows`, `quantized`, `models`, `attention`, `reference`, `sampling`, `steps`, `swaps`,
//! `copies`, `faults`. The part `kernels` runs only if it is named; it runs each measured step twice, with two layers,
//! for a profiler. The reference checkpoints, whose logits Hugging Face transformers computed, are in
//! `tests/reference/tiny` of the project, or in the folder given by `--reference`.

use std::path::PathBuf;
use std::process::ExitCode;
use tiercel_device::Clock;
use tiercel_gpu::cuda::{Context, CudaDriver, KernelCache};
use tiercel_gpu_check::{
    CheckError, PremiumPlan, QUANTIZED_CASES, Report, SpeedPlan, check_attention, check_copies,
    check_faults, check_models, check_quantized, check_reference, check_rows, check_sampling,
    check_steps, check_swaps, lose_device, measure_premium, measure_speed, run_each_step,
};

/// Parts of the check that run without being named, in order; `--quick` leaves the first two out.
const PARTS: [&str; 12] = [
    "speed",
    "premium",
    "rows",
    "quantized",
    "models",
    "attention",
    "reference",
    "sampling",
    "steps",
    "swaps",
    "copies",
    "faults",
];
/// Output of each request of the part `swaps`, tokens: so long that premium requests arrive before the background
/// requests have ended.
const SWAPPED_TOKENS: u32 = 200;
/// Part that only a profiler needs.
const KERNELS: &str = "kernels";

/// Model configuration with the shape of Llama 3.1 8B.
const LLAMA_8B: &str = r#"{"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "max_position_embeddings": 8448, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0}"#;

fn main() -> ExitCode {
    if std::env::args().any(|arg| arg == "--help") {
        println!("{}", usage());
        return ExitCode::SUCCESS;
    }
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(unknown) => {
            eprintln!("gpu-check: unknown argument {unknown}; {}", usage());
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

fn usage() -> String {
    format!(
        "usage: gpu-check [GPU] [--quick] [--reference DIR] [PART...], with parts of {}, {KERNELS}",
        PARTS.join(", ")
    )
}

/// Command-line options of the GPU check.
struct Options {
    ordinal: u32,
    parts: Vec<&'static str>,
    reference: PathBuf,
}

/// Parses the command line of the GPU check; the error is the argument that cannot be used.
fn options(args: impl Iterator<Item = String>) -> Result<Options, String> {
    let reference = PathBuf::from("tests/reference/tiny");
    let mut options = Options { ordinal: 0, parts: Vec::new(), reference };
    let mut args = args;
    while let Some(arg) = args.next() {
        let part = PARTS.into_iter().chain([KERNELS]).find(|part| *part == arg);
        match (arg.as_str(), part) {
            (_, Some(part)) => options.parts.push(part),
            ("--quick", _) => options.parts.extend(&PARTS[2..]),
            ("--reference", _) => options.reference = args.next().ok_or(arg)?.into(),
            (ordinal, _) => options.ordinal = ordinal.parse().map_err(|_| arg)?,
        }
    }
    if options.parts.is_empty() {
        options.parts.extend(PARTS);
    }
    Ok(options)
}

/// Runs the parts of the GPU check; an error in one part does not stop the others. Returns the name of the GPU.
fn check(options: &Options, report: &mut Report) -> Result<String, CheckError> {
    // Hold one CUDA context until the end; otherwise the GPU would be initialized again for each of about a hundred
    // models of the checks.
    let held = Context::open(options.ordinal)?;
    let cache = std::env::temp_dir().join("tiercel-gpu-check");
    let driver = || {
        let cache = KernelCache::new(Some(cache.clone()));
        Ok(CudaDriver::open(options.ordinal, cache)?)
    };
    // Measure the speed first: if the run is cut off, the checks of results can be repeated on any GPU, the speed only
    // on this one.
    for name in [KERNELS].into_iter().chain(PARTS).filter(|name| options.parts.contains(name)) {
        part(name, report, |report| check_part(name, &driver, options, report));
    }
    Ok(held.name())
}

/// Runs the checks of a part. `open` opens the GPU.
fn check_part(
    name: &str,
    open: &dyn Fn() -> Result<CudaDriver, CheckError>,
    options: &Options,
    report: &mut Report,
) -> Result<(), CheckError> {
    match name {
        "speed" => measure_speed(open, &eight_billion(), report),
        "premium" => measure_premium(open, &premium(), report),
        "rows" => check_rows(open, report),
        "quantized" => [false, true].into_iter().try_for_each(|exact| {
            let mut cases = QUANTIZED_CASES.into_iter();
            cases.try_for_each(|case| check_quantized(open, exact, case, report))
        }),
        "models" => check_models(open, report),
        "attention" => check_attention(open, report),
        "reference" => check_reference(open, &options.reference, report),
        "sampling" => check_sampling(open, report),
        "steps" => check_steps(open, report),
        "swaps" => check_swaps(open, &options.reference, SWAPPED_TOKENS, report),
        "copies" => check_copies(open, 1, report),
        "faults" => {
            check_faults(open, report)?;
            lose_device(open()?, report)
        }
        _ => run_each_step(open, &two_layers()),
    }
}

/// Runs one part of the GPU check; an error of the part becomes a failed line of the report.
fn part(name: &str, report: &mut Report, run: impl FnOnce(&mut Report) -> Result<(), CheckError>) {
    let clock = Clock::wall();
    let start = clock.now();
    eprintln!("gpu-check: {name}");
    if let Err(error) = run(report) {
        report.broke(name, &error);
    }
    eprintln!("gpu-check: {name} took {:.1} s", clock.now().since_us(start) as f64 / 1e6);
}

/// Returns the load of the premium measurement: background requests that need, at their full length, about twice as
/// many KV blocks as there are, so that premium requests must preempt them.
fn premium() -> PremiumPlan {
    PremiumPlan {
        model: LLAMA_8B.to_owned(),
        blocks: (4_096, 4_096),
        background: (64, 1024, 1024),
        premium: (50, 400_000, 512, 64),
        step: (64, 2048),
        warmup_us: 6_000_000,
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

/// Returns the plan of the speed measurement for a model of two layers, whose kernels are those of the whole model.
fn two_layers() -> SpeedPlan {
    let model = LLAMA_8B.replace(r#""num_hidden_layers": 32"#, r#""num_hidden_layers": 2"#);
    SpeedPlan { model, repeats: 1, copied_bytes: 2 << 20, ..eight_billion() }
}
