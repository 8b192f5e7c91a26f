//! Tests of outputs that follow a grammar, through the whole server: all forms in which a request states a grammar,
//! refused requests, and hostile grammars beside other streams.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::{Value, json};
use std::sync::OnceLock;
use tiercel_tests::{Connection, TestServer, events};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// Returns the mock server that the tests share.
fn server() -> &'static TestServer {
    static SERVER: OnceLock<TestServer> = OnceLock::new();
    SERVER.get_or_init(|| TestServer::mock(|_| {}))
}

/// Returns a request for a chat or text completion with more fields.
fn body(path: &str, fields: Value) -> Value {
    let mut body = match path {
        CHAT => json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 200}),
        _ => json!({"prompt": "Hello", "max_tokens": 200}),
    };
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn text_of(choice: &Value) -> &str {
    choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap()
}

/// Returns the text and the finish reason of a streamed answer.
fn streamed(path: &str, mut request: Value) -> (String, Value) {
    request["stream"] = true.into();
    let response = server().post(path, &request);
    assert_eq!(response.status, 200, "{}", response.text());
    let (mut text, mut reason) = (String::new(), Value::Null);
    for event in events(response.text().as_bytes()).iter().filter(|event| *event != "[DONE]") {
        let event: Value = serde_json::from_str(event).unwrap();
        assert!(event.get("error").is_none(), "{event}");
        let choice = &event["choices"][0];
        let piece = choice["delta"]["content"].as_str().or(choice["text"].as_str());
        text.push_str(piece.unwrap_or_default());
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
    }
    (text, reason)
}

fn is_person(text: &str) -> bool {
    let person: Value = serde_json::from_str(text).unwrap();
    let keys: Vec<&String> = person.as_object().unwrap().keys().collect();
    keys == ["sex", "age", "tags"]
        && ["f", "m"].iter().any(|sex| person["sex"] == *sex)
        && person["age"].as_u64().is_some_and(|age| age <= 99)
        && person["tags"].as_array().is_some_and(|tags| tags.len() <= 2)
}

fn is_code(text: &str) -> bool {
    let (digits, letters) = text.split_once('-').unwrap();
    digits.len() == 3
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && (2..=4).contains(&letters.len())
        && letters.bytes().all(|byte| byte.is_ascii_lowercase())
}

fn is_answer(text: &str) -> bool {
    ["yes", "no", "perhaps"].contains(&text)
}

type Check = fn(&str) -> bool;

#[test]
fn every_form_is_followed_streamed_or_not() {
    let person = json!({"type": "object", "properties": {
        "sex": {"enum": ["f", "m"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
    }, "required": ["sex", "age", "tags"], "additionalProperties": false});
    let choices = json!(["yes", "no", "perhaps"]);
    let (code, lark) = ("[0-9]{3}-[a-z]{2,4}", "start: A | \"no\"\nA: \"yes\" | \"perhaps\"");
    let gbnf = "root ::= \"yes\" | rest\nrest ::= \"no\" | \"perhaps\"";
    let format = json!({"type": "json_schema", "json_schema": {"name": "p", "strict": true, "schema": person.clone()}});
    let forms: [(Value, Check); 11] = [
        (json!({"response_format": format}), is_person),
        (json!({"structured_outputs": {"json": person.clone()}}), is_person),
        (json!({"structured_outputs": {"regex": code}}), is_code),
        (json!({"structured_outputs": {"choice": choices.clone()}}), is_answer),
        (json!({"structured_outputs": {"grammar": lark}}), is_answer),
        (json!({"structured_outputs": {"grammar": gbnf}}), is_answer),
        (json!({"guided_json": person.to_string()}), is_person),
        (json!({"guided_regex": code}), is_code),
        (json!({"guided_choice": choices}), is_answer),
        (json!({"guided_grammar": lark}), is_answer),
        (json!({"guided_grammar": gbnf, "ignore_eos": true}), is_answer),
    ];
    for path in [CHAT, TEXT] {
        for (fields, follows) in &forms {
            let request = body(path, fields.clone());
            let response = server().post(path, &request);
            assert_eq!(response.status, 200, "{fields}: {}", response.text());
            let choice = response.json()["choices"][0].clone();
            let text = text_of(&choice).to_owned();
            assert!(follows(&text), "{fields}: {text}");
            assert_eq!(choice["finish_reason"], "stop", "{fields}");
            assert_eq!(streamed(path, request), (text, json!("stop")), "{fields}");
        }
    }
}

#[test]
fn any_json_object_begins_as_one() {
    for fields in [
        json!({"response_format": {"type": "json_object"}}),
        json!({"structured_outputs": {"json_object": true}}),
    ] {
        let answer = server().post(CHAT, &body(CHAT, fields)).json();
        let text = text_of(&answer["choices"][0]).to_owned();
        assert!(text.starts_with("{\"") || text == "{}", "{text}");
    }
}

#[test]
fn grammars_work_with_choices_penalties_seeds_and_log_probabilities() {
    let fields = json!({
        "guided_regex": "[a-f]{8}", "n": 3, "seed": 7, "temperature": 1.0, "logprobs": true, "top_logprobs": 3,
        "presence_penalty": 1.0, "frequency_penalty": 0.5, "logit_bias": {"97": 5},
    });
    let answer = server().post(CHAT, &body(CHAT, fields.clone())).json();
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for choice in choices {
        let text = text_of(choice);
        assert!(
            text.len() == 8 && text.bytes().all(|byte| (b'a'..=b'f').contains(&byte)),
            "{text}"
        );
        assert_eq!(choice["logprobs"]["content"].as_array().unwrap().len(), 8);
    }
    assert_eq!(answer["choices"], server().post(CHAT, &body(CHAT, fields)).json()["choices"]);
    let stopped = json!({"guided_regex": "abcdefgh", "stop": ["de"]});
    let answer = server().post(CHAT, &body(CHAT, stopped)).json();
    assert_eq!(text_of(&answer["choices"][0]), "abc");
}

#[test]
fn what_cannot_be_followed_is_refused_with_the_field_and_the_place() {
    let schema = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
    let field = "response_format.json_schema.schema";
    for (fields, param, code, part) in [
        (
            schema(json!({"properties": {"a": {"not": {}}}})),
            field,
            "unsupported",
            "#/properties/a/not",
        ),
        (schema(json!({"type": "string", "format": "regex"})), field, "unsupported", "\"regex\""),
        (schema(json!({"uniqueItems": true})), field, "unsupported", "uniqueItems"),
        (schema(json!({"x-guidance": {"lenient": true}})), field, "unsupported", "x-guidance"),
        (schema(json!({"oneOf": [{"minimum": 1}, {"minimum": 2}]})), field, "unsupported", "oneOf"),
        (schema(json!({"$ref": "https://example.com/s"})), field, "unsupported", "example.com"),
        (schema(json!({"type": "text"})), field, "invalid_value", "#/type"),
        (
            schema(json!({"type": "integer", "minimum": 2, "maximum": 1})),
            field,
            "invalid_value",
            "no output",
        ),
        (json!({"guided_regex": "a(b"}), "guided_regex", "invalid_value", "line 1, column 2"),
        (json!({"guided_regex": "(?=a)"}), "guided_regex", "unsupported", "look-around"),
        (json!({"guided_regex": "a".repeat(70_000)}), "guided_regex", "invalid_value", "bytes"),
        (json!({"guided_choice": []}), "guided_choice", "invalid_value", "empty"),
        (json!({"guided_grammar": "start: b"}), "guided_grammar", "invalid_value", "unknown name"),
        (json!({"guided_grammar": "root ::= <x>"}), "guided_grammar", "unsupported", "line 1"),
        (
            json!({"structured_outputs": {"grammar": "start: a\na[temperature=1]: /a/"}}),
            "structured_outputs.grammar",
            "unsupported",
            "line 2",
        ),
        (
            json!({"structured_outputs": {"structural_tag": "x"}}),
            "structured_outputs.structural_tag",
            "unsupported",
            "",
        ),
        (
            json!({"guided_json": {}, "guided_regex": "a"}),
            "guided_regex",
            "invalid_value",
            "guided_json",
        ),
    ] {
        for path in [CHAT, TEXT] {
            let response = server().post(path, &body(path, fields.clone()));
            let error = response.error();
            let shown = fields.to_string().chars().take(100).collect::<String>();
            assert_eq!(response.status, 400, "{shown}: {error}");
            let message = error["message"].as_str().unwrap();
            assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!(code)), "{error}");
            assert!(message.contains(part), "{error}");
        }
    }
}

/// Returns hostile grammars, which explode, recurse, are huge, never end or backtrack. The tests of the crate
/// `tiercel-grammar` have many more hostile grammars.
fn hostile() -> Vec<Value> {
    let chain: String = (0..4000).map(|n| format!("r{n}: r{}\n", n + 1)).collect();
    let properties: serde_json::Map<String, Value> =
        (0..3000).map(|n| (format!("p{n}"), json!({"type": "integer"}))).collect();
    vec![
        json!({"guided_regex": "(a+)+b"}),
        json!({"guided_regex": "((((a{30}){30}){30}){30}){30}"}),
        json!({"guided_regex": "(a|b|c|d)?".repeat(3000)}),
        json!({"guided_regex": "[ab]*a[ab]{200}"}),
        json!({"guided_regex": "[a-z]*".repeat(3000)}),
        json!({"guided_grammar": "start: s\ns: s s s | s s | \"a\" | \"aa\""}),
        json!({"guided_grammar": format!("start: r0\n{chain}r4000: \"a\"")}),
        json!({"guided_grammar": "start: a\na: b\nb: a"}),
        json!({"guided_grammar": "start: T\nT: ((\"a\"{1000}){1000}){1000}"}),
        json!({"guided_grammar": "root ::= root root | \"a\" | "}),
        json!({"guided_json": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}),
        json!({"guided_json": {"type": "object", "properties": properties}}),
        json!({"guided_json": {"type": "array", "maxItems": 1_000_000, "items": {"type": "array", "maxItems": 1_000_000}}}),
        json!({"guided_json": {"type": "string", "allOf": vec![json!({"pattern": "(.*a){20}"}); 60]}}),
        json!({"guided_json": {"type": "string", "maxLength": 900_000_000}}),
    ]
}

#[test]
fn hostile_grammars_cost_only_their_own_requests() {
    let server = TestServer::mock(|_| {});
    let free = body(TEXT, json!({"prompt": "A long and quiet text", "max_tokens": 1500}));
    let expected = server.post(TEXT, &free).json()["choices"][0]["text"].clone();
    let address = server.address();
    let quiet = std::thread::spawn(move || {
        let mut texts = Vec::new();
        for _ in 0..6 {
            let answer = Connection::open(address).post(TEXT, &free).json();
            texts.push(answer["choices"][0]["text"].clone());
        }
        texts
    });
    let crowd: Vec<_> = hostile()
        .into_iter()
        .map(|fields| {
            std::thread::spawn(move || {
                let request = body(TEXT, fields);
                let response = Connection::open(address).post(TEXT, &request);
                assert!([200, 400, 429].contains(&response.status), "{}", response.text());
            })
        })
        .collect();
    crowd.into_iter().for_each(|request| request.join().unwrap());
    assert!(quiet.join().unwrap().iter().all(|text| *text == expected));
    let metrics = server.get("/metrics").text();
    assert!(metrics.contains("tiercel_grammars_total{result=\"compiled\"}"), "{metrics}");
    server.finish();
}
