//! Tests of a server on a mock device with replies, with the real program: which reply answers, how it is streamed, and
//! that neither preemption nor faults change it.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::{Value, json};
use std::io::Write;
use std::process::Command;
use tempfile::NamedTempFile;
use tiercel_tests::{Connection, Program, events};

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
    let chunks = events(&response.body);
    let pieces: Vec<String> = chunks
        .iter()
        .filter_map(|chunk| serde_json::from_str::<Value>(chunk).ok())
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .filter(|piece| !piece.is_empty())
        .collect();
    assert_eq!(pieces.concat(), "It is 21 °C and sunny ☀️🌦 in Paris.");
    assert_eq!(pieces[..3], ["It", " is", " "]);
    assert!(pieces.iter().all(|piece| piece != "\u{fffd}"), "{pieces:?}");
    assert!(chunks.iter().any(|chunk| chunk.contains("\"finish_reason\":\"stop\"")), "{chunks:?}");
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
