//! Tests of the API with OpenAI's official Python client, and with the bytes that curl sends, against a server in the
//! test's process.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tiercel_tests::{Connection, Program, SlowProfile, TestServer, events, run_script};

const SCRIPT: &str = "openai_conformance.py";
const REQUIREMENTS: &str = "requirements.txt";

fn check(server: &TestServer, checks: &[&str]) {
    let url = format!("http://{}/v1", server.address());
    let models =
        server.connect().request("GET", "/v1/models", &[("authorization", "Bearer key")], b"");
    let model = models.json()["data"][0]["id"].as_str().unwrap().to_owned();
    run_script(SCRIPT, REQUIREMENTS, &[&[url.as_str(), model.as_str()], checks].concat());
}

#[test]
fn the_python_client_finds_all_it_expects() {
    let server = TestServer::mock(|_| ());
    check(&server, &["all"]);
    server.finish();
}

#[test]
fn the_python_client_leaves_and_nothing_stays() {
    let server = TestServer::slow(|_| ());
    check(&server, &["leave_stream", "leave_whole"]);
    server.finish();
}

#[test]
fn the_python_client_understands_refusals() {
    let server = TestServer::slow(|settings| settings.engine.admission.max_requests = 1);
    let long = json!({"prompt": "x", "max_tokens": 1000, "ignore_eos": true, "stream": true});
    let mut busy = server.connect();
    let opened = busy.open_stream("/v1/completions", &long);
    assert_eq!(opened.status, 200, "{opened:?} {:?}", server.status());
    check(&server, &["refused"]);
    drop(busy);
    server.finish();

    let server = TestServer::mock(|settings| settings.http.api_keys = vec!["key".into()]);
    check(&server, &["unauthorized"]);
    server.finish();
}

#[test]
fn a_waiting_stream_that_an_operator_raises_gets_its_first_token_within_three_steps() {
    let profile = SlowProfile::default();
    let device = format!("mock:{}", profile.name());
    // The program is the real one in all but its name.
    let path = env!("CARGO_BIN_EXE_tiercel-program");
    let settings = ["--max-num-seqs", "2", "--set", "http.first_token_wait_ms=200"];
    let comments = ["--set", "http.comment_interval_ms=50"];
    let args = [&["--device", device.as_str()], settings.as_slice(), &comments].concat();
    let server = Program::serve(path, &args);
    let body = json!({
        "prompt": "Hello", "max_tokens": 900, "ignore_eos": true, "stream": true,
        "service_tier": "flex",
    });
    let flood: Vec<Connection> = (0..20)
        .map(|_| {
            let mut connection = Connection::open(server.address());
            let headers = [("content-type", "application/json")];
            let body = body.to_string();
            connection.send_request("POST", "/v1/completions", &headers, body.as_bytes());
            connection
        })
        .collect();
    let live = || -> Value {
        let status = server.ctl(&["--json", "status"]);
        serde_json::from_slice(&status.stdout).unwrap()
    };
    while live()["requests"] != 20 {}
    let url = format!("http://{}/v1", server.address());
    let model = Connection::open(server.address()).request("GET", "/v1/models", &[], b"").json();
    let model = model["data"][0]["id"].as_str().unwrap();
    let output =
        run_script("raised_request.py", REQUIREMENTS, &[&url, model, path, server.control_url()]);
    let told: Value = serde_json::from_str(output.lines().last().unwrap()).unwrap();
    let happened = json!(["queued", "moved", "started", "first_token"]);
    assert_eq!(told["happened"], happened);
    let drained = server.ctl(&["drain", "--deadline-s", "0"]);
    assert!(drained.status.success(), "{drained:?}");
    let text = String::from_utf8(drained.stdout).unwrap();
    assert!(text.contains("0 requests finished, ") && text.contains(" ended at the deadline"));
    drop(flood);
    // The audit is in the server's log.
    let events: Vec<Value> = server
        .log()
        .iter()
        .filter_map(|line| serde_json::from_str(&line[line.find('{')?..]).ok())
        .collect();
    let change = events.iter().find(|event| event["action"] == "reprioritize").unwrap();
    assert_eq!(change["step"], told["change"]);
    let steps = told["first"].as_u64().unwrap() - change["step"].as_u64().unwrap();
    assert!((1..=3).contains(&steps), "first token {steps} steps after the change");
}

#[test]
fn litellm_is_told_the_tier_that_its_key_may_have() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("keys.toml");
    let keys = ["standard", "premium"].map(|tier| {
        let hash = Sha256::digest(tier);
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("[[key]]\nname = \"{tier}\"\nsha256 = \"{hash}\"\nhighest_tier = \"{tier}\"\n")
    });
    std::fs::write(&file, keys.concat()).unwrap();
    let file = file.to_str().unwrap().to_owned();
    let server = TestServer::mock(|settings| settings.http.keys_file = Some(file));
    let headers = [("authorization", "Bearer standard")];
    let models = server.connect().request("GET", "/v1/models", &headers, b"").json();
    let model = models["data"][0]["id"].as_str().unwrap().to_owned();
    let url = format!("http://{}/v1", server.address());
    let args = [url.as_str(), &model, "standard", "premium"];
    run_script("litellm_tier.py", "litellm-requirements.txt", &args);
    server.finish();
}

#[test]
fn what_the_readme_sends_with_curl_is_streamed() {
    let server = TestServer::mock(|_| ());
    let body = json!({
        "stream": true, "service_tier": "priority", "max_tokens": 5, "ignore_eos": true,
        "messages": [{"role": "user", "content": "Why is the sky blue?"}],
    });
    let body = body.to_string();
    let mut connection = server.connect();
    // The bytes of the HTTP request head are those that curl 8 sends for `curl -N URL -H 'Content-Type:
    // application/json' -d BODY`.
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {}\r\nUser-Agent: curl/8.5.0\r\n\
         Accept: */*\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        server.address(),
        body.len()
    );
    connection.send(format!("{head}{body}").as_bytes());
    let response = connection.response().unwrap();
    let text = response.text();
    assert_eq!(response.status, 200, "{text}");
    assert_eq!(response.header("transfer-encoding"), Some("chunked"), "{response:?}");
    assert!(text.starts_with("data: {") && text.ends_with("data: [DONE]\n\n"), "{text}");
    assert!(text.contains("\"service_tier\":\"priority\""), "{text}");
    assert!(events(&response.body).len() > 5, "{text}");
    server.finish();
}
