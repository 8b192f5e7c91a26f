//! Tests of the error texts for requests that cannot be served, of the model's names, and of HEAD requests.

use crate::served::{Served, completion, status};
use serde_json::{Value, json};

#[test]
fn what_is_answered_to_requests_that_cannot_be_served() {
    let served =
        Served::start(&["--served-name", "a", "--served-name", "b", "--max-model-len", "64"]);
    let chat = |extra: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Hello"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let long = "x".repeat(65);
    let (completions, chats) = ("/v1/completions", "/v1/chat/completions");
    let too_many = "This model's maximum context length is 64 tokens. However, you requested 101 tokens \
                    (1 in the prompt, 100 in the completion). Please reduce the length of the prompt, or \
                    ask for at most 63 with 'max_tokens'. (context_length_exceeded)";
    let too_long = "This model's maximum context length is 64 tokens, which is at most 64 bytes. \
                    However, your prompt resulted in 65 bytes. Please reduce the length of the prompt. \
 (context_length_exceeded)";
    let full = "This model's maximum context length is 64 tokens. However, your prompt resulted in 64 \
                tokens, which leaves none for the completion. Please reduce the length of the prompt. \
 (context_length_exceeded)";
    let table = [
        (
            "POST",
            completions,
            completion(json!({"max_tokens": 100})),
            400,
            "context_length_exceeded",
            too_many,
        ),
        (
            "POST",
            completions,
            completion(json!({"max_tokens": 100, "stream": true})),
            400,
            "context_length_exceeded",
            too_many,
        ),
        (
            "POST",
            completions,
            completion(json!({"prompt": long})),
            400,
            "context_length_exceeded",
            too_long,
        ),
        (
            "POST",
            completions,
            completion(json!({"prompt": vec![7; 64], "stream": true})),
            400,
            "context_length_exceeded",
            full,
        ),
        (
            "POST",
            chats,
            chat(json!({"max_completion_tokens": 100, "stream": true})),
            400,
            "context_length_exceeded",
            "This model's maximum context length is 64 tokens. However, you requested 123 tokens (23 in \
             the messages, 100 in the completion). Please reduce the length of the messages, or ask for \
             at most 41 with 'max_completion_tokens'. (context_length_exceeded)",
        ),
        (
            "POST",
            "/v1/embeddings",
            json!({"model": "a", "input": "x"}),
            400,
            "unsupported",
            "/v1/embeddings is not supported: this server only generates text; use a server whose model \
             is made for this task",
        ),
        (
            "POST",
            "/v1/responses",
            json!({"model": "a", "input": "x"}),
            400,
            "unsupported",
            "/v1/responses is not supported: use POST /v1/chat/completions with the whole conversation \
             in `messages`",
        ),
        (
            "POST",
            "/v1/batches",
            json!({}),
            400,
            "unsupported",
            "/v1/batches is not supported: send the requests themselves to POST /v1/chat/completions; \
             `\"service_tier\": \"flex\"` is for work that can wait",
        ),
        (
            "POST",
            "/v1/audio/speech",
            json!({}),
            400,
            "unsupported",
            "/v1/audio/speech is not supported: this server generates text only",
        ),
        (
            "POST",
            chats,
            chat(json!({"model": "gpt-4"})),
            404,
            "model_not_found",
            "the model \"gpt-4\" does not exist; this server has \"a\", \"b\"",
        ),
        ("GET", "/nowhere", json!({}), 404, "unknown_url", "there is nothing at GET /nowhere"),
        (
            "GET",
            "/",
            json!({}),
            404,
            "unknown_url",
            "there is nothing at GET /; the API is below /v1, such as /v1/models",
        ),
        (
            "POST",
            "/chat/completions",
            chat(json!({})),
            404,
            "unknown_url",
            "there is nothing at POST /chat/completions; did you mean /v1/chat/completions? The base URL \
             of clients ends with /v1",
        ),
        (
            "POST",
            "/v1/models",
            json!({}),
            405,
            "method_not_allowed",
            "/v1/models takes GET, HEAD, not POST",
        ),
    ];
    for (method, path, body, status, code, message) in table {
        let found = served.error(method, path, &body);
        assert_eq!(found, (status, code.to_owned(), message.to_owned()), "{method} {path} {body}");
    }
    // Check texts by which clients recognise a prompt that is too long. LiteLLM and OpenHands look for the sentence
    // "This model's maximum context length is" in the message. LangChain looks for the code `context_length_exceeded`,
    // and with the current openai package finds it in the message alone.
    for message in [too_many, too_long, full] {
        assert!(message.contains("This model's maximum context length is"), "{message}");
        assert!(message.contains("context_length_exceeded"), "{message}");
    }
}

#[test]
fn every_name_is_listed_accepted_and_given_back() {
    let served = Served::start(&["--served-name", "a", "--served-name", "org/b"]);
    let json = |answer: (String, String)| serde_json::from_str::<Value>(&answer.1).unwrap();
    let models = json(served.ask("GET", "/v1/models", ""));
    let ids: Vec<&str> = models["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["a", "org/b"]);
    assert_eq!(json(served.ask("GET", "/v1/models/org/b", ""))["id"], "org/b");
    for (asked, given) in [(json!("a"), "a"), (json!("org/b"), "org/b"), (Value::Null, "a")] {
        let body = completion(json!({"model": asked}));
        let answer = json(served.ask("POST", "/v1/completions", &body.to_string()));
        assert_eq!(answer["model"], given);
        let body = completion(json!({"model": asked, "stream": true}));
        let (_, stream) = served.ask("POST", "/v1/completions", &body.to_string());
        assert!(stream.contains(&format!("\"model\":\"{given}\"")), "{stream}");
    }
}

#[test]
fn head_is_get_without_a_body() {
    let served = Served::start(&[]);
    for path in ["/v1/models", "/v1/models/mock-tiny", "/health"] {
        let (get, body) = served.ask("GET", path, "");
        let (head, nothing) = served.ask("HEAD", path, "");
        let same_for_all =
            |line: &&str| !line.starts_with("date:") && !line.starts_with("x-request-id:");
        let without_own = |head: &str| {
            let lines: Vec<&str> = head.lines().filter(same_for_all).collect();
            lines.join("\n")
        };
        assert_eq!((status(&head), nothing.as_str()), (200, ""), "{path}");
        assert_eq!(without_own(&head), without_own(&get), "{path}");
        assert!(get.contains(&format!("content-length: {}", body.len())), "{path}: {get}");
    }
    let (metrics, nothing) = served.ask("HEAD", "/metrics", "");
    assert_eq!((status(&metrics), nothing.as_str()), (200, ""));
}
