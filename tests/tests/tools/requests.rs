//! Tests of requests with tools: conversations that contain calls, and refused requests.

use crate::{ask, question, server, tools};
use serde_json::{Value, json};
use tiercel_config::{ReasoningParser, ToolParser};
use tiercel_tests::TestServer;

#[test]
fn a_conversation_goes_on_after_the_results() {
    let server = server("hermes", ToolParser::Auto, ReasoningParser::Auto);
    let asked = json!({"role": "user", "content": "What is the weather in Paris?"});
    let (first, _) = ask(&server, &json!({"messages": [asked], "tools": tools()}));
    let call = &first["message"]["tool_calls"][0];
    let result = json!({"role": "tool", "content": "21 °C", "tool_call_id": call["id"]});
    let history = json!([asked, first["message"], result]);
    let (second, _) = ask(&server, &json!({"messages": history, "tools": tools()}));
    assert_eq!(second["message"]["content"], "It is 21 °C and sunny in Paris.");
    let text = server.post("/tokenize", &json!({"messages": history, "tools": tools()})).json();
    let prompt = server.post("/detokenize", &json!({"tokens": text["tokens"]})).json();
    let prompt = prompt["prompt"].as_str().unwrap();
    for written in
        ["<tools>\n{\"type\": \"function\"", "<tool_call>\n{\"name\": \"get_weather\"", "21 °C"]
    {
        assert!(prompt.contains(written), "{prompt}");
    }
    server.finish();
}

#[test]
fn requests_that_cannot_be_served_name_their_field() {
    let server = TestServer::mock(|_| ());
    let unknown = json!({"response_format": {"type": "xml"}, "tool_choice": "required"});
    for (extra, param) in [
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (json!({"tool_choice": "always"}), "tool_choice"),
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "x"}}}),
            "tool_choice.function.name",
        ),
        (json!({"functions": [{"name": "f"}]}), "functions"),
        (json!({"chat_template_kwargs": {"messages": 1}}), "chat_template_kwargs.messages"),
        (json!({"reasoning_effort": "huge"}), "reasoning_effort"),
        (json!({"thinking_token_budget": -1}), "thinking_token_budget"),
        (unknown, "response_format"),
    ] {
        let refused = server.post("/v1/chat/completions", &question("Hi", &extra));
        assert_eq!((refused.status, &refused.error()["param"]), (400, &json!(param)), "{extra}");
    }
    server.finish();
}

#[test]
fn a_server_without_a_form_of_calls_refuses_tools() {
    let server = TestServer::mock(|settings| settings.model.tool_parser = ToolParser::None);
    let refused = server.post("/v1/chat/completions", &question("Hi", &json!({})));
    assert_eq!((refused.status, &refused.error()["code"]), (400, &json!("unsupported")));
    let extra = json!({"tool_choice": "none", "max_tokens": 3});
    let served = server.post("/v1/chat/completions", &question("Hi", &extra));
    assert_eq!(served.status, 200, "{}", served.text());
    server.finish();
}

#[test]
fn a_mock_device_without_replies_follows_the_grammar_of_demanded_calls() {
    let server = TestServer::mock(|_| ());
    let extra = json!({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}, "max_tokens": 200});
    let answer = server.post("/v1/chat/completions", &question("Hi", &extra)).json();
    let choice = &answer["choices"][0];
    let name: &Value = &choice["message"]["tool_calls"][0]["function"]["name"];
    assert_eq!(name, "get_weather", "{answer}");
    server.finish();
}

#[test]
fn a_grammar_of_the_content_leaves_calls_and_reasoning_alone() {
    let server = server("hermes", ToolParser::Auto, ReasoningParser::Auto);
    let schema = json!({"name": "x", "schema": {"type": "boolean"}});
    let extra = json!({"response_format": {"type": "json_schema", "json_schema": schema}});
    let (call, _) = ask(&server, &question("What is the weather in Paris?", &extra));
    assert_eq!(call["message"]["tool_calls"][0]["function"]["name"], "get_weather", "{call}");
    let mut body = question("Why is 7 a prime number?", &extra);
    body["tool_choice"] = "none".into();
    let (thought, _) = ask(&server, &body);
    assert_eq!(
        thought["message"]["reasoning_content"].as_str().unwrap().trim(),
        "7 is divisible by 1 and 7 only."
    );
    let content = thought["message"]["content"].as_str().unwrap().trim();
    assert!(["true", "false"].contains(&content), "{thought}");
    server.finish();
}
