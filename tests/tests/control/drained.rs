//! Drains of a server that runs as a process, by the command line.

use crate::{background, rest_of};
use serde_json::{Value, json};
use tiercel_tests::{Connection, Program, SlowProfile};

#[test]
fn a_drain_by_the_command_line_ends_64_streams_by_its_deadline_with_exit_code_0() {
    let profile = SlowProfile::with_blocks(4_096);
    let device = format!("mock:{}", profile.name());
    let args = ["--device", device.as_str(), "--max-num-seqs", "64"];
    let server = Program::serve(env!("CARGO_BIN_EXE_tiercel-program"), &args);
    // A step takes 50 ms, so the long streams would take 45 s.
    let lengths = |n: u32| if n.is_multiple_of(2) { 30 } else { 900 };
    let mut streams: Vec<Connection> = (0..64)
        .map(|n| {
            let mut stream = Connection::open(server.address());
            let headers = [("content-type", "application/json")];
            let body = background(lengths(n)).to_string();
            stream.send_request("POST", "/v1/completions", &headers, body.as_bytes());
            stream
        })
        .collect();
    for stream in &mut streams {
        assert_eq!(stream.head().unwrap().status, 200);
    }
    let drained = server.ctl(&["--json", "drain", "--deadline-s", "10"]);
    let told = String::from_utf8(drained.stdout).unwrap();
    assert_eq!(drained.status.code(), Some(0), "{told}");
    let told: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [begun, progress @ .., end, stopped] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!((&begun["requests"], &begun["deadline_ms"]), (&json!(64), &json!(10_000)));
    let left = |event: &Value| event["requests"].as_u64().unwrap();
    assert!(progress.iter().all(|event| event["action"] == "draining"), "{told:?}");
    assert!(progress.is_sorted_by_key(|event| std::cmp::Reverse(left(event))), "{told:?}");
    assert_eq!(stopped, &json!({"stopped": true}));
    let (mut finished, mut ended) = (0, 0);
    for stream in &mut streams {
        let text = rest_of(stream);
        finished += u32::from(text.ends_with("data: [DONE]\n\n"));
        ended += u32::from(text.trim_end().ends_with("}") && text.contains("\"code\":\"drained\""));
    }
    // On a machine that stands still for seconds, fewer streams finish.
    assert!(finished + ended == 64 && ended >= 32, "{finished} finished, {ended} ended");
    let ends = [&end["action"], &end["finished"], &end["ended"], &end["other"]];
    let counted = [&json!("drained"), &json!(finished), &json!(ended), &json!(0)];
    assert_eq!(ends, counted, "{told:?}");
    // The process has ended with exit code 0; `log` checks that.
    let log = server.log();
    assert!(log.iter().any(|line| line.contains("\"action\":\"drained\"")), "{log:?}");
}

#[test]
fn a_second_signal_ends_a_server_that_an_operator_drains() {
    let profile = SlowProfile::with_blocks(4_096);
    let device = format!("mock:{}", profile.name());
    let mut server =
        Program::serve(env!("CARGO_BIN_EXE_tiercel-program"), &["--device", device.as_str()]);
    // The stream takes 45 s.
    let mut stream = Connection::open(server.address());
    let headers = [("content-type", "application/json")];
    let body = background(900).to_string();
    stream.send_request("POST", "/v1/completions", &headers, body.as_bytes());
    assert_eq!(stream.head().unwrap().status, 200);
    let drained = server.ctl(&["drain", "--deadline-s", "3600", "--no-wait"]);
    assert_eq!(drained.status.code(), Some(0), "{drained:?}");
    assert_eq!(server.terminate(400), Some(130));
}
