//! Full queues, and a server that stops.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::{Value, json};
use std::thread;
use tiercel_tests::{TestServer, events};

fn body(max_tokens: u32, stream: bool) -> Value {
    json!({"prompt": "x", "max_tokens": max_tokens, "ignore_eos": true, "stream": stream})
}

#[test]
fn a_full_queue_answers_429_with_a_time_to_retry() {
    let server = TestServer::slow(|settings| {
        settings.engine.scheduler.max_num_seqs = 1;
        settings.engine.admission.max_queued_requests_per_tier = 1;
    });
    let mut running = server.connect();
    running.open_stream("/v1/completions", &body(1000, true));
    server.wait_for("running", |status| status.running == 1);
    let mut queued = server.connect();
    queued.open_stream("/v1/completions", &body(1000, true));
    // Streaming or not, a refusal is a status, not a broken stream.
    for stream in [false, true] {
        let refused = server.post("/v1/completions", &body(4, stream));
        assert_eq!(refused.status, 429, "{}", refused.text());
        let error = refused.error();
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!("rate_limit_error"), &json!("queue_full"))
        );
        let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        let ms: u64 = refused.header("retry-after-ms").unwrap().parse().unwrap();
        assert!(seconds >= 1 && ms.div_ceil(1000) == seconds);
    }
    // Another tier has a queue of its own.
    let mut premium = body(1000, true);
    premium["service_tier"] = json!("priority");
    assert_eq!(server.connect().open_stream("/v1/completions", &premium).status, 200);
    drop((running, queued));
    server.finish();
}

#[test]
fn one_choice_refused_refuses_the_request_and_frees_the_others() {
    let server = TestServer::slow(|settings| settings.engine.admission.max_requests = 4);
    let mut many = body(1000, false);
    many["n"] = json!(5);
    assert_eq!(server.post("/v1/completions", &many).status, 429);
    server.wait_until_idle();
    many["n"] = json!(4);
    many["max_tokens"] = json!(2);
    assert_eq!(server.post("/v1/completions", &many).status, 200);
    server.finish();
}

#[test]
fn stopping_lets_running_requests_finish_and_refuses_new_ones() {
    let server = TestServer::slow(|settings| settings.http.drain_grace_ms = 60_000);
    let address = server.address();
    let mut running = server.connect();
    running.open_stream("/v1/completions", &body(30, true));
    running.chunk().unwrap();
    let mut open = server.connect();
    let stopping = thread::spawn(move || server.stop());
    // The stream goes on while the server refuses others; this connection was there before.
    loop {
        let health = open.request("GET", "/health", &[], b"");
        if health.json()["status"] == "draining" {
            assert_eq!(health.status, 503);
            break;
        }
    }
    let mut rest = Vec::new();
    while let Some(chunk) = running.chunk().filter(|chunk| !chunk.is_empty()) {
        rest.extend(chunk);
    }
    assert_eq!(events(&rest).last().map(String::as_str), Some("[DONE]"));
    stopping.join().unwrap().unwrap();
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn requests_that_outlast_the_grace_end_with_an_error_inside_the_stream() {
    let server = TestServer::slow(|settings| settings.http.drain_grace_ms = 100);
    let mut running = server.connect();
    running.open_stream("/v1/completions", &body(1000, true));
    running.chunk().unwrap();
    let mut whole = server.connect();
    let headers = [("content-type", "application/json")];
    whole.send_request(
        "POST",
        "/v1/completions",
        &headers,
        body(900, false).to_string().as_bytes(),
    );
    server.wait_for("both running", |status| status.running == 2);
    server.stop().unwrap();
    let mut rest = Vec::new();
    while let Some(chunk) = running.chunk().filter(|chunk| !chunk.is_empty()) {
        rest.extend(chunk);
    }
    let last: Value = serde_json::from_str(events(&rest).last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "shutting_down", "{last}");
    let refused = whole.response().unwrap();
    assert_eq!((refused.status, &refused.error()["code"]), (503, &json!("shutting_down")));
}
