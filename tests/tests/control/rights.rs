//! Who may use the control API, and what a client may see and cancel itself.

use crate::background;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tiercel_config::{ServerSettings, Target};
use tiercel_tests::{Connection, Response, TestServer};

/// Returns the lines of a keys file for a key whose secret is its name with `!` behind.
pub(crate) fn entry(name: &str, more: &str) -> String {
    let digits: String =
        Sha256::digest(format!("{name}!")).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("[[key]]\nname = \"{name}\"\nsha256 = \"{digits}\"\n{more}\n")
}

pub(crate) fn start(folder: &TempDir, keys: &[String]) -> TestServer {
    start_with(folder, keys, |_| ())
}

fn start_with(
    folder: &TempDir,
    keys: &[String],
    adjust: impl FnOnce(&mut ServerSettings),
) -> TestServer {
    let file = folder.path().join("keys.toml");
    std::fs::write(&file, keys.concat()).unwrap();
    let file = file.to_str().unwrap().to_owned();
    TestServer::slow(|settings| {
        settings.http.keys_file = Some(file);
        adjust(settings);
    })
}

pub(crate) fn with_key(
    connection: &mut Connection,
    key: &str,
    (method, path): (&str, &str),
    body: &str,
) -> Response {
    let authorization = format!("Bearer {key}!");
    let headers = [("content-type", "application/json"), ("authorization", authorization.as_str())];
    connection.request(method, path, &headers, body.as_bytes())
}

#[test]
fn nobody_reaches_a_control_route_without_the_role() {
    let folder = TempDir::new().unwrap();
    let keys = [
        entry("plain", "highest_tier = \"premium\""),
        entry("viewer", "role = \"viewer\""),
        entry("operator", "role = \"operator\""),
        entry("old", "role = \"operator\"\nexpires = 2020-01-01"),
    ];
    let server = start(&folder, &keys);
    let reading = [
        "/control/v1/requests",
        "/control/v1/requests/1",
        "/control/v1/status",
        "/control/v1/live",
        "/control/v1/snapshot",
        "/control/v1/trace?seconds=1",
        "/load",
    ];
    let verbs = ["reprioritize", "pause", "resume", "cancel"];
    let changing = verbs.map(|verb| format!("/control/v1/requests/1/{verb}"));
    for (key, read, change) in [
        ("plain", 403, 403),
        ("viewer", 200, 403),
        ("operator", 200, 404),
        ("old", 401, 401),
        ("forged", 401, 401),
    ] {
        let status = |method: &str, path: &str| {
            let body = if method == "POST" { r#"{"tier": "premium"}"# } else { "" };
            with_key(&mut server.control(), key, (method, path), body).status
        };
        for path in reading {
            let allowed = if read == 200 && path.ends_with("/1") { 404 } else { read };
            assert_eq!(status("GET", path), allowed, "{key} {path}");
        }
        for path in &changing {
            assert_eq!(status("POST", path), change, "{key} {path}");
        }
        if key != "operator" {
            assert_eq!(status("POST", "/control/v1/drain"), change, "{key} drain");
            if read != 200 {
                assert_eq!(status("GET", "/control/v1/events"), read, "{key} events");
            }
        }
    }
    for path in reading {
        assert_eq!(server.control().request("GET", path, &[], b"").status, 401, "no key: {path}");
    }
    // The public listener has no control routes.
    let elsewhere = with_key(&mut server.connect(), "operator", ("GET", reading[0]), "");
    assert_eq!(elsewhere.status, 404);
    for probe in ["/health", "/ready", "/metrics"] {
        assert_eq!(server.control().request("GET", probe, &[], b"").status, 200, "{probe}");
    }
    server.finish();
}

#[test]
fn without_keys_pages_in_browsers_may_not_control_the_server() {
    let server = TestServer::mock(|_| ());
    let from = |headers: &[(&str, &str)]| {
        server.control().request("GET", "/control/v1/status", headers, b"").status
    };
    assert_eq!(from(&[]), 200);
    assert_eq!(from(&[("origin", "https://example.org")]), 403);
    let mut rebound = server.control();
    rebound.send(b"GET /control/v1/status HTTP/1.1\r\nhost: example.org\r\n\r\n");
    assert_eq!(rebound.response().unwrap().status, 403);
    server.finish();
}

#[test]
fn a_client_sees_and_cancels_the_requests_of_its_tenant_only() {
    let folder = TempDir::new().unwrap();
    let server = start(&folder, &[entry("a", ""), entry("b", "")]);
    let mut streams = ["a", "b"].map(|key| {
        let mut connection = server.connect();
        let authorization = format!("Bearer {key}!");
        let headers =
            [("content-type", "application/json"), ("authorization", authorization.as_str())];
        let body = background(400).to_string();
        connection.send_request("POST", "/v1/completions", &headers, body.as_bytes());
        connection
    });
    let ids = streams.each_mut().map(|stream| {
        stream.head().unwrap();
        let chunk = String::from_utf8(stream.chunk().unwrap()).unwrap();
        let json: Value =
            serde_json::from_str(chunk.trim().strip_prefix("data: ").unwrap()).unwrap();
        json["id"].as_str().unwrap().to_owned()
    });
    let own = with_key(&mut server.connect(), "a", ("GET", "/v1/requests"), "").json();
    assert_eq!((&own["total"], &own["requests"][0]["id"]), (&json!(1), &json!(ids[0])));
    let cancel = |id: &str| {
        let path = format!("/v1/requests/{id}/cancel");
        with_key(&mut server.connect(), "a", ("POST", &path), "{}").status
    };
    assert_eq!(cancel(&ids[1]), 404, "it is another tenant's");
    assert_eq!(cancel(&ids[0]), 200);
    drop(streams);
    server.finish();
}

#[test]
fn a_key_may_tighten_its_targets_if_it_or_else_the_setting_says_so() {
    let keys = [
        entry("may", "may_tighten_targets = true"),
        entry("may-not", "may_tighten_targets = false"),
        entry("unsaid", "role = \"viewer\""),
    ];
    for setting in [false, true] {
        let folder = TempDir::new().unwrap();
        let server = start_with(&folder, &keys, |settings| {
            settings.engine.slo.standard.tpot_ms = Target::Ms(60_000.0);
            settings.engine.slo.requests_may_tighten = setting;
        });
        // A step of the slow device takes 50 ms. Therefore a stream with the tier's target is far ahead of its target,
        // and a stream with its own target of 1 ms is behind.
        let body = json!({
            "prompt": "x", "max_tokens": 300, "ignore_eos": true, "stream": true, "slo_tpot_ms": 1,
        });
        let mut streams = ["may", "may-not", "unsaid"].map(|key| {
            let mut connection = server.connect();
            let authorization = format!("Bearer {key}!");
            let headers =
                [("content-type", "application/json"), ("authorization", authorization.as_str())];
            let body = body.to_string();
            connection.send_request("POST", "/v1/completions", &headers, body.as_bytes());
            connection
        });
        for stream in &mut streams {
            assert_eq!(stream.head().unwrap().status, 200);
            for _ in 0..4 {
                stream.chunk().unwrap();
            }
        }
        let listed = ("GET", "/control/v1/requests");
        let listed = with_key(&mut server.control(), "unsaid", listed, "").json();
        let behind = |key: &str| {
            let rows = listed["requests"].as_array().unwrap();
            let row = rows.iter().find(|row| row["key"] == key).unwrap();
            row["slack_ms"].as_f64().unwrap() < 0.0
        };
        let found = ["may", "may-not", "unsaid"].map(behind);
        assert_eq!(found, [true, false, setting], "{setting}: {listed}");
        drop(streams);
        server.finish();
    }
}

#[test]
fn a_snapshot_shows_the_whole_engine_without_secrets_and_texts() {
    let folder = TempDir::new().unwrap();
    let server = start(&folder, &[entry("shop", ""), entry("ann", "role = \"operator\"")]);
    let mut stream = server.connect();
    let headers = [("content-type", "application/json"), ("authorization", "Bearer shop!")];
    let body = json!({
        "prompt": "a very private matter", "max_tokens": 400, "ignore_eos": true, "stream": true,
    });
    stream.send_request("POST", "/v1/completions", &headers, body.to_string().as_bytes());
    assert_eq!(stream.head().unwrap().status, 200);
    let shown = with_key(&mut server.control(), "ann", ("GET", "/control/v1/snapshot"), "");
    let (text, document) = (shown.text(), shown.json());
    assert_eq!((&document["format"], &document["total"]), (&json!(1), &json!(1)), "{text}");
    assert_eq!(document["requests"][0]["tenant"], "shop");
    assert_eq!(
        (&document["status"]["stage"], &document["status"]["running"]),
        (&json!("ready"), &json!(1))
    );
    assert_eq!(document["settings"]["patience"]["standard_s"], 600.0);
    assert!(document["targets"]["premium"]["ttft_ms"].is_f64(), "{text}");
    for hidden in ["private", "shop!", "ann!", "sha256", "prompt\":"] {
        assert!(!text.contains(hidden), "{hidden}: {text}");
    }
    drop(stream);
    server.finish();
}
