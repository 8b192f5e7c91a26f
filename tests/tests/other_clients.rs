//! Tests of clients that use no OpenAI library: web pages of other origins in a browser, and HTTP/1.0 clients.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::{Value, json};
use tiercel_tests::{Connection, Response, TestServer, events};

const PAGE: &str = "https://chat.example.org";

fn server(origins: &[&str]) -> TestServer {
    let origins: Vec<String> = origins.iter().map(|origin| origin.to_string()).collect();
    TestServer::mock(|settings| {
        settings.http.cors_origins = origins;
        settings.http.api_keys = vec!["secret".into()];
    })
}

/// Sends the preflight request that a browser sends before a web page's request with a key.
fn preflight(mut connection: Connection, path: &str, origin: &str) -> Response {
    let headers = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type,x-stainless-os"),
    ];
    connection.request("OPTIONS", path, &headers, b"")
}

/// Sends a web page's request with a key.
fn ask(mut connection: Connection, origin: &str, key: &str) -> Response {
    let authorization = format!("Bearer {key}");
    let headers = [
        ("origin", origin),
        ("content-type", "application/json"),
        ("authorization", authorization.as_str()),
    ];
    let body = json!({"prompt": "Hi", "max_tokens": 2, "ignore_eos": true}).to_string();
    connection.request("POST", "/v1/completions", &headers, body.as_bytes())
}

/// Returns the origin whose web pages may read a response.
fn reader(response: &Response) -> Option<&str> {
    response.header("access-control-allow-origin")
}

#[test]
fn a_page_of_a_stated_origin_may_ask_and_read() {
    let server = server(&[PAGE, "app://notes"]);
    for origin in [PAGE, "app://notes"] {
        let allowed = preflight(server.connect(), "/v1/completions", origin);
        assert_eq!((allowed.status, reader(&allowed)), (200, Some(origin)));
        let methods = allowed.header("access-control-allow-methods").unwrap();
        assert!(methods.contains("POST"), "{methods}");
        let headers = allowed.header("access-control-allow-headers").unwrap();
        assert!(
            headers.contains("authorization") && headers.contains("x-stainless-os"),
            "{headers}"
        );
        assert!(allowed.header("x-request-id").is_some(), "it is logged like other requests");
        let answer = ask(server.connect(), origin, "secret");
        assert_eq!((answer.status, reader(&answer)), (200, Some(origin)), "{}", answer.text());
        let exposed = answer.header("access-control-expose-headers").unwrap();
        for header in ["x-request-id", "retry-after", "x-ratelimit-remaining-tokens"] {
            assert!(exposed.contains(header), "{header}: {exposed}");
        }
        let credentials = answer.header("access-control-allow-credentials");
        assert_eq!(credentials, None, "cookies are not allowed");
        // A web page must be able to read the reason why its request failed.
        let refused = ask(server.connect(), origin, "guess");
        assert_eq!((refused.status, reader(&refused)), (401, Some(origin)));
    }
    server.finish();
}

#[test]
fn pages_of_other_origins_may_not_read() {
    let server = server(&[PAGE]);
    for origin in [
        "https://example.org",
        "http://chat.example.org",
        "null",
        "https://chat.example.org.evil.org",
    ] {
        let refused = preflight(server.connect(), "/v1/completions", origin);
        assert_eq!((refused.status, reader(&refused)), (400, None), "{origin}");
        assert_eq!(reader(&ask(server.connect(), origin, "secret")), None, "{origin}");
    }
    // A program that is no browser sends no origin, and its response has no header about origins.
    let models =
        server.connect().request("GET", "/v1/models", &[("authorization", "Bearer secret")], b"");
    assert_eq!((models.status, reader(&models)), (200, None));
    server.finish();
}

#[test]
fn all_origins_may_read_only_the_public_listener_and_only_if_stated() {
    let everyone = server(&["*"]);
    assert_eq!(reader(&ask(everyone.connect(), PAGE, "secret")), Some("*"));
    assert_eq!(reader(&preflight(everyone.connect(), "/v1/completions", PAGE)), Some("*"));
    let control = preflight(everyone.control(), "/control/v1/requests", PAGE);
    assert_eq!((control.status, reader(&control)), (405, None));
    let listed =
        everyone.control().request("GET", "/control/v1/requests", &[("origin", PAGE)], b"");
    assert_eq!((listed.status, reader(&listed)), (401, None));
    everyone.finish();

    let nobody = server(&[]);
    let refused = preflight(nobody.connect(), "/v1/completions", PAGE);
    assert_eq!((refused.status, reader(&refused)), (405, None));
    assert_eq!(reader(&ask(nobody.connect(), PAGE, "secret")), None);
    nobody.finish();
}

#[test]
fn without_keys_pages_of_other_origins_can_send_no_work() {
    let server = TestServer::mock(|settings| settings.http.cors_origins = vec![PAGE.into()]);
    let body = json!({"prompt": "Hi", "max_tokens": 2, "ignore_eos": true}).to_string();
    // A browser sends this request without a preflight, because it has no header that needs one.
    let from = |origin: &str| {
        server.connect().request("POST", "/v1/completions", &[("origin", origin)], body.as_bytes())
    };
    let refused = from("https://example.org");
    assert_eq!((refused.status, &refused.error()["code"]), (403, &json!("origin_not_allowed")));
    assert_eq!(from(PAGE).status, 200);
    server.finish();
}

/// Sends an HTTP/1.0 request that asks to keep the connection, as old proxies do.
fn old(server: &TestServer, body: &Value) -> Connection {
    let (body, mut connection) = (body.to_string(), server.connect());
    let head = format!(
        "POST /v1/completions HTTP/1.0\r\nconnection: keep-alive\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    connection.send(head.as_bytes());
    connection.send(body.as_bytes());
    connection
}

#[test]
fn an_http_1_0_client_gets_a_stream_without_chunks_that_ends_with_the_connection() {
    let server = TestServer::mock(|_| ());
    let body =
        json!({"prompt": "Hi", "max_tokens": 9, "ignore_eos": true, "stream": true, "seed": 1});
    let mut connection = old(&server, &body);
    let head = connection.head().unwrap();
    assert_eq!((head.status, head.header("transfer-encoding")), (200, None));
    assert_ne!(head.header("connection"), Some("keep-alive"));
    let found = events(&connection.rest());
    assert_eq!(found.last().map(String::as_str), Some("[DONE]"), "{found:?}");
    let texts = |events: &[String]| -> String {
        let chunks = events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
        chunks.filter_map(|chunk| chunk["choices"][0]["text"].as_str().map(str::to_owned)).collect()
    };
    let newer = server.post("/v1/completions", &body);
    assert_eq!(newer.header("transfer-encoding"), Some("chunked"));
    assert_eq!(texts(&found), texts(&events(&newer.body)));
    server.finish();
}

#[test]
fn an_http_1_0_client_may_keep_its_connection_after_an_answer_of_known_length() {
    let server = TestServer::mock(|_| ());
    let mut connection = old(&server, &json!({"prompt": "Hi", "max_tokens": 2}));
    let answer = connection.response().unwrap();
    assert_eq!((answer.status, answer.header("connection")), (200, Some("keep-alive")));
    connection.send(b"GET /health HTTP/1.0\r\n\r\n");
    assert_eq!(connection.response().unwrap().status, 200);
    assert_eq!(connection.rest(), b"", "it is closed");
    server.finish();
}
