//! Tests of the handle, with all actors of an engine behind it and a mock device.

use crate::{run, run_for_metrics};
use actix::Arbiter;
use std::sync::Arc;
use tiercel_actors::kit::settle;
use tiercel_actors::{
    Control, Engine, EngineHandle, Refusal, Request, RequestFault, StreamEvent, TokenStream,
};
use tiercel_config::{EngineSettings, SloTargets};
use tiercel_device::{
    Clock, Device, HostGrowth, MockDevice, MockOptions, MockProfile, SamplingParams, SeqId,
    StepBatch, StepDone, StepRunner, SubmitError, Tier, Timestamp,
};
use tiercel_policy::Weight;
use tiercel_policy::blocks::Salt;

/// Device side for steps (step runner) that accepts every step and never ends it, or that has stopped.
enum Broken {
    Hangs,
    Stopped,
}

impl StepRunner for Broken {
    fn submit(
        &mut self,
        _: StepBatch,
        _: Box<dyn FnOnce(StepDone) + Send>,
    ) -> Result<(), SubmitError> {
        match self {
            Broken::Hangs => Ok(()),
            Broken::Stopped => Err(SubmitError::Stopped),
        }
    }
}

/// Makes an engine with 16 permits on the mock device `tiny`.
fn engine(clock: Clock, broken: Option<Broken>) -> Engine {
    let mut settings = EngineSettings::default();
    settings.admission.max_requests = 16;
    let profile = MockProfile::named("tiny").expect("a built-in profile");
    let device = MockDevice::open(MockOptions::new(profile, clock.clone()));
    let runner = match broken {
        Some(broken) => Box::new(broken),
        None => device.runner,
    };
    Engine { settings, device: Device { runner, ..device }, clock }
}

fn started(broken: Option<Broken>) -> EngineHandle {
    engine(Clock::simulated(), broken).start_here()
}

fn request(tier: Tier, max_tokens: u32) -> Request {
    Request {
        tier,
        priority: 0,
        salt: Salt([1; 16]),
        weight: Weight::default(),
        prompt: Arc::from([1, 2, 3]),
        max_tokens,
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

async fn submitted(engine: &EngineHandle, tier: Tier, requests: usize) -> Vec<TokenStream> {
    let mut streams = Vec::new();
    for _ in 0..requests {
        streams.push(engine.submit(request(tier, 8)).await.expect("a permit is free"));
    }
    streams
}

/// Submits a request that the full server refuses; returns the number of permits that are reserved for higher tiers.
async fn refused(engine: &EngineHandle, tier: Tier) -> u32 {
    match engine.submit(request(tier, 8)).await.map(|stream| stream.seq()) {
        Err(Refusal::ServerFull { limit: 16, reserved, .. }) => reserved,
        other => panic!("{other:?}"),
    }
}

/// Host pool that gets its blocks in pieces of these sizes.
struct Growing {
    usable: u32,
    pieces: Vec<u32>,
}

impl HostGrowth for Growing {
    fn usable_blocks(&self) -> u32 {
        self.usable
    }

    fn grow(&mut self) -> Result<u32, String> {
        let more = self.pieces.pop().unwrap_or(0);
        self.usable += more;
        Ok(more)
    }
}

#[test]
fn the_host_pool_grows_while_the_engine_runs() {
    // The pool grows in a thread of its own, so this test needs real time.
    actix::System::new().block_on(async {
        let mut engine = engine(Clock::wall(), None);
        let planned = engine.device.info.host_blocks;
        let (first, second) = (planned / 4, planned / 4);
        let growing = Growing { usable: planned - first - second, pieces: vec![first, second] };
        engine.device.host_growth = Some(Box::new(growing));
        let engine = engine.start_here();
        let mut host_blocks = 0;
        for _ in 0..200 {
            host_blocks = engine.status().await.expect("it is alive").host_blocks;
            if host_blocks == planned {
                return;
            }
            Clock::wall().sleep_us(20_000).await;
        }
        panic!("{host_blocks} of {planned} host blocks after four seconds");
    });
}

#[test]
fn the_last_permits_are_reserved_for_higher_tiers() {
    run(async {
        let engine = started(Some(Broken::Hangs));
        assert_eq!(engine.settings().admission.max_requests, 16);
        // A quarter of the 16 permits is reserved for tiers above background.
        let mut background = submitted(&engine, Tier::Background, 12).await;
        assert_eq!((refused(&engine, Tier::Background).await, engine.places()), (4, 12));
        // An eighth of the permits is reserved for premium. A further standard request takes the permit of the
        // background request that came last.
        let _standard = submitted(&engine, Tier::Standard, 3).await;
        assert_eq!(engine.places(), 14);
        let end = background.pop().expect("12 streams").next().await;
        let turned_away =
            matches!(&end, Some(StreamEvent::Failed(RequestFault::TurnedAway { .. })));
        assert!(turned_away, "{end:?}");
        // Of the 11 background requests left, one is in the step and ten wait. After nine more standard requests one
        // background request still waits. It is not turned away for a request that needs two permits.
        let _more = submitted(&engine, Tier::Standard, 9).await;
        let of_two = engine.submit_as(request(Tier::Standard, 8), 2, None, None).await;
        assert!(matches!(of_two, Err(Refusal::ServerFull { .. })));
        let queued = engine.status().await.expect("the engine runs").queued;
        assert_eq!((queued[Tier::Background.index()], engine.places()), (2, 14));
        // With a premium request on one of the 2 permits that are reserved for premium, a permit that came free would
        // not be for standard, so no background request is turned away for a standard one.
        let _premium = submitted(&engine, Tier::Premium, 1).await;
        assert_eq!((refused(&engine, Tier::Standard).await, engine.places()), (2, 15));
    });
}

#[test]
fn a_stream_has_its_sequence_and_tier_and_frees_its_permit_when_it_is_dropped() {
    run(async {
        let engine = started(Some(Broken::Hangs));
        let premium = submitted(&engine, Tier::Premium, 1).await.remove(0);
        let background = submitted(&engine, Tier::Background, 1).await.remove(0);
        assert_ne!(premium.seq(), background.seq());
        assert_eq!((premium.tier(), background.tier()), (Tier::Premium, Tier::Background));
        assert_eq!(engine.control(Control::Pause(background.seq())).await, Ok(true));
        assert_eq!(engine.control(Control::Pause(SeqId(99))).await, Ok(false));
        let status = engine.status().await.expect("the engine runs");
        assert_eq!((status.places, status.device_blocks), (2, 256));
        assert_eq!(status.queued, [0, 1, 0, 1]);
        drop(background);
        settle().await;
        assert_eq!(engine.places(), 1);
    });
}

#[test]
fn a_stopped_stream_returns_the_token_counts() {
    run(async {
        let engine = started(None);
        let mut stream = engine.submit(request(Tier::Standard, 100)).await.expect("it is empty");
        let first = stream.next().await;
        assert!(matches!(first, Some(StreamEvent::Token { .. })), "{first:?}");
        let usage = stream.stop().await.expect("the sequence is complete");
        assert_eq!(usage.prompt_tokens, 3);
        assert!((1..100).contains(&usage.completion_tokens), "{usage:?}");
        assert_eq!(engine.steps(0).await, Ok(Vec::new()), "only a server records steps");
    });
}

#[test]
fn the_engine_of_a_server_records_its_steps() {
    run(async {
        let arbiter = Arbiter::new();
        let server = engine(Clock::wall(), None).start_on(&arbiter).await.expect("it runs");
        let mut stream = server.submit(request(Tier::Standard, 3)).await.expect("it is empty");
        while stream.next().await.is_some() {}
        let steps = server.steps(0).await.expect("the engine runs");
        // The first step computes the 3 tokens of the prompt, and 2 more steps follow.
        let work: Vec<_> =
            steps.iter().map(|step| (step.prefill_tokens, step.decode_tokens)).collect();
        assert_eq!(work, [(3, 0), (0, 1), (0, 1)]);
        assert_eq!(server.steps(steps[1].step).await.map(|steps| steps.len()), Ok(1));
        server.drain(0).await;
    });
}

#[test]
fn requests_that_the_http_side_refused_are_counted() {
    let metrics = run_for_metrics(async {
        let engine = started(None);
        engine.count_refused(Tier::Standard);
        engine.count_refused(Tier::Standard);
    });
    let series = "tiercel_requests_total{tier=\"standard\",outcome=\"refused\"}";
    assert_eq!(metrics.get(series), Some("2"));
    let target = metrics.get("tiercel_slo_target_seconds{tier=\"standard\",metric=\"ttft\"}");
    assert!(target.is_some(), "an engine exports its targets when it starts");
}

#[test]
fn the_cause_of_a_death_is_known_once_the_engine_has_died() {
    run(async {
        let engine = started(Some(Broken::Stopped));
        assert_eq!(engine.cause_of_death(), None);
        let _stream = submitted(&engine, Tier::Standard, 1).await;
        let cause = engine.died().await;
        assert!(cause.starts_with("Scheduler: device lost: "), "{cause}");
        assert_eq!(engine.cause_of_death(), Some(cause));
    });
}

#[test]
fn a_drain_waits_for_its_grace_period_and_then_thirty_seconds_for_the_last_step() {
    run(async {
        let engine = started(Some(Broken::Hangs));
        let mut stream = submitted(&engine, Tier::Standard, 1).await.remove(0);
        let clock = engine.clock().clone();
        let ended = actix::spawn(async move {
            let end = stream.next().await;
            assert_eq!(end, Some(StreamEvent::Failed(RequestFault::ShuttingDown)));
            clock.now()
        });
        let began = engine.clock().now();
        engine.drain(120).await;
        // The scheduler has a clock tick every 50 ms. The first after the grace period of 120 ms comes at 150 ms.
        assert_eq!(ended.await.expect("the reader does not panic"), Timestamp(150_000));
        assert_eq!(engine.clock().now().since_us(began), 30_120_000);
        let late = engine.submit(request(Tier::Premium, 8)).await.map(|stream| stream.seq());
        assert_eq!(late, Err(Refusal::EngineStopped));
    });
}
