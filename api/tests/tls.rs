//! Tests of the command line over TLS: files that cannot be used, and `tiercel ctl` and `tiercel bench` with https.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

mod command;

use command::{failure, tiercel};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use std::process::Output;
use tempfile::TempDir;
use tiercel::boot::{Running, start};
use tiercel_config::{DeviceKind, ServerSettings};

const WORKLOAD: &str = r#"
name = "over TLS"
seed = 1
duration_s = 1
drain_s = 30
[[class]]
tier = "premium"
arrival = { closed = { streams = 1 } }
prompt_tokens = { fixed = 16 }
output_tokens = { fixed = 4 }
"#;

/// Folder with a certificate for `localhost`, which is its own authority, and its key.
struct Files {
    folder: TempDir,
}

impl Files {
    fn new() -> Files {
        let files = Files { folder: TempDir::new().unwrap() };
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        files.write("cert.pem", &cert.pem());
        files.write("key.pem", &signing_key.serialize_pem());
        files
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    fn server(&self) -> Running {
        let mut settings = ServerSettings::default();
        settings.device.kind = DeviceKind::Mock("tiny".into());
        settings.http.listen = "127.0.0.1:0".into();
        settings.http.control_listen = "127.0.0.1:0".into();
        settings.http.tls_cert_file = Some(self.path("cert.pem"));
        settings.http.tls_key_file = Some(self.path("key.pem"));
        start(settings).unwrap().ready().unwrap()
    }
}

#[test]
fn files_that_cannot_be_used_end_the_start_with_one_line() {
    let files = Files::new();
    let start = |pair: [&str; 2]| {
        let [cert, key] = pair;
        let (code, line) = failure(&[
            "serve",
            "--device",
            "mock:tiny",
            "--listen",
            "127.0.0.1:0",
            "--control-listen",
            "off",
            "--tls-cert-file",
            cert,
            "--tls-key-file",
            key,
        ]);
        assert_eq!(code, 1, "{line}");
        line
    };
    let (cert, key) = (files.path("cert.pem"), files.path("key.pem"));
    let empty = files.write("empty.pem", "");
    let broken =
        files.write("broken.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let other = files.write("other.pem", &KeyPair::generate().unwrap().serialize_pem());
    let locked = files.write(
        "locked.pem",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    let folder = files.folder.path().to_str().unwrap();
    for (pair, setting, file, cause) in [
        (["/nowhere.pem", &key], "http.tls_cert_file", "/nowhere.pem", "No such file"),
        ([folder, &key], "http.tls_cert_file", folder, "no regular file"),
        ([&empty, &key], "http.tls_cert_file", &empty, "no certificate"),
        ([&key, &key], "http.tls_cert_file", &key, "no certificate"),
        ([&broken, &key], "http.tls_cert_file", &broken, "certificate"),
        ([&cert, "/nowhere.pem"], "http.tls_key_file", "/nowhere.pem", "No such file"),
        ([&cert, &cert], "http.tls_key_file", &cert, "no private key"),
        ([&cert, &locked], "http.tls_key_file", &locked, "without a password"),
        ([&cert, &other], "http.tls_key_file", &other, "not that of the certificate"),
    ] {
        let line = start(pair);
        assert!(line.starts_with(&format!("tiercel: {setting}: cannot use {file}: ")), "{line}");
        assert!(line.contains(cause), "{cause}: {line}");
    }
    let (code, line) = failure(&["serve", "--device", "mock:tiny", "--tls-cert-file", &cert]);
    assert_eq!(code, 2);
    assert!(line.contains("http.tls_key_file: is missing"), "{line}");
}

#[test]
fn operators_reach_a_server_with_tls() {
    let files = Files::new();
    let server = files.server();
    let port = server.control_address().unwrap().port();
    let ctl = |url: &str, more: &[&str]| -> Output {
        tiercel(&["ctl", "--url", url]).args(more).arg("status").output().unwrap()
    };
    let printed = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (url, ca) = (format!("https://localhost:{port}"), files.path("cert.pem"));
    let trusted = ctl(&url, &["--ca", &ca]);
    assert!(printed(&trusted.stdout).starts_with("ready: "), "{}", printed(&trusted.stderr));
    // The name of the URL is in the certificate, and the server is at another address.
    let elsewhere = format!("127.0.0.1:{port}");
    let aimed = ctl("https://localhost:1", &["--ca", &ca, "--connect", &elsewhere]);
    assert!(printed(&aimed.stdout).starts_with("ready: "), "{}", printed(&aimed.stderr));
    for (url, more, why) in [
        (url.as_str(), &[][..], "--ca"),
        (&format!("https://127.0.0.1:{port}"), &["--ca", &ca], "--connect"),
        (&format!("http://127.0.0.1:{port}"), &[], "speaks HTTPS"),
    ] {
        let refused = ctl(url, more);
        assert_eq!(refused.status.code(), Some(1), "{url}");
        let line = printed(&refused.stderr);
        assert!(line.lines().count() == 1 && line.contains(why), "{url}: {line}");
    }
    let empty = files.write("empty.pem", "");
    let refused = ctl(&url, &["--ca", &empty]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(printed(&refused.stderr).contains(&empty), "{}", printed(&refused.stderr));
    server.stop().unwrap();
}

#[test]
fn bench_measures_a_server_with_tls() {
    let files = Files::new();
    let server = files.server();
    let url = format!("https://localhost:{}", server.address().port());
    let workload = files.write("w.toml", WORKLOAD);
    let ca = files.path("cert.pem");
    let bench = |more: &[&str]| {
        tiercel(&["bench", "--url", &url, "--workload", &workload]).args(more).output().unwrap()
    };
    let measured = bench(&["--ca", &ca]);
    assert!(measured.status.success(), "{}", String::from_utf8_lossy(&measured.stderr));
    assert!(String::from_utf8_lossy(&measured.stdout).contains("premium"));
    let refused = bench(&[]);
    let line = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && line.contains("certificate"), "{line}");
    server.stop().unwrap();
}
