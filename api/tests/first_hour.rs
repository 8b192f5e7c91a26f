//! The first hour with the server: what it says when it starts, when it is started wrongly, when it is asked
//! for what it does not have, and when it refuses. Word for word: people and programs act on these texts.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

mod command;

use command::{failure, run, tiercel};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Stdio};

/// A served mock device, and what it has logged.
struct Served {
    process: Child,
    log: BufReader<ChildStderr>,
    address: String,
    /// The lines of the start, without the time; the address is written ADDRESS.
    start: Vec<String>,
}

impl Served {
    fn start(args: &[&str]) -> Served {
        let all = [&["serve", "--device", "mock:tiny", "--listen", "127.0.0.1:0"], args].concat();
        let mut process = tiercel(&all).stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(process.stderr.take().unwrap());
        let mut served = Served { process, log, address: String::new(), start: Vec::new() };
        loop {
            let line = served.line();
            if let Some((_, address)) = line.split_once("address=") {
                served.address = address.to_owned();
            }
            let line = line.replace(&served.address, "ADDRESS");
            let last = line.starts_with("curl ");
            served.start.push(line);
            if last {
                return served;
            }
        }
    }

    /// The next line of the log, without the time.
    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.log.read_line(&mut line).unwrap() > 0, "it ended: {:?}", self.start);
        let line = line.trim_end();
        line.split_once("Z ").map_or(line, |(_, rest)| rest).trim_start().to_owned()
    }

    /// Sends a request and returns the head and the body of the answer.
    fn ask(&self, method: &str, path: &str, body: &str) -> (String, String) {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        write!(
            socket,
            "{method} {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    /// Status, code and message of the error that a request is answered with.
    fn error(&self, method: &str, path: &str, body: &Value) -> (u16, String, String) {
        let (head, body) = self.ask(method, path, &body.to_string());
        let error: Value = serde_json::from_str(&body).unwrap();
        let text = |field: &str| error["error"][field].as_str().unwrap().to_owned();
        (status(&head), text("code"), text("message"))
    }

    /// Stops the server and returns the rest of its log, without times.
    fn stop(mut self) -> Vec<String> {
        let kill = format!("kill -TERM {}", self.process.id());
        assert!(std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        let mut lines = Vec::new();
        loop {
            let line = self.line();
            if line == "INFO stopped" {
                return lines;
            }
            lines.push(line);
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It has ended, unless the test failed before.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn status(head: &str) -> u16 {
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

fn completion(extra: Value) -> Value {
    let mut body = json!({"prompt": "x", "max_tokens": 3, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// Times and ids are written N.
fn without_figures(line: &str) -> String {
    let mut line = line.to_owned();
    for mark in ["ttft_ms=", "total_ms=", "id=cmpl-", "retry in "] {
        if let Some((before, after)) = line.split_once(mark) {
            let rest = after.split_once(' ').map_or(String::new(), |(_, rest)| format!(" {rest}"));
            line = format!("{before}{mark}N{rest}");
        }
    }
    line
}

#[test]
fn what_is_said_about_a_wrong_command_line() {
    let one_line = [
        (
            &["serve", "--listen", "8080"][..],
            "tiercel: --listen: http.listen = \"8080\" is not allowed: expected HOST:PORT; did you \
             mean 127.0.0.1:8080?",
        ),
        (
            &["serve", "--listen", ":8080"],
            "tiercel: --listen: http.listen = \":8080\" is not allowed: expected HOST:PORT; did you \
             mean 0.0.0.0:8080?",
        ),
        (
            &["serve", "--listen", "http://localhost:8080/v1"],
            "tiercel: --listen: http.listen = \"http://localhost:8080/v1\" is not allowed: expected \
             HOST:PORT; did you mean localhost:8080?",
        ),
        (
            &["serve", "--set", "scheduler.polcy=fcfs"],
            "tiercel: --set: unknown setting scheduler.polcy; did you mean scheduler.policy?",
        ),
        (
            &["serve", "--set", "port=8080"],
            "tiercel: --set: unknown setting port; did you mean http.listen?",
        ),
        (
            &["serve", "--set", "http.api_key=secret"],
            "tiercel: --set: unknown setting http.api_key; did you mean http.api_keys?",
        ),
        (
            &["serve", "--set", "ttft_ms=150"],
            "tiercel: --set: unknown setting ttft_ms; did you mean slo.premium.ttft_ms, \
             slo.standard.ttft_ms or slo.background.ttft_ms?",
        ),
        (
            &["serve", "--set", "favourite_colour=blue"],
            "tiercel: --set: unknown setting favourite_colour; docs/configuration.md lists them all",
        ),
        (
            &["serve", "--set", "http.listen"],
            "tiercel: --set: http.listen has no value; write --set http.listen=VALUE, where VALUE is \
             HOST:PORT",
        ),
        (
            &["serve", "--served-name", "a", "--served-name", "a"],
            "tiercel: model.served_name: holds a name twice; remove one of them",
        ),
    ];
    for (args, expected) in one_line {
        assert_eq!(failure(args), (2, expected.to_owned()), "{args:?}");
    }
    let listen = "error: unexpected argument '--NAME' found\n\n  tip: a similar argument exists: \
                  '--listen'\n  tip: --listen takes both, such as --listen 0.0.0.0:8080\n\n";
    let several = [
        (&["serve", "--host", "0.0.0.0"][..], listen.replace("NAME", "host <host>")),
        (&["serve", "--port", "8080"], listen.replace("NAME", "port <port>")),
        (
            &["serve", "--api-key", "secret"],
            "error: unexpected argument '--api-key <api-key>' found\n\n  tip: keys are a setting: \
             TIERCEL_HTTP_API_KEYS=KEY in the environment, or api_keys = [\"KEY\"] under [http] in a \
             file for --config\n\n"
                .to_owned(),
        ),
        (
            &["serve", "--served-model-name", "a"],
            "error: unexpected argument '--served-model-name <served-model-name>' found\n\n  tip: a \
             similar argument exists: '--served-name'\n\n"
                .to_owned(),
        ),
    ];
    for (args, expected) in several {
        let output = run(args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with(&expected), "{args:?}: {said}");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn the_start_ends_with_url_targets_and_a_command() {
    let served = Served::start(&[]);
    let ready = served.start.iter().position(|line| line.starts_with("INFO ready")).unwrap();
    assert_eq!(
        served.start[ready..],
        [
            "INFO ready model=\"mock-tiny\" url=\"http://ADDRESS\"",
            "INFO targets of premium: first token within 1.3 ms and 0.00375 ms a prompt token beyond 224, 0.5 ms a token, all within 74.2 ms",
            "INFO targets of standard: first token within 3.3 ms and 0.00994 ms a prompt token beyond 224, 1.2 ms a token, all within 196 ms",
            "INFO targets of background: all within 785 ms",
            "INFO try it:",
            "curl -N http://ADDRESS/v1/chat/completions -H 'Content-Type: application/json' -d \
             '{\"stream\": true, \"temperature\": 0, \"max_tokens\": 256, \"messages\": [{\"role\": \
             \"user\", \"content\": \"Why is the sky blue?\"}]}'",
        ]
    );
    let body_of = |text: &str| {
        let body = text.split_once("-d '").unwrap().1.split_once('\'').unwrap().0;
        let streamed: Value = serde_json::from_str(body).unwrap();
        assert_eq!(streamed["stream"], true);
        (body.to_owned(), streamed)
    };
    // The README asks the same, as premium.
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
    let readme = body_of(&std::fs::read_to_string(readme).unwrap());
    let (said, mut asked) = body_of(served.start.last().unwrap());
    for body in [&said, &readme.0] {
        let (head, answer) = served.ask("POST", "/v1/chat/completions", body);
        assert_eq!(status(&head), 200, "{answer}");
        assert!(answer.contains("data: [DONE]"), "{answer}");
    }
    asked["service_tier"] = json!("priority");
    assert_eq!(readme.1, asked);
    assert_eq!(
        served.stop(),
        ["INFO shutting down; a second signal exits at once signal=\"SIGTERM\""]
    );

    let keyed = Served::start(&["--set", "http.api_keys=k"]);
    let command = keyed.start.last().unwrap();
    assert!(command.contains("-H \"Authorization: Bearer $TIERCEL_API_KEY\""), "{command}");
}

#[test]
fn what_is_answered_to_requests_that_cannot_be_served() {
    let served =
        Served::start(&["--served-name", "a", "--served-name", "b", "--max-model-len", "64"]);
    let chat = |extra: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Hello"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let long = "x".repeat(65);
    let (completions, chats) = ("/v1/completions", "/v1/chat/completions");
    let too_many = "This model's maximum context length is 64 tokens. However, you requested 101 tokens \
                    (1 in the prompt, 100 in the completion). Please reduce the length of the prompt, or \
                    ask for at most 63 with 'max_tokens'. (context_length_exceeded)";
    let too_long = "This model's maximum context length is 64 tokens, which is at most 64 bytes. \
                    However, your prompt resulted in 65 bytes. Please reduce the length of the prompt. \
 (context_length_exceeded)";
    let full = "This model's maximum context length is 64 tokens. However, your prompt resulted in 64 \
                tokens, which leaves none for the completion. Please reduce the length of the prompt. \
 (context_length_exceeded)";
    let table = [
        (
            "POST",
            completions,
            completion(json!({"max_tokens": 100})),
            400,
            "context_length_exceeded",
            too_many,
        ),
        (
            "POST",
            completions,
            completion(json!({"max_tokens": 100, "stream": true})),
            400,
            "context_length_exceeded",
            too_many,
        ),
        (
            "POST",
            completions,
            completion(json!({"prompt": long})),
            400,
            "context_length_exceeded",
            too_long,
        ),
        (
            "POST",
            completions,
            completion(json!({"prompt": vec![7; 64], "stream": true})),
            400,
            "context_length_exceeded",
            full,
        ),
        (
            "POST",
            chats,
            chat(json!({"max_completion_tokens": 100, "stream": true})),
            400,
            "context_length_exceeded",
            "This model's maximum context length is 64 tokens. However, you requested 123 tokens (23 in \
             the messages, 100 in the completion). Please reduce the length of the messages, or ask for \
             at most 41 with 'max_completion_tokens'. (context_length_exceeded)",
        ),
        (
            "POST",
            "/v1/embeddings",
            json!({"model": "a", "input": "x"}),
            400,
            "unsupported",
            "/v1/embeddings is not supported: this server generates text; ask a server of a model that \
             is made for it",
        ),
        (
            "POST",
            "/v1/responses",
            json!({"model": "a", "input": "x"}),
            400,
            "unsupported",
            "/v1/responses is not supported: use POST /v1/chat/completions with the whole conversation \
             in `messages`",
        ),
        (
            "POST",
            "/v1/batches",
            json!({}),
            400,
            "unsupported",
            "/v1/batches is not supported: send the requests themselves to POST /v1/chat/completions; \
             `\"service_tier\": \"flex\"` is for work that can wait",
        ),
        (
            "POST",
            "/v1/audio/speech",
            json!({}),
            400,
            "unsupported",
            "/v1/audio/speech is not supported: this server generates text only",
        ),
        (
            "POST",
            chats,
            chat(json!({"model": "gpt-4"})),
            404,
            "model_not_found",
            "the model \"gpt-4\" does not exist; this server has \"a\", \"b\"",
        ),
        ("GET", "/nowhere", json!({}), 404, "unknown_url", "there is nothing at GET /nowhere"),
        (
            "GET",
            "/",
            json!({}),
            404,
            "unknown_url",
            "there is nothing at GET /; the API is below /v1, such as /v1/models",
        ),
        (
            "POST",
            "/chat/completions",
            chat(json!({})),
            404,
            "unknown_url",
            "there is nothing at POST /chat/completions; did you mean /v1/chat/completions? The base URL \
             of clients ends with /v1",
        ),
        (
            "POST",
            "/v1/models",
            json!({}),
            405,
            "method_not_allowed",
            "/v1/models takes GET, HEAD, not POST",
        ),
    ];
    for (method, path, body, status, code, message) in table {
        let found = served.error(method, path, &body);
        assert_eq!(found, (status, code.to_owned(), message.to_owned()), "{method} {path} {body}");
    }
    // LiteLLM and OpenHands look for the sentence in the message; LangChain looks for the code, and with the openai
    // package of today finds it there alone.
    for message in [too_many, too_long, full] {
        assert!(message.contains("This model's maximum context length is"), "{message}");
        assert!(message.contains("context_length_exceeded"), "{message}");
    }
}

#[test]
fn every_name_is_listed_accepted_and_given_back() {
    let served = Served::start(&["--served-name", "a", "--served-name", "org/b"]);
    let json = |answer: (String, String)| serde_json::from_str::<Value>(&answer.1).unwrap();
    let models = json(served.ask("GET", "/v1/models", ""));
    let ids: Vec<&str> = models["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["a", "org/b"]);
    assert_eq!(json(served.ask("GET", "/v1/models/org/b", ""))["id"], "org/b");
    for (asked, given) in [(json!("a"), "a"), (json!("org/b"), "org/b"), (Value::Null, "a")] {
        let body = completion(json!({"model": asked}));
        let answer = json(served.ask("POST", "/v1/completions", &body.to_string()));
        assert_eq!(answer["model"], given);
        let body = completion(json!({"model": asked, "stream": true}));
        let (_, stream) = served.ask("POST", "/v1/completions", &body.to_string());
        assert!(stream.contains(&format!("\"model\":\"{given}\"")), "{stream}");
    }
}

#[test]
fn head_is_get_without_a_body() {
    let served = Served::start(&[]);
    for path in ["/v1/models", "/v1/models/mock-tiny", "/health"] {
        let (get, body) = served.ask("GET", path, "");
        let (head, nothing) = served.ask("HEAD", path, "");
        let without_date = |head: &str| {
            let lines: Vec<&str> = head.lines().filter(|line| !line.starts_with("date:")).collect();
            lines.join("\n")
        };
        assert_eq!((status(&head), nothing.as_str()), (200, ""), "{path}");
        assert_eq!(without_date(&head), without_date(&get), "{path}");
        assert!(get.contains(&format!("content-length: {}", body.len())), "{path}: {get}");
    }
    let (metrics, nothing) = served.ask("HEAD", "/metrics", "");
    assert_eq!((status(&metrics), nothing.as_str()), (200, ""));
}

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
    served.ask("POST", "/v1/completions", &completion(json!({"n": 5})).to_string());
    let lines: Vec<String> = served.stop().iter().map(|line| without_figures(line)).collect();
    assert_eq!(
        lines[..lines.len() - 1],
        [
            "INFO POST /v1/completions id=cmpl-N tier=standard status=200 outcome=length prompt=1 \
             cached=0 output=3 ttft_ms=N total_ms=N",
            "INFO POST /v1/completions id=cmpl-N tier=premium status=200 outcome=length prompt=1 \
             cached=0 output=6 ttft_ms=N total_ms=N",
            "INFO POST /v1/completions status=400 outcome=invalid_value total_ms=N",
            "INFO POST /v1/embeddings status=400 outcome=unsupported total_ms=N",
            "INFO GET /v1/models status=200 total_ms=N",
            "INFO POST /v1/completions id=cmpl-N tier=standard status=429 outcome=queue_full prompt=1 \
             output=0 total_ms=N",
            "INFO refused POST /v1/completions: the server holds its 4 requests (0 places are kept for \
             tiers above standard); retry in N s tier=standard status=429 outcome=queue_full prompt=1",
        ]
    );
}

#[test]
fn refusals_have_lines_without_an_access_log_and_a_storm_is_counted() {
    let served = Served::start(&["--set", "admission.max_requests=4"]);
    served.ask("POST", "/v1/completions", &completion(json!({})).to_string());
    let storm = 200;
    for _ in 0..storm {
        let (head, _) =
            served.ask("POST", "/v1/completions", &completion(json!({"n": 5})).to_string());
        assert_eq!(status(&head), 429);
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
    // Nothing else: the request that was served has no line.
    let others = lines.len() - told.len() - lines.iter().filter_map(left_out).count();
    assert_eq!(others, 1, "{lines:?}");
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
