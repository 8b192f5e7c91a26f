//! Tests of calls and reasoning in the dialects of six families of models, on a mock device whose replies are in these
//! dialects.

use crate::{ask, calls, question, server};
use serde_json::{Value, json};
use tiercel_config::{ReasoningParser, ToolParser};
use tiercel_tests::TestServer;

const FAMILIES: [(&str, ToolParser); 6] = [
    ("hermes", ToolParser::Auto),
    ("qwen3_coder", ToolParser::Qwen3Coder),
    ("llama3_json", ToolParser::Llama3Json),
    ("pythonic", ToolParser::Pythonic),
    ("mistral", ToolParser::Mistral),
    ("mistral_v11", ToolParser::Mistral),
];

fn of_family(family: &str, tools: ToolParser) -> TestServer {
    let reasoning = match family {
        "mistral_v11" => ReasoningParser::Mistral,
        _ => ReasoningParser::Auto,
    };
    server(family, tools, reasoning)
}

fn weather(cities: &[&str]) -> Vec<(String, Value)> {
    cities.iter().map(|city| ("get_weather".to_owned(), json!({"city": city}))).collect()
}

#[test]
fn every_family_calls_functions() {
    for (family, tools) in FAMILIES {
        let server = of_family(family, tools);
        let ask = |text: &str| ask(&server, &question(text, &json!({})));
        let (one, _) = ask("What is the weather in Paris?");
        assert_eq!(calls(&one), weather(&["Paris"]), "{family}: {one}");
        assert_eq!(one["finish_reason"], "tool_calls", "{family}");
        assert_eq!(one["message"]["content"], Value::Null, "{family}: {one}");
        let (two, _) = ask("What is the weather in Paris and in Rome?");
        assert_eq!(calls(&two), weather(&["Paris", "Rome"]), "{family}: {two}");
        let (table, _) = ask("Book a table.");
        let when = json!({"day": "Friday", "hour": 19.5});
        let arguments = json!({
            "guests": 3, "when": when, "notes": ["window", "quiet \"corner\""], "vegan": true, "coupon": null,
        });
        assert_eq!(calls(&table), [("book_table".to_owned(), arguments)], "{family}: {table}");
        server.finish();
    }
}

#[test]
fn reasoning_is_apart_from_calls_and_content() {
    for (family, tools) in FAMILIES {
        let server = of_family(family, tools);
        let ask = |text: &str| ask(&server, &question(text, &json!({})));
        let (thought, usage) = ask("What is the weather in Kyōto?");
        assert_eq!(calls(&thought), weather(&["Kyōto 京都 🌦"]), "{family}: {thought}");
        let reasoning = thought["message"]["reasoning_content"].as_str().unwrap_or_default();
        assert_eq!(
            reasoning.trim(),
            "The user asks for the weather. I call get_weather.",
            "{family}"
        );
        let tokens = usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
        let all = usage["completion_tokens"].as_u64().unwrap();
        assert!((5..all).contains(&tokens), "{family}: {tokens} of {all}");
        let (answer, _) = ask("Why is 7 a prime number?");
        let content = answer["message"]["content"].as_str().unwrap();
        assert_eq!(content.trim(), "Because only 1 and 7 divide it.", "{family}");
        assert_eq!(answer["finish_reason"], "stop", "{family}");
        server.finish();
    }
}

#[test]
fn what_is_no_call_stays_text_and_nothing_is_lost() {
    for (family, tools) in FAMILIES {
        let server = of_family(family, tools);
        let (broken, _) = ask(&server, &question("Send a broken call.", &json!({})));
        assert_eq!(broken["finish_reason"], "stop", "{family}: {broken}");
        assert!(broken.to_string().contains("get_weather"), "{family}: {broken}");
        let half = question("Send half a call.", &json!({}));
        let (half, _) = ask(&server, &half);
        assert_eq!(half["finish_reason"], "length", "{family}: {half}");
        assert!(half.to_string().contains("Par"), "{family}: {half}");
        server.finish();
    }
}

#[test]
fn a_request_for_one_call_gets_one() {
    for (family, tools) in FAMILIES {
        let server = of_family(family, tools);
        let body = question(
            "What is the weather in Paris and in Rome?",
            &json!({"parallel_tool_calls": false}),
        );
        let (one, _) = ask(&server, &body);
        assert_eq!(calls(&one), weather(&["Paris"]), "{family}: {one}");
        assert_eq!(one["finish_reason"], "tool_calls", "{family}");
        server.finish();
    }
}

#[test]
fn forbidden_calls_are_not_looked_for() {
    let server = of_family("hermes", ToolParser::Auto);
    let body = question("What is the weather in Paris?", &json!({"tool_choice": "none"}));
    let (text, usage) = ask(&server, &body);
    assert!(text["message"]["content"].as_str().unwrap().starts_with("<tool_call>"), "{text}");
    assert!(text["message"].get("tool_calls").is_none());
    let (_, of_auto) = ask(&server, &question("What is the weather in Paris?", &json!({})));
    assert_eq!(usage["prompt_tokens"], of_auto["prompt_tokens"], "the prompt shows the tools");
    server.finish();
}

#[test]
fn every_choice_has_calls_of_its_own() {
    let server = of_family("hermes", ToolParser::Auto);
    let body = question("What is the weather in Paris?", &json!({"n": 3, "logprobs": true}));
    let answer = server.post("/v1/chat/completions", &body).json();
    let choices = answer["choices"].as_array().unwrap();
    let ids: Vec<&Value> =
        choices.iter().map(|choice| &choice["message"]["tool_calls"][0]["id"]).collect();
    assert!(ids[0] != ids[1] && ids[1] != ids[2], "{ids:?}");
    let mut tokens = 0;
    for choice in choices {
        assert_eq!(calls(choice), weather(&["Paris"]));
        tokens += choice["logprobs"]["content"].as_array().unwrap().len() as u64;
    }
    // The end token of a choice does not count as output.
    assert_eq!(answer["usage"]["completion_tokens"], tokens, "{answer}");
    server.finish();
}

#[test]
fn a_stop_string_ends_an_answer_in_the_middle_of_a_call() {
    let server = of_family("hermes", ToolParser::Auto);
    let body = question("What is the weather in Paris?", &json!({"stop": "Paris"}));
    let (cut, _) = ask(&server, &body);
    assert_eq!(cut["finish_reason"], "stop", "{cut}");
    assert!(cut.to_string().contains("city"), "{cut}");
    server.finish();
}

#[test]
fn a_budget_ends_the_reasoning() {
    let server = of_family("hermes", ToolParser::Auto);
    let body = question(
        "Why is 7 a prime number?",
        &json!({"thinking_token_budget": 3, "max_tokens": 30}),
    );
    let (answer, usage) = ask(&server, &body);
    let tokens = usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!(tokens <= 4, "3 and the opening tag: {usage}");
    assert!(!answer["message"]["reasoning_content"].as_str().unwrap().contains("only"), "{answer}");
    server.finish();
}
