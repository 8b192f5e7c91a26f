//! Tests of tools and reasoning through HTTP: calls in the dialects of six families of models on a mock device with
//! replies, and calls of the default model.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

mod control_tokens;
mod default_model;
mod families;
mod preempted;
mod requests;
mod response_template;

use serde_json::{Map, Value, json};
use std::path::Path;
use tiercel_config::{ReasoningParser, ToolParser};
use tiercel_tests::{TestServer, events};

/// Starts a server on a mock device with the replies of a family of models.
fn server(family: &str, tools: ToolParser, reasoning: ReasoningParser) -> TestServer {
    let file = format!("replies/{family}.toml");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    TestServer::mock(|settings| {
        settings.mock.replies_file = Some(path.to_str().unwrap().to_owned());
        settings.model.tool_parser = tools;
        settings.model.reasoning_parser = reasoning;
    })
}

/// Returns two tools: `get_weather` and `book_table`.
fn tools() -> Value {
    let city =
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let table = json!({"type": "object", "properties": {
        "guests": {"type": "integer"}, "when": {"type": "object"},
        "notes": {"type": "array", "items": {"type": "string"}},
        "vegan": {"type": "boolean"}, "coupon": {"type": ["string", "null"]},
    }});
    json!([
        {"type": "function", "function": {"name": "get_weather", "parameters": city}},
        {"type": "function", "function": {"name": "book_table", "parameters": table}},
    ])
}

/// Returns a request with the two tools.
fn question(text: &str, extra: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": text}], "tools": tools()});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// Sends a request twice, for a whole and for a streamed answer, and checks that both answers have the same parts.
/// Returns the choice and the usage of the whole answer.
fn ask(server: &TestServer, body: &Value) -> (Value, Value) {
    let whole = server.post("/v1/chat/completions", body);
    assert_eq!(whole.status, 200, "{}", whole.text());
    let whole = whole.json();
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({"include_usage": true});
    let stream = server.post("/v1/chat/completions", &streamed);
    let (choice, usage) = collected(&stream.body);
    let mut expected = whole["choices"][0].clone();
    let calls = expected["message"].get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        call["id"] = "id".into();
    }
    assert_eq!(choice, expected, "streamed and whole");
    let details = "completion_tokens_details";
    assert_eq!(usage[details], whole["usage"][details]);
    (whole["choices"][0].clone(), whole["usage"].clone())
}

/// Joins the chunks of a stream to one answer, as clients do. Returns the choice and the usage. Every call in the
/// choice has the id "id".
fn collected(body: &[u8]) -> (Value, Value) {
    let mut events = events(body);
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let mut message = Map::new();
    message.insert("role".into(), "assistant".into());
    let (mut content, mut reasoning) = (String::new(), String::new());
    let (mut calls, mut reason, mut usage) = (Vec::<Value>::new(), Value::Null, Value::Null);
    for event in &events {
        let chunk: Value = serde_json::from_str(event).unwrap();
        if chunk["usage"].is_object() {
            usage = chunk["usage"].clone();
        }
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        content += delta["content"].as_str().unwrap_or_default();
        reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        assert_eq!(delta["reasoning_content"], delta["reasoning"]);
        for piece in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = piece["index"].as_u64().unwrap() as usize;
            if let Some(name) = piece["function"].get("name") {
                assert_eq!(index, calls.len(), "a call begins once: {piece}");
                assert!(!piece["id"].as_str().unwrap().is_empty());
                calls.push(json!({"id": "id", "type": piece["type"], "function": {"name": name, "arguments": ""}}));
            }
            let more = piece["function"]["arguments"].as_str().unwrap();
            let arguments = calls[index]["function"]["arguments"].as_str().unwrap();
            calls[index]["function"]["arguments"] = format!("{arguments}{more}").into();
        }
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
    }
    let only_others = content.is_empty() && !(calls.is_empty() && reasoning.is_empty());
    let content = if only_others { Value::Null } else { content.into() };
    message.insert("content".into(), content);
    message.insert("refusal".into(), Value::Null);
    if !reasoning.is_empty() {
        message.insert("reasoning_content".into(), reasoning.as_str().into());
        message.insert("reasoning".into(), reasoning.into());
    }
    if !calls.is_empty() {
        message.insert("tool_calls".into(), calls.into());
    }
    (json!({"index": 0, "message": message, "logprobs": null, "finish_reason": reason}), usage)
}

/// Returns the names and the arguments of the calls of a choice.
fn calls(choice: &Value) -> Vec<(String, Value)> {
    let calls = choice["message"]["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
    let call = |call: &Value| {
        let arguments = call["function"]["arguments"].as_str().unwrap();
        (
            call["function"]["name"].as_str().unwrap().to_owned(),
            serde_json::from_str(arguments).unwrap(),
        )
    };
    calls.iter().map(call).collect()
}
