//! Tests of changes of settings while the server runs.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::{Value, json};
use tiercel_config::{DeviceKind, Reservation};
use tiercel_tests::{Connection, Response, SlowProfile, TestServer};

/// Returns the body of a streamed background completion with greedy sampling.
fn background(max_tokens: u32) -> Value {
    json!({
        "prompt": "Hello", "max_tokens": max_tokens, "ignore_eos": true, "temperature": 0,
        "service_tier": "flex", "stream": true,
    })
}

fn send(server: &TestServer, body: &Value) -> Connection {
    let mut connection = server.connect();
    let headers = [("content-type", "application/json")];
    connection.send_request("POST", "/v1/completions", &headers, body.to_string().as_bytes());
    connection
}

/// Sends a change of settings, and returns the response.
fn set(server: &TestServer, changes: &Value) -> Response {
    let headers = [("content-type", "application/json")];
    let body = changes.to_string();
    server.control().request("PATCH", "/control/v1/policy", &headers, body.as_bytes())
}

/// Returns the value of the metric of a latency target, s; `None` if there is no such metric.
fn target_s(server: &TestServer, tier: &str, metric: &str) -> Option<f64> {
    let series = format!("tiercel_slo_target_seconds{{tier=\"{tier}\",metric=\"{metric}\"}} ");
    let metrics = server.get("/metrics").text();
    metrics.lines().find_map(|line| line.strip_prefix(series.as_str())?.parse().ok())
}

#[test]
fn changed_targets_show_in_the_metrics_and_auto_derives_them_again() {
    let server = TestServer::mock(|_| ());
    let derived = target_s(&server, "premium", "tpot").unwrap();
    let changed = set(
        &server,
        &json!({"slo.premium.ttft_ms": 250, "slo.premium.tpot_ms": 40, "slo.standard.e2e_ms": "none"}),
    );
    assert_eq!(changed.status, 200, "{}", changed.text());
    assert_eq!(
        changed.json()["changed"]["slo.premium.ttft_ms"],
        json!({"before": "auto", "after": 250.0})
    );
    let premium = || ["ttft", "tpot"].map(|metric| target_s(&server, "premium", metric).unwrap());
    assert_eq!(premium(), [0.25, 0.04]);
    assert!(target_s(&server, "standard", "e2e").unwrap().is_nan(), "there is none any more");
    let again = json!({"slo.premium.ttft_ms": "auto", "slo.premium.tpot_ms": "auto"});
    assert_eq!(set(&server, &again).status, 200);
    // The server has run its warm-up alone, so its steps may count as somewhat faster or slower than at the start.
    let [ttft, tpot] = premium();
    assert!(ttft > 0.0 && ttft != 0.25 && (tpot / derived - 1.0).abs() < 9.0, "{ttft} {tpot}");
    // A target that the device cannot meet is replaced by that of auto, as at the start.
    assert_eq!(set(&server, &json!({"slo.premium.tpot_ms": 0.001})).status, 200);
    assert!(premium()[1] > 0.000_01);
    server.finish();
}

#[test]
fn a_changed_reservation_refuses_what_can_never_fit_and_loses_no_live_request() {
    // 20 blocks of 16 tokens: background can count on all 320 tokens, and then on two blocks.
    let profile = SlowProfile::with_blocks(20);
    let server =
        TestServer::mock(|settings| settings.device.kind = DeviceKind::Mock(profile.name()));
    let mut live = send(&server, &background(40));
    assert_eq!(live.head().unwrap().status, 200);
    let kept = json!({"reservation.kind": "hard", "reservation.premium_blocks_percent": 90});
    assert_eq!(set(&server, &kept).status, 200);
    let refused = server.post("/v1/completions", &background(40));
    assert_eq!(refused.status, 400, "{}", refused.text());
    let premium = json!({"prompt": "Hello", "max_tokens": 40, "ignore_eos": true, "service_tier": "priority"});
    assert_eq!(server.post("/v1/completions", &premium).status, 200);
    let mut rest = String::new();
    while let Some(chunk) = live.chunk().filter(|chunk| !chunk.is_empty()) {
        rest += &String::from_utf8(chunk).unwrap();
    }
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("[DONE]"), "{rest}");
    assert_eq!(set(&server, &json!({"reservation.premium_blocks_percent": 0})).status, 200);
    assert_eq!(server.post("/v1/completions", &background(40)).status, 200);
    server.finish();
}

#[test]
fn a_chat_without_max_tokens_has_what_the_reservations_of_other_tiers_leave() {
    // Four blocks of 16 tokens, one of which is reserved for premium.
    let profile = SlowProfile::with_blocks(4);
    let server = TestServer::mock(|settings| {
        settings.device.kind = DeviceKind::Mock(profile.name());
        settings.engine.reservation.kind = Reservation::Hard;
        settings.engine.reservation.premium_blocks_percent = 25.0;
    });
    let tokens = |tier: &str| {
        let chat = json!({
            "messages": [{"role": "user", "content": "Hi"}], "ignore_eos": true, "service_tier": tier,
        });
        let answer = server.post("/v1/chat/completions", &chat);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["usage"]["total_tokens"].as_u64().unwrap()
    };
    assert_eq!([tokens("priority"), tokens("flex")], [64, 48]);
    assert_eq!(set(&server, &json!({"reservation.premium_blocks_percent": 50})).status, 200);
    assert_eq!(tokens("flex"), 32);
    server.finish();
}
