//! Tests of the control API: what operators see and change, who may, and what clients notice.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

mod cost;
mod dashboard;
mod drained;
mod live;
mod lowered;
mod matrix;
mod random_settings;
mod rights;
mod settings;
mod trace;

use serde_json::{Value, json};
use tiercel_config::DeviceKind;
use tiercel_tests::{Connection, Response, SlowProfile, TestServer};

/// Returns the body of a streamed background completion with greedy sampling.
fn background(max_tokens: u32) -> Value {
    json!({
        "prompt": "Hello", "max_tokens": max_tokens, "ignore_eos": true, "temperature": 0,
        "service_tier": "flex", "stream": true,
    })
}

/// Sends a streamed completion without waiting for its answer, with the request id `request_id`.
fn send(server: &TestServer, request_id: &str, body: &Value) -> Connection {
    let mut connection = server.connect();
    let headers = [("content-type", "application/json"), ("x-request-id", request_id)];
    connection.send_request("POST", "/v1/completions", &headers, body.to_string().as_bytes());
    connection
}

/// Starts a server that runs two requests at a time, in steps of 50 ms.
fn two_at_a_time() -> TestServer {
    TestServer::slow(|settings| settings.engine.scheduler.max_num_seqs = 2)
}

fn listing(server: &TestServer, query: &str) -> Value {
    let path = format!("/control/v1/requests{query}");
    server.control().request("GET", &path, &[], b"").json()
}

/// Gives a command for a request, and returns the response.
fn command(server: &TestServer, id: &str, verb: &str, body: &Value) -> Response {
    server.control().post(&format!("/control/v1/requests/{id}/{verb}"), body)
}

/// Waits until `count` requests are live and a listing shows them, and returns the listing.
fn wait_for(server: &TestServer, count: usize) -> Value {
    server.wait_for("all arrived", |status| status.places as usize == count);
    loop {
        let listing = listing(server, "?limit=1000");
        if listing["total"] == json!(count) {
            return listing;
        }
    }
}

/// Returns the data of a response stream's events.
fn events(response: &Response) -> Vec<Value> {
    let text = response.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter_map(|json| serde_json::from_str(json).ok()).collect()
}

/// Reads the rest of a chunked response, to its end.
fn rest_of(stream: &mut Connection) -> String {
    let mut rest = Vec::new();
    while let Some(chunk) = stream.chunk().filter(|chunk| !chunk.is_empty()) {
        rest.extend(chunk);
    }
    String::from_utf8(rest).unwrap()
}

fn text_of(response: &Response) -> String {
    let pieces = events(response).into_iter();
    pieces.filter_map(|event| event["choices"][0]["text"].as_str().map(str::to_owned)).collect()
}

#[test]
fn a_raised_request_gets_its_first_token_within_three_steps() {
    let server = two_at_a_time();
    let streams: Vec<Connection> =
        (0..20).map(|n| send(&server, &format!("flood-{n}"), &background(400))).collect();
    let before = wait_for(&server, 20);
    assert_eq!(before["requests"].as_array().unwrap().len(), 20);
    let waiting = listing(&server, "?state=waiting&sort=age&limit=3");
    let last = wait_for(&server, 20)["requests"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["state"], &last["tier"]), (&json!("waiting"), &json!("background")));
    assert_eq!(waiting["requests"].as_array().unwrap().len(), 3);
    assert_eq!(waiting["next_offset"], 3);
    let id = last["id"].as_str().unwrap();
    let raised = command(&server, id, "reprioritize", &json!({"tier": "premium"}));
    assert_eq!(raised.status, 200, "{}", raised.text());
    let change = raised.json()["changes"][0].clone();
    assert_eq!(
        (&change["before"]["tier"], &change["after"]["tier"]),
        (&json!("background"), &json!("premium"))
    );
    let first = loop {
        let shown =
            server.control().request("GET", &format!("/control/v1/requests/{id}"), &[], b"");
        let row = shown.json()["requests"][0].clone();
        if let Some(step) = row["first_token_step"].as_u64() {
            break step;
        }
    };
    let steps = first - change["step"].as_u64().unwrap();
    assert!((1..=3).contains(&steps), "first token {steps} steps after the change");
    drop(streams);
    server.finish();
}

#[test]
fn listings_are_sorted_and_in_pages() {
    let server = two_at_a_time();
    let bodies = (0..20).map(|n| background(400 - n));
    let streams: Vec<Connection> =
        bodies.enumerate().map(|(n, body)| send(&server, &format!("r-{n}"), &body)).collect();
    wait_for(&server, 20);
    let rows = |query: &str| listing(&server, query)["requests"].as_array().unwrap().clone();
    for (sort, field, rising) in
        [("slack", "slack_ms", true), ("age", "age_ms", false), ("output", "output_tokens", false)]
    {
        for filter in ["", "&tier=background"] {
            let all = rows(&format!("?sort={sort}{filter}"));
            let values = all.iter().map(|row| row[field].as_f64().unwrap_or(f64::INFINITY));
            let order = if rising { f64::le } else { f64::ge };
            assert_eq!(all.len(), 20);
            assert!(values.is_sorted_by(order), "{sort}: {all:#?}");
        }
    }
    // The ages of waiting requests change alike, so their order is the same in all listings.
    let seqs = |query: &str| rows(query).iter().map(|row| row["seq"].clone()).collect::<Vec<_>>();
    let pages = ["&offset=0&limit=8", "&offset=8&limit=8", "&offset=16&limit=8"];
    let paged = pages.map(|page| seqs(&format!("?sort=age{page}"))).concat();
    assert_eq!(paged, seqs("?sort=age&tier=background"));
    drop(streams);
    server.finish();
}

#[test]
fn a_paused_request_stands_still_and_its_text_is_the_same_after_it_resumes() {
    let server = TestServer::slow(|_| ());
    let expected = text_of(&send(&server, "plain", &background(12)).response().unwrap());
    let mut stream = send(&server, "trace-7", &background(12));
    wait_for(&server, 1);
    let paused = command(&server, "trace-7", "pause", &json!({}));
    assert_eq!(paused.json()["changes"][0]["after"]["paused"], true);
    let tokens = || {
        let shown = server.control().request("GET", "/control/v1/requests/trace-7", &[], b"");
        shown.json()["requests"][0]["output_tokens"].as_u64().unwrap()
    };
    // A step that was in flight at the pause may still give a token; steps of another request show that time passes.
    send(&server, "other", &background(4)).response().unwrap();
    let still = tokens();
    send(&server, "other", &background(4)).response().unwrap();
    assert_eq!(tokens(), still);
    assert!(still < 12);
    assert_eq!(
        command(&server, "trace-7", "reprioritize", &json!({"tier": "premium"})).status,
        200
    );
    assert_eq!(command(&server, "trace-7", "resume", &json!({})).status, 200);
    let response = stream.response().unwrap();
    assert_eq!(response.header("x-request-id"), Some("trace-7"));
    assert_eq!(text_of(&response), expected);
    let tier = |event: &Value| event["service_tier"].clone();
    assert_eq!(events(&response).first().map(tier), Some(json!("flex")));
    assert_eq!(
        events(&response).last().map(tier),
        Some(json!("priority")),
        "it was raised meanwhile"
    );
    server.finish();
}

#[test]
fn a_cancelled_stream_ends_with_an_error_event_and_a_waiting_request_with_a_409() {
    let server = two_at_a_time();
    let mut streams: Vec<Connection> =
        (0..3).map(|n| send(&server, &format!("r{n}"), &background(400))).collect();
    wait_for(&server, 3);
    let begun = streams[0].head().unwrap();
    assert_eq!(begun.status, 200);
    for id in ["r0", "r2"] {
        assert_eq!(command(&server, id, "cancel", &json!({})).status, 200);
    }
    let rest = rest_of(&mut streams[0]);
    assert!(rest.trim_end().lines().last().unwrap().contains("\"code\":\"cancelled\""), "{rest}");
    let refused = streams[2].response().unwrap();
    assert_eq!((refused.status, &refused.error()["code"]), (409, &json!("cancelled")));
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    let gone = command(&server, "r0", "cancel", &json!({}));
    assert_eq!((gone.status, &gone.error()["code"]), (404, &json!("request_not_found")));
    drop(streams);
    server.finish();
}

#[test]
fn an_id_of_several_requests_is_ambiguous_and_changes_none() {
    let server = two_at_a_time();
    let streams =
        [send(&server, "same", &background(400)), send(&server, "same", &background(400))];
    wait_for(&server, 2);
    let refused = command(&server, "same", "cancel", &json!({}));
    assert_eq!((refused.status, &refused.error()["code"]), (409, &json!("ambiguous_id")));
    assert_eq!(wait_for(&server, 2)["total"], 2);
    drop(streams);
    server.finish();
}

#[test]
fn wrong_queries_and_bodies_say_what_is_allowed() {
    let server = TestServer::mock(|_| ());
    for query in ["?tier=gold", "?state=asleep", "?limit=0", "?limit=1001", "?sort=name", "?x=1"] {
        let path = format!("/control/v1/requests{query}");
        let refused = server.control().request("GET", &path, &[], b"");
        assert_eq!(
            (refused.status, &refused.error()["code"]),
            (400, &json!("invalid_query")),
            "{query}"
        );
    }
    for body in [json!({}), json!({"tier": "gold"}), json!({"tier": "system"}), json!([])] {
        assert_eq!(command(&server, "1", "reprioritize", &body).status, 400, "{body}");
    }
    assert_eq!(command(&server, "1", "reprioritize", &json!({"tier": "premium"})).status, 404);
    for body in
        [json!({"deadline_ms": -1}), json!({"deadline": 5}), json!({"deadline_ms": 86_400_001u64})]
    {
        assert_eq!(server.control().post("/control/v1/drain", &body).status, 400, "{body}");
    }
    server.finish();
}

#[test]
fn a_drain_lets_requests_finish_until_the_deadline_and_stops_the_server() {
    let profile = SlowProfile::with_blocks(4_096);
    let server = TestServer::mock(|settings| {
        settings.device.kind = DeviceKind::Mock(profile.name());
        settings.engine.scheduler.max_num_seqs = 64;
    });
    let lengths = |n: u32| if n.is_multiple_of(2) { 8 } else { 900 };
    let mut streams: Vec<Connection> =
        (0..64).map(|n| send(&server, &format!("s{n}"), &background(lengths(n)))).collect();
    for stream in &mut streams {
        assert_eq!(stream.head().unwrap().status, 200);
    }
    let mut listener = server.control();
    listener.send_request("GET", "/control/v1/events", &[], b"");
    assert_eq!(listener.head().unwrap().status, 200);
    let before = server.control().request("GET", "/control/v1/status", &[], b"").json();
    assert_eq!(before["deadline_in_ms"], Value::Null);
    let asked = server.control().post("/control/v1/drain", &json!({"deadline_ms": 3_000}));
    assert_eq!((asked.status, &asked.json()["deadline_ms"]), (202, &json!(3_000)));
    let again = server.control().post("/control/v1/drain", &json!({}));
    assert_eq!((again.status, &again.error()["code"]), (409, &json!("draining")));
    let refused = server.post("/v1/completions", &background(1));
    assert_eq!((refused.status, &refused.error()["code"]), (503, &json!("shutting_down")));
    let status = server.control().request("GET", "/control/v1/status", &[], b"").json();
    assert_eq!(status["stage"], "draining");
    assert!((1..=3_000).contains(&status["deadline_in_ms"].as_u64().unwrap()), "{status}");
    for (n, stream) in (0..).zip(&mut streams) {
        let text = rest_of(stream);
        let (finished, drained) = (text.contains("[DONE]"), text.contains("\"code\":\"drained\""));
        assert!(finished != drained && finished == (lengths(n) == 8), "{n}: {text}");
    }
    let heard = rest_of(&mut listener);
    let events: Vec<Value> = heard
        .lines()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
        .collect();
    let [begun, progress @ .., end] = events.as_slice() else { panic!("{heard}") };
    assert_eq!((&begun["action"], &begun["requests"]), (&json!("drain"), &json!(64)));
    assert!(!progress.is_empty() && progress.iter().all(|event| event["action"] == "draining"));
    let left = |event: &Value| (event["requests"].as_u64(), event["deadline_in_ms"].as_u64());
    assert_eq!(left(&progress[0]).0, Some(32), "those that run for long: {heard}");
    assert!(left(&progress[0]).1.is_some_and(|ms| ms <= 2_000), "{heard}");
    assert_eq!(end["action"], "drained");
    let ends = [&end["finished"], &end["ended"], &end["other"]];
    assert_eq!(ends, [&json!(32), &json!(32), &json!(0)]);
    server.stop().unwrap();
}
