//! Benchmark of planning one step: the scheduler's plan, the block store's allocation of KV blocks, and the assembly of
//! the batch. Ended requests are replaced by new ones, so that the numbers of running and of waiting sequences stay the
//! same.
//!
//! `cargo bench -p tiercel-policy --bench planning` also prints the median and the 99th percentile of the planning
//! time.

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use std::sync::Arc;
use std::time::Duration;
use tiercel_config::{EngineSettings, SloTargets};
use tiercel_device::{
    Clock, DeviceInfo, DeviceProfile, Sampled, SamplingParams, SeqId, StepBatch, StepDone,
    StepOutput, StepTiming, Tier, Timestamp,
};
use tiercel_policy::admission::Patience;
use tiercel_policy::blocks::{BlockStore, Salt, StoreConfig};
use tiercel_policy::scheduler::{Action, Effect, NewSequence, PreemptDecision, Scheduler};
use tiercel_policy::{StoreEvent, Weight};

const BLOCK: u32 = 16;
const PROMPT: u32 = 128;

/// A scheduler and a block store without actors and without a device: every step succeeds at once.
struct Rounds {
    scheduler: Scheduler,
    store: BlockStore,
    now_us: u64,
    arrived: u64,
}

impl Rounds {
    /// Returns a scheduler with `running + waiting` sequences. Up to `running` of them run, fewer if their blocks do
    /// not fit; the others wait. The device pool has `running * blocks_each` KV blocks.
    fn new(running: u32, waiting: u32, blocks_each: u32) -> Rounds {
        let mut settings = EngineSettings::default();
        settings.scheduler.max_num_seqs = running;
        settings.scheduler.max_num_batched_tokens = (running * 2).max(512);
        let device_blocks = running * blocks_each;
        let info = DeviceInfo {
            name: "bench".into(),
            block_size: BLOCK,
            device_blocks,
            host_blocks: device_blocks,
            block_bytes: 5 << 20,
            max_steps_in_flight: 1,
            max_model_len: 8192,
            vocab_size: 1000,
        };
        let profile = DeviceProfile {
            step_base_us: 16_000.0,
            decode_token_us: 25.0,
            prefill_token_us: 100.0,
            kv_token_us: 0.025,
            prefill_context_us: 0.0026,
            link_bytes_per_s: 25e9,
        };
        let store = BlockStore::new(StoreConfig {
            block_size: BLOCK,
            device_blocks,
            host_blocks: device_blocks,
            max_copy_blocks_in_transit: 64,
            max_copy_blocks_per_batch: 32,
        });
        let scheduler = Scheduler::new(&settings, &info, profile);
        let mut rounds = Rounds { scheduler, store, now_us: 0, arrived: 0 };
        for _ in 0..running + waiting {
            rounds.arrive();
        }
        // Run 600 steps before the measurement: then as many sequences run as fit, and those that started together no
        // longer are at the same output token.
        for _ in 0..600 {
            rounds.round(&Clock::wall());
        }
        rounds
    }

    fn arrive(&mut self) {
        self.arrived += 1;
        let id = self.arrived;
        let tier = [Tier::Premium, Tier::Standard, Tier::Background, Tier::Background];
        self.scheduler.enqueue(NewSequence {
            seq: SeqId(id),
            tier: tier[id as usize % tier.len()],
            priority: 0,
            salt: Salt([0; 16]),
            weight: Weight::default(),
            prompt: (0..PROMPT).map(|at| at ^ (id as u32)).collect(),
            max_tokens: 100 + (id * 37 % 400) as u32,
            stop_tokens: Arc::from([]),
            sampling: Arc::new(SamplingParams::greedy()),
            targets: SloTargets::default(),
            may_tighten: None,
            patience: Patience::default(),
            has_retry_credit: false,
            cache_salt: None,
            arrival: Timestamp(self.now_us),
        });
    }

    /// Plans and completes one step. Returns the wall-clock time that planning it took.
    fn round(&mut self, clock: &Clock) -> Duration {
        self.now_us += 25_000;
        let now = Timestamp(self.now_us);
        self.scheduler.wake();
        let began = clock.now();
        let Some(Action::Reserve { request, .. }) = self.scheduler.next_action(now) else {
            panic!("sequences run");
        };
        let grant = self.store.reserve(&request);
        self.scheduler.granted(grant);
        let submitted = self.scheduler.next_action(now);
        let took = Duration::from_micros(clock.now().since_us(began));
        for copies in self.store.take_copies() {
            let events = self.store.copy_done(copies.id, true);
            for event in events {
                let (StoreEvent::PreemptCopied { ticket, .. } | StoreEvent::Resumed { ticket, .. }) =
                    event;
                match self.scheduler.store_event(event) {
                    PreemptDecision::Commit => self.store.commit_preempt(ticket),
                    PreemptDecision::Abort => self.store.abort_preempt(ticket),
                    PreemptDecision::Stale => true,
                };
            }
        }
        let Some(Action::Submit(batch)) = submitted else { return took };
        let done = done(&batch);
        let samples = done.result.as_ref().is_ok_and(|output| !output.sampled.is_empty());
        let ended = Timestamp(self.now_us + 20_000);
        self.scheduler.step_done(done, ended);
        // Look for ended sequences only if the step sampled a token. Otherwise the scheduler delivers nothing, and its
        // next action would already be the next plan.
        if samples && let Some(Action::Deliver(effects)) = self.scheduler.next_action(ended) {
            let ends = effects.iter().filter(|effect| matches!(effect, Effect::Ended(_)));
            (0..ends.count()).for_each(|_| self.arrive());
        }
        took
    }
}

fn done(batch: &StepBatch) -> StepDone {
    let samples = batch.slices.iter().filter(|slice| slice.sample.is_some());
    let sampled = samples.map(|slice| (slice.seq, Ok(Sampled { token: 7, logprobs: None })));
    let timing = StepTiming { forward_us: 22_000, sampling_us: 0, host_us: 0 };
    StepDone { id: batch.id, result: Ok(StepOutput { sampled: sampled.collect(), timing }) }
}

/// KV blocks in the pool for each running sequence: `AMPLE` is more than any sequence needs; `FULL` is about the mean
/// need, so that the pool is full and every plan lists sequences to preempt.
const AMPLE: u32 = 64;
const FULL: u32 = 20;

fn planning(c: &mut Criterion) {
    let mut group = c.benchmark_group("planning");
    for running in [64, 256, 1024] {
        for waiting in [1_000, 10_000, 100_000] {
            let name = format!("{running} running");
            measure(&mut group, name, waiting, Rounds::new(running, waiting, AMPLE));
        }
    }
    let name = "256 running, no blocks free".to_owned();
    measure(&mut group, name, 10_000, Rounds::new(256, 10_000, FULL));
    group.finish();
}

fn measure(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: String,
    waiting: u32,
    mut rounds: Rounds,
) {
    let clock = Clock::wall();
    let mut times: Vec<Duration> = Vec::new();
    group.bench_function(BenchmarkId::new(name, format!("{waiting} waiting")), |b| {
        b.iter_custom(|rounds_wanted| {
            let took = (0..rounds_wanted).map(|_| rounds.round(&clock));
            let took: Vec<Duration> = took.collect();
            times.extend(&took);
            took.iter().sum()
        });
    });
    times.sort_unstable();
    let at = |share: f64| times.get((share * times.len() as f64) as usize);
    if let (Some(median), Some(p99)) = (at(0.5), at(0.99)) {
        let (median, p99) = (median.as_micros(), p99.as_micros());
        let census = rounds.scheduler.census();
        eprintln!("  {} run; median {median} us, 99th percentile {p99} us", census.running);
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    targets = planning
}
criterion_main!(benches);
