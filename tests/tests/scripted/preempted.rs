//! Tests that a premium request preempts a background stream, and that both clients receive the texts of the replies.

use super::{asks, slow_and_small, start, streamed, toml};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tiercel_config::{PreemptionMode, ServerSettings};
use tiercel_tests::TestServer;

/// Text of the background stream: about 180 tokens.
pub(super) fn long_text() -> String {
    (0..45).map(|i| format!("line {i} of the text\n")).collect()
}

/// Writes a file with replies: `long_text` to "Write", and "Urgent answer." to any other message.
pub(super) fn replies() -> NamedTempFile {
    let long = long_text();
    toml(&format!(
        "[[reply]]\nexact = 'Write'\ntext = '''\n{long}'''\n[[reply]]\ntext = 'Urgent answer.'\n"
    ))
}

/// Starts a server, reads the first piece of a background stream, and sends a premium request that leaves no room for
/// the stream. Checks the texts of both, and returns the server.
pub(super) fn preempt(adjust: impl FnOnce(&mut ServerSettings)) -> TestServer {
    let mut profile = None;
    let server = start(&replies(), |settings| {
        profile = Some(slow_and_small(settings));
        adjust(settings);
    });
    let with = |mut body: Value, more: Value| {
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        body
    };
    let mut background = server.connect();
    let body = with(asks("Write"), json!({"stream": true, "service_tier": "flex"}));
    assert_eq!(background.open_stream("/v1/chat/completions", &body).status, 200);
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains("line") {
        read.extend(background.chunk().unwrap());
    }
    let question = "x".repeat(345);
    let body = with(asks(&question), json!({"service_tier": "priority"}));
    let urgent = server.post("/v1/chat/completions", &body);
    assert_eq!(urgent.json()["choices"][0]["message"]["content"], "Urgent answer.");
    while let Some(chunk) = background.chunk().filter(|chunk| !chunk.is_empty()) {
        read.extend(chunk);
    }
    let (pieces, finish) = streamed(&read);
    assert_eq!(pieces.concat(), long_text());
    assert_eq!(finish.as_deref(), Some("stop"));
    server
}

#[test]
fn a_premium_request_preempts_a_background_stream_and_both_texts_are_right() {
    for mode in [PreemptionMode::Swap, PreemptionMode::Recompute] {
        let server = preempt(|settings| settings.engine.preemption.mode = mode);
        let counters = server.status().counters;
        let (swaps, recomputes) =
            (counters.swaps.iter().sum::<u64>(), counters.recomputes.iter().sum::<u64>());
        let expected = if mode == PreemptionMode::Swap { (true, false) } else { (false, true) };
        assert_eq!((swaps > 0, recomputes > 0), expected, "{mode:?}: {counters:?}");
        server.finish();
    }
}
