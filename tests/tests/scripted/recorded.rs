//! Round-trip tests of `--record`: a mock server started with the recorded file gives the answers of the recorded
//! server.

use super::{REPLIES, asks, start, toml};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;
use tiercel_config::{KvElement, ServerSettings, Weights};
use tiercel_tests::TestServer;

/// Returns the finish reason and the text of the answer to a conversation.
fn answer(server: &TestServer, body: &Value) -> (String, String) {
    let response = server.post("/v1/chat/completions", body);
    assert_eq!(response.status, 200, "{}", response.text());
    let choice = response.json()["choices"][0].clone();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&choice["finish_reason"]), text(&choice["message"]["content"]))
}

fn conversations() -> Vec<Value> {
    let tool = json!({"messages": [
        {"role": "user", "content": "weather in Paris"}, {"role": "assistant", "content": "call"},
        {"role": "tool", "content": "21", "tool_call_id": "a"},
    ]});
    vec![tool, asks("Cut me off"), asks("quotes ''' \"\"\" \\ and\nlines"), asks("Who are you?")]
}

fn replay(path: &Path) -> TestServer {
    let path = path.to_str().unwrap().to_owned();
    TestServer::mock(|settings| settings.mock.replies_file = Some(path))
}

#[test]
fn recorded_answers_are_given_again() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("recorded.toml");
    let record_file = Some(path.to_str().unwrap().to_owned());
    let server = start(&toml(REPLIES), |settings| settings.mock.record_file = record_file);
    let answers: Vec<_> = conversations().iter().map(|body| answer(&server, body)).collect();
    let text = json!({"prompt": "Once upon", "max_tokens": 100, "stop": "mock"});
    let continued = server.post("/v1/completions", &text).json()["choices"].clone();
    server.stop().unwrap();
    let server = replay(&path);
    let again: Vec<_> = conversations().iter().map(|body| answer(&server, body)).collect();
    assert_eq!(again, answers);
    assert_eq!(server.post("/v1/completions", &text).json()["choices"], continued);
    assert_eq!(continued[0]["text"], " a time there was a ");
    server.finish();
}

#[test]
fn a_mock_device_answers_as_the_model_whose_answers_were_recorded() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("recorded.toml");
    let mut settings = ServerSettings::default();
    settings.kv.cache_mib = 256;
    settings.model.weights = Weights::F32;
    settings.kv.element = KvElement::F32;
    settings.mock.record_file = Some(path.to_str().unwrap().to_owned());
    let server = TestServer::start(settings);
    let mut questions = [asks("What is the capital of France?"), asks("Tell me a long story.")];
    for question in &mut questions {
        question["temperature"] = json!(0);
        question["max_tokens"] = json!(24);
    }
    let answers = questions.each_ref().map(|body| answer(&server, body));
    assert_eq!(answers.each_ref().map(|(finish, _)| finish.as_str()), ["stop", "length"]);
    server.stop().unwrap();
    let server = replay(&path);
    for question in &mut questions {
        question["max_tokens"] = json!(200);
    }
    assert_eq!(questions.each_ref().map(|body| answer(&server, body)), answers);
    server.finish();
}
