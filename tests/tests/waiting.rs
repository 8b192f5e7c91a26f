//! Tests of what a client is told while its stream has nothing to send.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::{Value, json};
use tiercel_config::{PreemptionMode, ServerSettings};
use tiercel_tests::{Connection, TestServer};

/// Starts a server with steps of 50 ms whose streams send comments soon.
fn server(adjust: impl FnOnce(&mut ServerSettings)) -> TestServer {
    TestServer::slow(|settings| {
        settings.http.first_token_wait_ms = 100;
        settings.http.comment_interval_ms = 40;
        adjust(settings);
    })
}

/// Sends a streamed completion of a tier, with a prompt of `prompt` tokens.
fn send(server: &TestServer, tier: &str, (prompt, max_tokens): (u32, u32)) -> Connection {
    let body = json!({
        "prompt": (0..prompt).collect::<Vec<u32>>(), "max_tokens": max_tokens, "ignore_eos": true,
        "stream": true, "service_tier": tier,
    });
    let mut connection = server.connect();
    let headers = [("content-type", "application/json"), ("x-request-id", tier)];
    connection.send_request("POST", "/v1/completions", &headers, body.to_string().as_bytes());
    connection
}

/// Reads a stream until it sends a comment that begins with `beginning`, and returns the comment.
fn comment(stream: &mut Connection, beginning: &str) -> String {
    loop {
        let chunk = String::from_utf8(stream.chunk().unwrap()).unwrap();
        if let Some(comment) = chunk.strip_prefix(": ").filter(|text| text.starts_with(beginning)) {
            return comment.trim_end().to_owned();
        }
    }
}

#[test]
fn a_waiting_stream_is_told_its_position_in_its_tier() {
    let server = server(|settings| settings.engine.scheduler.max_num_seqs = 1);
    let mut running = send(&server, "priority", (4, 900));
    assert_eq!(running.head().unwrap().status, 200);
    let tiers = ["flex", "flex", "default", "flex"];
    let mut streams: Vec<Connection> = (1..)
        .zip(tiers)
        .map(|(number, tier)| {
            let stream = send(&server, tier, (4, 900));
            server.wait_for("arrived", |status| status.places == number + 1);
            stream
        })
        .collect();
    for (stream, position) in streams.iter_mut().zip([1, 2, 1, 3]) {
        assert_eq!(stream.head().unwrap().status, 200);
        let comment = comment(stream, "waiting, position");
        assert_eq!(comment, format!("waiting, position {position}"), "the rate is unknown yet");
    }
    drop((running, streams));
    server.finish();
}

#[test]
fn a_waiting_stream_is_told_when_its_first_token_is_expected_once_its_line_has_moved() {
    let server = server(|settings| settings.engine.scheduler.max_num_seqs = 1);
    let short: Vec<Connection> = (0..6).map(|_| send(&server, "flex", (4, 2))).collect();
    server.wait_for("all arrived", |status| status.places == 6);
    let long = send(&server, "flex", (4, 900));
    server.wait_for("all arrived", |status| status.queued.iter().sum::<u32>() >= 2);
    let mut last = send(&server, "flex", (4, 900));
    assert_eq!(last.head().unwrap().status, 200);
    let comment = comment(&mut last, "waiting, position 1, first token in about ");
    assert!(comment.ends_with(" ms"), "{comment}");
    drop((short, long, last));
    server.finish();
}

#[test]
fn a_paused_stream_is_told_so() {
    let server = server(|_| ());
    let mut stream = send(&server, "default", (4, 900));
    assert_eq!(stream.head().unwrap().status, 200);
    stream.chunk().unwrap();
    let pause = |verb: &str| {
        let path = format!("/control/v1/requests/default/{verb}");
        assert_eq!(server.control().post(&path, &json!({})).status, 200);
    };
    pause("pause");
    let comment = comment(&mut stream, "paused by an operator, ");
    assert!(comment.ends_with(" tokens done"), "{comment}");
    pause("resume");
    while !stream.chunk().unwrap().starts_with(b"data: ") {}
    drop(stream);
    server.finish();
}

#[test]
fn a_preempted_stream_is_told_so_and_operators_see_its_blocks_on_the_host() {
    let server = server(|settings| settings.engine.preemption.mode = PreemptionMode::Swap);
    let mut stream = send(&server, "flex", (500, 400));
    assert_eq!(stream.head().unwrap().status, 200);
    stream.chunk().unwrap();
    // The pool has 1,024 tokens, and the premium request needs most of them.
    let premium = send(&server, "priority", (900, 100));
    let comment = comment(&mut stream, "preempted, ");
    assert!(
        comment.ends_with(" tokens done") && comment != "preempted, 0 tokens done",
        "{comment}"
    );
    let shown = server.control().request("GET", "/control/v1/requests/flex", &[], b"").json();
    let row: &Value = &shown["requests"][0];
    assert_eq!((&row["state"], &row["device_blocks"]), (&json!("preempted"), &json!(0)), "{row}");
    assert!(row["host_blocks"].as_u64().unwrap() > 0, "{row}");
    let moments = row["timeline"]["moments"].as_array().unwrap();
    let last = moments.last().unwrap();
    assert_eq!((&last["what"], &last["strategy"]), (&json!("preempted"), &json!("swap")), "{row}");
    drop((stream, premium));
    server.finish();
}
