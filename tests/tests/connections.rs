//! Tests of clients that hold connections without using them. The server closes every such connection, so that a few
//! clients cannot take all connections.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::json;
use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::Duration;
use tiercel_config::MetricsAt;
use tiercel_tests::{Connection, TestServer};

const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nhost: t\r\n\r\n";
const HALF_A_HEAD: &[u8] = b"POST /v1/ch";

/// Starts a server that allows two connections and soon times out idle connections and slow requests.
fn server() -> TestServer {
    TestServer::mock(|settings| {
        settings.http.max_connections = 2;
        settings.http.request_timeout_ms = 1_000;
        settings.http.keep_alive_ms = 1_500;
    })
}

/// Returns a connection on which the server has answered a request.
fn used(server: &TestServer) -> Connection {
    let mut connection = server.connect();
    connection.send(HEALTH);
    assert_eq!(connection.response().unwrap().status, 200);
    connection
}

#[test]
fn half_a_second_head_does_not_hold_a_connection() {
    let server = TestServer::mock(|settings| {
        settings.http.max_connections = 2;
        settings.http.request_timeout_ms = 1_000;
    });
    let mut held = [used(&server), used(&server)];
    for connection in &mut held {
        connection.send(HALF_A_HEAD);
    }
    // The server's two connections are held by clients that sent half a request head, so the next request gets an
    // answer only after the server has closed one of them.
    assert_eq!(server.get("/health").status, 200);
    for connection in &mut held {
        assert_eq!(connection.rest(), b"", "it is closed");
    }
    server.finish();
}

#[test]
fn half_a_head_in_the_segment_of_a_whole_request_does_not_either() {
    let server = server();
    let mut held = [server.connect(), server.connect()];
    for connection in &mut held {
        connection.send(&[HEALTH, HALF_A_HEAD].concat());
        assert_eq!(connection.response().unwrap().status, 200);
    }
    assert_eq!(server.get("/health").status, 200);
    for connection in &mut held {
        assert_eq!(connection.rest(), b"", "it is closed");
    }
    server.finish();
}

#[test]
fn half_a_head_sent_behind_a_running_request_has_the_time_of_a_head_and_is_not_idle() {
    let server = TestServer::slow(|settings| {
        settings.http.max_connections = 1;
        settings.http.request_timeout_ms = 1_500;
    });
    let mut held = server.connect();
    let body = json!({"prompt": "x", "max_tokens": 20, "ignore_eos": true, "stream": true});
    assert_eq!(held.open_stream("/v1/completions", &body).status, 200);
    held.send(HALF_A_HEAD);
    while held.chunk().is_some_and(|chunk| !chunk.is_empty()) {}
    // If the connection were idle, the server would close the connection at once to give its seat to the newcomer;
    // without a newcomer, the server would keep an idle connection for the keep-alive time.
    let mut newcomer = server.connect();
    newcomer.send(HEALTH);
    held.send(b"at HTTP/1.1\r\nhost: t\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(held.response().unwrap().status, 404, "POST /v1/chat does not exist");
    assert_eq!(newcomer.response().unwrap().status, 200);

    let mut late = newcomer;
    assert_eq!(late.open_stream("/v1/completions", &body).status, 200);
    late.send(HALF_A_HEAD);
    while late.chunk().is_some_and(|chunk| !chunk.is_empty()) {}
    assert_eq!(late.rest(), b"", "it is closed after the time of a head");
    server.finish();
}

#[test]
fn a_body_that_nobody_wants_does_not_either() {
    let server = server();
    let mut held = [server.connect(), server.connect()];
    for connection in &mut held {
        connection.send(
            b"POST /nowhere HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
        );
        assert_eq!(connection.response().unwrap().status, 404);
    }
    assert_eq!(server.get("/health").status, 200);
    for connection in &mut held {
        assert_eq!(connection.rest(), b"", "it is closed");
    }
    server.finish();
}

#[test]
fn a_connection_in_use_outlives_every_timer() {
    let server = TestServer::slow(|settings| {
        settings.http.request_timeout_ms = 1_000;
        settings.http.keep_alive_ms = 1_000;
    });
    let mut connection = used(&server);
    // A token takes 50 ms on the slow device, so an answer of 30 tokens takes longer than the server allows for a
    // request head or for a silent connection. The server must not close the connection meanwhile.
    for stream in [false, true] {
        let body = json!({
            "prompt": "x", "max_tokens": 30, "ignore_eos": true, "stream": stream,
        });
        assert_eq!(connection.post("/v1/completions", &body).status, 200, "stream {stream}");
    }
    connection.send(HEALTH);
    assert_eq!(connection.response().unwrap().status, 200);
    server.finish();
}

#[test]
fn a_request_sent_behind_a_running_one_may_wait_for_it() {
    let server = TestServer::slow(|settings| settings.http.request_timeout_ms = 1_000);
    let mut connection = server.connect();
    let body = json!({"prompt": "x", "max_tokens": 30, "ignore_eos": true, "stream": true});
    assert_eq!(connection.open_stream("/v1/completions", &body).status, 200);
    connection.send(HEALTH);
    while connection.chunk().is_some_and(|chunk| !chunk.is_empty()) {}
    assert_eq!(connection.response().unwrap().status, 200);
    server.finish();
}

#[test]
fn a_client_that_never_reads_does_not_hold_a_connection() {
    let server = TestServer::mock(|settings| {
        settings.http.max_connections = 1;
        settings.http.request_timeout_ms = 1_000;
        settings.engine.stream.stall_timeout_ms = 300;
    });
    // The output is far larger than the socket buffers between server and client, so that the server cannot write all
    // of it while the client does not read.
    let body = json!({
        "prompt": "x", "max_tokens": 1800, "ignore_eos": true, "stream": true, "n": 60,
    });
    let mut silent = server.connect();
    assert_eq!(silent.open_stream("/v1/completions", &body).status, 200);
    // The client that does not read holds the server's only connection, so the next request gets an answer only after
    // the server has closed it.
    assert_eq!(server.get("/health").status, 200);
    drop(silent);
    server.finish();
}

#[test]
fn requests_piled_up_behind_an_answer_that_nobody_reads_end_the_connection() {
    let server = TestServer::mock(|_| ());
    let mut silent = TcpStream::connect(server.address()).unwrap();
    // If the server neither read from nor closed the connection, the client's writes would block for ever; the timeout
    // then fails the test.
    silent.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
    let metrics = b"GET /metrics HTTP/1.1\r\nhost: t\r\n\r\n".repeat(100);
    let error = loop {
        if let Err(error) = silent.write_all(&metrics) {
            break error;
        }
    };
    assert!([ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&error.kind()), "{error}");
    server.finish();
}

/// Returns a connection in a request: the server has read the request's head and waits for its body of two bytes.
fn without_body(server: &TestServer) -> Connection {
    let mut connection = server.connect();
    connection.send(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n\
          content-length: 2\r\nexpect: 100-continue\r\n\r\n",
    );
    assert_eq!(connection.head().unwrap().status, 100);
    connection
}

/// Sends a request, and returns whether the server answers or closes the connection.
fn answers(connection: &mut Connection) -> bool {
    connection.send(HEALTH);
    connection.response().is_some_and(|answer| answer.status == 200)
}

/// Returns a connection on which the server has answered a request. Tries again while the server closes connections at
/// once.
fn let_in(server: &TestServer) -> Connection {
    let mut tries = (0..10_000).map(|_| server.connect());
    tries.find_map(|mut connection| answers(&mut connection).then_some(connection)).unwrap()
}

/// Returns the value of `tiercel_connections_closed_total` for the public listener and this cause.
fn closed(metrics: &str, cause: &str) -> f64 {
    let name =
        format!("tiercel_connections_closed_total{{listener=\"public\",cause=\"{cause}\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
    value.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
}

#[test]
fn an_idle_connection_gives_way_to_a_newcomer() {
    let server = TestServer::mock(|settings| settings.http.max_connections = 6);
    let mut held: Vec<Connection> = (0..6).map(|_| used(&server)).collect();
    // The first connection acts again, so that others have been idle longer. A client has its answer before the server
    // counts the connection as idle, so the order of the others is not known.
    assert!(answers(&mut held[0]));
    let mut newcomer = used(&server);
    let open: Vec<bool> = held.iter_mut().map(answers).collect();
    assert_eq!(open.iter().filter(|open| **open).count(), 5, "{open:?}");
    assert!(open[0] && answers(&mut newcomer), "{open:?}");
    assert!(
        closed(&server.control().request("GET", "/metrics", &[], b"").text(), "evicted") >= 1.0
    );
    server.finish();
}

#[test]
fn silent_connections_hide_neither_listener() {
    let server = TestServer::mock(|settings| settings.http.max_connections = 50);
    let silent: Vec<Connection> = (0..200).map(|_| server.connect()).collect();
    let of_control: Vec<Connection> = (0..200).map(|_| server.control()).collect();
    for path in ["/health", "/ready"] {
        assert_eq!(server.get(path).status, 200);
        assert_eq!(server.control().request("GET", path, &[], b"").status, 200);
    }
    drop((silent, of_control));
    server.finish();
}

#[test]
fn a_connection_in_a_request_is_never_evicted() {
    let server = TestServer::slow(|settings| {
        settings.http.max_connections = 2;
        settings.http.request_timeout_ms = 60_000;
    });
    let mut stream = server.connect();
    let body = json!({"prompt": "x", "max_tokens": 20, "ignore_eos": true, "stream": true});
    assert_eq!(stream.open_stream("/v1/completions", &body).status, 200);
    let mut half = without_body(&server);
    // Both connections are in a request, so newcomers wait until the stream has ended.
    let mut waiting = [server.connect(), server.connect()];
    waiting.iter_mut().for_each(|connection| connection.send(HEALTH));
    let mut text = Vec::new();
    while let Some(chunk) = stream.chunk().filter(|chunk| !chunk.is_empty()) {
        text.extend(chunk);
    }
    assert!(text.ends_with(b"data: [DONE]\n\n"), "{}", String::from_utf8_lossy(&text));
    for connection in &mut waiting {
        assert_eq!(connection.response().unwrap().status, 200);
    }
    half.send(b"{}");
    assert_eq!(half.response().unwrap().status, 400, "its request was read to the end");
    server.finish();
}

#[test]
fn an_address_has_no_more_connections_than_it_may() {
    let server = TestServer::mock(|settings| {
        settings.http.max_connections_per_address = 2;
        settings.http.request_timeout_ms = 60_000;
    });
    let held = [without_body(&server), without_body(&server)];
    let mut third = server.connect();
    third.send(HEALTH);
    assert_eq!(third.rest(), b"", "it is closed without an answer");
    let metrics = server.control().request("GET", "/metrics", &[], b"").text();
    assert!(closed(&metrics, "address_cap") >= 1.0);
    drop(held);
    // The server notices that the clients have gone. Then one of the address's own idle connections gives way.
    let mut idle = [let_in(&server), let_in(&server)];
    let mut newcomer = let_in(&server);
    assert!(idle.each_mut().map(answers).contains(&false), "neither gave way");
    assert!(answers(&mut newcomer));
    server.finish();
}

#[test]
fn metrics_are_on_the_listeners_that_the_setting_names() {
    for (at, expected) in [
        (MetricsAt::Both, [200, 200]),
        (MetricsAt::Public, [200, 404]),
        (MetricsAt::Control, [404, 200]),
    ] {
        let server = TestServer::mock(|settings| settings.http.metrics = at);
        let answers = [server.connect(), server.control()]
            .map(|mut to| to.request("GET", "/metrics", &[], b""));
        assert_eq!(answers.each_ref().map(|answer| answer.status), expected, "{at:?}");
        for answer in answers.iter().filter(|answer| answer.status == 404) {
            assert!(answer.text().contains("http.metrics"), "{}", answer.text());
        }
        server.finish();
    }
}
