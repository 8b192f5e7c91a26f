//! Traces of a running server: Perfetto files.

use crate::send;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use tiercel_tests::{Connection, Program, Response, SlowProfile, TestServer};

/// Time that a request for a trace takes to reach the engine, at most.
const BEGINS: Duration = Duration::from_millis(700);
/// Interval between two looks whether a trace has ended.
const LOOK: Duration = Duration::from_millis(100);
/// Most such looks: 20 s.
const LOOKS_MAX: u32 = 200;
/// A prompt is 32 of these, which takes 28 of the 64 blocks of the device pool.
const PIECE: &str = "secret prompt ";

/// Returns the body of a streamed completion with a prompt of 450 tokens, which begins with `number`, so that prompts
/// share no blocks.
fn long(number: u32, tier: &str, max_tokens: u32) -> Value {
    json!({
        "prompt": format!("{number}{}", PIECE.repeat(32)), "max_tokens": max_tokens, "ignore_eos": true,
        "temperature": 0, "service_tier": tier, "stream": true,
    })
}

/// Begins a trace.
fn begin(server: &TestServer, query: &str) -> Connection {
    let mut connection = server.control();
    connection.send_request("GET", &format!("/control/v1/trace{query}"), &[], b"");
    std::thread::park_timeout(BEGINS);
    connection
}

fn trace(server: &TestServer, query: &str) -> Response {
    server.control().request("GET", &format!("/control/v1/trace{query}"), &[], b"")
}

/// Returns the names of the slices of each request's lane, in order, by the name of the lane.
fn lanes(file: &Value) -> Vec<(String, Vec<String>)> {
    let events = file["traceEvents"].as_array().unwrap();
    let of_requests = |event: &&Value| event["pid"] == 2;
    let named = events.iter().filter(of_requests).filter(|event| event["name"] == "thread_name");
    named
        .map(|lane| {
            let here = events.iter().filter(|event| {
                event["pid"] == 2 && event["ph"] == "X" && event["tid"] == lane["tid"]
            });
            let states = here.map(|event| event["name"].as_str().unwrap().to_owned());
            (lane["args"]["name"].as_str().unwrap().to_owned(), states.collect())
        })
        .collect()
}

#[test]
fn a_preemption_is_seen_in_the_trace_of_an_overloaded_server() {
    let server = TestServer::slow(|_| ());
    let mut low = [1, 2].map(|n| send(&server, &format!("low-{n}"), &long(n, "flex", 300)));
    low.iter_mut().for_each(|stream| assert_eq!(stream.head().unwrap().status, 200));
    let mut running = begin(&server, "?seconds=4");
    let busy = trace(&server, "?seconds=1");
    assert_eq!((busy.status, &busy.error()["code"]), (409, &json!("trace_running")));
    let first = send(&server, "high", &long(3, "priority", 8)).response().unwrap();
    assert_eq!(first.status, 200);
    let answer = running.response().unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let disposition = answer.header("content-disposition").unwrap();
    assert!(disposition.contains("tiercel-trace.json"), "{disposition}");
    assert!(!answer.text().contains("secret"), "it has a prompt");
    let file = answer.json();
    let events = file["traceEvents"].as_array().unwrap();
    let kinds: BTreeSet<&str> = events.iter().map(|event| event["ph"].as_str().unwrap()).collect();
    assert_eq!(kinds, BTreeSet::from(["C", "M", "X", "i"]));
    assert!(events.iter().all(|event| {
        event["ts"].is_u64() && event["name"].is_string() && event["pid"].is_u64()
    }));
    let steps: Vec<&Value> = events
        .iter()
        .filter(|event| event["pid"] == 1 && event["tid"] == 1 && event["ph"] == "X")
        .collect();
    assert!(steps.len() > 20, "{} steps of 50 ms in 4 s", steps.len());
    assert!(steps.iter().all(|step| step["dur"].as_u64().unwrap() >= 50_000), "{steps:?}");
    let lanes = lanes(&file);
    let lane = |id: &str| lanes.iter().find(|(name, _)| name.contains(id));
    let (name, _) = lane("low-1").unwrap();
    assert!(name.starts_with("background ") && name.contains("cmpl-"), "{name}");
    let victim = ["low-1", "low-2"].into_iter().filter_map(lane).find(|(_, states)| {
        let at = |state: &str| states.iter().position(|found| found == state);
        at("decode").zip(at("preempted")).is_some_and(|(runs, stops)| runs < stops)
    });
    assert!(victim.is_some(), "no lane has a preemption: {lanes:?}");
    drop(low);
    server.finish();
}

#[test]
fn a_trace_ends_when_its_client_leaves() {
    let server = TestServer::slow(|_| ());
    let running = begin(&server, "?seconds=60");
    assert_eq!(trace(&server, "?seconds=1").status, 409);
    drop(running);
    // The server notices within moments that the client has left.
    let ended = (0..LOOKS_MAX).any(|_| {
        std::thread::park_timeout(LOOK);
        trace(&server, "?seconds=1").status == 200
    });
    assert!(ended, "the trace goes on without its client");
    server.finish();
}

#[test]
fn a_trace_is_answered_when_the_server_stops_and_is_audited() {
    let server = TestServer::slow(|_| ());
    let mut listener = server.control();
    listener.send_request("GET", "/control/v1/events", &[], b"");
    assert_eq!(listener.head().unwrap().status, 200);
    let mut stream = send(&server, "last", &long(1, "flex", 20));
    assert_eq!(stream.head().unwrap().status, 200);
    let mut running = begin(&server, "?seconds=60");
    let drained = server.control().request("POST", "/control/v1/drain", &[], b"{}");
    assert_eq!(drained.status, 202, "{}", drained.text());
    let answer = running.response().unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let file = answer.json();
    assert!(file["otherData"]["seconds"].as_f64().unwrap() < 60.0);
    assert!(lanes(&file).iter().any(|(name, _)| name.contains("last")), "{:?}", lanes(&file));
    let events = listener.rest();
    assert!(String::from_utf8_lossy(&events).contains("\"action\":\"trace\""));
    server.stop().unwrap();
}

#[test]
fn lengths_of_traces_are_limited() {
    let server = TestServer::mock(|_| ());
    for query in ["?seconds=0", "?seconds=61", "?seconds=-1", "?seconds=x", "?minutes=1"] {
        let refused = trace(&server, query);
        assert_eq!(refused.status, 400, "{query}");
        let error = refused.error();
        assert_eq!(error["code"], "invalid_query");
        assert!(error["message"].as_str().unwrap().contains("from 1 to 60"), "{error}");
    }
    let idle = trace(&server, "?seconds=1").json();
    assert_eq!(idle["otherData"]["requests_without_a_lane"], 0);
    assert!(idle["otherData"]["seconds"].as_f64().unwrap() >= 1.0);
    server.finish();
}

#[test]
fn the_command_line_writes_the_file() {
    let profile = SlowProfile::default();
    let device = format!("mock:{}", profile.name());
    let server = Program::serve(env!("CARGO_BIN_EXE_tiercel-program"), &["--device", &device]);
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("trace.json");
    let path = path.to_str().unwrap();
    let output = server.ctl(&["trace", path, "--seconds", "1"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("https://ui.perfetto.dev"));
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(file["traceEvents"].is_array());
    let refused = server.ctl(&["trace", "/nowhere/trace.json"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("cannot write /nowhere/trace.json"));
}
