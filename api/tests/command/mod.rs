//! Runs the `tiercel` binary for tests.

use std::process::{Command, Output, Stdio};

pub(crate) fn tiercel(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiercel"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TIERCEL_") {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null());
    command
}

pub(crate) fn run(args: &[&str]) -> Output {
    tiercel(args).output().unwrap()
}

/// Runs a `tiercel` command that must fail, and returns its exit code and the one line on stderr that says why.
pub(crate) fn failure(args: &[&str]) -> (i32, String) {
    let output = run(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = stderr.lines().filter(|line| line.starts_with("tiercel: ")).collect();
    assert_eq!(lines.len(), 1, "{args:?}: {stderr}");
    assert_eq!(stderr.lines().last(), Some(lines[0]), "{args:?}: {stderr}");
    assert_eq!(output.stdout, b"", "{args:?}");
    (output.status.code().unwrap(), lines[0].to_owned())
}
