//! Tests that the production engine on an emulated GPU gives the same tokens as one request at a time does, although it
//! runs two steps in flight, has too little memory, and copies KV blocks out and in on threads. With `device.exact` no
//! token changes, even if a kernel launch is refused. If the device is lost, every stream ends with the cause.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use tiercel_actors::trace::{Event, Record};
use tiercel_actors::{Engine, EngineHandle, Request, StreamEvent, TokenStream};
use tiercel_config::{EngineSettings, Policy, PreemptionMode, SloTargets};
use tiercel_device::{
    Clock, Constraint, ConstraintState, CopyThread, Device, DeviceProfile, NoToken, SamplingParams,
    StepThread, Tier, Timestamp, TokenId, TokenMask,
};
use tiercel_emulated::{EmulatedDriver, Fault};
use tiercel_model::load::{GpuUse, KvCapacity, LoadOptions, open_cuda};
use tiercel_model::weights::{Checkpoint, ModelFiles};
use tiercel_policy::Weight;
use tiercel_policy::blocks::Salt;

const OUTPUT: u32 = 30;
const PROMPT: u32 = 20;
/// Size of a device pool that holds about two requests of the test, in KV blocks of 16 tokens, so that requests are
/// preempted.
const TIGHT: u32 = 7;
const ROOMY: u32 = 64;

/// Recorder of engine events that counts failed steps, and steps that were submitted while another step was in flight.
#[derive(Default)]
struct Overlaps {
    in_flight: Cell<u32>,
    overlapping: Cell<u32>,
    failed: Cell<u32>,
}

impl Record for Overlaps {
    fn record(&self, _: Timestamp, event: &Event) {
        match event {
            Event::StepSubmitted { .. } => {
                self.overlapping.set(self.overlapping.get() + self.in_flight.get());
                self.in_flight.set(self.in_flight.get() + 1);
            }
            Event::StepEnded { ok, .. } => {
                self.failed.set(self.failed.get() + u32::from(!ok));
                self.in_flight.set(self.in_flight.get() - 1);
            }
            _ => {}
        }
    }
}

fn device(driver: EmulatedDriver, blocks: u32) -> Device {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/tiny/llama3");
    let checkpoint = Checkpoint::open(&ModelFiles::HfDir(tiny)).unwrap();
    let options = LoadOptions {
        kv_capacity: KvCapacity::Blocks(blocks),
        block_size: 16,
        host_bytes: Some(1 << 20),
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        max_sequences: 32,
        max_model_len: 64,
        ..LoadOptions::default()
    };
    let usage = GpuUse { exact: true, ..GpuUse::default() };
    let parts = open_cuda(driver, usage, &checkpoint, &options, &mut |_| {}).unwrap();
    let info = parts.info.clone();
    assert_eq!(info.max_steps_in_flight, 2);
    let (runner, copier) = parts.into_runner(options.max_sequences);
    let profile = DeviceProfile {
        step_base_us: 20_000.0,
        decode_token_us: 2_000.0,
        prefill_token_us: 2_000.0,
        kv_token_us: 0.0,
        prefill_context_us: 0.0,
        link_bytes_per_s: 1e9,
    };
    Device {
        runner: Box::new(StepThread::start(2, runner).unwrap()),
        copier: Box::new(CopyThread::start(copier).unwrap()),
        info,
        profile,
        host_growth: None,
    }
}

fn engine(
    driver: EmulatedDriver,
    blocks: u32,
    steps_in_flight: u32,
    overlaps: &Rc<Overlaps>,
) -> EngineHandle {
    let mut settings = EngineSettings::default();
    settings.use_policy(Policy::PriorityPreempt);
    settings.shedding = Policy::Fcfs.preset().shedding;
    settings.preemption.mode = PreemptionMode::Swap;
    settings.prefix_cache.enabled = false;
    settings.scheduler.max_num_seqs = 8;
    settings.scheduler.max_num_batched_tokens = 64;
    settings.scheduler.steps_in_flight = steps_in_flight;
    settings.check().unwrap();
    let engine = Engine { settings, device: device(driver, blocks), clock: Clock::wall() };
    engine.start_recorded_here(Some(Rc::clone(overlaps) as Rc<dyn Record>))
}

/// Constraint for tests: the id of each output token has the same remainder modulo 3 as the position of the token.
#[derive(Debug)]
struct Rounds;

/// Position of the next token.
struct Position(u32);

impl Constraint for Rounds {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(Position(0))
    }
}

impl ConstraintState for Position {
    fn mask(&mut self) -> Result<TokenMask, NoToken> {
        let mut mask = TokenMask::none(300);
        (0..300).filter(|token| token % 3 == self.0 % 3).for_each(|token| mask.allow(token));
        Ok(mask)
    }

    fn advance(&mut self, token: TokenId) -> Result<(), NoToken> {
        assert_eq!(token % 3, self.0 % 3, "the mask was not applied");
        self.0 += 1;
        Ok(())
    }
}

/// Makes request `number` of the test. Requests differ in their sampling: greedy decoding, a random draw on the device,
/// sampling by the host because of a penalty, or a draw on the device with the masks of a constraint.
fn request(number: u32, tier: Tier) -> Request {
    let drawn =
        SamplingParams { temperature: 1.1, seed: number.into(), ..SamplingParams::default() };
    let sampling = match number % 4 {
        0 => SamplingParams::greedy(),
        1 => drawn,
        2 => SamplingParams { presence_penalty: 1.0, ..drawn },
        _ => SamplingParams { constraint: Some(Arc::new(Rounds)), ..drawn },
    };
    Request {
        tier,
        priority: 0,
        salt: Salt([0; 16]),
        weight: Weight::default(),
        prompt: (0..PROMPT).map(|i| (i * i * 7 + number * 31) % 300).collect(),
        max_tokens: OUTPUT,
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

/// Reads a token stream to its end, after the tokens that were already read from it. Returns all tokens and how often
/// the sequence was preempted.
async fn finish(mut stream: TokenStream, mut tokens: Vec<TokenId>) -> (Vec<TokenId>, u32) {
    loop {
        match stream.next().await.unwrap() {
            StreamEvent::Token { token, .. } => tokens.push(token),
            StreamEvent::Finished { usage, .. } => return (tokens, usage.preemptions),
            StreamEvent::Failed(fault) => panic!("{fault}"),
        }
    }
}

fn driver() -> EmulatedDriver {
    EmulatedDriver::new(600 << 20)
}

/// Runs the requests one after the other, with one step in flight, and returns the tokens of each: the expected tokens
/// of the other runs.
async fn alone(requests: u32) -> Vec<Vec<TokenId>> {
    let seen = Rc::new(Overlaps::default());
    let engine = engine(driver(), ROOMY, 1, &seen);
    let mut all = Vec::new();
    for number in 0..requests {
        let stream = engine.submit(request(number, Tier::Standard)).await.unwrap();
        all.push(finish(stream, Vec::new()).await.0);
    }
    engine.drain(1_000).await;
    assert_eq!((seen.overlapping.get(), seen.failed.get()), (0, 0));
    all
}

#[actix_rt::test]
async fn two_steps_in_flight_and_preemption_show_in_no_token() {
    let expected = alone(6).await;
    let seen = Rc::new(Overlaps::default());
    let crowded = engine(driver(), TIGHT, 2, &seen);
    let mut readers = Vec::new();
    for number in 0..6 {
        // Submit three background requests, then three premium requests, which preempt them because the device pool is
        // too small.
        let tier = if number < 3 { Tier::Background } else { Tier::Premium };
        let mut stream = crowded.submit(request(number, tier)).await.unwrap();
        let mut tokens = Vec::new();
        if number == 0 {
            let Some(StreamEvent::Token { token, .. }) = stream.next().await else {
                panic!("a first token")
            };
            tokens.push(token);
        }
        readers.push(actix_rt::spawn(finish(stream, tokens)));
    }
    let mut preemptions = 0;
    for (reader, tokens) in readers.into_iter().zip(&expected) {
        let found = reader.await.unwrap();
        assert_eq!(&found.0, tokens);
        preemptions += found.1;
    }
    crowded.drain(1_000).await;
    assert!(preemptions > 0, "memory was not short");
    assert_eq!(seen.failed.get(), 0);
    assert!(seen.overlapping.get() > 5, "{} steps followed at once", seen.overlapping.get());
}

#[actix_rt::test]
async fn a_launch_that_is_refused_costs_time_and_no_token() {
    let expected = alone(3).await;
    let seen = Rc::new(Overlaps::default());
    let engine = engine(driver().with_fault(Fault::Launch(250)), ROOMY, 2, &seen);
    let mut readers = Vec::new();
    for number in 0..3 {
        let stream = engine.submit(request(number, Tier::Standard)).await.unwrap();
        readers.push(actix_rt::spawn(finish(stream, Vec::new())));
    }
    for (reader, tokens) in readers.into_iter().zip(&expected) {
        assert_eq!(&reader.await.unwrap().0, tokens);
    }
    engine.drain(1_000).await;
    assert!(seen.failed.get() > 0, "nothing was refused");
}

#[actix_rt::test]
async fn a_lost_device_ends_every_stream_with_its_cause() {
    let seen = Rc::new(Overlaps::default());
    let engine = engine(driver().with_fault(Fault::Lost(250)), ROOMY, 2, &seen);
    let mut streams = Vec::new();
    for number in 0..3 {
        streams.push(engine.submit(request(number, Tier::Standard)).await.unwrap());
    }
    for mut stream in streams {
        let end = loop {
            match stream.next().await {
                Some(StreamEvent::Token { .. }) => {}
                end => break end,
            }
        };
        let Some(StreamEvent::Failed(fault)) = end else { panic!("{end:?}") };
        assert!(fault.to_string().contains("a made-up fault"), "{fault}");
    }
}
