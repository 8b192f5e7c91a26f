//! Tests that scheduling never changes the text. The tokens of a request on the real model are the same alone and in a
//! batch with many others, however its prompt is cut into chunks, with and without preemption, with and without cached
//! prefix, on one thread and on two.
//!
//! The tests run the production engine on the production CPU device. `model/tests/decoder/invariance.rs` checks that
//! the device alone computes the same logits, bit for bit.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use tiercel_actors::{Engine, EngineHandle, Request, StreamEvent, TokenStream, Usage};
use tiercel_config::{EngineSettings, Policy, PreemptionMode, SloTargets};
use tiercel_device::{Clock, Constraint, SamplingParams, Tier, TokenId};
use tiercel_gpu::{KvType, WeightFormat};
use tiercel_grammar::{Grammars, STACK_BYTES, Source, TokenText, Vocabulary};
use tiercel_model::load::{KvCapacity, LoadOptions, load};
use tiercel_model::source::{ModelFiles, Resolver};
use tiercel_model::tokenizer::Tokenizer;
use tiercel_policy::Weight;
use tiercel_policy::blocks::Salt;

/// Output length of each request whose tokens are compared between runs, tokens.
const OUTPUT: usize = 48;
/// Size of a device pool that holds all requests of a run without preemption, KV blocks.
const ROOMY: u32 = 600;
/// Size of a device pool that holds one checked request or a premium prompt of [`INTRUDER`] tokens, but not both once
/// the checked request has more than 32 tokens, KV blocks; so the premium request preempts the checked one.
const TIGHT: u32 = 12;
const INTRUDER: usize = 150;
/// Size of a token stream's buffer, tokens: the engine computes about this many tokens more than a client has read.
const BUFFER: u32 = 16;

/// A request whose tokens are compared between runs.
struct Case {
    name: String,
    prompt: Arc<[TokenId]>,
    sampling: SamplingParams,
}

/// A model in one number format, and the requests that are sent to it in every run.
struct Setup {
    files: ModelFiles,
    weights: WeightFormat,
    kv_type: KvType,
    cases: Vec<Case>,
}

/// Configuration of the engine for one run: threads, device blocks and settings. Each run changes some of the values of
/// [`Variation::default`].
struct Variation {
    threads: usize,
    device_blocks: u32,
    settings: EngineSettings,
}

#[derive(Debug)]
struct Output {
    tokens: Vec<TokenId>,
    usage: Usage,
}

impl Default for Variation {
    fn default() -> Self {
        let mut settings = EngineSettings::default();
        settings.prefix_cache.enabled = false;
        // Switch shedding off, so that no request is refused for lateness however slow the machine is.
        settings.shedding = Policy::Fcfs.preset().shedding;
        Variation { threads: 2, device_blocks: ROOMY, settings }
    }
}

/// Returns a grammar for the model's vocabulary whose outputs are longer than [`OUTPUT`].
fn constraint(files: &ModelFiles) -> Arc<dyn Constraint> {
    let tokenizer = Tokenizer::from_files(files).unwrap();
    let text = |id| TokenText::of(tokenizer.token_bytes(id), tokenizer.is_special(id));
    let ends = &tokenizer.special().ends;
    let vocabulary = Vocabulary::new(tokenizer.vocab_size(), ends, text);
    let compile = move || {
        let lines = Source::Regex("([A-Z][a-z]+( [a-z]+){1,4}: [0-9]{1,3}\\n){60,}".into());
        Grammars::new(&vocabulary).unwrap().compile(&lines).unwrap().constraint
    };
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(compile).unwrap();
    thread.join().unwrap()
}

impl Setup {
    /// Makes one greedily sampled request for each named reference prompt, and two more requests for the first prompt
    /// that are sampled at random with a seed, one of them under a grammar.
    fn new(weights: WeightFormat, kv_type: KvType, names: &[&str]) -> Setup {
        let model =
            Resolver::from_env().unwrap().resolve(None).expect("the default model can be fetched");
        let greedy = |name: &&str| Case {
            name: (*name).to_owned(),
            prompt: prompt(name),
            sampling: SamplingParams::greedy(),
        };
        let mut cases: Vec<Case> = names.iter().map(greedy).collect();
        let sampling = SamplingParams {
            temperature: 0.8,
            top_p: 0.9,
            seed: 20_240_601,
            ..SamplingParams::default()
        };
        let constraint = Some(constraint(&model.files));
        let constrained = SamplingParams { constraint, ..sampling.clone() };
        cases.push(Case { name: "sampled".into(), prompt: prompt(names[0]), sampling });
        let (name, prompt) = ("constrained".into(), prompt(names[0]));
        cases.push(Case { name, prompt, sampling: constrained });
        Setup { files: model.files, weights, kv_type, cases }
    }

    fn engine(&self, variation: &Variation) -> EngineHandle {
        let settings = variation.settings.clone();
        settings.check().unwrap();
        let options = LoadOptions {
            weights: self.weights,
            kv_type: self.kv_type,
            threads: variation.threads,
            kv_capacity: KvCapacity::Blocks(variation.device_blocks),
            host_bytes: Some(64 << 20),
            max_num_seqs: settings.scheduler.max_num_seqs as usize,
            max_num_batched_tokens: settings.scheduler.max_num_batched_tokens as usize,
            ..LoadOptions::default()
        };
        let loaded = load(&self.files, &options, &mut |_| {}).expect("the model loads");
        Engine { settings, device: loaded.device, clock: Clock::wall() }.start_here()
    }

    /// Returns the requests whose prompt and output have at most 140 tokens together, which fit into a device pool of
    /// [`TIGHT`] blocks.
    fn short(&self) -> impl Iterator<Item = (usize, &Case)> {
        self.cases.iter().enumerate().filter(|(_, case)| case.prompt.len() + OUTPUT <= 140)
    }
}

impl Case {
    fn request(&self, tier: Tier) -> Request {
        Request {
            tier,
            priority: 0,
            salt: Salt([0; 16]),
            weight: Weight::default(),
            prompt: Arc::clone(&self.prompt),
            max_tokens: OUTPUT as u32,
            stop_tokens: Arc::from([]),
            sampling: Arc::new(self.sampling.clone()),
            targets: SloTargets::default(),
            may_tighten: None,
            max_wait_ms: None,
            waited_ms: 0,
            sibling: false,
            cache_salt: None,
            returning: false,
        }
    }

    fn expect(&self, what: &str, expected: &[TokenId], found: &Output) {
        assert_eq!(found.tokens, expected, "{} changed: {what}", self.name);
    }
}

fn entries() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/smollm2/greedy.json");
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    file["prompts"].as_array().unwrap().clone()
}

fn tokens_of(entry: &Value) -> Arc<[TokenId]> {
    let ids = entry["prompt"].as_array().unwrap();
    ids.iter().map(|id| id.as_u64().unwrap() as TokenId).collect()
}

fn prompt(name: &str) -> Arc<[TokenId]> {
    tokens_of(entries().iter().find(|entry| entry["name"] == name).unwrap())
}

/// Reads a token stream to its end and returns its tokens, after the tokens that were already read from it.
async fn finish(mut stream: TokenStream, mut tokens: Vec<TokenId>) -> Output {
    loop {
        match stream.next().await.expect("a stream ends with its end") {
            StreamEvent::Token { token, .. } => tokens.push(token),
            StreamEvent::Finished { usage, .. } => return Output { tokens, usage },
            StreamEvent::Failed(fault) => panic!("{fault}"),
        }
    }
}

async fn run(engine: &EngineHandle, request: Request) -> Output {
    finish(engine.submit(request).await.unwrap(), Vec::new()).await
}

/// Runs all requests at once, so that they share batches, and returns their outputs.
async fn together(engine: &EngineHandle, cases: &[Case], tier: Tier) -> Vec<Output> {
    let mut readers = Vec::new();
    for case in cases {
        let stream = engine.submit(case.request(tier)).await.unwrap();
        readers.push(actix_rt::spawn(finish(stream, Vec::new())));
    }
    let mut outputs = Vec::new();
    for reader in readers {
        outputs.push(reader.await.unwrap());
    }
    outputs
}

/// Runs the requests one after the other and returns their tokens, with which every other run is compared.
async fn alone(setup: &Setup) -> Vec<Vec<TokenId>> {
    let engine = setup.engine(&Variation::default());
    let mut expected = Vec::new();
    for case in &setup.cases {
        let output = run(&engine, case.request(Tier::Standard)).await;
        assert_eq!(output.tokens.len(), OUTPUT);
        assert_eq!((output.usage.preemptions, output.usage.cached_tokens), (0, 0));
        expected.push(output.tokens);
    }
    engine.drain(1_000).await;
    expected
}

async fn one_of_32(setup: &Setup, expected: &[Vec<TokenId>]) {
    let mut variation = Variation::default();
    variation.settings.scheduler.max_num_seqs = 32;
    let engine = setup.engine(&variation);
    let entries = entries();
    let fillers = entries.iter().filter(|entry| tokens_of(entry).len() <= 64).cycle();
    let mut crowd = Vec::new();
    for (seed, entry) in (0..).zip(fillers).take(32 - setup.cases.len()) {
        let sampling = SamplingParams { seed, ..SamplingParams::default() };
        let filler = Case { name: "filler".into(), prompt: tokens_of(entry), sampling };
        // The filler requests have longer outputs than the checked requests, so that all 32 decode in one batch.
        let request = Request { max_tokens: 96, ..filler.request(Tier::Standard) };
        crowd.push(engine.submit(request).await.unwrap());
    }
    let mut readers = Vec::new();
    for case in &setup.cases {
        let stream = engine.submit(case.request(Tier::Standard)).await.unwrap();
        readers.push(actix_rt::spawn(finish(stream, Vec::new())));
    }
    let mut most = 0;
    while readers.iter().any(|reader| !reader.is_finished()) {
        most = most.max(engine.status().await.unwrap().running);
        engine.clock().sleep_us(2_000).await;
    }
    for ((case, expected), reader) in setup.cases.iter().zip(expected).zip(readers) {
        case.expect("in a batch of 32", expected, &reader.await.unwrap());
    }
    assert_eq!(most, 32, "the crowd was not there");
    drop(crowd);
    engine.drain(1_000).await;
}

async fn in_chunks(setup: &Setup, expected: &[Vec<TokenId>], chunk: u32, threads: usize) {
    let mut variation = Variation { threads, ..Variation::default() };
    variation.settings.scheduler.max_num_seqs = 8;
    variation.settings.scheduler.max_num_batched_tokens = chunk;
    variation.settings.scheduler.long_prefill_token_threshold = chunk;
    let engine = setup.engine(&variation);
    let outputs = together(&engine, &setup.cases, Tier::Standard).await;
    for ((case, expected), output) in setup.cases.iter().zip(expected).zip(&outputs) {
        case.expect(&format!("chunks of {chunk}, {threads} threads"), expected, output);
    }
    let tokens: usize = setup.cases.iter().map(|case| case.prompt.len()).sum();
    let steps = engine.status().await.unwrap().counters.steps;
    assert!(steps >= tokens as u64 / u64::from(chunk), "{tokens} prompt tokens in {steps} steps");
    engine.drain(1_000).await;
}

/// Runs a background request that two or three premium requests preempt (three arrive). Returns its output, and how
/// many host blocks were in use while it was preempted (0 if it was not swapped).
async fn interrupted(engine: &EngineHandle, case: &Case, intruder: &Case) -> (Output, u32) {
    let mut stream = engine.submit(case.request(Tier::Background)).await.unwrap();
    let (mut tokens, mut in_host) = (Vec::new(), 0);
    // Let premium requests arrive after the client has read 2, 18 and 34 tokens. Even if the engine is ahead of the
    // client by a whole stream buffer, the background request is still running at the second preemption.
    for pause in [2, 18, 34] {
        while tokens.len() < pause {
            match stream.next().await {
                Some(StreamEvent::Token { token, .. }) => tokens.push(token),
                other => panic!("{}: {other:?} after {} tokens", case.name, tokens.len()),
            }
        }
        let request = Request { max_tokens: 3, ..intruder.request(Tier::Premium) };
        let mut premium = engine.submit(request).await.unwrap();
        premium.next().await.unwrap();
        let status = engine.status().await.unwrap();
        in_host = in_host.max(status.host_blocks - status.host_blocks_free);
        finish(premium, Vec::new()).await;
    }
    (finish(stream, tokens).await, in_host)
}

async fn preempted(setup: &Setup, expected: &[Vec<TokenId>], mode: PreemptionMode) {
    let mut variation = Variation { device_blocks: TIGHT, ..Variation::default() };
    variation.settings.preemption.mode = mode;
    variation.settings.scheduler.watermark_percent = 0.0;
    variation.settings.stream.buffer_tokens = BUFFER;
    let engine = setup.engine(&variation);
    let intruder = Case {
        name: "intruder".into(),
        prompt: prompt("raw-long-code")[..INTRUDER].into(),
        sampling: SamplingParams::greedy(),
    };
    for (index, case) in setup.short() {
        let (output, in_host) = interrupted(&engine, case, &intruder).await;
        case.expect(&format!("preempted, {mode:?}"), &expected[index], &output);
        let preemptions = output.usage.preemptions;
        assert!(preemptions >= 2, "{}: {preemptions} preemptions, {mode:?}", case.name);
        assert_eq!(in_host > 0, mode == PreemptionMode::Swap, "{in_host} host blocks, {mode:?}");
        println!("{} {mode:?}: {preemptions} preemptions, {in_host} host blocks", case.name);
    }
    // Run all short requests at once in the small device pool, so that they preempt each other as they grow.
    let mut streams = Vec::new();
    for (index, case) in setup.short() {
        let stream = engine.submit(case.request(Tier::Standard)).await.unwrap();
        streams.push((index, case, actix_rt::spawn(finish(stream, Vec::new()))));
    }
    for (index, case, reader) in streams {
        let what = format!("in a tight pool, {mode:?}");
        case.expect(&what, &expected[index], &reader.await.unwrap());
    }
    engine.drain(1_000).await;
}

/// Checks the tokens of requests of all tiers that run at once in a device pool that holds about one of them, under
/// each preset policy.
async fn under_every_policy(setup: &Setup, expected: &[Vec<TokenId>]) {
    let mut preemptions = 0;
    for (policy, name) in Policy::ALL {
        let mut variation = Variation { device_blocks: TIGHT, ..Variation::default() };
        variation.settings.use_policy(*policy);
        variation.settings.shedding = Policy::Fcfs.preset().shedding;
        let scheduler = &mut variation.settings.scheduler;
        (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) = (8, 64);
        let engine = setup.engine(&variation);
        let mut streams = Vec::new();
        for (tier, (index, case)) in Tier::ALL.into_iter().skip(1).cycle().zip(setup.short()) {
            let stream = engine.submit(case.request(tier)).await.unwrap();
            streams.push((index, case, actix_rt::spawn(finish(stream, Vec::new()))));
        }
        for (index, case, reader) in streams {
            case.expect(name, &expected[index], &reader.await.unwrap());
        }
        preemptions += engine.status().await.unwrap().counters.preemptions();
        engine.drain(1_000).await;
    }
    assert!(preemptions > 0, "memory was not short");
}

async fn cached(setup: &Setup, expected: &[Vec<TokenId>]) {
    let mut variation = Variation::default();
    variation.settings.prefix_cache.enabled = true;
    let engine = setup.engine(&variation);
    for round in 0..2 {
        for (case, expected) in setup.cases.iter().zip(expected) {
            let output = run(&engine, case.request(Tier::Standard)).await;
            case.expect(&format!("prefix cache, round {round}"), expected, &output);
            let hit = output.usage.cached_tokens;
            assert!(round == 0 || hit > 0, "{}: nothing was cached", case.name);
        }
    }
    engine.drain(1_000).await;
}

fn check(setup: &Setup) {
    let clock = Clock::wall();
    let lap = |what: &str| println!("{:8.2} s: {what}", clock.now().0 as f64 / 1e6);
    actix_rt::System::new().block_on(async {
        let expected = alone(setup).await;
        lap("alone");
        one_of_32(setup, &expected).await;
        lap("one of 32");
        for (chunk, threads) in [(16, 2), (64, 2), (512, 2), (64, 1)] {
            in_chunks(setup, &expected, chunk, threads).await;
            lap(&format!("chunks of {chunk}, {threads} threads"));
        }
        for mode in [PreemptionMode::Swap, PreemptionMode::Recompute] {
            preempted(setup, &expected, mode).await;
            lap(&format!("{mode:?}"));
        }
        cached(setup, &expected).await;
        lap("prefix cache");
    });
}

#[test]
fn default_weights() {
    let names = ["chat-python", "chat-turns", "raw-german", "chat-long-summary"];
    check(&Setup::new(WeightFormat::Auto, LoadOptions::default().kv_type, &names));
}

/// Checks the runs that could change the stored KV of a token: other chunks, swapped and recomputed blocks, and blocks
/// shared by the prefix cache.
#[test]
fn eight_bit_kv() {
    let setup = Setup::new(WeightFormat::Auto, KvType::Q8, &["chat-python", "raw-german"]);
    actix_rt::System::new().block_on(async {
        let expected = alone(&setup).await;
        in_chunks(&setup, &expected, 16, 1).await;
        for mode in [PreemptionMode::Swap, PreemptionMode::Recompute] {
            preempted(&setup, &expected, mode).await;
        }
        cached(&setup, &expected).await;
    });
}

#[test]
fn every_policy() {
    let names = ["chat-python", "chat-turns", "raw-german"];
    let setup = Setup::new(WeightFormat::Auto, LoadOptions::default().kv_type, &names);
    actix_rt::System::new().block_on(async {
        let expected = alone(&setup).await;
        under_every_policy(&setup, &expected).await;
    });
}

#[test]
fn f32_weights() {
    check(&Setup::new(WeightFormat::F32, KvType::F32, &["chat-capital", "chat-long-letter"]));
}
