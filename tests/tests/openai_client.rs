//! Tests of the API with OpenAI's official Python client, and with the bytes that curl sends, against a server in the
//! test's process.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::json;
use tiercel_tests::{TestServer, events, run_script};

const SCRIPT: &str = "openai_conformance.py";

fn check(server: &TestServer, checks: &[&str]) {
    let url = format!("http://{}/v1", server.address());
    let models =
        server.connect().request("GET", "/v1/models", &[("authorization", "Bearer key")], b"");
    let model = models.json()["data"][0]["id"].as_str().unwrap().to_owned();
    run_script(SCRIPT, &[&[url.as_str(), model.as_str()], checks].concat());
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
    assert_eq!(busy.open_stream("/v1/completions", &long).status, 200);
    check(&server, &["refused"]);
    drop(busy);
    server.finish();

    let server = TestServer::mock(|settings| settings.http.api_keys = vec!["key".into()]);
    check(&server, &["unauthorized"]);
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
