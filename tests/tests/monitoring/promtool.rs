//! Tests by promtool: of the metrics, and of the alerts.

use crate::{metrics, ops};
use std::io::Write;
use std::process::{Command, Stdio};

/// Runs promtool with the given input. Returns whether it succeeded, and what it wrote.
fn promtool(args: &[&str], input: &str) -> (bool, String) {
    let mut command = Command::new("promtool");
    command.args(args).current_dir(ops("prometheus"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool, from Debian's package prometheus");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
#[ignore = "needs promtool; .ci/run runs this test where there is one"]
fn promtool_has_no_complaint_about_a_metric_of_tiercel() {
    let (_, said) = promtool(&["check", "metrics"], &metrics().text);
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("tiercel_")).collect();
    assert!(ours.is_empty(), "{ours:?}");
    // The names of vLLM's metrics have colons, which promtool wants to be left to recording rules.
    let others = said.lines().filter(|line| !line.ends_with("should not contain ':'"));
    assert_eq!(others.collect::<Vec<_>>(), [""; 0]);
}

#[test]
#[ignore = "needs promtool; .ci/run runs this test where there is one"]
fn the_alerts_pass_their_tests() {
    for args in [
        &["check", "rules", "alerts.yml"][..],
        &["test", "rules", "alerts_test.yml"],
        &["check", "config", "prometheus.yml"],
    ] {
        let (passed, said) = promtool(args, "");
        assert!(passed, "{said}");
    }
}
