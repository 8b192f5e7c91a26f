//! Tests of TLS: handshakes of a real client, certificates that are read again, and clients that misuse the port.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use serde_json::json;
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tiercel_config::ServerSettings;
use tiercel_tests::{Connection, TestServer};

/// Number of tries after which a change of the certificate must show.
const MANY: u32 = 10_000;

const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
const HALF_A_HEAD: &[u8] = b"POST /v1/ch";
/// Beginning of a TLS handshake: the head of a record, of which nothing follows.
const HALF_A_HANDSHAKE: &[u8] = &[0x16, 3, 1, 2, 0, 1];

/// Certificate authority of a test, and the folder with the files of its server.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    roots: RootCertStore,
    folder: TempDir,
}

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        Authority { issuer: Issuer::new(params, key), roots, folder: TempDir::new().unwrap() }
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Writes a new certificate for `localhost` and its key to the files of the server, and returns the certificate.
    fn issue(&self) -> Vec<u8> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.file("cert.pem"), certificate.pem()).unwrap();
        std::fs::write(self.file("key.pem"), key.serialize_pem()).unwrap();
        certificate.der().to_vec()
    }

    fn use_files(&self, settings: &mut ServerSettings) {
        self.issue();
        settings.http.tls_cert_file = Some(self.file("cert.pem"));
        settings.http.tls_key_file = Some(self.file("key.pem"));
    }

    /// Returns a client that trusts the authority and offers these protocols.
    fn client(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        alpn: &[&str],
    ) -> Arc<ClientConfig> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    fn connect(&self, address: SocketAddr) -> Connection {
        Connection::open_tls(address, self.client(&[&TLS13], &["h2", "http/1.1"]))
    }
}

/// Starts a server with TLS on a device that takes 50 ms per step.
fn slow(authority: &Authority, adjust: impl FnOnce(&mut ServerSettings)) -> TestServer {
    TestServer::slow(|settings| {
        authority.use_files(settings);
        adjust(settings);
    })
}

/// Checks that the server is healthy over TLS and has nothing left to do, and stops it.
fn finish(server: TestServer, authority: &Authority) {
    server.wait_until_idle();
    let health = authority.connect(server.address()).request("GET", "/health", &[], b"");
    assert_eq!(health.status, 200);
    server.stop().unwrap();
}

fn hangup() {
    let pid = std::process::id().to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
}

#[test]
fn both_listeners_speak_tls_and_http_1_1() {
    let authority = Authority::new();
    let server = slow(&authority, |_| ());
    let control = server.control().wire().tcp().peer_addr().unwrap();
    for version in [&TLS12, &TLS13] {
        for address in [server.address(), control] {
            let client = authority.client(&[version], &["h2", "http/1.1"]);
            let mut connection = Connection::open_tls(address, client);
            let (_, protocol) = connection.wire().handshake().unwrap();
            assert_eq!(protocol, b"http/1.1", "{version:?}");
            assert_eq!(connection.request("GET", "/health", &[], b"").status, 200);
        }
    }
    let mut connection = authority.connect(server.address());
    let body = json!({"prompt": "x", "max_tokens": 5, "ignore_eos": true, "stream": true});
    let answer = connection.post("/v1/completions", &body);
    assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    let listed = authority.connect(control).request("GET", "/control/v1/requests", &[], b"");
    assert_eq!(listed.json()["total"], 0);
    let stranger = Authority::new();
    let refused = stranger.connect(server.address()).wire().handshake().expect_err("no trust");
    assert!(refused.to_string().contains("certificate"), "{refused}");
    let h2 = Connection::open_tls(server.address(), authority.client(&[&TLS13], &["h2"]));
    { h2 }.wire().handshake().expect_err("the server speaks HTTP/1.1 only");
    finish(server, &authority);
}

#[test]
fn plain_http_gets_a_plain_error_and_other_bytes_none() {
    let authority = Authority::new();
    let server = slow(&authority, |_| ());
    for mut connection in [server.connect(), server.control()] {
        let answer = connection.request("GET", "/health", &[], b"");
        assert_eq!((answer.status, &answer.error()["code"]), (400, &json!("https_needed")));
        assert_eq!(connection.rest(), b"", "it is closed");
    }
    let mut wrong = server.connect();
    wrong.send(&[&[0x16][..], &[0xff; 600]].concat());
    assert!(wrong.rest().len() < 100, "an alert of TLS at most");
    finish(server, &authority);
}

#[test]
fn a_handshake_and_a_head_have_the_time_of_one_head() {
    let authority = Authority::new();
    let server = slow(&authority, |settings| settings.http.request_timeout_ms = 1_000);
    // The test's client waits for a minute, and a connection without TLS would wait as long for its first byte.
    for begun in [&b""[..], HALF_A_HANDSHAKE] {
        let mut connection = server.connect();
        connection.send(begun);
        assert_eq!(connection.rest(), b"", "it is closed");
    }
    for begun in [&b""[..], HALF_A_HEAD] {
        let mut connection = authority.connect(server.address());
        connection.wire().handshake().unwrap();
        connection.send(begun);
        assert_eq!(connection.rest(), b"", "it is closed");
    }
    let metrics = authority.connect(server.address()).request("GET", "/metrics", &[], b"").text();
    let cut = "tiercel_connections_closed_total{listener=\"public\",cause=\"handshake\"} ";
    let line = metrics.lines().find_map(|line| line.strip_prefix(cut)).unwrap();
    assert!(line.parse::<f64>().unwrap() >= 2.0, "{line}");
    finish(server, &authority);
}

#[test]
fn a_certificate_is_read_again_and_no_stream_notices() {
    let authority = Authority::new();
    let server = slow(&authority, |_| ());
    let served = || {
        let mut connection = authority.connect(server.address());
        let (certificate, _) = connection.wire().handshake().unwrap();
        assert_eq!(connection.request("GET", "/health", &[], b"").status, 200);
        certificate
    };
    let first = served();
    let mut stream = authority.connect(server.address());
    let body = json!({"prompt": "x", "max_tokens": 60, "ignore_eos": true, "stream": true});
    assert_eq!(stream.open_stream("/v1/completions", &body).status, 200);
    let until = |certificate: &[u8]| (0..MANY).any(|_| served() == certificate);

    let second = authority.issue();
    assert_eq!(served(), first, "a new file alone changes nothing");
    hangup();
    assert!(until(&second));
    // A key that does not belong to the certificate.
    std::fs::write(authority.file("key.pem"), KeyPair::generate().unwrap().serialize_pem())
        .unwrap();
    hangup();
    assert!((0..20).all(|_| served() == second), "wrong files change nothing");
    let third = authority.issue();
    hangup();
    assert!(until(&third));

    let mut text = Vec::new();
    while let Some(chunk) = stream.chunk().filter(|chunk| !chunk.is_empty()) {
        text.extend(chunk);
    }
    let text = String::from_utf8(text).unwrap();
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    stream.send(HEALTH);
    assert_eq!(stream.response().unwrap().status, 200, "the connection goes on");
    finish(server, &authority);
}

#[test]
fn idle_connections_and_handshakes_give_way_under_tls() {
    let authority = Authority::new();
    let server = slow(&authority, |settings| settings.http.max_connections = 4);
    let mut used = authority.connect(server.address());
    assert_eq!(used.request("GET", "/health", &[], b"").status, 200);
    let mut begun: Vec<Connection> = (0..6).map(|_| server.connect()).collect();
    begun.iter_mut().for_each(|connection| connection.send(HALF_A_HANDSHAKE));
    let mut newcomer = authority.connect(server.address());
    assert_eq!(newcomer.request("GET", "/health", &[], b"").status, 200);
    assert_eq!(used.rest(), b"", "the longest idle connection is closed");
    finish(server, &authority);
}

#[test]
fn a_client_that_never_reads_does_not_hold_a_connection_under_tls() {
    let authority = Authority::new();
    let server = TestServer::mock(|settings| {
        authority.use_files(settings);
        settings.http.max_connections = 1;
        settings.http.request_timeout_ms = 1_000;
        settings.engine.stream.stall_timeout_ms = 300;
    });
    let body = json!({
        "prompt": "x", "max_tokens": 1800, "ignore_eos": true, "stream": true, "n": 60,
    });
    let mut silent = authority.connect(server.address());
    assert_eq!(silent.open_stream("/v1/completions", &body).status, 200);
    // The client that does not read holds the server's only connection.
    let health = authority.connect(server.address()).request("GET", "/health", &[], b"");
    assert_eq!(health.status, 200);
    drop(silent);
    finish(server, &authority);
}

#[test]
fn requests_piled_up_behind_an_answer_that_nobody_reads_end_the_connection_under_tls() {
    let authority = Authority::new();
    let server = slow(&authority, |_| ());
    let mut silent = authority.connect(server.address());
    silent.wire().tcp().set_write_timeout(Some(Duration::from_secs(30))).unwrap();
    let metrics = b"GET /metrics HTTP/1.1\r\nhost: t\r\n\r\n".repeat(100);
    let error = loop {
        if let Err(error) = silent.wire().write_all(&metrics) {
            break error;
        }
    };
    assert!([ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&error.kind()), "{error}");
    finish(server, &authority);
}

#[test]
fn a_connection_in_use_outlives_every_timer_under_tls() {
    let authority = Authority::new();
    let server = slow(&authority, |settings| {
        settings.http.request_timeout_ms = 1_000;
        settings.http.keep_alive_ms = 1_000;
    });
    let mut connection = authority.connect(server.address());
    for stream in [false, true] {
        let body = json!({"prompt": "x", "max_tokens": 30, "ignore_eos": true, "stream": stream});
        assert_eq!(connection.post("/v1/completions", &body).status, 200, "stream {stream}");
    }
    finish(server, &authority);
}
