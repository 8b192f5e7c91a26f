//! Changes of settings while the server runs.

use crate::{background, send, text_of};
use serde_json::{Value, json};
use tiercel_tests::{Connection, Response, TestServer};

/// Sends a change of settings, and returns the response.
fn set(server: &TestServer, changes: &Value) -> Response {
    let headers = [("content-type", "application/json")];
    let body = changes.to_string();
    server.control().request("PATCH", "/control/v1/policy", &headers, body.as_bytes())
}

fn settings(server: &TestServer) -> Value {
    server.control().request("GET", "/control/v1/policy", &[], b"").json()["settings"].clone()
}

#[test]
fn a_change_of_settings_holds_as_a_whole_or_says_which_field_is_wrong() {
    let server = TestServer::mock(|_| ());
    let before = settings(&server);
    for (wrong, field) in [
        (json!({"patience.standard_s": -1}), "patience.standard_s"),
        (json!({"patience.standard_s": 5, "shares.premium_percent": 90}), "shares.premium_percent"),
        (json!({"patience.standard_s": 5, "nonsense": 1}), "nonsense"),
        (json!({"admission.max_requests": 5}), "admission.max_requests"),
        (
            json!({"scheduler.max_num_seqs": 4_000, "scheduler.max_num_batched_tokens": 4_000}),
            "scheduler.max_num_seqs",
        ),
        (json!({"patience.standard_s": [1]}), "patience.standard_s"),
        (json!({}), "body"),
    ] {
        let refused = set(&server, &wrong);
        assert_eq!(
            (refused.status, &refused.error()["param"]),
            (400, &json!(field)),
            "{wrong}: {}",
            refused.text()
        );
    }
    assert_eq!(settings(&server), before, "nothing changed");
    let changed = set(&server, &json!({"patience.standard_s": 60, "preemption.mode": "recompute"}));
    assert_eq!(changed.status, 200, "{}", changed.text());
    assert_eq!(
        changed.json()["changed"]["patience.standard_s"],
        json!({"before": 600.0, "after": 60.0})
    );
    let tier = |server: &TestServer| {
        let body = json!({"prompt": "Hi", "max_tokens": 1, "service_tier": "priority"});
        server.post("/v1/completions", &body).json()["service_tier"].clone()
    };
    assert_eq!(tier(&server), "priority");
    assert_eq!(set(&server, &json!({"scheduler.policy": "fcfs"})).status, 200);
    assert_eq!(tier(&server), "default", "this policy ignores tiers, and the answer says so");
    assert_eq!(settings(&server)["patience"]["standard_s"], 60.0);
    server.finish();
}

#[test]
fn a_thousand_changes_under_load_lose_and_alter_no_stream() {
    let server = TestServer::mock(|_| ());
    let lone = |n: u32| {
        let mut body = background(60);
        body["prompt"] = json!(format!("Hello {n}"));
        body
    };
    let expected: Vec<String> =
        (0..4).map(|n| text_of(&send(&server, "lone", &lone(n)).response().unwrap())).collect();
    let valid = [
        json!({"scheduler.policy": "fcfs"}),
        json!({"scheduler.policy": "vllm-v1"}),
        json!({"scheduler.policy": "tiercel"}),
        json!({"preemption.mode": "recompute"}),
        json!({"preemption.mode": "swap"}),
        json!({"scheduler.max_num_seqs": 3}),
        json!({"scheduler.max_num_seqs": 16}),
        json!({"shares.premium_percent": 40, "shares.standard_percent": 45}),
        json!({"shares.premium_percent": 50, "shares.standard_percent": 35}),
        json!({"scheduler.ageing_s": 1, "shedding.late": "refuse"}),
        json!({"slo.premium.ttft_ms": 50, "slo.premium.tpot_ms": "auto", "slo.premium.assurance": 0.99}),
        json!({"slo.background.e2e_ms": 1, "slo.background.ttft_ms": 0.5}),
        json!({"slo.background.e2e_ms": "auto", "slo.background.ttft_ms": "none", "slo.premium.ttft_ms": "auto"}),
        json!({"reservation.kind": "hard", "reservation.premium_blocks_percent": 60}),
        json!({"reservation.kind": "lent", "reservation.premium_slots_percent": 40}),
        json!({"reservation.premium_blocks_percent": 0, "reservation.premium_slots_percent": 0}),
        json!({"slo.standard.ttft_ms": "auto", "slo.requests_may_tighten": true}),
    ];
    let invalid = [
        json!({"scheduler.policy": "best"}),
        json!({"shares.premium_percent": 99}),
        json!({"slo.premium.ttft_ms": "soon"}),
        json!({"slo.background.ttft_ms": 5, "reservation.premium_blocks_percent": 91}),
        json!({"slo.standard.ttft_ms": "auto", "slo.standard.ttft_ms_per_token": 1}),
        json!({"reservation.premium_slots_percent": 50, "reservation.standard_slots_percent": 41}),
        json!({"slo.background.ttft_ms": 5, "slo.window_s": 30}),
    ];
    let reading = |n: u32| {
        let (address, body, expected) = (server.address(), lone(n % 4), &expected);
        move || {
            for _ in 0..3 {
                let mut connection = Connection::open(address);
                let headers = [("content-type", "application/json")];
                connection.send_request(
                    "POST",
                    "/v1/completions",
                    &headers,
                    body.to_string().as_bytes(),
                );
                let response = connection.response().unwrap();
                // A policy that refuses late requests may refuse this one.
                if response.status != 429 {
                    assert_eq!(text_of(&response), expected[n as usize % 4]);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..64).map(|n| scope.spawn(reading(n))).collect();
        for n in 0..1_000_usize {
            let (changes, status) = match n % 7 {
                3 => (&invalid[n / 7 % invalid.len()], 400),
                _ => (&valid[(n * 7 + n / 10) % valid.len()], 200),
            };
            let answer = set(&server, changes);
            assert_eq!(answer.status, status, "{changes}: {}", answer.text());
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    server.finish();
}
