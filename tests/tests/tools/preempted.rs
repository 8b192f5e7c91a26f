//! Tests that preemptions never change the tool calls of the default model on the CPU.

use crate::{collected, question, tools};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use tiercel_config::{PreemptionMode, ServerSettings};
use tiercel_tests::TestServer;

/// Number of different requests that call tools.
const REQUESTS: usize = 8;
/// Number of clients that send these requests one after the other, in tier background.
const CLIENTS: usize = 6;
/// Number of clients that send premium requests without tools.
const PREMIUM_CLIENTS: usize = 2;
/// Size of the device pool while requests are preempted, MiB. The pool holds about two of the background requests.
const SMALL_MIB: u64 = 9;

fn server(cache_mib: u64, mode: PreemptionMode) -> TestServer {
    let mut settings = ServerSettings::default();
    (settings.kv.cache_mib, settings.kv.host_mib) = (cache_mib, Some(64));
    settings.engine.preemption.mode = mode;
    TestServer::start(settings)
}

/// Returns streamed requests that must call tools, with random sampling and a seed each.
fn requests() -> Vec<Value> {
    let cities = ["Paris", "Kyoto", "Quito", "Oslo", "Lagos", "Perth"];
    let one = |n: usize| {
        let city = cities[n % cities.len()];
        let text = format!("How is the weather in {city}, and will it rain within {n} hours?");
        let extra = json!({"tools": [tools()[0]], "tool_choice": "required", "temperature": 1.0, "seed": n, "max_tokens": 90, "stream": true,
            "service_tier": "flex"});
        question(&text, &extra)
    };
    (0..REQUESTS).map(one).collect()
}

/// Sends a streamed request and returns its collected choice.
fn choice(server: &TestServer, request: &Value) -> Value {
    let response = server.post("/v1/chat/completions", request);
    assert_eq!(response.status, 200, "{}", response.text());
    collected(&response.body).0
}

/// Sends premium requests at random times until `done`.
fn intrude(server: &TestServer, seed: u64, done: &AtomicBool) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let (_sender, pause) = mpsc::channel::<()>();
    while !done.load(Ordering::Relaxed) {
        let _ = pause.recv_timeout(Duration::from_millis(rng.random_range(0..60)));
        let prompt = "word ".repeat(rng.random_range(20..120));
        let request = json!({"prompt": prompt, "max_tokens": 3, "service_tier": "priority"});
        assert_eq!(server.post("/v1/completions", &request).status, 200);
    }
}

/// Sends the tool requests again and again to a server with little memory, until `wanted` requests have been preempted,
/// and compares each answer with `expected`. Returns the numbers of swaps and of recomputes.
fn storm(mode: PreemptionMode, wanted: u64, expected: &[Value]) -> (u64, u64) {
    let server = server(SMALL_MIB, mode);
    let (requests, done) = (requests(), AtomicBool::new(false));
    let count = || {
        let counters = server.status().counters;
        (counters.swaps.iter().sum::<u64>(), counters.recomputes.iter().sum::<u64>())
    };
    std::thread::scope(|scope| {
        let (answered, answers) = mpsc::channel();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (server, requests, done) = (&server, &requests, &done);
                let answered = answered.clone();
                scope.spawn(move || {
                    let mut at = client;
                    while !done.load(Ordering::Relaxed) {
                        let found = choice(server, &requests[at % REQUESTS]);
                        assert_eq!(found, expected[at % REQUESTS], "{mode:?}");
                        at += 1;
                        let _ = answered.send(());
                    }
                })
            })
            .collect();
        for seed in 0..PREMIUM_CLIENTS as u64 {
            let (server, done) = (&server, &done);
            scope.spawn(move || intrude(server, seed, done));
        }
        let enough = || {
            let (swaps, recomputes) = count();
            (if mode == PreemptionMode::Swap { swaps } else { recomputes }) >= wanted
        };
        drop(answered);
        for () in answers {
            if enough() || clients.iter().any(|client| client.is_finished()) {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    let counts = count();
    server.finish();
    counts
}

/// Checks the tool calls under `wanted` swaps and under `wanted` recomputes.
fn check(wanted: u64) {
    let roomy = server(256, PreemptionMode::Swap);
    let expected: Vec<Value> = std::thread::scope(|scope| {
        let roomy = &roomy;
        let ask = |request| scope.spawn(move || choice(roomy, &request));
        let readers: Vec<_> = requests().into_iter().map(ask).collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    assert_eq!(roomy.status().counters.preemptions(), 0);
    roomy.finish();
    let calls = expected.iter().filter(|choice| choice["message"]["tool_calls"].is_array()).count();
    assert!(calls >= REQUESTS / 2, "{calls} answers with calls");
    let (swaps, _) = storm(PreemptionMode::Swap, wanted, &expected);
    let (_, recomputes) = storm(PreemptionMode::Recompute, wanted, &expected);
    println!("{swaps} swaps, {recomputes} recomputes, {calls} of {REQUESTS} answers with calls");
    assert!(swaps >= wanted && recomputes >= wanted, "{swaps} and {recomputes}");
}

#[test]
fn preempted_tool_streams_have_the_same_calls() {
    check(8);
}

#[test]
#[ignore = "takes 15 to 30 minutes: 1,000 preemptions; preempted_tool_streams_have_the_same_calls has 16"]
fn tool_streams_that_are_preempted_a_thousand_times_have_the_same_calls() {
    check(500);
}
