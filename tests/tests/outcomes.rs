//! Test of the Prometheus counters that count requests by outcome. It is alone in its file, because all servers of a
//! process share their counters.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::json;
use tiercel_tests::TestServer;

#[test]
fn a_stop_string_completes_a_request_and_cancels_nothing() {
    let server = TestServer::mock(|_| ());
    let mut body = json!({
        "prompt": "a prompt that is longer than one block of sixteen tokens",
        "max_tokens": 300, "ignore_eos": true, "temperature": 0,
    });
    let whole = server.post("/v1/completions", &body).json();
    let text = whole["choices"][0]["text"].as_str().unwrap();
    let stop: String = text.chars().skip(5).take(3).collect();
    body["stop"] = json!([stop]);
    for stream in [false, true] {
        body["stream"] = json!(stream);
        if stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        let response = server.post("/v1/completions", &body);
        let answer = if stream {
            let events = tiercel_tests::events(&response.body);
            serde_json::from_str(&events[events.len() - 2]).unwrap()
        } else {
            let answer = response.json();
            assert_eq!(answer["choices"][0]["finish_reason"], "stop");
            answer
        };
        assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() < 50, "{answer}");
        let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert_eq!(cached, 48, "three full blocks of the prompt: {answer}");
    }
    server.wait_until_idle();
    let metrics = server.get("/metrics").text();
    let counted: Vec<&str> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("tiercel_requests_total{tier=\"standard\",outcome="))
        .collect();
    let has = |line: &str| counted.contains(&line);
    assert!(counted.len() == 2 && has("\"length\"} 1") && has("\"stop\"} 2"), "{counted:?}");
    server.finish();
}
