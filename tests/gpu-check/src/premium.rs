//! Runs the engine on a GPU that is full of background requests, and measures how premium requests are served that
//! arrive then: TTFT, preemptions, and the loss of throughput.

use crate::CheckError;
use crate::report::Report;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use tiercel_actors::{Engine, EngineHandle, Request, StreamEvent};
use tiercel_config::{EngineSettings, Policy, SloTargets};
use tiercel_device::{BlockId, Clock, DeviceInfo, SamplingParams, Tier, TokenId};
use tiercel_gpu::cuda::{CudaCopier, CudaKv, CudaOps, CudaOptions, DevicePtr, Driver};
use tiercel_gpu::{Ops, WeightFormat};
use tiercel_model::arch::ModelConfig;
use tiercel_model::forward::{Decoder, DecoderLimits};
use tiercel_model::load::{LoadOptions, Parts, start};
use tiercel_model::weights::Weights;
use tiercel_policy::Weight;
use tiercel_policy::blocks::Salt;

const BLOCK_SIZE: usize = 16;

/// Load and engine limits for the measurement of premium requests on a full GPU.
#[derive(Debug, Clone)]
pub struct PremiumPlan {
    /// Model to run: the text of a `config.json`.
    pub model: String,
    /// Size of the device pool and of the host pool, blocks of 16 tokens: few enough that the background requests fill
    /// them.
    pub blocks: (u32, u32),
    /// Number of background requests that are in the engine (running, waiting or preempted) at any time, and the
    /// lengths of their prompts and outputs, tokens.
    pub background: (usize, u32, u32),
    /// Number of premium requests, time between their arrivals, us, and the lengths of their prompts and outputs,
    /// tokens.
    pub premium: (usize, u64, u32, u32),
    /// Maximum number of sequences and maximum number of tokens in a step.
    pub step: (u32, u32),
    /// Warm-up: time for which background requests run before the measurement begins, us.
    pub warmup_us: u64,
}

/// Counts of tokens and failed requests that the readers of all response streams share, and the flag that stops the
/// background requests.
#[derive(Default)]
struct Seen {
    tokens: Cell<u64>,
    failures: Cell<u64>,
    stop: Cell<bool>,
}

/// Measures the throughput of background requests alone; then, for the same time, the throughput of all requests while
/// premium requests arrive, and the TTFT of the premium requests. The model has random weights.
///
/// # Errors
/// [`CheckError`] if something could not be run at all.
pub fn measure_premium<D: Driver>(
    open: &dyn Fn() -> Result<D, CheckError>,
    plan: &PremiumPlan,
    report: &mut Report,
) -> Result<(), CheckError> {
    let settings = settings(plan);
    let options = LoadOptions {
        max_num_seqs: plan.step.0 as usize,
        max_num_batched_tokens: plan.step.1 as usize,
        ..LoadOptions::default()
    };
    let device = start(parts(open()?, plan, &options)?, &options)?;
    let engine = move || Engine { settings, device, clock: Clock::wall() }.start_here();
    actix_rt::System::new().block_on(serve(engine, plan, report));
    Ok(())
}

fn settings(plan: &PremiumPlan) -> EngineSettings {
    let mut settings = EngineSettings::default();
    (settings.scheduler.max_num_seqs, settings.scheduler.max_num_batched_tokens) = plan.step;
    // Switch off the prefix cache, so that background requests, which repeat their prompts, compute them each time, and
    // shedding, so that no request is refused for lateness however slow the device is.
    settings.prefix_cache.enabled = false;
    settings.shedding = Policy::Fcfs.preset().shedding;
    settings
}

fn parts<D: Driver>(
    mut driver: D,
    plan: &PremiumPlan,
    options: &LoadOptions,
) -> Result<Parts<CudaOps<D>, CudaCopier<D::Copies>>, CheckError> {
    let config = ModelConfig::from_hf(plan.model.as_bytes())?;
    let (blocks, host_blocks) = plan.blocks;
    let mut kv = CudaKv {
        at: DevicePtr::default(),
        blocks: blocks + 1,
        block_size: BLOCK_SIZE,
        layers: config.layers(),
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        q8: false,
    };
    kv.at = driver.allocate(kv.blocks as usize * kv.block_bytes())?;
    driver.clear(kv.at, kv.blocks as usize * kv.block_bytes())?;
    let copies = driver.copies(host_blocks as usize * kv.block_bytes())?;
    let name = driver.name();
    let scratch = Some(BlockId(blocks));
    let cuda = CudaOptions { exact: false, threads: 2, scratch };
    let mut ops = CudaOps::new(driver, kv, config.heads / config.kv_heads, cuda)?;
    let weights = Weights::random(&mut ops, &config, WeightFormat::Auto, 3)?;
    let max_model_len = (blocks * BLOCK_SIZE as u32).min(8192);
    let limits = DecoderLimits {
        max_batched_tokens: options.max_num_batched_tokens,
        max_sampled_rows: options.max_num_seqs,
        max_positions: max_model_len as usize,
    };
    let vocab_size = config.vocab_size as u32;
    let decoder = Decoder::new(&mut ops, config, weights, limits)?;
    let info = DeviceInfo {
        name,
        block_size: BLOCK_SIZE as u32,
        device_blocks: blocks,
        host_blocks,
        block_bytes: kv.block_bytes() as u64,
        max_steps_in_flight: CudaOps::<D>::STEPS as u32,
        max_model_len,
        vocab_size,
    };
    let copier = CudaCopier::new(copies, kv, host_blocks);
    Ok(Parts { info, ops, decoder, copier, host_growth: None })
}

async fn serve(engine: impl FnOnce() -> EngineHandle, plan: &PremiumPlan, report: &mut Report) {
    let engine = engine();
    let clock = engine.clock().clone();
    let seen = Rc::new(Seen::default());
    let (count, prompt, output) = plan.background;
    for number in 0..count {
        actix_rt::spawn(again_and_again(
            engine.clone(),
            number,
            (prompt, output),
            Rc::clone(&seen),
        ));
    }
    clock.sleep_us(plan.warmup_us).await;
    let (arrivals, gap_us, prompt, output) = plan.premium;
    let whole_us = arrivals as u64 * gap_us;
    let before = seen.tokens.get();
    let since = clock.now();
    clock.sleep_us(whole_us).await;
    let rate = |tokens: u64, us: u64| tokens as f64 / us.max(1) as f64 * 1e6;
    let alone = rate(seen.tokens.get() - before, clock.now().since_us(since));
    let preempted = preemptions(&engine).await;
    let (before, since) = (seen.tokens.get(), clock.now());
    let mut readers = Vec::new();
    for number in 0..arrivals {
        let request = request(count + number, Tier::Premium, (prompt, output));
        readers.push(actix_rt::spawn(first_token_ms(engine.clone(), request, Rc::clone(&seen))));
        clock.sleep_us(gap_us).await;
    }
    let both = rate(seen.tokens.get() - before, clock.now().since_us(since));
    let preempted = preemptions(&engine).await - preempted;
    let mut ttft_ms = Vec::new();
    for reader in readers {
        ttft_ms.extend(reader.await.ok().flatten());
    }
    seen.stop.set(true);
    engine.drain(1_000).await;
    ttft_ms.sort_by(f64::total_cmp);
    let quantile = |q: f64| ttft_ms.get((ttft_ms.len() as f64 * q) as usize).copied();
    let ms = |q| quantile(q).map_or("none".to_owned(), |ms| format!("{ms:.0} ms"));
    let what = format!("{arrivals} premium requests among {count} of background");
    report.measured(&format!("{what}: TTFT p50, p99"), format!("{}, {}", ms(0.5), ms(0.99)));
    report.measured(&format!("{what}: preemptions"), preempted.to_string());
    report.measured(&format!("{what}: tok/s, without them"), format!("{both:.0}, {alone:.0}"));
    report.holds(&format!("{what}: every one was served"), ttft_ms.len() == arrivals);
    report.holds(&format!("{what}: no stream failed"), seen.failures.get() == 0);
}

async fn preemptions(engine: &EngineHandle) -> u64 {
    engine.status().await.map_or(0, |status| status.counters.preemptions())
}

fn request(number: usize, tier: Tier, (prompt, output): (u32, u32)) -> Request {
    let token = |i: u32| (i * 7 + number as u32 * 131) % 1000 % 50;
    let prompt: Arc<[TokenId]> = (0..prompt).map(token).collect();
    Request {
        tier,
        priority: 0,
        salt: Salt([0; 16]),
        weight: Weight::default(),
        prompt,
        max_tokens: output,
        stop_tokens: Arc::from([]),
        sampling: Arc::new(SamplingParams::greedy()),
        targets: SloTargets::default(),
        may_tighten: None,
        max_wait_ms: None,
        waited_ms: 0,
        sibling: false,
        cache_salt: None,
        returning: false,
    }
}

/// Submits a request and reads its token stream to the end; returns its TTFT, ms, or `None` if no token came.
async fn first_token_ms(engine: EngineHandle, request: Request, seen: Rc<Seen>) -> Option<f64> {
    let clock = engine.clock().clone();
    let since = clock.now();
    let mut stream = engine.submit(request).await.ok()?;
    let mut first_ms = None;
    while let Some(event) = stream.next().await {
        match event {
            StreamEvent::Token { .. } => {
                first_ms.get_or_insert_with(|| clock.now().since_ms(since));
                seen.tokens.set(seen.tokens.get() + 1);
            }
            StreamEvent::Failed(_) if !seen.stop.get() => {
                seen.failures.set(seen.failures.get() + 1);
            }
            _ => {}
        }
    }
    first_ms
}

/// Sends background requests, each after the previous one has ended, until `seen.stop` is set.
async fn again_and_again(engine: EngineHandle, number: usize, size: (u32, u32), seen: Rc<Seen>) {
    while !seen.stop.get() {
        let request = request(number, Tier::Background, size);
        if first_token_ms(engine.clone(), request, Rc::clone(&seen)).await.is_none() {
            // Wait before the next request, because a request without a first token was refused or turned away, or the
            // engine has ended.
            engine.clock().sleep_us(100_000).await;
        }
    }
}
