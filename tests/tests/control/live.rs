//! The document that live views poll.

use crate::{background, command, send, two_at_a_time, wait_for};
use serde_json::{Value, json};
use tiercel_config::DeviceKind;
use tiercel_tests::{Connection, SlowProfile, TestServer};

/// Largest document, bytes.
const BYTES_MAX: usize = 64 << 10;

fn live(server: &TestServer) -> Value {
    let answer = server.control().request("GET", "/control/v1/live", &[], b"");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert!(answer.body.len() <= BYTES_MAX, "{} bytes", answer.body.len());
    answer.json()
}

/// Polls the document until `done` holds for it.
fn until(server: &TestServer, done: impl Fn(&Value) -> bool) -> Value {
    loop {
        let document = live(server);
        if done(&document) {
            return document;
        }
    }
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no count: {value}"))
}

/// Asserts that each block of a pool counts once.
fn check_pool(pool: &Value) {
    let owners = pool["owners"].as_object().unwrap().values();
    let owned: u64 = owners.map(|of| count(&of["held"]) + count(&of["in_transit"])).sum();
    assert_eq!(owned + count(&pool["free"]) + count(&pool["cached"]), count(&pool["total"]));
}

#[test]
fn the_document_is_small_and_counts_all_requests() {
    let server = two_at_a_time();
    let streams: Vec<Connection> = (0..150)
        .map(|n| send(&server, &format!("{n:03}-{}", "x".repeat(120)), &background(400)))
        .collect();
    wait_for(&server, 150);
    let document = until(&server, |document| document["tiers"]["background"]["decode"] == 2);
    assert_eq!(document["requests_total"], 150);
    assert_eq!(document["tiers"]["background"]["waiting"], 148);
    let rows = document["requests"].as_array().unwrap();
    assert!((30..=64).contains(&rows.len()), "{}", rows.len());
    let states: Vec<&str> = rows.iter().map(|row| row["state"].as_str().unwrap()).collect();
    assert_eq!(states[..3], ["decode", "decode", "waiting"]);
    let positions: Vec<&Value> = rows[2..].iter().map(|row| &row["position"]).collect();
    assert!((1..).zip(&positions).all(|(number, position)| **position == json!(number)));
    assert_eq!(rows[0]["timeline"]["moments"][0]["what"], "queued");
    let tenants = document["tenants"].as_array().unwrap();
    assert_eq!((tenants.len(), &tenants[0]["waiting"]), (1, &json!(148)));
    assert_eq!(tenants[0]["tenant"], "[local]");
    let used = &tenants[0]["used"];
    assert!(
        used["output_tokens"].as_u64().unwrap() > 0 && used["recent_share"].as_f64() > Some(0.99),
        "{used}"
    );
    assert!(used["device_s"].as_f64().unwrap() > 0.0 && used["prompt_tokens"] != 0, "{used}");
    drop(streams);
    server.finish();
}

#[test]
fn views_share_a_document_however_many_ask() {
    let server = TestServer::mock(|_| ());
    let times = (0..200).map(|_| live(&server)["engine_ms"].as_f64().unwrap());
    let mut times: Vec<f64> = times.collect();
    times.dedup();
    assert!(times.is_sorted_by(|a, b| b - a >= 450.0), "{times:?}");
    server.finish();
}

#[test]
fn counters_grow_and_pools_add_up() {
    let server = TestServer::slow(|settings| {
        settings.engine.reservation.premium_blocks_percent = 25.0;
    });
    let first = live(&server);
    assert_eq!(first["pools"]["device"]["owners"]["premium"]["reserved"], 16);
    let stream = send(&server, "one", &background(400));
    let tokens = |document: &Value| count(&document["counters"]["output_tokens"]);
    let second = until(&server, |document| tokens(document) >= tokens(&first) + 3);
    let prefill = |document: &Value| count(&document["counters"]["prefill_tokens"]);
    assert_eq!(prefill(&second) - prefill(&first), count(&second["requests"][0]["prompt_tokens"]));
    assert!(count(&second["counters"]["steps"]) > count(&first["counters"]["steps"]));
    assert!(second["step_time"]["p50_ms"].as_f64().unwrap() >= 50.0, "{}", second["step_time"]);
    check_pool(&second["pools"]["device"]);
    check_pool(&second["pools"]["host"]);
    let held = &second["pools"]["device"]["owners"]["background"]["held"];
    assert_eq!(*held, second["requests"][0]["device_blocks"]);
    let slo = &second["tiers"]["premium"]["slo"]["ttft"];
    assert!(slo["target_ms"].is_number() && slo["compliance"] == 1.0, "{slo}");
    assert_eq!(second["pressure"]["blocks"], "none");
    drop(stream);
    server.finish();
}

#[test]
fn a_preemption_and_a_change_are_moments_of_the_request() {
    let profile = SlowProfile::with_blocks(16);
    let server = TestServer::mock(|settings| {
        settings.device.kind = DeviceKind::Mock(profile.name());
        settings.engine.preemption.mode = tiercel_config::PreemptionMode::Recompute;
    });
    let prompt = |tier: &str, tokens: usize| {
        json!({
            "prompt": vec![7; tokens], "max_tokens": 100, "ignore_eos": true, "service_tier": tier,
            "stream": true,
        })
    };
    let victim = send(&server, "victim", &prompt("flex", 140));
    until(&server, |document| document["requests"][0]["state"] == "decode");
    let winner = send(&server, "winner", &prompt("priority", 150));
    let row = |document: &Value| {
        let rows = document["requests"].as_array().unwrap().iter();
        rows.clone().find(|row| row["request_id"] == "victim").cloned().unwrap_or_default()
    };
    let preempted = row(&until(&server, |document| row(document)["state"] == "preempted"));
    assert_eq!(preempted["preemptions"], 1);
    let moments = preempted["timeline"]["moments"].as_array().unwrap();
    let what: Vec<&Value> = moments.iter().map(|moment| &moment["what"]).collect();
    assert_eq!(what, ["queued", "started", "first_token", "preempted"]);
    assert_eq!(command(&server, "victim", "pause", &json!({})).status, 200);
    let paused = row(&until(&server, |document| row(document)["paused"] == true));
    assert_eq!(paused["timeline"]["moments"].as_array().unwrap().last().unwrap()["what"], "paused");
    drop((victim, winner));
    server.finish();
}
