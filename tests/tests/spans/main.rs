//! Tests of the spans that the real program exports to a collector of OpenTelemetry.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

mod collector;

use collector::{Collector, attribute};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpListener;
use tempfile::NamedTempFile;
use tiercel_device::Clock;
use tiercel_tests::{Connection, Program};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tiercel-program");
/// Prompt of the long answers, a word that is nowhere else.
const PROMPT: &str = "quetzalcoatlus";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";
/// Ids of requests whose client names a span, and the flags of the span: sampled or not.
const CALLED: [(&str, &str); 2] = [("background", "01"), ("unsampled", "00")];
/// A limit of the requests in the engine, far above what the tests send but for one request with more choices.
const PLACES: &str = "admission.max_requests=16";
/// Name and label, in `/metrics`, of the counter of requests whose spans were dropped.
const DROPPED: &str = "tiercel_span_exports_total{result=\"dropped\"}";
/// Most requests until the queue of ended requests is full: far more than its limit of 1,024.
const MOST_REQUESTS: u32 = 20_000;

fn toml(text: &str) -> NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// Profile of a mock device with steps of 4 ms and 24 blocks of 16 tokens: a long answer and a long prompt do not both
/// fit. Blocks are copied faster than they are computed.
fn small() -> NamedTempFile {
    toml(
        "name = \"small\"\nstep_base_us = 4000.0\ndecode_token_us = 1.0\nprefill_token_us = 20.0\n\
         kv_token_us = 0.0\nprefill_context_us = 0.0\nprefill_step_us = 0.0\nlink_bytes_per_s = 1e9\n\
         kv_bytes_per_token = 4000\nblock_size = 16\ndevice_blocks = 24\nhost_blocks = 64\n\
         vocab_size = 1000\nmax_model_len = 384\nmax_steps_in_flight = 2\n",
    )
}

/// Replies: a text of about 180 tokens to `PROMPT`, and a short one to anything else.
fn replies() -> NamedTempFile {
    let long: String = (0..45).map(|i| format!("line {i} of the text\n")).collect();
    toml(&format!(
        "[[reply]]\nexact = '{PROMPT}'\ntext = '''\n{long}'''\n[[reply]]\ntext = 'Urgent answer.'\n"
    ))
}

fn path(file: &NamedTempFile) -> &str {
    file.path().to_str().unwrap()
}

/// Sends a chat request whose id is `id`, and returns the connection on which the answer comes.
fn ask(server: &Program, id: &str, question: &str, more: Value) -> Connection {
    let mut body = json!({"messages": [{"role": "user", "content": question}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let mut headers = vec![("content-type", "application/json"), ("x-request-id", id)];
    let flags = CALLED.iter().find(|(called, _)| *called == id).map(|(_, flags)| flags);
    let parent = flags.map(|flags| format!("00-{TRACE}-{CALLER}-{flags}"));
    headers.extend(parent.iter().map(|parent| ("traceparent", parent.as_str())));
    headers.extend(parent.iter().map(|_| ("tracestate", "vendor=1")));
    let mut connection = Connection::open(server.address());
    let body = body.to_string();
    connection.send_request("POST", "/v1/chat/completions", &headers, body.as_bytes());
    connection
}

/// Reads the answer's stream up to its first text.
fn read_some(connection: &mut Connection) {
    assert_eq!(connection.head().unwrap().status, 200);
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains("line") {
        read.extend(connection.chunk().unwrap());
    }
}

/// Drains the server and waits until it has ended. Returns its log.
fn stop(server: Program) -> String {
    let drain = server.ctl(&["drain"]);
    assert!(drain.status.success(), "{}", String::from_utf8_lossy(&drain.stderr));
    server.log().join("\n")
}

/// Serves a stream that a premium request preempts, a stream whose client leaves, a wrong request, a request that is
/// refused because it has more choices than the server has places, and one that its client does not sample. Returns the
/// collector when the server has ended.
fn collect() -> Collector {
    let collector = Collector::start("200 OK");
    let (profile, replies) = (small(), replies());
    let device = format!("mock:{}", path(&profile));
    let args = ["--device", &device, "--replies", path(&replies), "--set", PLACES];
    let args = [&args[..], &["--preemption-mode", "swap"]].concat();
    let server =
        Program::serve_in(PROGRAM, &args, &[("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url())]);
    let flex = json!({"stream": true, "service_tier": "flex"});
    let mut background = ask(&server, "background", PROMPT, flex.clone());
    read_some(&mut background);
    let priority = json!({"service_tier": "priority"});
    let urgent = ask(&server, "urgent", &"x".repeat(345), priority).response().unwrap();
    assert_eq!(urgent.status, 200, "{}", urgent.text());
    while background.chunk().is_some_and(|chunk| !chunk.is_empty()) {}
    let mut left = ask(&server, "left", PROMPT, flex);
    read_some(&mut left);
    drop(left);
    for (id, more, status) in [
        ("wrong", json!({"n": "many"}), 400),
        ("refused", json!({"n": 20}), 429),
        ("unsampled", json!({"max_tokens": 2}), 200),
    ] {
        // The places of the refused choices are free a moment after their client has its answer.
        let clock = Clock::wall();
        let start = clock.now();
        let answer = loop {
            let answer = ask(&server, id, PROMPT, more.clone()).response().unwrap();
            let full = id == "unsampled" && answer.status == 429;
            if !full || clock.now().since_us(start) > 5_000_000 {
                break answer;
            }
        };
        assert_eq!(answer.status, status, "{id}: {}", answer.text());
    }
    stop(server);
    collector
}

/// Returns the span of a request, and the spans in it in the order of their times.
fn of_request<'a>(spans: &'a [Span], id: &str) -> (&'a Span, Vec<&'a Span>) {
    let is_root = |span: &&Span| attribute(span, "tiercel.request_id").as_deref() == Some(id);
    let root = spans.iter().find(is_root).unwrap_or_else(|| panic!("no span of {id}"));
    let mut inside: Vec<_> =
        spans.iter().filter(|span| span.parent_span_id == root.span_id).collect();
    inside.sort_by_key(|span| span.start_time_unix_nano);
    (root, inside)
}

fn names<'a>(spans: &[&'a Span]) -> Vec<&'a str> {
    spans.iter().map(|span| span.name.as_str()).collect()
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn spans_tell_the_life_of_each_request_and_none_of_its_text() {
    let collector = collect();
    let (services, spans) = collector.spans();
    assert!(!services.is_empty() && services.iter().all(|name| name == "tiercel"), "{services:?}");
    let ids: std::collections::BTreeSet<_> = spans.iter().map(|span| &span.span_id).collect();
    assert_eq!(ids.len(), spans.len(), "ids of spans are unique");

    let (root, inside) = of_request(&spans, "background");
    assert_eq!((hex(&root.trace_id), hex(&root.parent_span_id)), (TRACE.into(), CALLER.into()));
    assert_eq!((root.kind(), root.name.as_str()), (SpanKind::Server, "POST /v1/chat/completions"));
    assert_eq!((root.flags & 1, root.trace_state.as_str()), (1, "vendor=1"));
    let known = |name| attribute(root, name);
    assert_eq!(known("gen_ai.request.model"), known("gen_ai.response.model"));
    assert!(known("gen_ai.request.model").is_some_and(|name| !name.is_empty()));
    assert_eq!(known("gen_ai.request.stream").as_deref(), Some("true"));
    assert_eq!(known("gen_ai.operation.name").as_deref(), Some("chat"));
    assert_eq!(known("gen_ai.response.finish_reasons").as_deref(), Some("stop"));
    assert_eq!(known("tiercel.tier").as_deref(), Some("background"));
    assert_eq!(known("http.response.status_code").as_deref(), Some("200"));
    assert!(known("gen_ai.usage.output_tokens").unwrap().parse::<u32>().unwrap() > 100);
    assert!(known("tiercel.ttft_ms").is_some() && known("error.type").is_none());
    let lived = ["queue", "prefill", "decode", "preempted", "copying", "decode"];
    assert_eq!(names(&inside)[..6], lived);
    assert_eq!(inside.last().unwrap().name, "decode");
    assert_eq!(attribute(inside[3], "tiercel.preemption.strategy").as_deref(), Some("swap"));
    for pair in inside.windows(2) {
        assert_eq!(pair[0].end_time_unix_nano, pair[1].start_time_unix_nano, "no gap");
    }
    for span in &inside {
        assert_eq!(span.trace_id, root.trace_id);
        assert_eq!(attribute(span, "tiercel.choice").as_deref(), Some("0"));
        let times = [
            root.start_time_unix_nano,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            root.end_time_unix_nano,
        ];
        assert!(times.is_sorted(), "{}: {times:?}", span.name);
    }
    let ended_s = root.end_time_unix_nano / 1_000_000_000;
    assert!(Clock::unix_s().abs_diff(ended_s) < 3600, "times are those of the wall clock");

    let (root, inside) = of_request(&spans, "urgent");
    assert_eq!(names(&inside), ["queue", "prefill", "decode"]);
    assert!(root.parent_span_id.is_empty() && hex(&root.trace_id) != TRACE);
    let (root, inside) = of_request(&spans, "left");
    assert_eq!(attribute(root, "tiercel.outcome").as_deref(), Some("cancelled"));
    assert_eq!(names(&inside), ["queue", "prefill", "decode"]);
    for (id, status, outcome) in
        [("wrong", "400", "invalid_type"), ("refused", "429", "queue_full")]
    {
        let (root, _) = of_request(&spans, id);
        let known = |name| attribute(root, name);
        assert_eq!(known("http.response.status_code").as_deref(), Some(status));
        assert_eq!(known("tiercel.outcome").as_deref(), Some(outcome));
        let code = root.status.as_ref().map_or(StatusCode::Unset, |status| status.code());
        assert_eq!(
            (code, known("error.type")),
            (StatusCode::Unset, None),
            "no fault of the server"
        );
    }
    let unsampled =
        |span: &Span| attribute(span, "tiercel.request_id").as_deref() == Some("unsampled");
    assert!(!spans.iter().any(unsampled), "its client does not sample it");

    let bytes = collector.bytes();
    for text in [PROMPT, "xxxx", "of the text", "Urgent"] {
        let found = bytes.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(!found, "{text} is in the spans");
    }
}

/// Returns the number of requests whose spans were dropped.
fn dropped(server: &Program) -> u64 {
    let metrics = Connection::open(server.address()).request("GET", "/metrics", &[], b"").text();
    let mut lines = metrics.lines();
    let line = lines.find_map(|line| line.strip_prefix(DROPPED)).expect(&metrics);
    line.trim().parse().unwrap()
}

#[test]
fn a_collector_that_never_answers_costs_spans_and_delays_neither_requests_nor_the_end() {
    // The kernel accepts connections to this listener, and nobody reads what comes.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str())];
    let server = Program::serve_in(PROGRAM, &["--device", "mock:tiny"], &variables);
    assert_eq!(dropped(&server), 0);
    let mut answered = 0;
    // All these requests are served while the first ones wait for the collector: the queue of their spans fills up,
    // though the thread that sends spans gives up on a batch from time to time.
    while dropped(&server) == 0 {
        assert!(answered < MOST_REQUESTS, "the queue of ended requests has a limit");
        for _ in 0..100 {
            let answer = ask(&server, "served", "x", json!({"max_tokens": 1})).response();
            assert_eq!(answer.unwrap().status, 200);
            answered += 1;
        }
    }
    let log = stop(server);
    assert!(log.contains("requests end faster than their spans are sent"), "{log}");
    assert!(log.contains("the last spans were not all sent"), "{log}");
}

#[test]
fn the_log_tells_once_that_the_collector_does_not_take_spans() {
    let collector = Collector::start("400 Bad Request");
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url())];
    let server = Program::serve_in(PROGRAM, &["--device", "mock:tiny"], &variables);
    // The spans of each request are sent before the server takes the next request.
    for number in 1..3 {
        let answer = ask(&server, "served", "x", json!({"max_tokens": 1})).response();
        assert_eq!(answer.unwrap().status, 200);
        while collector.requests() < number {
            std::thread::yield_now();
        }
    }
    let log = stop(server);
    assert_eq!(log.matches("the collector does not take spans").count(), 1, "{log}");
    assert!(log.contains("400") && !log.contains("were not all sent"), "{log}");
}

#[test]
fn a_server_that_cannot_use_the_name_of_its_collector_says_so_and_does_not_start() {
    let mut command = std::process::Command::new(PROGRAM);
    command.args(["serve", "--device", "mock:tiny", "--listen", "127.0.0.1:0"]);
    command.args(["--control-listen", "127.0.0.1:0"]);
    let output = command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://[").output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && log.contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "{log}");
}
