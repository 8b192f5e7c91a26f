//! Tests of an overloaded server (full queues, requests that run out of patience) and of a server that shuts down.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::{Value, json};
use std::thread;
use std::time::Duration;
use tiercel_device::Clock;
use tiercel_tests::{Connection, TestServer, events};

fn body(max_tokens: u32, stream: bool) -> Value {
    json!({"prompt": "x", "max_tokens": max_tokens, "ignore_eos": true, "stream": stream})
}

/// Sends a completion request without waiting for the answer.
fn send(server: &TestServer, body: &Value) -> Connection {
    let mut connection = server.connect();
    let headers = [("content-type", "application/json")];
    connection.send_request("POST", "/v1/completions", &headers, body.to_string().as_bytes());
    connection
}

fn in_tier(mut body: Value, tier: &str) -> Value {
    body["service_tier"] = json!(tier);
    body
}

#[test]
fn a_full_server_turns_away_the_last_waiting_request_for_one_of_a_higher_tier() {
    let server = TestServer::slow(|settings| {
        settings.engine.scheduler.max_num_seqs = 1;
        settings.engine.admission.max_requests = 8;
    });
    let mut running = server.connect();
    running.open_stream("/v1/completions", &in_tier(body(1000, true), "flex"));
    // Fill the permits (places for requests in the engine, 8 in all) that background requests may have: 6, because one
    // is reserved for tiers above standard and one more for tiers above background.
    let mut waiting: Vec<Connection> = Vec::new();
    for (place, stream) in [true, false, true, false, true].into_iter().enumerate() {
        waiting.push(send(&server, &in_tier(body(1000, stream), "flex")));
        server.wait_for("a place", |status| status.places == place as u32 + 2);
    }
    let refused = server.post("/v1/completions", &in_tier(body(4, false), "flex"));
    assert_eq!(refused.status, 429, "no tier is lower: {}", refused.text());
    assert!(refused.text().contains("admission.max_requests"), "{}", refused.text());
    let standard: Vec<Connection> = (0..3).map(|_| send(&server, &body(1000, true))).collect();
    // The first standard request takes a free permit. For each of the other two, the background request that is last in
    // the queue is turned away, with 429 and a retry time.
    for _ in 0..2 {
        let turned_away = waiting.pop().unwrap().response().unwrap();
        assert_eq!(turned_away.status, 429, "{}", turned_away.text());
        assert_eq!(turned_away.error()["code"], "overloaded");
        let ms: u64 = turned_away.header("retry-after-ms").unwrap().parse().unwrap();
        assert!((1_000..=120_000).contains(&ms));
        assert_eq!(turned_away.header("x-should-retry"), Some("true"));
    }
    let status = server.wait_for("all standard requests", |status| status.queued[2] == 3);
    assert_eq!((status.places, status.queued[3]), (7, 3), "{status:?}");
    // A standard request that can never run is refused, and no waiting background request is turned away for it.
    let never = server.post("/v1/completions", &body(1500, false));
    assert_eq!(never.status, 400, "{}", never.text());
    let status = server.status();
    assert_eq!((status.places, status.queued[3]), (7, 3), "{status:?}");
    drop((running, waiting, standard));
    server.finish();
}

#[test]
fn a_request_that_waits_longer_than_its_tiers_patience_is_refused() {
    let server = TestServer::slow(|settings| {
        settings.engine.scheduler.max_num_seqs = 1;
        settings.engine.patience.standard_s = 0.3;
    });
    let mut running = server.connect();
    running.open_stream("/v1/completions", &body(1000, true));
    let turned_away = send(&server, &body(1000, true)).response().unwrap();
    assert_eq!(turned_away.status, 429, "{}", turned_away.text());
    assert_eq!(turned_away.error()["code"], "overloaded");
    assert!(running.chunk().is_some(), "who runs goes on");
    drop(running);
    server.finish();
}

#[test]
fn a_request_that_states_its_patience_ends_with_504_and_is_not_tried_again() {
    let server = TestServer::slow(|settings| settings.engine.scheduler.max_num_seqs = 1);
    let mut running = server.connect();
    let mut premium = body(1000, true);
    premium["service_tier"] = json!("priority");
    running.open_stream("/v1/completions", &premium);
    let mut impatient = body(1000, true);
    impatient["max_wait_ms"] = json!(300);
    for tier in ["priority", "default"] {
        impatient["service_tier"] = json!(tier);
        let ended = send(&server, &impatient).response().unwrap();
        assert_eq!(ended.status, 504, "{}", ended.text());
        assert_eq!(ended.error()["code"], "overloaded");
        assert!(ended.text().contains("max_wait_ms"), "{}", ended.text());
        assert_eq!(ended.header("x-should-retry"), Some("false"));
        assert_eq!(ended.header("retry-after"), None);
    }
    impatient["max_wait_ms"] = json!("soon");
    assert_eq!(server.post("/v1/completions", &impatient).status, 400);
    let headers = [("content-type", "application/json"), ("x-tiercel-max-wait-ms", "300")];
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1000});
    for (route, body) in [("/v1/completions", body(1000, false)), ("/v1/chat/completions", chat)] {
        let ended = server.connect().request("POST", route, &headers, body.to_string().as_bytes());
        assert_eq!(ended.status, 504, "{route}: {}", ended.text());
        assert!(ended.text().contains("300 ms"), "{route}: {}", ended.text());
    }
    drop(running);
    server.finish();
}

#[test]
fn the_time_in_which_the_body_of_a_request_comes_counts_towards_its_patience() {
    let server = TestServer::mock(|_| ());
    let clock = Clock::wall();
    let sent = |max_wait_ms: u64| {
        let mut body = body(1, false);
        body["max_wait_ms"] = json!(max_wait_ms);
        let body = body.to_string();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        let mut connection = server.connect();
        connection.send(head.as_bytes());
        let start = clock.now();
        while clock.now().since_us(start) < 1_000_000 {
            thread::park_timeout(Duration::from_millis(100));
        }
        connection.send(body.as_bytes());
        connection.response().unwrap()
    };
    let late = sent(300);
    assert_eq!((late.status, &late.error()["code"]), (504, &json!("overloaded")));
    assert!(late.text().contains("300 ms"), "{}", late.text());
    assert_eq!(sent(60_000).status, 200);
    server.finish();
}

#[test]
fn only_the_first_choice_of_a_request_counts_towards_the_tokens_of_a_queue() {
    let server = TestServer::slow(|settings| {
        settings.engine.scheduler.max_num_seqs = 1;
        settings.engine.admission.max_queued_tokens_per_tier = 4;
    });
    let prompt = json!({"prompt": [1, 2, 3], "max_tokens": 1, "ignore_eos": true, "n": 3});
    assert_eq!(server.post("/v1/completions", &prompt).status, 200);
    let mut running = server.connect();
    running.open_stream("/v1/completions", &in_tier(body(1000, true), "priority"));
    let choices = send(&server, &prompt);
    server.wait_for("three choices queued", |status| status.queued[2] == 3);
    let one = json!({"prompt": [4], "max_tokens": 1, "ignore_eos": true});
    let other = send(&server, &one);
    server.wait_for("one prompt token more", |status| status.queued[2] == 4);
    let refused = server.post("/v1/completions", &one);
    assert_eq!((refused.status, &refused.error()["code"]), (429, &json!("queue_full")));
    drop((running, choices, other));
    server.finish();
}

#[test]
fn a_stream_whose_head_is_out_ends_with_an_event_when_its_patience_ends() {
    let server = TestServer::slow(|settings| {
        settings.engine.scheduler.max_num_seqs = 1;
        settings.engine.patience.standard_s = 0.5;
        settings.http.first_token_wait_ms = 20;
    });
    let mut running = server.connect();
    running.open_stream("/v1/completions", &in_tier(body(1000, true), "priority"));
    let mut stated = body(1000, true);
    stated["max_wait_ms"] = json!(300);
    for (request, setting) in [(body(1000, true), "patience.standard_s"), (stated, "max_wait_ms")] {
        let mut waiting = server.connect();
        assert_eq!(waiting.open_stream("/v1/completions", &request).status, 200);
        let mut rest = Vec::new();
        while let Some(chunk) = waiting.chunk().filter(|chunk| !chunk.is_empty()) {
            rest.extend(chunk);
        }
        let last: Value = serde_json::from_str(events(&rest).last().unwrap()).unwrap();
        assert_eq!(last["error"]["code"], "overloaded", "{last}");
        assert!(last["error"]["message"].as_str().unwrap().contains(setting), "{last}");
    }
    drop(running);
    server.finish();
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
    let queued = send(&server, &body(1000, true));
    server.wait_for("queued", |status| status.queued[2] == 1);
    // A request to a full queue is refused with an HTTP status, not with a broken response stream, whether it asks for
    // a stream or not.
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
        assert_eq!(refused.header("x-should-retry"), Some("true"));
    }
    // A premium request is accepted although the queue of the standard tier is full, because each tier has its own
    // queue.
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
    // While a running response stream may finish during the shutdown, the server reports "draining" on a connection
    // that was opened before the shutdown began.
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
    assert_eq!(last["error"]["code"], "drained", "{last}");
    let refused = whole.response().unwrap();
    assert_eq!((refused.status, &refused.error()["code"]), (503, &json!("drained")));
}
