//! Runs clients of tools and structured output, without changes to the clients, against the server's program.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use std::path::Path;
use std::process::Command;

#[test]
#[ignore = "downloads clients with pip and npm for minutes; .ci/run runs this test"]
fn clients_of_tools_and_structured_output_work() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/agents/run.py");
    // The binary `tiercel-program` is the program `tiercel` under another name.
    let program = env!("CARGO_BIN_EXE_tiercel-program");
    let status = Command::new("python3")
        .arg(script)
        .args(["--program", program, "--fast"])
        .status()
        .expect("Python 3 is installed");
    assert!(status.success());
}
