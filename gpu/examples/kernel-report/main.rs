//! Compiles all CUDA kernels for several GPU architectures, the attention shapes of published models and both formats
//! of the KV cache, without a GPU, and prints the registers that each kernel needs. Checks the largest launch of each
//! kernel against the limits of each architecture: registers, stack frame, threads, launch bounds, shared memory and
//! its alignment. Exits with status 1 if a kernel does not compile or a limit is exceeded.
//!
//! `cargo run --release -p tiercel-gpu --example kernel-report`
//!
//! With the argument `all`, the shapes are all those that tests run.
//!
//! The program needs libnvrtc: `pip install "nvidia-cuda-nvrtc<13.1"`, with the library's folder in LD_LIBRARY_PATH.

mod cubin;
mod limits;

use limits::ARCHITECTURES;
use std::process::ExitCode;
use tiercel_gpu::cuda::{CudaError, KernelShape, MODEL_SHAPES, Unit, compile, tested_shapes};

fn main() -> ExitCode {
    let names = ARCHITECTURES.map(|architecture| architecture.name);
    println!("| kernel | shape | {} |", names.join(" | "));
    println!("|---|---|{}", "---|".repeat(names.len()));
    let shapes: Vec<(usize, usize)> = match std::env::args().nth(1).as_deref() {
        Some("all") => tested_shapes().collect(),
        _ => MODEL_SHAPES.to_vec(),
    };
    let mut report = Report::default();
    let mut seen = Vec::new();
    let both = |(head_dim, queries)| [false, true].map(|q8| KernelShape { head_dim, queries, q8 });
    for shape in shapes.into_iter().flat_map(both) {
        for unit in shape.units() {
            if !unit.shaped && seen.contains(&unit.name) {
                continue;
            }
            seen.push(unit.name);
            if let Err(error) = report.add(&unit, shape) {
                eprintln!("kernel-report: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    for problem in &report.problems {
        eprintln!("kernel-report: {problem}");
    }
    let Report { launches, problems } = report;
    eprintln!("kernel-report: {launches} launches checked, {} limits exceeded", problems.len());
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Outcome of the checks so far.
#[derive(Default)]
struct Report {
    launches: usize,
    problems: Vec<String>,
}

impl Report {
    /// Compiles a unit for all architectures, prints a table row for each of its kernels, and checks their launches.
    fn add(&mut self, unit: &Unit, shape: KernelShape) -> Result<(), CudaError> {
        let options = shape.options(unit);
        let mut codes = Vec::new();
        for architecture in &ARCHITECTURES {
            codes.push(compile(unit, &options, architecture.name)?.code);
        }
        let shape_name = match unit.shaped {
            true if shape.q8 => format!("{} x {}, q8", shape.queries, shape.head_dim),
            true => format!("{} x {}", shape.queries, shape.head_dim),
            false => "any".to_owned(),
        };
        let launches = shape.largest_launches(unit);
        for name in unit.kernels {
            let mut cells = Vec::new();
            for (architecture, code) in ARCHITECTURES.iter().zip(&codes) {
                let place = format!("{name}, {shape_name}, {}", architecture.name);
                let launch = launches.iter().find(|launch| launch.kernel == *name);
                let (Some(kernel), Some(launch)) = (cubin::kernel(code, name), launch) else {
                    self.problems
                        .push(format!("{place}: not in the machine code or never launched"));
                    cells.push("?".to_owned());
                    continue;
                };
                self.launches += 1;
                let found = architecture.problems(&kernel, launch);
                self.problems.extend(found.iter().map(|problem| format!("{place}: {problem}")));
                cells.push(kernel.registers.to_string());
            }
            println!("| {name} | {shape_name} | {} |", cells.join(" | "));
        }
        Ok(())
    }
}
