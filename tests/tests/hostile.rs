//! Tests of malformed and hostile HTTP requests. Each is answered with a 4xx status and an error body, or its
//! connection is closed; the server goes on and keeps no state of the request.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use tiercel_tests::{Connection, TestServer};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
/// JSON field `messages` with a valid conversation, beside which a test puts an invalid field.
const HI: &str = r#""messages":[{"role":"user","content":"Hi"}]"#;

/// A bad request and its expected answer: path, body, HTTP status, and the `param` of the error (empty means null).
struct Case(&'static str, String, u16, &'static str);

fn case(path: &'static str, body: impl Into<String>, status: u16, param: &'static str) -> Case {
    Case(path, body.into(), status, param)
}

/// Makes a test case of a valid chat request with one more field, which the server must refuse.
fn with(field: &str, status: u16, param: &'static str) -> Case {
    case(CHAT, format!("{{{HI},{field}}}"), status, param)
}

/// Makes a test case of a valid text completion request with one more field, which the server must refuse.
fn text_with(field: &str, status: u16, param: &'static str) -> Case {
    case(TEXT, format!("{{\"prompt\":\"Hi\",{field}}}"), status, param)
}

fn not_json() -> Vec<Case> {
    let deep =
        |open: &str, close: &str| format!("{}1{}", open.repeat(20_000), close.repeat(20_000));
    vec![
        case(CHAT, "", 400, ""),
        case(CHAT, "   ", 400, ""),
        case(CHAT, "{", 400, ""),
        case(CHAT, "null", 400, ""),
        case(CHAT, "[]", 400, ""),
        case(CHAT, "\"text\"", 400, ""),
        case(CHAT, "42", 400, ""),
        case(CHAT, format!("{{{HI}}} trailing"), 400, ""),
        case(CHAT, format!("{{{HI},}}"), 400, ""),
        case(CHAT, "{'messages': []}", 400, ""),
        case(CHAT, format!("{{{HI},\"temperature\":NaN}}"), 400, ""),
        case(CHAT, format!("{{{HI},\"temperature\":Infinity}}"), 400, ""),
        case(CHAT, format!("{{{HI},\"temperature\":-Infinity}}"), 400, ""),
        case(CHAT, format!("{{{HI},\"temperature\":1e999}}"), 400, ""),
        case(CHAT, format!("{{{HI},\"max_tokens\":0x10}}"), 400, ""),
        case(CHAT, format!("{{{HI},\"max_tokens\":007}}"), 400, ""),
        case(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud800\"}]}", 400, ""),
        case(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\nb\"}]}", 400, ""),
        case(CHAT, deep("[", "]"), 400, ""),
        case(CHAT, deep("{\"a\":", "}"), 400, ""),
        case(TEXT, format!("{{\"prompt\":{}}}", deep("[", "]")), 400, ""),
    ]
}

fn bad_messages() -> Vec<Case> {
    let messages = |messages: &str| format!("{{\"messages\":{messages}}}");
    vec![
        case(CHAT, "{}", 400, "messages"),
        case(CHAT, messages("null"), 400, "messages"),
        case(CHAT, messages("[]"), 400, "messages"),
        case(CHAT, messages("\"hi\""), 400, "messages"),
        case(CHAT, messages("{\"role\":\"user\"}"), 400, "messages"),
        case(CHAT, messages("[null]"), 400, "messages[0]"),
        case(CHAT, messages("[\"hi\"]"), 400, "messages[0]"),
        case(CHAT, messages("[{}]"), 400, "messages[0].role"),
        case(CHAT, messages("[{\"role\":7,\"content\":\"x\"}]"), 400, "messages[0].role"),
        case(CHAT, messages("[{\"role\":\"root\",\"content\":\"x\"}]"), 400, "messages[0].role"),
        case(CHAT, messages("[{\"role\":\"user\"}]"), 400, "messages[0].content"),
        case(CHAT, messages("[{\"role\":\"user\",\"content\":{}}]"), 400, "messages[0].content"),
        case(
            CHAT,
            messages("[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]"),
            400,
            "messages[0].content[0].type",
        ),
        case(
            CHAT,
            messages(&format!("[{}{{}}]", "{\"role\":\"user\",\"content\":\"x\"},".repeat(5000))),
            400,
            "messages",
        ),
        case(
            CHAT,
            messages(&format!("[{{\"role\":\"user\",\"content\":\"{}\"}}]", "x".repeat(500_000))),
            400,
            "messages",
        ),
    ]
}

fn bad_numbers() -> Vec<Case> {
    vec![
        with("\"temperature\":-1", 400, "temperature"),
        with("\"temperature\":2.5", 400, "temperature"),
        with("\"temperature\":1e308", 400, "temperature"),
        with("\"temperature\":\"hot\"", 400, "temperature"),
        with("\"temperature\":[1]", 400, "temperature"),
        with("\"top_p\":-0.1", 400, "top_p"),
        with("\"top_p\":1.5", 400, "top_p"),
        with("\"top_k\":-7", 400, "top_k"),
        with("\"top_k\":1.5", 400, "top_k"),
        with("\"min_p\":2", 400, "min_p"),
        with("\"repetition_penalty\":0", 400, "repetition_penalty"),
        with("\"repetition_penalty\":-1", 400, "repetition_penalty"),
        with("\"repetition_penalty\":1e-38", 400, "repetition_penalty"),
        with("\"presence_penalty\":3", 400, "presence_penalty"),
        with("\"frequency_penalty\":-3", 400, "frequency_penalty"),
        with("\"max_tokens\":0", 400, "max_tokens"),
        with("\"max_tokens\":-5", 400, "max_tokens"),
        with("\"max_tokens\":1.5", 400, "max_tokens"),
        with("\"max_tokens\":\"many\"", 400, "max_tokens"),
        with("\"max_tokens\":99999999999999999999999", 400, "max_tokens"),
        with("\"max_tokens\":18446744073709551615", 400, "max_tokens"),
        with("\"max_tokens\":4000000000", 400, "max_tokens"),
        with("\"max_completion_tokens\":1000000", 400, "max_completion_tokens"),
        with("\"max_completion_tokens\":5,\"max_tokens\":\"x\"", 400, "max_tokens"),
        with("\"n\":0", 400, "n"),
        with("\"n\":-1", 400, "n"),
        with("\"n\":1000000", 400, "n"),
        with("\"n\":\"two\"", 400, "n"),
        with("\"seed\":0.5", 400, "seed"),
        with("\"seed\":\"x\"", 400, "seed"),
        with("\"priority\":\"high\"", 400, "priority"),
        with("\"priority\":0.5", 400, "priority"),
        with("\"logprobs\":5", 400, "logprobs"),
        with("\"logprobs\":true,\"top_logprobs\":21", 400, "top_logprobs"),
        with("\"top_logprobs\":3", 400, "top_logprobs"),
    ]
}

fn bad_options() -> Vec<Case> {
    let biases: Vec<String> = (0..1500).map(|i| format!("\"{i}\":1")).collect();
    let stops = vec!["\"x\""; 65].join(",");
    vec![
        with("\"model\":\"gpt-4\"", 404, "model"),
        with("\"model\":7", 400, "model"),
        with("\"model\":\"\"", 404, "model"),
        with("\"stream\":\"yes\"", 400, "stream"),
        with("\"stream\":1", 400, "stream"),
        with("\"stream_options\":{\"include_usage\":true}", 400, "stream_options"),
        with("\"stream\":true,\"stream_options\":7", 400, "stream_options"),
        with(
            "\"stream\":true,\"stream_options\":{\"include_usage\":\"x\"}",
            400,
            "stream_options.include_usage",
        ),
        with("\"stop\":7", 400, "stop"),
        with("\"stop\":\"\"", 400, "stop"),
        with("\"stop\":[null]", 400, "stop"),
        with(&format!("\"stop\":[{stops}]"), 400, "stop"),
        with(&format!("\"stop\":\"{}\"", "x".repeat(5000)), 400, "stop"),
        with("\"stop_token_ids\":[-1]", 400, "stop_token_ids"),
        with("\"stop_token_ids\":[1000]", 400, "stop_token_ids"),
        with("\"stop_token_ids\":\"1\"", 400, "stop_token_ids"),
        with("\"logit_bias\":[1]", 400, "logit_bias"),
        with("\"logit_bias\":{\"x\":1}", 400, "logit_bias"),
        with("\"logit_bias\":{\"-1\":1}", 400, "logit_bias"),
        with("\"logit_bias\":{\"4294967296\":1}", 400, "logit_bias"),
        with("\"logit_bias\":{\"1\":101}", 400, "logit_bias"),
        with("\"logit_bias\":{\"1\":null}", 400, "logit_bias"),
        with(&format!("\"logit_bias\":{{{}}}", biases.join(",")), 400, "logit_bias"),
        with("\"service_tier\":\"gold\"", 400, "service_tier"),
        with("\"service_tier\":\"system\"", 400, "service_tier"),
        with("\"service_tier\":7", 400, "service_tier"),
        with("\"ignore_eos\":\"no\"", 400, "ignore_eos"),
        with("\"min_tokens\":-1", 400, "min_tokens"),
        with("\"min_tokens\":4294967295", 400, "min_tokens"),
        with("\"min_tokens\":2,\"max_completion_tokens\":1", 400, "min_tokens"),
        with("\"include_stop_str_in_output\":1", 400, "include_stop_str_in_output"),
        with("\"response_format\":{\"type\":\"json_schema\"}", 400, "response_format.json_schema"),
        with("\"response_format\":\"text\"", 400, "response_format"),
        with("\"tools\":[{\"type\":\"function\"}]", 400, "tools[0].function"),
        with("\"tools\":7", 400, "tools"),
        with("\"modalities\":[\"audio\"]", 400, "modalities"),
    ]
}

fn bad_prompts() -> Vec<Case> {
    let prompt = |prompt: &str| format!("{{\"prompt\":{prompt}}}");
    let many = format!("[{}]", vec!["\"x\""; 200].join(","));
    let long = format!("[{}]", vec!["65"; 100_000].join(","));
    vec![
        case(TEXT, "{}", 400, "prompt"),
        case(TEXT, prompt("null"), 400, "prompt"),
        case(TEXT, prompt("7"), 400, "prompt"),
        case(TEXT, prompt("\"\""), 400, "prompt"),
        case(TEXT, prompt("[]"), 400, "prompt"),
        case(TEXT, prompt("[[]]"), 400, "prompt"),
        case(TEXT, prompt("[\"a\",7]"), 400, "prompt[1]"),
        case(TEXT, prompt("[7,\"a\"]"), 400, "prompt"),
        case(TEXT, prompt("[1000]"), 400, "prompt"),
        case(TEXT, prompt("[-1]"), 400, "prompt"),
        case(TEXT, prompt("[1.5]"), 400, "prompt"),
        case(TEXT, prompt("[[1],[2,1000]]"), 400, "prompt[1]"),
        case(TEXT, prompt(&many), 400, "prompt"),
        case(TEXT, prompt(&long), 400, "prompt"),
        case(TEXT, prompt(&format!("\"{}\"", "x".repeat(3_000_000))), 400, "prompt"),
        text_with("\"n\":100,\"prompt\":[\"a\",\"b\"]", 400, "n"),
        text_with("\"echo\":true", 400, "echo"),
        text_with("\"suffix\":\"x\"", 400, "suffix"),
        text_with("\"best_of\":4", 400, "best_of"),
        text_with("\"logprobs\":-1", 400, "logprobs"),
        text_with("\"logprobs\":true", 400, "logprobs"),
        text_with("\"max_tokens\":2047", 400, "max_tokens"),
        case("/tokenize", "{}", 400, "prompt"),
        case("/tokenize", prompt("7"), 400, "prompt"),
        case("/detokenize", "{}", 400, "tokens"),
        case("/detokenize", "{\"tokens\":[4294967295]}", 400, "tokens"),
        case("/detokenize", "{\"tokens\":\"1\"}", 400, "tokens"),
    ]
}

#[test]
fn every_bad_body_is_told_what_is_wrong_with_it() {
    let server = TestServer::mock(|_| ());
    let tables = [not_json(), bad_messages(), bad_numbers(), bad_options(), bad_prompts()];
    let cases: Vec<Case> = tables.into_iter().flatten().collect();
    assert!(cases.len() >= 60, "{} cases", cases.len());
    let headers = [("content-type", "application/json")];
    for (number, Case(path, body, status, param)) in cases.iter().enumerate() {
        let shown: String = body.chars().take(120).collect();
        let response = server.connect().request("POST", path, &headers, body.as_bytes());
        assert_eq!(response.status, *status, "{number} {path} {shown}: {}", response.text());
        let error = response.error();
        let found = error["param"].as_str().unwrap_or("");
        assert_eq!(found, *param, "{number} {path} {shown}: {error}");
        assert!(error["message"].as_str().unwrap().len() < 600, "{number} {path}: {error}");
    }
    server.finish();
}

#[test]
fn bodies_of_the_wrong_kind_or_size_are_refused() {
    let server = TestServer::mock(|settings| settings.http.max_body_kib = 64);
    let body = format!("{{{HI}}}");
    let ask = |headers: &[(&str, &str)], body: &[u8]| {
        server.connect().request("POST", CHAT, headers, body)
    };
    let json = ("content-type", "application/json");
    for (name, headers, body, status) in [
        ("form", vec![("content-type", "application/x-www-form-urlencoded")], body.as_bytes(), 415),
        ("text", vec![("content-type", "text/plain")], body.as_bytes(), 415),
        (
            "utf-16",
            vec![("content-type", "application/json; charset=utf-16")],
            body.as_bytes(),
            415,
        ),
        ("gzip", vec![json, ("content-encoding", "gzip")], b"\x1f\x8b\x08\x00".as_slice(), 415),
        ("latin-1", vec![json], b"{\"prompt\":\"caf\xe9\"}", 400),
        ("cut utf-8", vec![json], b"{\"prompt\":\"\xf0\x9f\x98", 400),
        ("overlong utf-8", vec![json], b"{\"prompt\":\"\xc0\xaf\"}", 400),
        ("nul bytes", vec![json], b"\0\0\0\0", 400),
        ("bom", vec![json], b"\xef\xbb\xbf{}", 400),
        ("large", vec![json], &[b' '; 70_000], 413),
    ] {
        let response = ask(&headers, body);
        assert_eq!(response.status, status, "{name}: {}", response.text());
        response.error();
    }
    let mut chunked = server.connect();
    chunked.send(format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").as_bytes());
    for _ in 0..20 {
        chunked.send(b"1000\r\n");
        chunked.send(&[b' '; 4096]);
        chunked.send(b"\r\n");
    }
    assert_eq!(chunked.response().map(|response| response.status), Some(413));
    server.finish();
}

#[test]
fn bodies_that_arrive_take_a_limited_memory() {
    // The bodies that arrive may take 4 MiB together, beside the first 32 KiB of each, so 128 of these bodies.
    let server = TestServer::mock(|settings| {
        settings.http.max_body_kib = 64;
        settings.http.request_timeout_ms = 120_000;
    });
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n");
    let begin = || {
        let mut connection = server.connect();
        connection.send(format!("{head}content-length: 65000\r\n\r\n").as_bytes());
        connection.send(&[b' '; 64 * 1024 - 768]);
        connection
    };
    let json = [("content-type", "application/json")];
    let large = [b" ".repeat(64_000), format!("{{{HI}}}").into_bytes()].concat();
    let ask = || server.connect().request("POST", CHAT, &json, &large);
    let mut arriving = Vec::new();
    let refused = loop {
        let response = ask();
        if response.status != 200 {
            break response;
        }
        assert!(arriving.len() < 1_000, "the memory is never full");
        arriving.extend((0..8).map(|_| begin()));
    };
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(refused.error()["code"], "bodies_full");
    assert!(refused.text().contains("http.max_body_kib"), "{}", refused.text());
    assert_eq!(refused.header("retry-after-ms"), Some("1000"));
    // A small body needs no memory, and a body that is complete gives its memory back.
    let small = server.connect().request("POST", CHAT, &json, format!("{{{HI}}}").as_bytes());
    assert_eq!(small.status, 200, "{}", small.text());
    let mut complete: Connection = arriving.remove(0);
    complete.send(&[b' '; 65_000 - (64 * 1024 - 768)]);
    assert_eq!(complete.response().map(|response| response.status), Some(400));
    assert_eq!(ask().status, 200);
    server.finish();
}

/// Checks that the server answers raw bytes with a 4xx status and an error body, or closes the connection.
fn refused_or_closed(name: &str, connection: &mut Connection) {
    let Some(response) = connection.response() else { return };
    assert!((400..500).contains(&response.status), "{name}: {response:?}");
    response.error();
}

#[test]
fn garbage_on_the_socket_is_refused_or_closed() {
    let server = TestServer::mock(|settings| {
        settings.http.request_timeout_ms = 1_200;
        settings.http.max_connections = 64;
    });
    let head = |extra: &str| format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\n{extra}\r\n").into_bytes();
    let json = "content-type: application/json\r\n";
    let raw: Vec<(&str, Vec<u8>)> = vec![
        ("binary", (0..=255).collect()),
        ("tls hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec()),
        ("http/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        ("no version", b"GET /health\r\n\r\n".to_vec()),
        ("http/9", b"GET /health HTTP/9.9\r\n\r\n".to_vec()),
        ("newlines", b"\n\n\n\n\n\n\n\n".to_vec()),
        ("endless line", vec![b'A'; 300_000]),
        ("endless header", [head("x: ")[..40].to_vec(), vec![b'y'; 300_000]].concat()),
        ("many headers", head(&"a: b\r\n".repeat(5000))),
        ("header without name", head(": v\r\n")),
        ("nul in header", b"GET /health HTTP/1.1\r\nhost: a\0b\r\n\r\n".to_vec()),
        ("negative length", head(&format!("{json}content-length: -1\r\n"))),
        ("wordy length", head(&format!("{json}content-length: many\r\n"))),
        ("huge length", head(&format!("{json}content-length: 99999999999999999999\r\n"))),
        ("two lengths", head(&format!("{json}content-length: 2\r\ncontent-length: 3\r\n"))),
        (
            "length and chunked",
            head(&format!("{json}content-length: 2\r\ntransfer-encoding: chunked\r\n")),
        ),
        (
            "bad chunk",
            [head(&format!("{json}transfer-encoding: chunked\r\n")), b"zz\r\n".to_vec()].concat(),
        ),
        (
            "huge chunk",
            [
                head(&format!("{json}transfer-encoding: chunked\r\n")),
                b"ffffffffffffffff\r\n".to_vec(),
            ]
            .concat(),
        ),
        (
            "body cut short",
            [head(&format!("{json}content-length: 500\r\n")), b"{\"mess".to_vec()].concat(),
        ),
        ("traversal", b"GET /../../etc/passwd HTTP/1.1\r\nhost: t\r\n\r\n".to_vec()),
        ("bad escape", b"GET /%zz%00 HTTP/1.1\r\nhost: t\r\n\r\n".to_vec()),
        ("connect", b"CONNECT example.org:443 HTTP/1.1\r\nhost: t\r\n\r\n".to_vec()),
        ("odd method", b"BREW /v1/chat/completions HTTP/1.1\r\nhost: t\r\n\r\n".to_vec()),
    ];
    for (name, bytes) in &raw {
        let mut connection = server.connect();
        connection.send(bytes);
        connection.finish_sending();
        refused_or_closed(name, &mut connection);
        // The same bytes are sent again, but the sending side stays open: because of its own timeouts, the server must
        // refuse the request or close the connection.
        let mut patient = server.connect();
        patient.send(bytes);
        refused_or_closed(name, &mut patient);
        // Send the same bytes and close the connection at once, without waiting for an answer.
        server.connect().send(bytes);
    }
    server.finish();
}

#[test]
fn slow_senders_are_cut_off_while_others_are_served() {
    let server = TestServer::mock(|settings| settings.http.request_timeout_ms = 1_200);
    let mut silent: Vec<Connection> = (0..20).map(|_| server.connect()).collect();
    let mut half_head: Vec<Connection> = (0..20).map(|_| server.connect()).collect();
    let mut half_body: Vec<Connection> = (0..20).map(|_| server.connect()).collect();
    for connection in &mut half_head {
        connection.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost:");
    }
    for connection in &mut half_body {
        connection.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{");
    }
    let answer = server.post(TEXT, &serde_json::json!({"prompt": "Hi"}));
    assert_eq!(answer.status, 200);
    for connection in &mut half_body {
        let response = connection.response().expect("a slow body is told so");
        assert_eq!(response.status, 408);
        response.error();
    }
    for connection in silent.iter_mut().chain(&mut half_head) {
        assert_eq!(connection.rest(), b"", "it is closed");
    }
    server.finish();
}
