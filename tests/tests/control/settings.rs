//! Changes of settings while the server runs.

use serde_json::{Value, json};
use tiercel_tests::{Response, TestServer};

/// Sends a change of settings, and returns the response.
pub(crate) fn set(server: &TestServer, changes: &Value) -> Response {
    let headers = [("content-type", "application/json")];
    let body = changes.to_string();
    server.control().request("PATCH", "/control/v1/policy", &headers, body.as_bytes())
}

/// Returns the settings in effect, and the settings that an operator can change.
pub(crate) fn shown(server: &TestServer) -> Value {
    server.control().request("GET", "/control/v1/policy", &[], b"").json()
}

fn settings(server: &TestServer) -> Value {
    shown(server)["settings"].clone()
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
