//! Tests of recordings of live traffic on a real server with a mock device: who may record, what a file holds, and its
//! replay.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tiercel_actors::EngineStatus;
use tiercel_tests::{Connection, Response, TestServer};
use tiercel_workload::{Outcome, Recording};

const SECRET: &str = "xylophone";

fn completion(tier: &str, prompt: &str, max_tokens: u32) -> Value {
    json!({
        "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true, "temperature": 0,
        "service_tier": tier,
    })
}

fn control(server: &TestServer, method: &str, path: &str, body: &Value) -> Response {
    let path = format!("/control/v1/recording{path}");
    let body = if method == "POST" { body.to_string() } else { String::new() };
    let headers = [("content-type", "application/json")];
    server.control().request(method, &path, &headers, body.as_bytes())
}

fn start(server: &TestServer, limits: &Value) -> Value {
    let started = control(server, "POST", "", limits);
    assert_eq!(started.status, 200, "{}", started.text());
    started.json()
}

/// Ends the recording, and returns its file and what the server says of it.
fn stop(server: &TestServer, folder: &TempDir) -> (PathBuf, Recording) {
    let stopped = control(server, "POST", "/stop", &json!({}));
    assert_eq!((stopped.status, &stopped.json()["state"]), (200, &json!("ended")));
    let file = control(server, "GET", "/file", &json!({}));
    assert_eq!(file.status, 200, "{}", file.text());
    assert_eq!(file.header("content-type"), Some("application/x-ndjson"));
    let path = folder.path().join("recording.jsonl");
    std::fs::write(&path, file.text()).unwrap();
    let recording = Recording::load(&path).unwrap();
    (path, recording)
}

/// Runs `tiercel simulate` on a recording, and returns the JSON of its report.
fn simulate(recording: &Path, folder: &TempDir, policy: &str) -> Value {
    let report = folder.path().join("report.json");
    let arguments = ["simulate", recording.to_str().unwrap(), "--policies", policy, "--json"];
    let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_tiercel-program"));
    let output = program.args(arguments).arg(&report).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("(in force)") && text.contains("measured"), "{text}");
    serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap()
}

#[test]
fn live_traffic_is_recorded_without_text_and_replayed_with_the_servers_own_settings() {
    let server = TestServer::mock(|settings| {
        settings.engine.scheduler.max_num_seqs = 3;
        settings.engine.patience.standard_s = 77.0;
    });
    start(&server, &json!({}));
    let long = format!("{SECRET} {}", "one two three four five six seven ".repeat(8));
    for (tier, max_tokens) in [("priority", 5), ("default", 7), ("flex", 9), ("flex", 11)] {
        let answer = server.post("/v1/completions", &completion(tier, &long, max_tokens));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let mut two = completion("default", SECRET, 4);
    two["n"] = json!(2);
    two["max_wait_ms"] = json!(60_000);
    let both = server.post("/v1/completions", &two);
    assert_eq!(both.status, 200);
    let folder = TempDir::new().unwrap();
    let (path, recording) = stop(&server, &folder);
    let rows = &recording.requests;
    let seen: Vec<_> = rows.iter().map(|row| (row.tier.name(), row.seen.output_tokens)).collect();
    let expected = [
        ("premium", 5),
        ("standard", 7),
        ("background", 9),
        ("background", 11),
        ("standard", 4),
        ("standard", 4),
    ];
    assert_eq!(seen, expected);
    assert!(rows.iter().all(|row| row.seen.outcome == Outcome::Length));
    let id = both.json()["id"].as_str().unwrap().to_owned();
    let choices = [&rows[4], &rows[5]].map(|row| (row.id.as_deref() == Some(&*id), row.choice));
    assert_eq!(choices, [(true, 0), (true, 1)]);
    assert_eq!(rows[4].max_wait_ms, Some(60_000));
    let (like, shared) = rows[1].begins_like.unwrap();
    assert!(like == 0 && shared > 0 && shared.is_multiple_of(16), "{shared}");
    assert_eq!(rows[3].seen.cached_tokens, shared, "the cache found what the recording tells");
    assert_eq!(recording.header.settings["patience"]["standard_s"], json!(77.0));
    assert!(recording.header.steps >= 36, "the steps to the end: {}", recording.header.steps);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains(SECRET) && !text.contains("seven"), "{text}");
    let report = simulate(&path, &folder, "fcfs");
    let policies: Vec<&str> = report["replays"]
        .as_array()
        .unwrap()
        .iter()
        .map(|of| of["policy"].as_str().unwrap())
        .collect();
    assert_eq!(policies, ["tiercel", "fcfs"]);
    let counts = |of: &Value| (of["total"]["requests"].clone(), of["total"]["completed"].clone());
    assert_eq!(counts(&report["measured"]), (json!(6), json!(6)));
    assert_eq!(counts(&report["replays"][0]["outcome"]), (json!(6), json!(6)));
    server.finish();
}

#[test]
fn only_a_change_of_settings_during_the_recording_is_in_its_file() {
    let server = TestServer::mock(|_| ());
    let change = |patience_s: u32| {
        let body = json!({"patience.standard_s": patience_s}).to_string();
        let headers = [("content-type", "application/json")];
        let path = "/control/v1/policy";
        assert_eq!(server.control().request("PATCH", path, &headers, body.as_bytes()).status, 200);
    };
    let folder = TempDir::new().unwrap();
    let begin = || {
        start(&server, &json!({}));
        // A file without a request cannot be read.
        assert_eq!(server.post("/v1/completions", &completion("default", "a", 2)).status, 200);
    };
    let is_changed = || stop(&server, &folder).1.header.settings_changed;
    change(60);
    begin();
    change(60);
    assert!(!is_changed(), "the setting had this value");
    change(61);
    assert!(!is_changed(), "the recording has ended");
    begin();
    change(62);
    assert!(is_changed());
    server.finish();
}

#[test]
fn refused_requests_and_clients_that_left_are_in_the_recording() {
    let server = TestServer::slow(|settings| {
        settings.engine.scheduler.max_num_seqs = 1;
        settings.engine.admission.max_queued_requests_per_tier = 8;
    });
    let send = |name: &str| {
        let mut connection = server.connect();
        let mut body = completion("flex", "Hello", 900);
        body["stream"] = json!(true);
        let headers = [("content-type", "application/json"), ("x-request-id", name)];
        connection.send_request("POST", "/v1/completions", &headers, body.to_string().as_bytes());
        connection
    };
    let before = send("before");
    let has_token = |status: &EngineStatus| status.running == 1 && status.queued == [0; 4];
    server.wait_for("one is live, and has left the queue", has_token);
    start(&server, &json!({}));
    let first = send("waits");
    server.wait_for("it waits", |status| status.places == 2);
    // The queue takes seven of these eight requests and keeps the rest of its room for other tenants.
    let waiting: Vec<Connection> = (0..7).map(|_| send("waits")).collect();
    let full = 8;
    server.wait_for("the queue is full", |status| status.queued.iter().sum::<u32>() == full - 1);
    let refused = server.post("/v1/completions", &completion("flex", "Hello", 9));
    assert_eq!(refused.status, 429, "{}", refused.text());
    // One was live, eight were sent to wait, and one was refused above. While a request is being refused, it has a
    // place.
    while control(&server, "GET", "", &json!({})).json()["sequences"] != 10 {}
    server.wait_for("one more is refused", |status| status.places == full);
    drop(first);
    server.wait_for("it has left", |status| status.places == full - 1);
    let folder = TempDir::new().unwrap();
    let (path, recording) = stop(&server, &folder);
    assert_eq!(recording.header.live_at_begin, 1);
    let count = |outcome: Outcome| {
        recording.requests.iter().filter(|row| row.seen.outcome == outcome).count() as u32
    };
    let counts = [Outcome::Live, Outcome::Left, Outcome::Refused].map(count);
    assert_eq!(counts, [full - 1, 1, 10 - full]);
    assert!(recording.requests[0].before.is_some() && recording.requests[1].before.is_none());
    let report = simulate(&path, &folder, "fcfs");
    let total = &report["measured"]["total"];
    let counts = ["requests", "refused", "left"].map(|name| total[name].as_u64().unwrap());
    assert_eq!(counts, [9, u64::from(10 - full), 1]);
    assert!(report["recording"]["notes"][0].as_str().unwrap().contains("1 sequences were live"));
    drop((before, waiting));
    server.finish();
}

#[test]
fn a_request_whose_choices_are_being_submitted_is_recorded_as_a_whole_or_as_live() {
    const CHOICES: u32 = 100;
    let server = TestServer::slow(|settings| settings.engine.scheduler.max_num_seqs = 1);
    let mut body = completion("default", "Hello", 900);
    (body["stream"], body["n"]) = (json!(true), json!(CHOICES));
    let (folder, mut seen) = (TempDir::new().unwrap(), Vec::new());
    for round in 0..20 {
        let mut client = server.connect();
        let headers = [("content-type", "application/json")];
        client.send_request("POST", "/v1/completions", &headers, body.to_string().as_bytes());
        while server.engine().places() < 4 * round {}
        start(&server, &json!({}));
        server.wait_for("all choices are accepted", |status| status.places == CHOICES);
        let (_, recording) = stop(&server, &folder);
        let arrived = recording.requests.iter().filter(|row| row.before.is_none()).count() as u32;
        seen.push((recording.requests.len() as u32, arrived % CHOICES));
        drop(client);
        server.wait_for("the client has left", |status| status.places == 0);
    }
    assert_eq!(seen, [(CHOICES, 0); 20], "sequences, and those of a request that is split");
    server.finish();
}

#[test]
fn a_refused_choice_refuses_the_other_choices_in_the_recording_too() {
    let server = TestServer::slow(|settings| {
        settings.engine.scheduler.max_num_seqs = 1;
        settings.engine.admission.max_queued_requests_per_tier = 8;
    });
    start(&server, &json!({}));
    let mut body = completion("flex", "Hello", 900);
    body["n"] = json!(20);
    let refused = server.post("/v1/completions", &body);
    assert_eq!(refused.status, 429, "{}", refused.text());
    let (_, recording) = stop(&server, &TempDir::new().unwrap());
    let outcomes: Vec<Outcome> = recording.requests.iter().map(|row| row.seen.outcome).collect();
    assert!(outcomes.len() > 1, "some choices were accepted: {outcomes:?}");
    assert!(outcomes.iter().all(|of| *of == Outcome::Refused), "{outcomes:?}");
    server.finish();
}

#[test]
fn a_recording_ends_at_its_limits_and_only_one_runs() {
    let server = TestServer::mock(|_| ());
    assert_eq!(control(&server, "GET", "", &json!({})).json()["state"], "none");
    let nothing = control(&server, "GET", "/file", &json!({}));
    assert_eq!((nothing.status, &nothing.error()["code"]), (404, &json!("no_recording")));
    assert_eq!(control(&server, "POST", "/stop", &json!({})).status, 404);
    for bad in [
        json!({"max_s": 0}),
        json!({"max_s": 86_401}),
        json!({"max_sequences": 200_001}),
        json!({"x": 1}),
    ] {
        assert_eq!(control(&server, "POST", "", &bad).status, 400, "{bad}");
    }
    let started = start(&server, &json!({"max_sequences": 2}));
    assert_eq!((&started["state"], &started["max_s"]), (&json!("running"), &json!(3600)));
    for path in ["", "/file"] {
        let method = if path.is_empty() { "POST" } else { "GET" };
        let refused = control(&server, method, path, &json!({}));
        assert_eq!((refused.status, &refused.error()["code"]), (409, &json!("recording")));
    }
    for _ in 0..3 {
        assert_eq!(server.post("/v1/completions", &completion("default", "a", 2)).status, 200);
    }
    let shown = control(&server, "GET", "", &json!({})).json();
    let cut = (&shown["state"], &shown["cut"], &shown["sequences"]);
    assert_eq!(cut, (&json!("ended"), &json!("sequences"), &json!(2)));
    let folder = TempDir::new().unwrap();
    let (_, recording) = stop(&server, &folder);
    assert_eq!((recording.header.cut.as_deref(), recording.requests.len()), (Some("sequences"), 2));
    start(&server, &json!({"max_s": 1}));
    while control(&server, "GET", "", &json!({})).json()["state"] == "running" {}
    assert_eq!(control(&server, "GET", "", &json!({})).json()["cut"], "time");
    server.finish();
}

#[test]
fn only_operators_record_and_each_step_of_theirs_is_an_event() {
    let entry = |name: &str| {
        let hash =
            Sha256::digest(name).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("[[key]]\nname = \"{name}\"\nsha256 = \"{hash}\"\nrole = \"{name}\"\n")
    };
    let folder = TempDir::new().unwrap();
    let keys = folder.path().join("keys.toml");
    std::fs::write(&keys, entry("operator") + &entry("viewer")).unwrap();
    let server = TestServer::mock(|settings| {
        settings.http.keys_file = Some(keys.to_str().unwrap().to_owned());
    });
    let ask = |key: &str, method: &str, path: &str| {
        let authorization = format!("Bearer {key}");
        let headers =
            [("content-type", "application/json"), ("authorization", authorization.as_str())];
        let body: &[u8] = if method == "POST" { b"{}" } else { b"" };
        let path = format!("/control/v1/{path}");
        server.control().request(method, &path, &headers, body).status
    };
    let mut events = server.control();
    events.send_request("GET", "/control/v1/events", &[("authorization", "Bearer viewer")], b"");
    assert_eq!(events.head().unwrap().status, 200);
    for (method, path, for_viewers) in [
        ("POST", "recording", 403),
        ("GET", "recording", 200),
        ("POST", "recording/stop", 403),
        ("GET", "recording/file", 403),
    ] {
        assert_eq!(ask("viewer", method, path), for_viewers, "{method} {path}");
        assert_eq!(ask("operator", method, path), 200, "{method} {path}");
        assert_eq!(ask("nobody", method, path), 401, "{method} {path}");
    }
    let mut heard = String::new();
    while !heard.contains("record_read") {
        heard += &String::from_utf8(events.chunk().unwrap()).unwrap();
    }
    for action in ["record_start", "record_stop"] {
        assert!(heard.contains(&format!("\"by\":\"operator\",\"action\":\"{action}\"")), "{heard}");
    }
    drop(events);
    server.finish();
}
