//! The program `tiercel`, for tests that run it as a process: cargo builds for a test only the programs of its own
//! package.

use std::process::ExitCode;

fn main() -> ExitCode {
    tiercel::cli::main()
}
