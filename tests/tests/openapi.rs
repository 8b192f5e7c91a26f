//! Tests of the OpenAPI documents: Schemathesis sends requests that the documents allow, and others that they forbid,
//! and checks that the answers are as documented.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use tempfile::NamedTempFile;
use tiercel_config::{DeviceKind, ServerSettings};
use tiercel_tests::{TestServer, run_script};

/// Random requests to each operation, unless the environment variable `SCHEMATHESIS_EXAMPLES` states another number.
const EXAMPLES: &str = "10";

/// Profile of a mock device so fast that the random requests, not the device, take the time of the test. Its short
/// context limits the output of requests that state no limit.
const FAST: &str = "\
name = \"fast\"
step_base_us = 50.0
decode_token_us = 0.1
prefill_token_us = 0.1
kv_token_us = 0.0
prefill_context_us = 0.0
prefill_step_us = 0.0
link_bytes_per_s = 1e9
kv_bytes_per_token = 4000
block_size = 16
device_blocks = 256
host_blocks = 256
vocab_size = 1000
max_model_len = 256
max_steps_in_flight = 2
";

fn file(text: &str) -> NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// Starts a server on a fast mock device.
fn fast(profile: &NamedTempFile, adjust: impl FnOnce(&mut ServerSettings)) -> TestServer {
    let name = profile.path().to_str().unwrap().to_owned();
    TestServer::mock(|settings| {
        settings.device.kind = DeviceKind::Mock(name);
        adjust(settings);
    })
}

/// Lets Schemathesis check the documents of a server.
fn check(server: &TestServer, operator: &str, viewer: &str) {
    let url = |address: SocketAddr| format!("http://{address}");
    let (public, control) = (url(server.address()), url(server.control_address()));
    let examples = std::env::var("SCHEMATHESIS_EXAMPLES").unwrap_or_else(|_| EXAMPLES.into());
    let args = [&public, &control, operator, viewer, &examples];
    let output = run_script("check_openapi.py", "schemathesis-requirements.txt", &args);
    assert!(output.ends_with("complete\n"), "{output}");
}

#[test]
fn a_server_without_keys_answers_as_its_documents_say() {
    let profile = file(FAST);
    let server = fast(&profile, |_| ());
    check(&server, "-", "-");
    server.finish();
}

#[test]
fn a_server_with_keys_answers_as_its_documents_say() {
    let profile = file(FAST);
    let mut keys = String::new();
    for (name, role) in [("olga", "operator"), ("vera", "viewer")] {
        let hash = Sha256::digest(name).iter().fold(String::new(), |mut hash, byte| {
            write!(hash, "{byte:02x}").unwrap();
            hash
        });
        write!(keys, "[[key]]\nname = \"{name}\"\nsha256 = \"{hash}\"\nrole = \"{role}\"\n")
            .unwrap();
    }
    let keys = file(&keys);
    let server = fast(&profile, |settings| {
        settings.http.keys_file = Some(keys.path().to_str().unwrap().to_owned());
    });
    check(&server, "olga", "vera");
    server.finish();
}

#[test]
fn both_listeners_show_their_documents_to_everybody() {
    let server = TestServer::mock(|settings| settings.http.api_keys = vec!["secret".into()]);
    let titles = [server.connect(), server.control()].map(|mut connection| {
        let answer = connection.request("GET", "/openapi.json", &[], b"");
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert!(!answer.text().contains("secret"));
        let document: Value = answer.json();
        assert_eq!(document["openapi"], "3.1.0");
        document["info"]["title"].as_str().unwrap().to_owned()
    });
    assert_eq!(titles, ["Tiercel", "Tiercel control"]);
    server.finish();
}
