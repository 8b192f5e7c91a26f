//! Test of the live page in Chromium: an overloaded server, whose page an operator uses.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use std::path::Path;
use std::process::Command;

/// Runs the browser with a server as a process of its own. With the environment variable `DASHBOARD_PICTURES`, pictures
/// of the page are written to the folder that it names.
#[test]
#[ignore = "needs Chromium; .ci/run runs this test where there is one"]
fn an_operator_watches_and_changes_requests_in_a_browser() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/check_dashboard.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(env!("CARGO_BIN_EXE_tiercel-program"));
    command.args(std::env::var_os("DASHBOARD_PICTURES"));
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && text.ends_with("complete\n"), "{text}");
}
