//! Tests that the server parses calls by the response template of a model directory, unless the settings state a form.

use crate::{ask, calls};
use serde_json::{Map, Value, json};
use std::path::Path;
use tempfile::TempDir;
use tiercel_config::{DeviceKind, ServerSettings, ToolParser};
use tiercel_tests::{TestServer, events};

/// Special tokens of the test's vocabulary, after the 256 bytes.
const SPECIAL: [&str; 4] = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"];

/// Returns the character that stands for a byte in a vocabulary of byte-level BPE.
fn character(byte: u8) -> char {
    let is_shown = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let hidden = (0..byte).filter(|other| !is_shown(*other)).count() as u32;
    char::from_u32(if is_shown(byte) { byte.into() } else { 256 + hidden }).unwrap()
}

/// Makes a directory of a model with random weights, whose vocabulary has a token for each byte.
pub(crate) fn model(response_template: &Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/tiny/qwen3");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(tiny.join(file), dir.path().join(file)).unwrap();
    }
    let vocab: Map<String, Value> =
        (0..=255).map(|byte| (character(byte).to_string(), byte.into())).collect();
    let added = |(at, text): (usize, &&str)| {
        json!({
            "id": 256 + at, "content": text, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false,
        })
    };
    let added: Vec<Value> = SPECIAL.iter().enumerate().map(added).collect();
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let bpe = json!({"type": "BPE", "vocab": vocab, "merges": []});
    let tokenizer = json!({
        "version": "1.0", "added_tokens": added, "pre_tokenizer": bytes, "decoder": bytes, "model": bpe,
    });
    let config = json!({
        "bos_token": "<|im_start|>", "eos_token": "<|im_end|>",
        "chat_template": "{# tools, <tool_call> #}<|im_start|>assistant\n",
        "response_template": response_template,
    });
    for (file, value) in [("tokenizer.json", tokenizer), ("tokenizer_config.json", config)] {
        std::fs::write(dir.path().join(file), value.to_string()).unwrap();
    }
    dir
}

pub(crate) fn server(dir: &TempDir, tool_parser: ToolParser) -> TestServer {
    let mut settings = ServerSettings::default();
    settings.device.kind = DeviceKind::Cpu;
    settings.kv.cache_mib = 64;
    settings.model.source = Some(dir.path().to_str().unwrap().to_owned());
    settings.model.tool_parser = tool_parser;
    TestServer::start(settings)
}

/// Returns a request that demands a call whose arguments can only be `{"city": "Paris"}`.
fn demand() -> Value {
    let parameters = json!({
        "type": "object", "properties": {"city": {"const": "Paris"}}, "required": ["city"],
        "additionalProperties": false,
    });
    json!({
        "messages": [{"role": "user", "content": "Hi"}], "tool_choice": "required", "max_tokens": 200, "temperature": 0,
        "parallel_tool_calls": false,
        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}],
    })
}

/// Returns the number of pieces in which a stream has the arguments of its call.
fn pieces(server: &TestServer) -> usize {
    let mut body = demand();
    body["stream"] = true.into();
    let stream = server.post("/v1/chat/completions", &body).body;
    let has_arguments = |event: &String| {
        let event: Value = serde_json::from_str(event).unwrap_or_default();
        let arguments = &event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"];
        arguments.as_str().is_some_and(|text| !text.is_empty())
    };
    events(&stream).iter().filter(|event| has_arguments(event)).count()
}

#[test]
fn the_template_of_the_model_parses_its_calls() {
    let template = json!({
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {"tool_calls": {
            "open": "<tool_call>", "close": "</tool_call>", "repeats": true, "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        }},
    });
    let dir = model(&template);
    let paris = [("get_weather".to_owned(), json!({"city": "Paris"}))];
    let of_template = server(&dir, ToolParser::Auto);
    let (answer, _) = ask(&of_template, &demand());
    assert_eq!(calls(&answer), paris, "{answer}");
    assert_eq!(answer["finish_reason"], "tool_calls", "{answer}");
    assert_eq!(pieces(&of_template), 1, "a call of a template comes as a whole");
    of_template.finish();
    let stated = server(&dir, ToolParser::Hermes);
    assert_eq!(calls(&ask(&stated, &demand()).0), paris);
    assert!(pieces(&stated) > 1, "the built-in parser passes arguments on while they arrive");
    stated.finish();
}

#[test]
fn a_template_that_the_server_cannot_follow_is_not_used() {
    let field = json!({"open_pattern": "<tool_call>(?=x)", "content": "json"});
    let dir = model(&json!({"start_anchor": "a", "fields": {"tool_calls": field}}));
    let server = server(&dir, ToolParser::Auto);
    assert!(pieces(&server) > 1, "the chat template shows the form");
    server.finish();
}
