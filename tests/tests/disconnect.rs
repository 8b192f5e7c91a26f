//! Tests that requests are cancelled when clients leave or do not read. On a device that takes 50 ms per step a request
//! of 1000 tokens runs for 50 s, so a server that is idle within 20 s has cancelled the request.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::{Value, json};
use tiercel_actors::EngineStatus;
use tiercel_tests::{Connection, TestServer, events};

fn long(stream: bool) -> Value {
    json!({"prompt": "x", "max_tokens": 1000, "ignore_eos": true, "stream": stream})
}

fn start(server: &TestServer, body: &Value) -> Connection {
    let mut connection = server.connect();
    let headers = [("content-type", "application/json")];
    connection.send_request("POST", "/v1/completions", &headers, body.to_string().as_bytes());
    connection
}

fn running(count: u32) -> impl Fn(&EngineStatus) -> bool {
    move |status| status.running == count
}

#[test]
fn leaving_a_request_that_does_not_stream_cancels_it() {
    let server = TestServer::slow(|_| ());
    let connection = start(&server, &long(false));
    server.wait_for("running", running(1));
    drop(connection);
    server.finish();
}

#[test]
fn leaving_a_stream_cancels_all_its_choices() {
    let server = TestServer::slow(|_| ());
    let mut body = long(true);
    body["n"] = json!(3);
    let mut connection = server.connect();
    assert_eq!(connection.open_stream("/v1/completions", &body).status, 200);
    connection.chunk().unwrap();
    server.wait_for("running", running(3));
    drop(connection);
    server.finish();
}

#[test]
fn leaving_the_queue_cancels_too() {
    let server = TestServer::slow(|settings| settings.engine.scheduler.max_num_seqs = 1);
    let first = start(&server, &long(false));
    server.wait_for("running", running(1));
    let queued: Vec<Connection> =
        [false, true].iter().map(|stream| start(&server, &long(*stream))).collect();
    server.wait_for("queued", |status| status.waiting.iter().sum::<u32>() == 2);
    drop(queued);
    server.wait_for("no longer queued", |status| status.waiting == [0; 4]);
    assert_eq!(server.status().running, 1, "the first goes on");
    drop(first);
    server.finish();
}

#[test]
fn closing_the_sending_side_is_leaving() {
    let server = TestServer::slow(|_| ());
    let connection = start(&server, &long(false));
    server.wait_for("running", running(1));
    connection.finish_sending();
    server.wait_until_idle();
    drop(connection);
    server.finish();
}

#[test]
fn a_stop_string_cancels_the_rest() {
    let server = TestServer::slow(|_| ());
    let mut body = long(false);
    body["max_tokens"] = json!(6);
    let text = server.post("/v1/completions", &body).json()["choices"][0]["text"].clone();
    let mut stopped = long(false);
    stopped["stop"] = json!([text.as_str().unwrap().chars().nth(1).unwrap().to_string()]);
    let answer = server.post("/v1/completions", &stopped).json();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    server.finish();
}

#[test]
fn a_silent_stream_sends_comments() {
    let server = TestServer::slow(|settings| {
        settings.engine.scheduler.max_num_seqs = 1;
        settings.http.comment_interval_ms = 20;
        settings.http.first_token_wait_ms = 20;
    });
    let first = start(&server, &long(false));
    server.wait_for("running", running(1));
    let mut queued = server.connect();
    let head = queued.open_stream("/v1/completions", &long(true));
    assert_eq!(head.status, 200, "the head does not wait for a token");
    assert!(queued.chunk().unwrap().starts_with(b": waiting"));
    drop((first, queued));
    server.finish();
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let server = TestServer::mock(|settings| {
        settings.engine.stream.buffer_tokens = 16;
        settings.engine.stream.stall_timeout_ms = 300;
    });
    // A token takes about 250 bytes in the response stream, so the output is far larger than the socket buffers between
    // server and client: the server cannot write all of it while the client does not read.
    let body = json!({
        "prompt": "x", "max_tokens": 1800, "ignore_eos": true, "stream": true, "n": 60,
    });
    let mut connection = server.connect();
    assert_eq!(connection.open_stream("/v1/completions", &body).status, 200);
    server.wait_until_idle();
    let mut sent = Vec::new();
    while let Some(chunk) = connection.chunk().filter(|chunk| !chunk.is_empty()) {
        sent.extend(chunk);
    }
    let last: Value = serde_json::from_str(events(&sent).last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "stalled", "{last}");
    server.finish();
}

#[test]
fn leaving_is_noticed_behind_a_heap_of_pipelined_requests() {
    let server = TestServer::slow(|_| ());
    let mut connection = start(&server, &long(false));
    server.wait_for("running", running(1));
    let request = b"GET /health HTTP/1.1\r\nhost: t\r\n\r\n";
    connection.send(&request.repeat(20_000));
    drop(connection);
    server.finish();
}

#[test]
fn leaving_is_noticed_behind_a_burst_of_requests_around_the_one_that_is_answered() {
    let server = TestServer::slow(|_| ());
    let get = b"GET /health HTTP/1.1\r\nhost: t\r\n\r\n";
    let body = long(false).to_string();
    let post = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut connection = server.connect();
    connection.send(&[&get.repeat(50), post.as_bytes(), &get.repeat(20_000)].concat());
    // Once the requests before the long one are answered, the server computes the long one, unless the server has
    // closed the connection.
    let answered = (0..50).take_while(|_| connection.response().is_some()).count();
    assert!(answered > 0);
    drop(connection);
    server.finish();
}

#[test]
fn one_connection_may_send_requests_without_end_one_after_the_other() {
    let server = TestServer::mock(|_| ());
    let mut connection = server.connect();
    let headers = [("content-type", "application/json")];
    for (requests, bytes) in [(8, 100_000), (120, 400)] {
        let body = json!({"prompt": "x", "max_tokens": 1, "user": "u".repeat(bytes)}).to_string();
        for number in 0..requests {
            let answer = connection.request("POST", "/v1/completions", &headers, body.as_bytes());
            assert_eq!(answer.status, 200, "request {number} of {bytes} bytes");
        }
    }
    server.finish();
}
