//! Checks that an engine which preempts by swapping, with two steps in flight, gives each request the tokens that the
//! request has alone.

use crate::CheckError;
use crate::report::Report;
use std::path::Path;
use std::sync::Arc;
use tiercel_actors::{Engine, EngineHandle, Request, StreamEvent, TokenStream};
use tiercel_config::{EngineSettings, Policy, PreemptionMode, SloTargets};
use tiercel_device::{Clock, SamplingParams, Tier, TokenId};
use tiercel_gpu::cuda::Driver;
use tiercel_model::load::{GpuUse, KvCapacity, LoadOptions, open_cuda, start};
use tiercel_model::weights::{Checkpoint, ModelFiles};
use tiercel_policy::Weight;
use tiercel_policy::blocks::Salt;

/// Requests of the check: the first half is background work, the second half premium requests, which preempt it.
const REQUESTS: u32 = 6;
/// Length of a prompt, tokens.
const PROMPT: u32 = 20;
/// Longest sequence of the checkpoint `llama3` of `tests/reference/tiny`, tokens.
const LONGEST: usize = 256;
/// Tokens of the vocabulary that prompts use.
const TOKENS: u32 = 300;
/// Tokens of a KV block.
const BLOCK: u32 = 16;

/// Checks that preemption shows in no token. The requests have `output` tokens each. `folder` has the reference
/// checkpoints; the GPU computes exactly (`device.exact`).
///
/// # Errors
/// [`CheckError`] if something could not be run at all.
pub fn check_swaps<D: Driver>(
    open: &dyn Fn() -> Result<D, CheckError>,
    folder: &Path,
    output: u32,
    report: &mut Report,
) -> Result<(), CheckError> {
    let needed = (PROMPT + output).div_ceil(BLOCK);
    let alone = engine(open()?, folder, REQUESTS * needed, 1)?;
    // About two requests fit the pool.
    let crowded = engine(open()?, folder, 2 * needed + 1, 2)?;
    let system = actix_rt::System::new();
    let expected = system.block_on(one_by_one(alone, output));
    let (found, preemptions) = system.block_on(at_once(crowded, output));
    report.measured("swapped requests: preemptions", preemptions.to_string());
    report.holds("swapped requests: some were preempted", preemptions > 0);
    let complete = expected.iter().all(|tokens| tokens.len() == output as usize);
    report
        .holds("swapped requests: the tokens that they have alone", complete && found == expected);
    Ok(())
}

/// Returns a function that starts an engine which swaps, on a device pool of `blocks` KV blocks.
fn engine<D: Driver>(
    driver: D,
    folder: &Path,
    blocks: u32,
    steps_in_flight: u32,
) -> Result<impl FnOnce() -> EngineHandle, CheckError> {
    let checkpoint = Checkpoint::open(&ModelFiles::HfDir(folder.join("llama3")))?;
    let options = LoadOptions {
        kv_capacity: KvCapacity::Blocks(blocks),
        block_size: BLOCK as usize,
        host_bytes: Some(8 << 20),
        max_num_seqs: REQUESTS as usize,
        max_num_batched_tokens: 64,
        max_sequences: 32,
        max_model_len: LONGEST,
        ..LoadOptions::default()
    };
    let usage = GpuUse { exact: true, ..GpuUse::default() };
    let parts = open_cuda(driver, usage, &checkpoint, &options, &mut |_| {})?;
    let device = start(parts, &options)?;
    let mut settings = EngineSettings::default();
    settings.use_policy(Policy::PriorityPreempt);
    settings.shedding = Policy::Fcfs.preset().shedding;
    settings.preemption.mode = PreemptionMode::Swap;
    settings.prefix_cache.enabled = false;
    settings.scheduler.max_num_seqs = REQUESTS;
    settings.scheduler.max_num_batched_tokens = 64;
    settings.scheduler.steps_in_flight = steps_in_flight;
    Ok(move || Engine { settings, device, clock: Clock::wall() }.start_here())
}

/// Makes a request. Requests differ in their sampling: greedy, drawn on the device, drawn by the host for a penalty.
fn request(number: u32, tier: Tier, output: u32) -> Request {
    let drawn =
        SamplingParams { temperature: 1.1, seed: number.into(), ..SamplingParams::default() };
    let sampling = match number % 3 {
        0 => SamplingParams::greedy(),
        1 => drawn,
        _ => SamplingParams { presence_penalty: 1.0, ..drawn },
    };
    Request {
        tier,
        priority: 0,
        salt: Salt([0; 16]),
        weight: Weight::default(),
        prompt: (0..PROMPT).map(|i| (i * i * 7 + number * 31) % TOKENS).collect(),
        max_tokens: output,
        stop_tokens: Arc::from([]),
        sampling: Arc::new(sampling),
        targets: SloTargets::default(),
        may_tighten: None,
        max_wait_ms: None,
        waited_ms: 0,
        sibling: false,
        cache_salt: None,
        returning: false,
    }
}

/// Runs the requests one after the other and returns their tokens.
async fn one_by_one(engine: impl FnOnce() -> EngineHandle, output: u32) -> Vec<Vec<TokenId>> {
    let engine = engine();
    let mut all = Vec::new();
    for number in 0..REQUESTS {
        if let Ok(stream) = engine.submit(request(number, Tier::Standard, output)).await {
            all.push(finish(stream, Vec::new()).await.0);
        }
    }
    engine.drain(1_000).await;
    all
}

/// Runs the requests at once: all others arrive when the first request has its first token. Returns the requests'
/// tokens and the number of preemptions.
async fn at_once(engine: impl FnOnce() -> EngineHandle, output: u32) -> (Vec<Vec<TokenId>>, u32) {
    let engine = engine();
    let mut readers = Vec::new();
    for number in 0..REQUESTS {
        let tier = if number < REQUESTS / 2 { Tier::Background } else { Tier::Premium };
        let Ok(mut stream) = engine.submit(request(number, tier, output)).await else { continue };
        let mut tokens = Vec::new();
        if number == 0
            && let Some(StreamEvent::Token { token, .. }) = stream.next().await
        {
            tokens.push(token);
        }
        readers.push(actix_rt::spawn(finish(stream, tokens)));
    }
    let (mut all, mut preemptions) = (Vec::new(), 0);
    for reader in readers {
        let (tokens, times) = reader.await.unwrap_or_default();
        all.push(tokens);
        preemptions += times;
    }
    engine.drain(1_000).await;
    (all, preemptions)
}

/// Reads a token stream to its end, after the tokens that were already read from it. Returns all tokens and how often
/// the sequence was preempted.
async fn finish(mut stream: TokenStream, mut tokens: Vec<TokenId>) -> (Vec<TokenId>, u32) {
    while let Some(event) = stream.next().await {
        match event {
            StreamEvent::Token { token, .. } => tokens.push(token),
            StreamEvent::Finished { usage, .. } => return (tokens, usage.preemptions),
            StreamEvent::Failed(_) => break,
        }
    }
    (tokens, 0)
}
