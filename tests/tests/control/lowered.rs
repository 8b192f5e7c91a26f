//! A running request that an operator lowers gives way at once, and its text stays the same.

use crate::{command, text_of};
use serde_json::{Value, json};
use std::ops::Range;
use tiercel_config::PreemptionMode;
use tiercel_tests::{Connection, TestServer};

/// Starts a server with room for 1,024 tokens.
fn server(mode: PreemptionMode) -> TestServer {
    TestServer::slow(|settings| settings.engine.preemption.mode = mode)
}

/// Sends a streamed premium completion with the request id `id`, a prompt of the tokens `prompt` and an output of so
/// many.
fn premium(server: &TestServer, id: &str, prompt: Range<u32>, max_tokens: u32) -> Connection {
    let body = json!({
        "prompt": prompt.collect::<Vec<u32>>(), "max_tokens": max_tokens, "ignore_eos": true,
        "temperature": 0, "stream": true, "service_tier": "priority",
    });
    crate::send(server, id, &body)
}

/// Lowers the stream with the id `runs` to background.
fn lower(server: &TestServer) {
    let lowered = command(server, "runs", "reprioritize", &json!({"tier": "background"}));
    let change = lowered.json()["changes"][0].clone();
    assert_eq!((lowered.status, &change["after"]["tier"]), (200, &json!("background")), "{change}");
    assert_eq!(change["before"]["state"], "decode", "it is running: {change}");
}

fn preemptions(server: &TestServer) -> u64 {
    server.status().counters.preemptions()
}

#[test]
fn a_lowered_stream_is_preempted_for_premium_and_its_text_is_that_of_a_lone_run() {
    for mode in [PreemptionMode::Swap, PreemptionMode::Recompute] {
        for waits_before in [false, true] {
            let server = server(mode);
            let lone = text_of(&premium(&server, "lone", 0..500, 60).response().unwrap());
            let mut stream = premium(&server, "runs", 0..500, 60);
            assert_eq!(stream.head().unwrap().status, 200);
            let mut text = stream.chunk().unwrap();
            if !waits_before {
                lower(&server);
            }
            // With the stream, this request does not fit into the memory.
            let mut other = premium(&server, "arrives", 100..999, 5);
            if waits_before {
                server.wait_for("the request waits", |status| {
                    status.waiting.iter().sum::<u32>() == 1
                });
                assert_eq!(preemptions(&server), 0, "premium does not give way to premium");
                lower(&server);
            }
            let answer = other.response().unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(preemptions(&server), 1, "{mode:?}: the lowered stream");
            let still = server.control().request("GET", "/control/v1/requests/runs", &[], b"");
            let row: &Value = &still.json()["requests"][0];
            assert_eq!(
                (&row["tier"], &row["preemptions"]),
                (&json!("background"), &json!(1)),
                "{row}"
            );
            while let Some(chunk) = stream.chunk().filter(|chunk| !chunk.is_empty()) {
                text.extend(chunk);
            }
            let text = String::from_utf8(text).unwrap();
            let data = text.lines().filter_map(|line| line.strip_prefix("data: {"));
            let pieces: String = data
                .filter_map(|json| serde_json::from_str::<Value>(&format!("{{{json}")).ok())
                .filter_map(|event| event["choices"][0]["text"].as_str().map(str::to_owned))
                .collect();
            assert_eq!(pieces, lone, "{mode:?}");
            server.finish();
        }
    }
}
