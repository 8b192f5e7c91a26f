//! Tests that the server's responses and response streams have the JSON form of OpenAI's API, on the mock device.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::{Value, json};
use tiercel_config::{KvElement, Policy, ServerSettings, ToolParser};
use tiercel_tests::{TestServer, events};

/// File with replies of a mock device.
const REPLIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/replies/hermes.toml");

fn chat(extra: Value) -> Value {
    let mut body = json!({
        "model": "mock-tiny", "max_tokens": 12, "ignore_eos": true,
        "messages": [{"role": "user", "content": "Hello"}],
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn chunks(body: &[u8]) -> Vec<Value> {
    let mut events = events(body);
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

#[test]
fn requests_share_cached_blocks_only_within_their_cache_salt() {
    let server = TestServer::mock(|_| ());
    let cached = |salt: Value| {
        let body =
            json!({"prompt": "one two three ".repeat(20), "max_tokens": 1, "cache_salt": salt});
        let answer = server.post("/v1/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    for salt in [json!(null), json!("ann"), json!("bob")] {
        assert_eq!(cached(salt.clone()), 0, "{salt}");
        assert_ne!(cached(salt.clone()), 0, "{salt}");
    }
    assert_ne!(cached(json!("")), 0, "an empty salt is none");
    server.finish();
}

#[test]
fn a_stream_begins_with_the_role_and_ends_with_usage_and_done() {
    let server = TestServer::mock(|_| ());
    let body = chat(json!({"stream": true, "stream_options": {"include_usage": true}, "seed": 7}));
    let response = server.post("/v1/chat/completions", &body);
    assert_eq!(response.status, 200);
    assert!(response.header("content-type").unwrap().starts_with("text/event-stream"));
    let chunks = chunks(&response.body);
    let (first, last) = (&chunks[0], &chunks[chunks.len() - 1]);
    assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 12);
    assert_eq!(
        last["usage"]["total_tokens"],
        last["usage"]["prompt_tokens"].as_u64().unwrap() + 12
    );
    let closing = &chunks[chunks.len() - 2];
    assert_eq!(closing["choices"][0]["finish_reason"], "length");
    assert_eq!(closing["choices"][0]["delta"], json!({}));
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["id"], first["id"]);
        assert_eq!(chunk["service_tier"], "default");
        assert!(chunk.get("usage").is_some(), "null until the last: {chunk}");
    }
    let streamed: String =
        chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    let whole = server.post("/v1/chat/completions", &chat(json!({"seed": 7}))).json();
    assert_eq!(whole["choices"][0]["message"]["content"], streamed);
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    assert_eq!(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 16, "one block of 16");
    assert_eq!(whole["object"], "chat.completion");
    server.finish();
}

#[test]
fn without_include_usage_no_chunk_speaks_of_it() {
    let server = TestServer::mock(|_| ());
    let response = server.post("/v1/chat/completions", &chat(json!({"stream": true})));
    assert!(chunks(&response.body).iter().all(|chunk| chunk.get("usage").is_none()));
    server.finish();
}

#[test]
fn with_continuous_usage_every_chunk_counts_the_tokens_of_its_choice_so_far() {
    let server = TestServer::mock(|_| ());
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let conversation = chat(json!({"stream": true, "stream_options": options, "n": 2}));
    let texts = json!({
        "prompt": ["ab", "cde"], "max_tokens": 12, "ignore_eos": true, "stream": true,
        "stream_options": options,
    });
    for (path, body, prompts) in
        [("/v1/chat/completions", conversation, None), ("/v1/completions", texts, Some([2, 3]))]
    {
        let mut chunks = chunks(&server.post(path, &body).body);
        let total = chunks.pop().unwrap();
        assert_eq!(
            (&total["choices"], &total["usage"]["completion_tokens"]),
            (&json!([]), &json!(24))
        );
        assert!(total["usage"]["prompt_tokens_details"]["cached_tokens"].is_number(), "{total}");
        for index in 0..2 {
            let of_choice = chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == index);
            let usage: Vec<&Value> = of_choice.map(|chunk| &chunk["usage"]).collect();
            let prompt_tokens = match prompts {
                Some(prompts) => json!(prompts[index]),
                None => total["usage"]["prompt_tokens"].clone(),
            };
            assert!(usage.iter().all(|usage| usage["prompt_tokens"] == prompt_tokens), "{usage:?}");
            let counts: Vec<u64> =
                usage.iter().map(|usage| usage["completion_tokens"].as_u64().unwrap()).collect();
            // Each chunk with text counts more tokens than the previous chunk; the chunk with the finish reason counts
            // no more.
            let (last, pieces) = counts.split_last().unwrap();
            assert!(pieces.is_sorted_by(|a, b| a < b) && pieces.len() > 2, "{counts:?}");
            assert_eq!(*last, 12);
            assert_eq!(counts[0] == 0, prompts.is_none(), "the role comes before any token");
            for usage in usage {
                let sum = usage["prompt_tokens"].as_u64().unwrap()
                    + usage["completion_tokens"].as_u64().unwrap();
                assert_eq!(usage["total_tokens"], sum);
                assert!(usage.get("prompt_tokens_details").is_none(), "{usage}");
            }
        }
    }
    server.finish();
}

#[test]
fn answers_and_chunks_have_the_fingerprint_of_the_server() {
    let fingerprint = |adjust: fn(&mut ServerSettings)| {
        let server = TestServer::mock(adjust);
        let whole = server.post("/v1/chat/completions", &chat(json!({}))).json();
        let fingerprint = whole["system_fingerprint"].as_str().unwrap().to_owned();
        assert!(fingerprint.starts_with("tiercel-"), "{fingerprint}");
        let text = json!({"prompt": "ab", "max_tokens": 3, "ignore_eos": true});
        assert_eq!(server.post("/v1/completions", &text).json()["system_fingerprint"], fingerprint);
        for (path, mut body) in
            [("/v1/chat/completions", chat(json!({}))), ("/v1/completions", text)]
        {
            body["stream"] = json!(true);
            let chunks = chunks(&server.post(path, &body).body);
            assert!(
                chunks.iter().all(|chunk| chunk["system_fingerprint"] == fingerprint),
                "{chunks:?}"
            );
        }
        server.finish();
        fingerprint
    };
    let first = fingerprint(|_| ());
    assert_eq!(first, fingerprint(|settings| settings.engine.use_policy(Policy::Fcfs)));
    assert_ne!(first, fingerprint(|settings| settings.kv.element = KvElement::F32));
    assert_ne!(first, fingerprint(|settings| settings.model.temperature = Some(0.0)));
    assert_ne!(first, fingerprint(|settings| settings.model.tool_parser = ToolParser::Mistral));
    assert_ne!(first, fingerprint(|settings| settings.mock.replies_file = Some(REPLIES.into())));
}

#[test]
fn text_completions_take_several_prompts_and_n() {
    let server = TestServer::mock(|_| ());
    let body = json!({"prompt": ["ab", "cde"], "n": 2, "ignore_eos": true});
    let whole = server.post("/v1/completions", &body).json();
    let indices: Vec<_> =
        whole["choices"].as_array().unwrap().iter().map(|c| c["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert_eq!(whole["usage"]["prompt_tokens"], 5);
    assert_eq!(whole["usage"]["completion_tokens"], 4 * 16, "16 tokens by default");
    assert_eq!(whole["object"], "text_completion");

    let tokens = json!({"prompt": [97, 98], "max_tokens": 5, "seed": 1, "ignore_eos": true});
    let text = json!({"prompt": "ab", "max_tokens": 5, "seed": 1, "ignore_eos": true});
    let answer = |body: &Value| server.post("/v1/completions", body).json()["choices"].clone();
    assert_eq!(answer(&tokens), answer(&text));

    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let response = server.post("/v1/completions", &streamed);
    let finished: Vec<_> = chunks(&response.body)
        .iter()
        .filter(|chunk| chunk["choices"][0]["finish_reason"] == "length")
        .map(|chunk| chunk["choices"][0]["index"].as_u64().unwrap())
        .collect();
    assert_eq!(finished.len(), 4, "{finished:?}");
    server.finish();
}

#[test]
fn a_stop_string_ends_the_text_before_it_and_frees_the_sequence() {
    let server = TestServer::mock(|_| ());
    let long = json!({"prompt": "stop here", "max_tokens": 400, "ignore_eos": true});
    let whole = server.post("/v1/completions", &long).json();
    let text = whole["choices"][0]["text"].as_str().unwrap().to_owned();
    // Take five characters from the middle of the text as stop string, so that it spans more than one token. The output
    // must end before it.
    let middle = text.char_indices().nth(text.chars().count() / 2).unwrap().0;
    let stop: String = text[middle..].chars().take(5).collect();
    let before = &text[..text.find(&stop).unwrap()];
    for stream in [false, true] {
        let mut body = long.clone();
        body["stop"] = json!([stop, "never found"]);
        body["stream"] = json!(stream);
        let response = server.post("/v1/completions", &body);
        let (found, reason) = if stream {
            let chunks = chunks(&response.body);
            let text: String =
                chunks.iter().filter_map(|c| c["choices"][0]["text"].as_str()).collect();
            (text, chunks.last().unwrap()["choices"][0]["finish_reason"].clone())
        } else {
            let choice = response.json()["choices"][0].clone();
            (choice["text"].as_str().unwrap().to_owned(), choice["finish_reason"].clone())
        };
        assert_eq!((found.as_str(), reason), (before, json!("stop")), "stream {stream}");
    }
    server.finish();
}

#[test]
fn stop_tokens_end_the_output_and_are_no_part_of_it() {
    let server = TestServer::mock(|_| ());
    let body = json!({"prompt": "abc", "max_tokens": 50, "ignore_eos": true, "logprobs": 0});
    let whole = server.post("/v1/completions", &body).json();
    let text = whole["choices"][0]["text"].as_str().unwrap();
    let tokens = server.post("/tokenize", &json!({"prompt": text})).json();
    assert!(tokens["count"].as_u64().unwrap() > 0);
    // The mock device writes a token id above 257 as " tNNN". Make the first such token of the output a stop token:
    // generation must end before it.
    let name = text.split(" t").nth(1).unwrap();
    let id: String = name.chars().take_while(char::is_ascii_digit).collect();
    let id: u32 = id[..3].parse().unwrap();
    let mut stopped = body.clone();
    stopped["stop_token_ids"] = json!([id]);
    let choice = server.post("/v1/completions", &stopped).json()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["text"], text[..text.find(" t").unwrap()]);
    server.finish();
}

#[test]
fn the_answer_names_the_tier_really_used() {
    let server = TestServer::mock(|_| ());
    for (ask, tier) in [
        (json!({}), "default"),
        (json!({"service_tier": "auto"}), "default"),
        (json!({"service_tier": "priority"}), "priority"),
        (json!({"service_tier": "flex"}), "flex"),
        (json!({"priority": -1}), "priority"),
        (json!({"priority": 5}), "flex"),
        (json!({"priority": 5, "service_tier": "priority"}), "priority"),
    ] {
        let answer = server.post("/v1/chat/completions", &chat(ask.clone())).json();
        assert_eq!(answer["service_tier"], tier, "{ask}");
    }
    let metrics = server.get("/metrics").text();
    assert!(metrics.contains("tiercel_requests_total{"), "{metrics}");
    for name in
        ["tiercel_ttft_seconds_bucket", "vllm:num_requests_running", "vllm:cache_config_info"]
    {
        assert!(metrics.contains(name), "no {name}");
    }
    server.finish();
}

#[test]
fn a_policy_without_tiers_does_not_claim_to_have_used_one() {
    let server = TestServer::mock(|settings| settings.engine.use_policy(Policy::Fcfs));
    for asked in ["priority", "flex", "default"] {
        let answer = server.post("/v1/chat/completions", &chat(json!({"service_tier": asked})));
        assert_eq!(answer.json()["service_tier"], "default", "{asked}");
    }
    server.finish();
}

#[test]
fn texts_that_cannot_fit_are_told_so_before_they_are_tokenized() {
    let server = TestServer::mock(|settings| settings.http.max_body_kib = 8192);
    let context = server.get("/v1/models").json()["data"][0]["max_model_len"].as_u64().unwrap();
    // In the mock device's vocabulary each byte of a text is one token, so all these texts are longer than the context.
    for bytes in [context as usize + 1, 2 << 20, 3 << 20] {
        let text = "x".repeat(bytes);
        let chat = json!({"messages": [{"role": "user", "content": text}]});
        for (path, body, param) in [
            ("/v1/completions", json!({"prompt": text}), "prompt"),
            ("/tokenize", json!({"prompt": text}), "prompt"),
            ("/v1/chat/completions", chat, "messages"),
        ] {
            let error = server.post(path, &body).error();
            let found = (&error["code"], &error["param"]);
            assert_eq!(found, (&json!("context_length_exceeded"), &json!(param)), "{path}");
            assert!(error["message"].as_str().unwrap().contains("bytes"), "{error}");
        }
    }
    server.finish();
}

#[test]
fn text_offsets_are_those_of_the_characters_streamed_or_not() {
    let server = TestServer::mock(|_| ());
    let body = json!({
        "prompt": "offsets", "max_tokens": 200, "ignore_eos": true, "logprobs": 1, "temperature": 0,
    });
    let plain = server.post("/v1/completions", &body).json()["choices"][0].clone();
    let text = plain["text"].as_str().unwrap();
    let logprobs = &plain["logprobs"];
    let offsets: Vec<usize> = logprobs["text_offset"]
        .as_array()
        .unwrap()
        .iter()
        .map(|o| o.as_u64().unwrap() as usize)
        .collect();
    for (index, (token, offset)) in
        logprobs["tokens"].as_array().unwrap().iter().zip(&offsets).enumerate()
    {
        let token = token.as_str().unwrap();
        let rest: String = text.chars().skip(*offset).collect();
        assert!(token.starts_with("bytes:") || rest.starts_with(token), "{index} {token:?}");
        assert!(logprobs["top_logprobs"][index][token].is_number(), "{index} {token:?}");
    }
    // The server holds back text in which a stop string might begin. The text offsets in the response stream must be
    // the same as without a stop string.
    let last: String = text.chars().rev().take(3).collect::<Vec<_>>().into_iter().rev().collect();
    let held = format!("{last}never said");
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    streamed["stop"] = json!([held, " t999999"]);
    let response = server.post("/v1/completions", &streamed);
    let found: Vec<usize> = chunks(&response.body)
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["text_offset"].as_array().cloned())
        .flatten()
        .map(|offset| offset.as_u64().unwrap() as usize)
        .collect();
    assert_eq!(found, offsets);
    server.finish();
}

#[test]
fn models_tokens_and_errors_off_the_beaten_path() {
    let server = TestServer::mock(|_| ());
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "mock-tiny");
    assert_eq!(server.get("/v1/models/mock-tiny").json()["object"], "model");
    assert_eq!(server.get("/v1/models/org/other").error()["code"], "model_not_found");
    assert_eq!(server.get("/nowhere").status, 404);
    assert_eq!(server.get("/nowhere").error()["code"], "unknown_url");
    let wrong_method = server.get("/v1/chat/completions");
    assert_eq!((wrong_method.status, wrong_method.header("allow")), (405, Some("POST")));
    wrong_method.error();
    let tokens = server.post("/tokenize", &json!({"prompt": "h\u{e9}"})).json();
    assert_eq!((&tokens["tokens"], &tokens["count"]), (&json!([104, 195, 169]), &json!(3)));
    let text = server.post("/detokenize", &json!({"tokens": [104, 195, 169]})).json();
    assert_eq!(text["prompt"], "h\u{e9}");
    let chat = json!({"messages": [{"role": "user", "content": "x"}]});
    let with_answer = server.post("/tokenize", &chat).json()["count"].as_u64().unwrap();
    let mut without = chat.clone();
    without["add_generation_prompt"] = json!(false);
    assert!(server.post("/tokenize", &without).json()["count"].as_u64().unwrap() < with_answer);
    server.finish();
}

#[test]
fn both_listeners_state_the_version_without_a_key() {
    let server = TestServer::mock(|settings| settings.http.api_keys = vec!["secret".into()]);
    for mut connection in [server.connect(), server.control()] {
        let answer = connection.request("GET", "/version", &[], b"");
        assert_eq!(
            (answer.status, answer.json()),
            (200, json!({"version": env!("CARGO_PKG_VERSION")}))
        );
    }
    server.finish();
}

#[test]
fn a_server_with_keys_lets_only_them_in() {
    let server = TestServer::mock(|settings| settings.http.api_keys = vec!["secret".into()]);
    let body = chat(json!({})).to_string();
    let ask = |authorization: &str| {
        let headers = [("content-type", "application/json"), ("authorization", authorization)];
        server.connect().request("POST", "/v1/chat/completions", &headers, body.as_bytes())
    };
    assert_eq!(ask("Bearer secret").status, 200);
    let refused = ask("Bearer guess");
    assert_eq!((refused.status, &refused.error()["code"]), (401, &json!("invalid_api_key")));
    // The key is checked before the body, which the server refuses with 415 if the key is accepted.
    for path in ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"] {
        let ask = |authorization: &str| {
            let headers = [("content-type", "text/plain"), ("authorization", authorization)];
            server.connect().request("POST", path, &headers, b"no JSON").status
        };
        assert_eq!((ask("Bearer guess"), ask("Bearer secret")), (401, 415), "{path}");
    }
    assert_eq!(server.get("/v1/models").status, 401);
    assert_eq!(server.get("/health").status, 200, "probes have no key");
    server.finish();
}
