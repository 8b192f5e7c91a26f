//! Every path and method of the control API, with every kind of key: who is let in.

use crate::rights::{entry, start, with_key};
use serde_json::{Value, json};
use tempfile::TempDir;
use tiercel_tests::{Connection, Response};

/// Kinds of keys: those of the file, one that is in no file, and none.
const CALLERS: [&str; 6] = ["plain", "viewer", "operator", "old", "forged", "none"];

/// Returns a keys file in which `old` may still do all if `is_old` is false.
fn keys(is_old: bool) -> [String; 4] {
    let expires = if is_old { "expires = 2020-01-01" } else { "" };
    [
        entry("plain", "highest_tier = \"premium\""),
        entry("viewer", "role = \"viewer\""),
        entry("operator", "role = \"operator\""),
        entry("old", &format!("role = \"operator\"\n{expires}")),
    ]
}

/// Sends a request as one of the callers, and reads the head of the answer: the event stream has no end.
fn status(mut connection: Connection, caller: &str, (method, path): (&str, &str)) -> u16 {
    let authorization = format!("Bearer {caller}!");
    let mut headers = vec![("content-type", "application/json")];
    if caller != "none" {
        headers.push(("authorization", authorization.as_str()));
    }
    let number = CALLERS.iter().position(|name| *name == caller).unwrap();
    let body = match method {
        "PATCH" => format!("{{\"patience.standard_s\": {}}}", 100 + number),
        "POST" => "{}".to_owned(),
        _ => String::new(),
    };
    connection.send_request(method, path, &headers, body.as_bytes());
    connection.head().unwrap().status
}

/// Returns the operations of a document: methods and paths with values for their parameters, and whether a key is
/// needed.
fn operations(document: &Value) -> Vec<(String, String, bool)> {
    let mut found = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.replace("{id}", "12345").replace("{file}", "page.css");
        for (method, operation) in methods.as_object().unwrap() {
            let is_method = ["get", "post", "patch", "put", "delete"].contains(&method.as_str());
            if is_method {
                let keyed = operation["security"].as_array().is_some_and(|all| !all.is_empty());
                found.push((method.to_uppercase(), path.clone(), keyed));
            }
        }
    }
    found
}

/// Whether an operator alone may do what an operation does. The list is written down here and not taken from the
/// server.
fn changes(method: &str, path: &str) -> bool {
    method != "GET" || path == "/control/v1/recording/file"
}

#[test]
fn every_operation_of_the_control_api_lets_in_the_keys_that_may_and_no_others() {
    let folder = TempDir::new().unwrap();
    let server = start(&folder, &keys(true));
    let document = server.control().request("GET", "/openapi.json", &[], b"").json();
    let operations = operations(&document);
    for known in [
        ("PATCH", "/control/v1/policy"),
        ("GET", "/control/v1/keys"),
        ("GET", "/control/v1/events"),
        ("POST", "/control/v1/recording"),
        ("POST", "/control/v1/drain"),
        ("GET", "/control/v1/trace"),
        ("GET", "/load"),
    ] {
        let has = |(method, path, keyed): &(String, String, bool)| {
            (method.as_str(), path.as_str()) == known && *keyed
        };
        assert!(operations.iter().any(has), "{known:?} needs a key: {operations:?}");
    }
    let mut asked = 0;
    for (method, path, keyed) in &operations {
        let changes = changes(method, path);
        for caller in CALLERS {
            let ends = path.ends_with("/drain") && caller == "operator";
            if ends {
                continue;
            }
            // The shortest trace takes a second.
            let path = path.replace("/trace", "/trace?seconds=1");
            let got = status(server.control(), caller, (method, &path));
            let refused = match caller {
                _ if !keyed => None,
                "plain" => Some(403),
                "viewer" if changes => Some(403),
                "viewer" | "operator" => None,
                _ => Some(401),
            };
            match refused {
                Some(refused) => assert_eq!(got, refused, "{caller}: {method} {path}"),
                None => {
                    assert!(![401, 403, 500].contains(&got), "{caller}: {method} {path}: {got}")
                }
            }
            asked += 1;
        }
    }
    assert!(asked > 100, "{asked} requests");
    // The public listener has no route of the control API.
    for (method, path, _) in operations.iter().filter(|(_, path, _)| path.starts_with("/control")) {
        assert_eq!(status(server.connect(), "operator", (method, path)), 404, "{method} {path}");
    }
    // Of all changes of settings, the operator's was carried out.
    let settings = with_key(&mut server.control(), "viewer", ("GET", "/control/v1/policy"), "");
    assert_eq!(settings.json()["settings"]["patience"]["standard_s"], 102.0);
    server.finish();
}

#[test]
fn a_key_that_has_expired_neither_lists_nor_cancels_requests() {
    let folder = TempDir::new().unwrap();
    let server = start(&folder, &keys(false));
    let mut stream = server.connect();
    let headers = [("content-type", "application/json"), ("authorization", "Bearer old!")];
    let body = crate::background(400).to_string();
    stream.send_request("POST", "/v1/completions", &headers, body.as_bytes());
    assert_eq!(stream.head().unwrap().status, 200);
    let chunk = String::from_utf8(stream.chunk().unwrap()).unwrap();
    let chunk: Value = serde_json::from_str(chunk.trim().strip_prefix("data: ").unwrap()).unwrap();
    let cancel = format!("/v1/requests/{}/cancel", chunk["id"].as_str().unwrap());
    let ask = |caller: &str, method: &str, path: &str| -> Response {
        with_key(&mut server.connect(), caller, (method, path), "")
    };
    assert_eq!(ask("old", "GET", "/v1/requests").json()["total"], 1);
    // The key expires while its request runs: the file is read again.
    std::fs::write(folder.path().join("keys.toml"), keys(true).concat()).unwrap();
    let pid = std::process::id().to_string();
    assert!(std::process::Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    assert!((0..10_000).any(|_| ask("old", "GET", "/v1/requests").status != 200));
    for caller in ["old", "forged"] {
        let answers = [ask(caller, "GET", "/v1/requests"), ask(caller, "POST", &cancel)];
        for answer in answers {
            assert_eq!((answer.status, &answer.error()["code"]), (401, &json!("invalid_api_key")));
        }
    }
    let without = server.connect().request("POST", &cancel, &[], b"");
    assert_eq!(without.status, 401);
    assert_eq!(ask("plain", "POST", &cancel).status, 404, "it is another tenant's");
    assert_eq!(server.status().running, 1, "the request that had been accepted goes on");
    drop(stream);
    server.finish();
}
