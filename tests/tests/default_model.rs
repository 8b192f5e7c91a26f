//! Tests of the default model behind the HTTP API: it is fetched if it is not in the cache, loaded, and used by
//! OpenAI's official client.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::{Value, json};
use std::sync::OnceLock;
use tiercel::boot::start;
use tiercel_config::{KvElement, ServerSettings, Weights};
use tiercel_tests::{Connection, TestServer, run_script};

fn settings() -> ServerSettings {
    let mut settings = ServerSettings::default();
    settings.http.listen = "127.0.0.1:0".into();
    settings.kv.cache_mib = 256;
    settings
}

/// Returns the server that most tests of the default model share, since loading the model takes seconds. It computes in
/// f32, so that its answers are known.
fn server() -> &'static TestServer {
    static SERVER: OnceLock<TestServer> = OnceLock::new();
    SERVER.get_or_init(|| {
        let mut exact = settings();
        exact.model.weights = Weights::F32;
        exact.kv.element = KvElement::F32;
        TestServer::start(exact)
    })
}

fn chat(question: &str) -> Value {
    json!({
        "max_tokens": 24, "temperature": 0, "messages": [{"role": "user", "content": question}],
    })
}

#[test]
fn it_is_unhealthy_while_it_loads_and_says_so() {
    let starting = start(settings()).unwrap();
    let mut connection = Connection::open(starting.address());
    let health = connection.request("GET", "/health", &[], b"");
    assert_eq!((health.status, &health.json()["status"]), (503, &json!("loading")));
    let early = connection.post("/v1/chat/completions", &chat("Hi"));
    assert_eq!((early.status, &early.error()["code"]), (503, &json!("loading")));
    assert!(early.header("retry-after-ms").is_some());
    let running = starting.ready().unwrap();
    assert_eq!(connection.request("GET", "/health", &[], b"").status, 200);
    running.stop().unwrap();
}

#[test]
fn it_knows_the_capital_of_france() {
    let answer =
        server().post("/v1/chat/completions", &chat("What is the capital of France?")).json();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(text, "The capital of France is Paris.");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
}

#[test]
fn min_tokens_puts_off_the_end_and_an_answer_may_show_its_stop_string() {
    let answer = |fields: Value| {
        let mut body = chat("What is the capital of France?");
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        let answer = server().post("/v1/chat/completions", &body).json();
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        (text, answer["usage"]["completion_tokens"].as_u64().unwrap())
    };
    let (text, tokens) = answer(json!({"stop": "Paris", "min_tokens": 20}));
    assert!(text.starts_with("The capital of France is Paris."), "{text}");
    assert!(tokens >= 20, "{tokens}");
    let shown = answer(json!({"stop": "Paris", "include_stop_str_in_output": true}));
    assert_eq!(shown.0, "The capital of France is Paris");
    assert_eq!(answer(json!({"stop": "Paris"})).0, "The capital of France is ");
}

#[test]
fn the_python_client_finds_all_it_expects() {
    let server = server();
    let url = format!("http://{}/v1", server.address());
    let models = server.get("/v1/models").json();
    let model = models["data"][0]["id"].as_str().unwrap();
    run_script(
        "openai_conformance.py",
        "requirements.txt",
        &[&url, model, "all", "leave_stream", "leave_whole"],
    );
    server.wait_until_idle();
}

#[test]
fn text_survives_tokenizing_whatever_it_holds() {
    let server = server();
    for text in
        ["", "héllo wörld", "日本語 한국어 العربية", "👩‍👩‍👧‍👦🏳️‍🌈", "a\u{0}b\r\n\t", " lead and trail  "]
    {
        let tokens = server.post("/tokenize", &json!({"prompt": text})).json()["tokens"].clone();
        let back = server.post("/detokenize", &json!({"tokens": tokens})).json();
        assert_eq!(back["prompt"], text, "{tokens}");
    }
}

#[test]
fn huge_and_monotonous_prompts_are_refused_in_good_time() {
    let server = server();
    for text in
        ["a".repeat(1 << 20), " ".repeat(1 << 20), "é1!".repeat(1 << 18), "\u{0}".repeat(1 << 18)]
    {
        let refused = server.post("/v1/completions", &json!({"prompt": text}));
        assert_eq!(refused.status, 400, "{}", refused.text());
        assert_eq!(refused.error()["code"], "context_length_exceeded");
    }
    server.wait_until_idle();
}
