//! Compiles all CUDA kernels for several GPU architectures and the attention shapes of published models, without a GPU,
//! and prints the registers and stack memory that each kernel needs. Exits with status 1 if a kernel does not compile or
//! needs stack memory.
//!
//! `cargo run --release -p tiercel-gpu --example kernel-report`
//!
//! The program needs libnvrtc: `pip install "nvidia-cuda-nvrtc<13.1"`, with the library's folder in LD_LIBRARY_PATH.

use std::process::ExitCode;
use tiercel_gpu::cuda::{CudaError, KernelShape, MODEL_SHAPES, Unit, compile};

const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100"];

/// Registers and stack memory of a kernel, as ptxas reports them.
#[derive(Debug, Clone, Default, PartialEq)]
struct Usage {
    kernel: String,
    registers: u32,
    stack_bytes: u32,
}

fn main() -> ExitCode {
    println!("| kernel | shape | {} |", ARCHITECTURES.join(" | "));
    println!("|---|---|{}", "---|".repeat(ARCHITECTURES.len()));
    let mut good = true;
    let mut seen = Vec::new();
    for (head_dim, queries) in MODEL_SHAPES {
        let shape = KernelShape { head_dim, queries };
        for unit in shape.units() {
            if !unit.shaped && seen.contains(&unit.name) {
                continue;
            }
            seen.push(unit.name);
            match rows(&unit, shape) {
                Ok(all_fit) => good &= all_fit,
                Err(error) => {
                    eprintln!("kernel-report: {error}");
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints a table row for each kernel of a compiled unit. Returns true if ptxas reported every kernel for every
/// architecture and no kernel needs stack memory.
fn rows(unit: &Unit, shape: KernelShape) -> Result<bool, CudaError> {
    let options = shape.options(unit);
    let mut by_architecture = Vec::new();
    for architecture in ARCHITECTURES {
        by_architecture.push(usage(&compile(unit, &options, architecture)?.log));
    }
    let mut good = true;
    for kernel in unit.kernels {
        let of = |all: &Vec<Usage>| all.iter().find(|usage| usage.kernel == *kernel).cloned();
        let found: Vec<Option<Usage>> = by_architecture.iter().map(of).collect();
        good &= found.iter().all(|usage| usage.as_ref().is_some_and(|u| u.stack_bytes == 0));
        let cells: Vec<String> = found.into_iter().map(cell).collect();
        let name = match unit.shaped {
            true => format!("{} x {}", shape.queries, shape.head_dim),
            false => "any".to_owned(),
        };
        println!("| {kernel} | {name} | {} |", cells.join(" | "));
    }
    Ok(good)
}

fn cell(usage: Option<Usage>) -> String {
    match usage {
        None => "?".to_owned(),
        Some(Usage { registers, stack_bytes: 0, .. }) => registers.to_string(),
        Some(Usage { registers, stack_bytes, .. }) => {
            format!("{registers}, {stack_bytes} bytes of stack")
        }
    }
}

/// Reads the log of ptxas: for each kernel the name, the registers and the bytes of the stack frame.
fn usage(log: &str) -> Vec<Usage> {
    let mut all: Vec<Usage> = Vec::new();
    for line in log.lines() {
        if let Some(name) = line.split('\'').nth(1).filter(|_| line.contains("entry function")) {
            all.push(Usage { kernel: name.to_owned(), ..Usage::default() });
        }
        let Some(last) = all.last_mut() else { continue };
        // Counts the stack frame of a kernel: ptxas puts spilled registers on the stack, and also arrays that are
        // indexed at run time.
        if let Some(bytes) = number_before(line, " bytes stack frame") {
            last.stack_bytes = bytes;
        }
        if let Some(registers) = number_before(line, " registers") {
            last.registers = registers;
        }
    }
    all
}

/// Returns the number that stands directly before the text `words` in a line of the ptxas log.
fn number_before(line: &str, words: &str) -> Option<u32> {
    let before = &line[..line.find(words)?];
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}
