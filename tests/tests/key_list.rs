//! Tests of the list of API keys on the control API.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tiercel_tests::{Response, TestServer};

/// Returns the lines of a keys file for a key whose secret is its name with `!` behind.
fn entry(name: &str, more: &str) -> String {
    let digits: String =
        Sha256::digest(format!("{name}!")).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("[[key]]\nname = \"{name}\"\nsha256 = \"{digits}\"\n{more}\n")
}

/// Returns the answer to `GET PATH` on the control API with a key.
fn control(server: &TestServer, name: &str, path: &str) -> Response {
    let authorization = format!("Bearer {name}!");
    server.control().request("GET", path, &[("authorization", authorization.as_str())], b"")
}

#[test]
fn an_operator_sees_every_key_with_its_rights_and_what_is_left_but_no_secret() {
    let folder = TempDir::new().unwrap();
    let keys = [
        entry(
            "shop",
            "highest_tier = \"premium\"\nshare = 3\nmay_tighten_targets = true\nrequests_per_min = 60",
        ),
        entry(
            "batch",
            "tenant = \"shop\"\nhighest_tier = \"background\"\nmax_live = 2\nexpires = 2020-01-01",
        ),
        entry("eye", "role = \"viewer\""),
    ];
    std::fs::write(folder.path().join("keys.toml"), keys.concat()).unwrap();
    let file = folder.path().join("keys.toml").to_str().unwrap().to_owned();
    let server = TestServer::slow(|settings| {
        settings.http.keys_file = Some(file);
        settings.http.api_keys = vec!["plain-secret".into()];
    });
    let mut stream = server.connect();
    let headers = [("content-type", "application/json"), ("authorization", "Bearer shop!")];
    let body =
        json!({"prompt": "Hi", "max_tokens": 400, "stream": true, "ignore_eos": true, "n": 2});
    stream.send_request("POST", "/v1/completions", &headers, body.to_string().as_bytes());
    assert_eq!(stream.head().unwrap().status, 200);
    let answer = control(&server, "eye", "/control/v1/keys");
    let listing = answer.json();
    assert_eq!((&listing["total"], &listing["next_offset"]), (&json!(4), &Value::Null));
    let names: Vec<&Value> =
        listing["keys"].as_array().unwrap().iter().map(|key| &key["name"]).collect();
    assert_eq!(names, ["http.api_keys[1]", "shop", "batch", "eye"]);
    let mut shop = listing["keys"][1].clone();
    let reset_ms = shop["requests_per_min"]["reset_ms"].take().as_u64().unwrap();
    assert!((1..=1_000).contains(&reset_ms), "{reset_ms}");
    assert_eq!(
        shop,
        json!({
            "name": "shop", "tenant": "shop", "share": 3.0, "highest_tier": "premium",
            "default_tier": "standard", "above_highest": "cap", "may_tighten_targets": true,
            "role": null, "expires": null, "expired": false,
            "requests_per_min": {"limit": 60, "remaining": 9, "reset_ms": null},
            "tokens_per_min": null, "live": 2, "max_live": null,
        })
    );
    let batch = &listing["keys"][2];
    let of_batch = ["tenant", "share", "default_tier", "expires", "expired", "max_live", "live"];
    assert_eq!(
        of_batch.map(|field| batch[field].clone()),
        [
            json!("shop"),
            json!(3.0),
            json!("background"),
            json!("2020-01-01T00:00:00Z"),
            json!(true),
            json!(2),
            json!(0)
        ]
    );
    assert_eq!(listing["keys"][0]["may_tighten_targets"], false, "the setting's default");
    assert_eq!(listing["keys"][3]["role"], "viewer");
    let hash = |secret: &str| {
        Sha256::digest(secret).iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    for secret in ["shop!", "plain-secret"] {
        let text = answer.text();
        assert!(!text.contains(secret) && !text.contains(&hash(secret)), "{text}");
    }
    let page = control(&server, "eye", "/control/v1/keys?tenant=shop&limit=1&offset=1").json();
    assert_eq!((&page["total"], &page["keys"][0]["name"]), (&json!(2), &json!("batch")));
    assert_eq!(control(&server, "eye", "/control/v1/keys?limit=1").json()["next_offset"], 1);
    for query in ["?limit=0", "?limit=1001", "?x=1", "?offset=-1"] {
        let refused = control(&server, "eye", &format!("/control/v1/keys{query}"));
        assert_eq!(
            (refused.status, &refused.error()["code"]),
            (400, &json!("invalid_query")),
            "{query}"
        );
    }
    assert_eq!(control(&server, "shop", "/control/v1/keys").status, 403, "no role");
    assert_eq!(server.control().request("GET", "/control/v1/keys", &[], b"").status, 401);
    drop(stream);
    server.finish();
}

#[test]
fn a_server_without_keys_lists_none() {
    let server = TestServer::mock(|_| ());
    let listing = server.control().request("GET", "/control/v1/keys", &[], b"").json();
    assert_eq!(listing, json!({"total": 0, "keys": [], "next_offset": null}));
    server.finish();
}
