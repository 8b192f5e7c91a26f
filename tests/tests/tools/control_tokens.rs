//! Tests that an answer spells out control tokens only if its request has `skip_special_tokens` false.

use crate::response_template::{model, server};
use serde_json::{Value, json};
use tiercel_config::ToolParser;

/// Id of the token `<|im_start|>` in the vocabulary of the test's model.
const START: &str = "256";

#[test]
fn an_answer_spells_out_control_tokens_only_if_the_request_asks_for_them() {
    let dir = model(&Value::Null);
    let server = server(&dir, ToolParser::Auto);
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}]});
    for (path, prompt, at) in [
        ("/v1/completions", json!({"prompt": "Hi"}), "/choices/0/text"),
        ("/v1/chat/completions", chat, "/choices/0/message/content"),
    ] {
        for (skips, expected) in
            [(Value::Null, ""), (json!(true), ""), (json!(false), "<|im_start|><|im_start|>")]
        {
            let mut body = prompt.clone();
            body["skip_special_tokens"] = skips;
            body["max_tokens"] = 2.into();
            body["temperature"] = 0.into();
            body["logit_bias"] = json!({START: 100});
            let answer = server.post(path, &body);
            assert_eq!(answer.status, 200, "{}", answer.text());
            let text = answer.json().pointer(at).and_then(Value::as_str).unwrap_or("").to_owned();
            assert_eq!(text, expected, "{body}");
        }
    }
    let refused = server.post("/v1/completions", &json!({"prompt": "x", "skip_special_tokens": 1}));
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert_eq!(refused.json()["error"]["param"], "skip_special_tokens");
    server.finish();
}
