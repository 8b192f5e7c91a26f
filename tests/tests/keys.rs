//! Tests of API keys over HTTP: who is served, and in which tier.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tempfile::TempDir;
use tiercel_tests::{Response, TestServer};

/// Number of requests after which a change of the keys must show.
const MANY: u32 = 10_000;

/// Returns the lines of a keys file for a key whose secret is its name with `!` behind.
fn entry(name: &str, more: &str) -> String {
    let digits: String =
        Sha256::digest(format!("{name}!")).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("[[key]]\nname = \"{name}\"\nsha256 = \"{digits}\"\n{more}\n")
}

fn start(folder: &TempDir, keys: &[String]) -> TestServer {
    write(folder, keys);
    let file = folder.path().join("keys.toml").to_str().unwrap().to_owned();
    TestServer::mock(|settings| settings.http.keys_file = Some(file))
}

fn write(folder: &TempDir, keys: &[String]) {
    std::fs::write(folder.path().join("keys.toml"), keys.concat()).unwrap();
}

/// Sends a completion request with the key `name`, and returns the response. `asked` holds the fields that ask for a
/// tier.
fn ask(server: &TestServer, route: &str, name: &str, asked: &Value) -> Response {
    let mut body = json!({"max_tokens": 1, "ignore_eos": true});
    match route {
        "/v1/completions" => body["prompt"] = json!("Hello"),
        _ => body["messages"] = json!([{"role": "user", "content": "Hello"}]),
    }
    body.as_object_mut().unwrap().extend(asked.as_object().unwrap().clone());
    let authorization = format!("Bearer {name}!");
    let headers = [("content-type", "application/json"), ("authorization", authorization.as_str())];
    server.connect().request("POST", route, &headers, body.to_string().as_bytes())
}

/// Returns the tier that a request was served in, or the code of its error.
fn outcome(response: &Response) -> String {
    let text = match response.status {
        200 => &response.json()["service_tier"],
        _ => &response.error()["code"],
    };
    text.as_str().unwrap_or("?").to_owned()
}

#[test]
fn each_key_is_served_in_the_tier_that_its_rights_allow() {
    let folder = TempDir::new().unwrap();
    let keys = [
        entry("premium", "highest_tier = \"premium\""),
        entry("quiet", "highest_tier = \"premium\"\ndefault_tier = \"background\""),
        entry("plain", ""),
        entry("strict", "above_highest = \"refuse\""),
        entry("batch", "highest_tier = \"background\""),
        entry("expired", "highest_tier = \"premium\"\nexpires = 2020-01-01"),
    ];
    let server = start(&folder, &keys);
    let asked = [
        json!({"service_tier": "priority"}),
        json!({"service_tier": "default"}),
        json!({"service_tier": "flex"}),
        json!({"service_tier": "auto"}),
        json!({}),
        json!({"priority": -5}),
        json!({"priority": 5}),
    ];
    let none = "invalid_api_key";
    let no = "tier_not_allowed";
    let expected = [
        ("premium", ["priority", "default", "flex", "default", "default", "priority", "flex"]),
        ("quiet", ["priority", "default", "flex", "flex", "flex", "priority", "flex"]),
        ("plain", ["default", "default", "flex", "default", "default", "default", "flex"]),
        ("strict", [no, "default", "flex", "default", "default", no, "flex"]),
        ("batch", ["flex"; 7]),
        ("expired", [none; 7]),
        ("forged", [none; 7]),
    ];
    for route in ["/v1/chat/completions", "/v1/completions"] {
        for (name, outcomes) in expected {
            let served = asked.each_ref().map(|asked| outcome(&ask(&server, route, name, asked)));
            assert_eq!(served, outcomes.map(str::to_owned), "{route} {name}");
        }
    }
    let refused = ask(&server, "/v1/completions", "strict", &asked[0]);
    assert_eq!((refused.status, &refused.error()["param"]), (403, &json!("service_tier")));
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "Hello"})).status, 401, "no key");
    server.finish();
}

#[test]
fn no_route_but_the_probes_answers_without_a_key() {
    let folder = TempDir::new().unwrap();
    let server = start(&folder, &[entry("a", "")]);
    for path in ["/v1/models", "/v1/models/mock-tiny", "/debug/steps"] {
        let get = |key: &str| server.connect().request("GET", path, &[("authorization", key)], b"");
        assert_eq!(
            [get("Bearer b!").status, get("").status, get("Bearer a!").status],
            [401, 401, 200],
            "{path}"
        );
    }
    for path in ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"] {
        assert_eq!(server.post(path, &json!({})).status, 401, "{path}");
    }
    assert_eq!([server.get("/health").status, server.get("/metrics").status], [200, 200]);
    let metrics = server.get("/metrics").text();
    assert!(!metrics.contains("a!"), "no secret in the metrics");
    server.finish();
}

#[test]
fn keys_are_read_again_under_load() {
    let folder = TempDir::new().unwrap();
    let server = start(&folder, &[entry("stays", ""), entry("leaves", "")]);
    let (done, served) = (AtomicBool::new(false), AtomicU32::new(0));
    let status = |name: &str| ask(&server, "/v1/completions", name, &json!({})).status;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(status("stays"), 200);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        assert_eq!([status("leaves"), status("comes")], [200, 401]);
        write(&folder, &[entry("stays", ""), entry("comes", "")]);
        let hangup = || {
            let pid = std::process::id().to_string();
            assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
        };
        hangup();
        // Ends with a failed test if the keys are never read again.
        let until = |name: &str| {
            let read = (0..MANY).any(|_| status(name) == 200);
            done.fetch_or(!read, Ordering::Relaxed);
            assert!(read, "{name}");
        };
        until("comes");
        assert_eq!(status("leaves"), 401);
        std::fs::write(folder.path().join("keys.toml"), "[[key]]\nname = \"stays\"").unwrap();
        hangup();
        let before = served.load(Ordering::Relaxed);
        let more = || status("stays") == 200 && served.load(Ordering::Relaxed) > before + 50;
        assert!((0..MANY).any(|_| more()));
        assert_eq!([status("comes"), status("leaves")], [200, 401], "a wrong file changes nothing");
        write(&folder, &[entry("stays", ""), entry("later", "")]);
        hangup();
        until("later");
        assert_eq!(status("comes"), 401);
        done.store(true, Ordering::Relaxed);
    });
    server.finish();
}
