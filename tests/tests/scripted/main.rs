//! Tests of the real program on a mock device with replies: which reply answers a request, how the reply is streamed,
//! and that neither preemptions nor faults change the reply.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

mod faults;
mod preempted;
mod recorded;

use serde_json::{Value, json};
use std::io::Write;
use std::process::Command;
use tempfile::NamedTempFile;
use tiercel_config::{DeviceKind, ServerSettings};
use tiercel_tests::{Connection, Program, TestServer, events};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tiercel-program");

const REPLIES: &str = r#"
[[reply]]
contains = "weather in Paris"
turn = 1
text = '''
<think>
I need the tool.
</think>
<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>'''

[[reply]]
contains = "weather in Paris"
turn = 2
text = "It is 21 °C and sunny ☀️🌦 in Paris."

[[reply]]
exact = "Cut me off"
text = "This answer is cut off in the mid"
finish = "length"

[[reply]]
regex = '(?i)^once upon'
text = " a time there was a mock."

[[reply]]
text = "I do not know."
"#;

/// Writes a temporary TOML file.
fn toml(text: &str) -> NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// Starts a server in the test's process, on a mock device with these replies.
fn start(replies: &NamedTempFile, adjust: impl FnOnce(&mut ServerSettings)) -> TestServer {
    TestServer::mock(|settings| {
        settings.mock.replies_file = Some(replies.path().to_str().unwrap().to_owned());
        adjust(settings);
    })
}

/// Configures a server that is so slow that a test can act between two tokens, with a device pool of 24 blocks of 16
/// tokens. Returns the file of the mock device's profile.
fn slow_and_small(settings: &mut ServerSettings) -> NamedTempFile {
    let profile = toml(
        "name = \"small\"\nstep_base_us = 4000.0\ndecode_token_us = 1.0\nprefill_token_us = 1.0\n\
         kv_token_us = 0.0\nprefill_context_us = 0.0\nprefill_step_us = 0.0\nlink_bytes_per_s = 1e9\n\
         kv_bytes_per_token = 4000\nblock_size = 16\ndevice_blocks = 24\nhost_blocks = 64\n\
         vocab_size = 1000\nmax_model_len = 384\nmax_steps_in_flight = 2\n",
    );
    settings.device.kind = DeviceKind::Mock(profile.path().to_str().unwrap().to_owned());
    profile
}

/// Returns the text pieces of the choices of an event stream, and the finish reason.
fn streamed(body: &[u8]) -> (Vec<String>, Option<String>) {
    let (mut pieces, mut finish) = (Vec::new(), None);
    for event in events(body).iter().filter(|event| *event != "[DONE]") {
        let choice = &serde_json::from_str::<Value>(event).unwrap()["choices"][0];
        let piece = choice["delta"]["content"].as_str().unwrap_or_default();
        if !piece.is_empty() {
            pieces.push(piece.to_owned());
        }
        finish = choice["finish_reason"].as_str().map(str::to_owned).or(finish);
    }
    (pieces, finish)
}

fn asks(question: &str) -> Value {
    json!({"messages": [{"role": "user", "content": question}]})
}

fn serve(replies: &NamedTempFile, more: &[&str]) -> Program {
    let path = replies.path().to_str().unwrap();
    let args = ["--device", "mock:tiny", "--replies", path];
    Program::serve(PROGRAM, &[&args, more].concat())
}

fn chat(server: &Program, messages: Value) -> Value {
    let body = json!({"messages": messages});
    let response = Connection::open(server.address()).post("/v1/chat/completions", &body);
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

#[test]
fn prompts_are_answered_with_the_replies_that_match() {
    let server = serve(&toml(REPLIES), &[]);
    let asked = json!({"role": "user", "content": "What is the weather in Paris?"});
    let call = chat(&server, json!([{"role": "system", "content": "Be brief."}, asked]));
    assert!(call.to_string().contains("get_weather"), "{call}");
    let history = json!([
        asked,
        {"role": "assistant", "content": "<tool_call>"},
        {"role": "tool", "content": "21", "tool_call_id": "a"},
    ]);
    let answer = chat(&server, history);
    assert_eq!(content(&answer), "It is 21 °C and sunny ☀️🌦 in Paris.");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let cut = chat(&server, json!([{"role": "user", "content": "Cut me off"}]));
    assert_eq!(content(&cut), "This answer is cut off in the mid");
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert_eq!(
        content(&chat(&server, json!([{"role": "user", "content": "x"}]))),
        "I do not know."
    );
    let body = json!({"prompt": "Once upon", "max_tokens": 100, "n": 2, "seed": 7});
    let text = Connection::open(server.address()).post("/v1/completions", &body).json();
    for choice in text["choices"].as_array().unwrap() {
        assert_eq!(choice["text"], " a time there was a mock.");
    }
}

#[test]
fn a_reply_is_streamed_in_pieces_like_those_of_models() {
    let server = serve(&toml(REPLIES), &[]);
    let body = json!({"stream": true, "messages": [
        {"role": "user", "content": "weather in Paris"}, {"role": "assistant", "content": "call"},
        {"role": "tool", "content": "21"},
    ]});
    let response = Connection::open(server.address()).post("/v1/chat/completions", &body);
    let (pieces, finish) = streamed(&response.body);
    assert_eq!(pieces.concat(), "It is 21 °C and sunny ☀️🌦 in Paris.");
    assert_eq!(pieces[..3], ["It", " is", " "]);
    assert!(pieces.iter().all(|piece| piece != "\u{fffd}"), "{pieces:?}");
    assert_eq!(finish.as_deref(), Some("stop"));
}

#[test]
fn a_reply_that_a_grammar_allows_is_given_and_another_is_left_where_it_breaks_the_grammar() {
    let fits = r#"{"city": "Köln", "days": [1, 2]}"#;
    let replies = toml(&format!(
        "[[reply]]\nexact = 'fits'\ntext = '{fits}'\n[[reply]]\ntext = 'yes, surely'\n"
    ));
    let server = start(&replies, |_| ());
    let text = |question: &str, extra: Value| {
        let mut body = asks(question);
        for (key, value) in extra.as_object().unwrap() {
            body[key] = value.clone();
        }
        let answer = server.post("/v1/chat/completions", &body).json();
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    assert_eq!(text("fits", json!({"response_format": {"type": "json_object"}})), fits);
    assert_eq!(text("other", json!({"guided_regex": "[a-z]+, surely"})), "yes, surely");
    let chosen = text("other", json!({"guided_choice": ["yes", "yes!!"]}));
    assert!(["yes", "yes!!"].contains(&chosen.as_str()), "{chosen}");
    server.finish();
}

#[test]
fn the_shipped_replies_of_each_family_of_models_answer_the_same_questions() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/replies");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path().to_str().unwrap().to_owned();
        let server = TestServer::mock(|settings| settings.mock.replies_file = Some(path.clone()));
        let (mut questions, mut whole) = (0, String::new());
        for question in [
            "What is the weather in Paris?",
            "What is the weather in Paris and in Rome?",
            "What is the weather in Kyōto?",
            "Book a table.",
            "Why is 7 a prime number?",
            "Send a broken call.",
            "Send half a call.",
        ] {
            let answer = server.post("/v1/chat/completions", &asks(question)).text();
            assert!(!answer.contains("I am a mock model."), "{path}: {question}");
            (questions, whole) = (questions + 1, whole + &answer);
        }
        assert_eq!((questions, whole.contains("get_weather")), (7, true), "{path}");
        files += 1;
        server.finish();
    }
    assert_eq!(files, 6);
}

#[test]
fn a_file_that_cannot_be_used_is_an_error_with_its_line() {
    let refused = |args: &[&str]| {
        let output = Command::new(PROGRAM).arg("serve").args(args).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let bad = toml("[[reply]]\ntext = 'a'\nregex = '(a'\n");
    let path = bad.path().to_str().unwrap();
    let log = refused(&["--listen", "127.0.0.1:0", "--device", "mock:tiny", "--replies", path]);
    assert!(log.contains(&format!("{path}, line 3: regex: unclosed group")), "{log}");
    let log = refused(&["--device", "cpu", "--replies", path]);
    assert!(log.contains("mock.replies_file") && log.contains("--device mock:tiny"), "{log}");
    let faults = toml("[[fault]]\nkind = 'slow_step'\nat_step = 3\n");
    let path = faults.path().to_str().unwrap();
    let log = refused(&["--listen", "127.0.0.1:0", "--device", "mock:tiny", "--faults", path]);
    assert!(log.contains("slow_ms of [[fault]] 1 is 0"), "{log}");
}
