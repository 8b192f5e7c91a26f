//! The `tiercel` binary; everything is in the library, so that tests can start servers in process.

use std::process::ExitCode;

fn main() -> ExitCode {
    tiercel::cli::main()
}
