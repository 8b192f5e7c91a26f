//! Tests of log lines about requests: one for each request with `--access-log`, and one for each refused request even
//! without it.

use crate::command::tiercel;
use crate::served::{Served, completion, status, without_figures};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

#[test]
fn with_an_access_log_every_request_has_a_line() {
    let served = Served::start(&["--access-log", "--set", "admission.max_requests=4"]);
    served.ask("POST", "/v1/completions", &completion(json!({})).to_string());
    let premium = completion(json!({"stream": true, "service_tier": "priority", "n": 2}));
    served.ask("POST", "/v1/completions", &premium.to_string());
    served.ask("POST", "/v1/completions", &completion(json!({"temperature": 9})).to_string());
    served.ask("POST", "/v1/embeddings", "{}");
    served.ask("GET", "/v1/models", "");
    served.ask("GET", "/health", "");
    served.ask(
        "POST",
        "/v1/completions",
        &completion(json!({"n": 5, "max_tokens": 1900})).to_string(),
    );
    // Compare the log lines in sorted order: the server writes a request's line when it drops the request, which may be
    // after the client has sent the next one.
    let lines = served.stop().into_iter().filter(|line| line.contains(" status="));
    let mut lines: Vec<String> = lines.map(|line| without_figures(&line)).collect();
    lines.sort();
    assert_eq!(
        lines,
        [
            "INFO GET /v1/models request_id=req-N status=200 total_ms=N",
            "INFO POST /v1/completions id=cmpl-N request_id=req-N tier=premium status=200 outcome=length prompt=1 \
             cached=0 output=6 ttft_ms=N tpot_ms=N total_ms=N",
            "INFO POST /v1/completions id=cmpl-N request_id=req-N tier=standard status=200 outcome=length prompt=1 \
             cached=0 output=3 ttft_ms=N tpot_ms=N total_ms=N",
            "INFO POST /v1/completions id=cmpl-N request_id=req-N tier=standard status=429 outcome=queue_full prompt=1 \
             output=0 total_ms=N",
            "INFO POST /v1/completions request_id=req-N status=400 outcome=invalid_value total_ms=N",
            "INFO POST /v1/embeddings request_id=req-N status=400 outcome=unsupported total_ms=N",
            "INFO refused POST /v1/completions: the server holds as many requests as admission.max_requests allows (4, 0 of \
             them reserved for tiers above standard); retry in N s request_id=req-N \
             tier=standard status=429 outcome=queue_full prompt=1",
        ]
    );
}

#[test]
fn refusals_have_lines_without_an_access_log_and_a_storm_is_counted() {
    let served = Served::start(&["--set", "admission.max_requests=4"]);
    served.ask("POST", "/v1/completions", &completion(json!({})).to_string());
    let storm = 200;
    // The outputs are so long that no choice ends, and makes room, before the fifth choice is refused.
    let too_many = completion(json!({"n": 5, "max_tokens": 1900})).to_string();
    for _ in 0..storm {
        let (head, _) = served.ask("POST", "/v1/completions", &too_many);
        assert_eq!(status(&head), 429, "{head}");
    }
    let lines = served.stop();
    let told: Vec<&String> =
        lines.iter().filter(|line| line.starts_with("INFO refused ")).collect();
    let left_out = |line: &String| {
        line.strip_prefix("INFO ")?
            .strip_suffix(" more requests were refused")?
            .parse::<usize>()
            .ok()
    };
    let counted: usize = lines.iter().filter_map(left_out).sum();
    assert_eq!(told.len() + counted, storm, "{lines:?}");
    assert!(!told.is_empty() && counted > 0, "{lines:?}");
    // Besides lines about refusals, the log must have three lines, about the shutdown: the signal, and the begin and
    // the end of the drain. Without an access log, the request that was served gets no line.
    let others = lines.len() - told.len() - lines.iter().filter_map(left_out).count();
    assert_eq!(others, 3, "{lines:?}");
}

#[test]
fn a_log_of_json_has_the_figures_of_each_request() {
    let args = ["serve", "--device", "mock:tiny", "--listen", "127.0.0.1:0", "--access-log"];
    let args = [&args[..], &["--control-listen", "off", "--log-format", "json"]].concat();
    let mut process = tiercel(&args).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let mut address = String::new();
    loop {
        let line = next();
        assert!(line["timestamp"].is_string() && line["level"].is_string(), "{line}");
        if let Some(listening) = line["address"].as_str() {
            address = listening.to_owned();
        }
        if line["message"].as_str().is_some_and(|message| message.starts_with("try it")) {
            break;
        }
    }
    let mut socket = TcpStream::connect(&address).unwrap();
    let body = completion(json!({"service_tier": "flex"})).to_string();
    let length = body.len();
    write!(
        socket,
        "POST /v1/completions HTTP/1.1\r\nhost: t\r\nconnection: close\r\nx-request-id: job-1\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    socket.read_to_end(&mut Vec::new()).unwrap();
    let line = loop {
        let line = next();
        if line["request_id"] == "job-1" {
            break line;
        }
    };
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(line["message"], "POST /v1/completions");
    assert_eq!((&line["tier"], &line["outcome"]), (&json!("background"), &json!("length")));
    assert_eq!((&line["status"], &line["output"]), (&json!(200), &json!(3)));
    assert_eq!((&line["prompt"], &line["cached"]), (&json!(1), &json!(0)));
    for time in ["ttft_ms", "tpot_ms", "total_ms"] {
        assert!(line[time].as_f64().is_some_and(|ms| ms > 0.0), "{time}: {line}");
    }
}

#[test]
fn a_client_that_leaves_is_told_apart_from_one_that_is_served() {
    let served = Served::start(&["--access-log"]);
    let body = completion(json!({"max_tokens": 1900, "stream": true})).to_string();
    let mut socket = TcpStream::connect(&served.address).unwrap();
    write!(
        socket,
        "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut some = [0; 64];
    assert!(socket.read(&mut some).unwrap() > 0);
    drop(socket);
    let lines = served.stop();
    let line = lines.iter().find(|line| line.contains("/v1/completions")).unwrap();
    assert!(line.contains(" status=200 outcome=cancelled prompt=1 output="), "{line}");
}
