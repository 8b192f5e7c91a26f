//! Tests of the Admission actor alone: it answers each request at once, and hands accepted sequences to the scheduler.

use crate::run;
use actix::{Actor, Addr};
use std::sync::Arc;
use tiercel_actors::kit::{Received, lifeline, recorder, settle, small_device};
use tiercel_actors::messages::{
    Consider, Enqueue, GetQueued, Headroom, LeftQueue, Outlet, PrefillCapacity, Retarget,
    RetryAdvised, StopAdmitting, Submit, TierChanged,
};
use tiercel_actors::{Admission, Refusal, Request};
use tiercel_config::{EngineSettings, Late, SloTargets, Target};
use tiercel_device::{Clock, SamplingParams, SeqId, Tier};
use tiercel_policy::Weight;
use tiercel_policy::admission::{Capacity, Gate, Left};
use tiercel_policy::blocks::Salt;
use tiercel_policy::scheduler::{Reservations, Scheduler};
use tokio::sync::{Semaphore, mpsc};

fn with(change: impl FnOnce(&mut EngineSettings)) -> EngineSettings {
    let mut settings = EngineSettings::default();
    change(&mut settings);
    settings
}

fn started(change: impl FnOnce(&mut EngineSettings)) -> (Addr<Admission>, Received<Enqueue>) {
    let settings = with(change);
    let (info, profile) = small_device();
    let targets = Scheduler::new(&settings, &info, profile).targets();
    let reservations = Reservations::new(&settings.reservation, info.device_blocks);
    let gate = Gate::new((settings.admission, settings.patience), targets, (info, reservations));
    let (enqueue, enqueued) = recorder();
    let (life, _) = lifeline("Admission");
    (Admission::new(gate, Clock::simulated(), enqueue, life).start(), enqueued)
}

fn request(tier: Tier) -> Request {
    Request {
        tier,
        priority: 0,
        salt: Salt([1; 16]),
        weight: Weight::default(),
        prompt: Arc::from([1, 2, 3]),
        max_tokens: 4,
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

async fn submit(admission: &Addr<Admission>, tier: Tier) -> Result<SeqId, Refusal> {
    let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
    let outlet = Outlet { events: mpsc::channel(1).0, permit, ended: None };
    admission.send(Submit { request: request(tier), outlet }).await.unwrap()
}

#[test]
fn accepted_sequences_reach_the_scheduler_in_order_and_refused_ones_do_not() {
    run(async {
        let (admission, enqueued) = started(|settings| {
            settings.admission.max_queued_requests_per_tier = 2;
        });
        let first = submit(&admission, Tier::Standard).await.unwrap();
        let second = submit(&admission, Tier::Standard).await.unwrap();
        let third = submit(&admission, Tier::Standard).await;
        assert!(matches!(third, Err(Refusal::QueueFull { .. })), "{third:?}");
        settle().await;
        let ids: Vec<SeqId> = enqueued.take().iter().map(|enqueue| enqueue.new.seq).collect();
        assert_eq!(ids, [first, second]);
        let (seq, how) = (first, Left::Started);
        // The message that the first sequence left the queue is sent twice; the duplicate must not change the count of
        // queued requests.
        for _ in 0..2 {
            admission.send(LeftQueue { seq, how }).await.unwrap();
        }
        assert_eq!(admission.send(GetQueued).await.unwrap().0, [0, 0, 1, 0]);
    });
}

#[test]
fn a_client_that_comes_back_reaches_the_scheduler_as_returning() {
    run(async {
        let (admission, enqueued) = started(|_| ());
        let (tier, tenant) = (Tier::Standard, Salt([1; 16]));
        let (retry_after_ms, requests) = (0, 1);
        // The second client says that it comes back. The only credit of the tenant is taken to be of this client, which
        // gets a new one.
        for returning in [false, true] {
            let told = RetryAdvised { tier, tenant, retry_after_ms, requests, returning };
            admission.send(told).await.unwrap();
        }
        for returning in [false, true, true] {
            let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
            let outlet = Outlet { events: mpsc::channel(1).0, permit, ended: None };
            let request = Request { returning, ..request(tier) };
            admission.send(Submit { request, outlet }).await.unwrap().unwrap();
        }
        settle().await;
        let have_credit: Vec<bool> =
            enqueued.take().iter().map(|sent| sent.new.has_retry_credit).collect();
        assert_eq!(have_credit, [false, true, false], "the client was told one retry time");
    });
}

#[test]
fn a_changed_tier_moves_the_request_to_another_queue() {
    run(async {
        let (admission, _enqueued) = started(|_| ());
        let seq = submit(&admission, Tier::Standard).await.unwrap();
        admission.send(TierChanged { seq, tier: Tier::Premium }).await.unwrap();
        assert_eq!(admission.send(GetQueued).await.unwrap().0, [0, 1, 0, 0]);
        admission.send(TierChanged { seq, tier: Tier::Background }).await.unwrap();
        assert_eq!(admission.send(GetQueued).await.unwrap().0, [0, 0, 0, 1]);
    });
}

#[test]
fn new_targets_change_which_requests_are_late() {
    run(async {
        let set = |ttft_ms| {
            move |settings: &mut EngineSettings| {
                settings.slo.standard.ttft_ms = Target::Ms(ttft_ms);
                settings.shedding.late = Late::Refuse;
            }
        };
        let (admission, _enqueued) = started(set(100.0));
        // The premium backlog takes a second of the device's time.
        let shedding = Some(with(set(100.0)).shedding);
        let backlog_us = [0.0, 1e6, 0.0, 0.0];
        let (step_us, prompts_us, idle_us, token_us) = (20_000.0, 10_000.0, 5_000.0, 100.0);
        let of_step = Capacity { step_us, prompts_us, idle_us, token_us, ..Capacity::default() };
        let capacity = Capacity { backlog_us, shedding, ..of_step };
        admission.send(PrefillCapacity(capacity)).await.unwrap();
        let refused = submit(&admission, Tier::Standard).await;
        assert!(matches!(refused, Err(Refusal::Late { .. })), "{refused:?}");
        let (info, profile) = small_device();
        let targets = Scheduler::new(&with(set(10_000.0)), &info, profile).targets();
        admission.send(Retarget(targets)).await.unwrap();
        assert!(submit(&admission, Tier::Standard).await.is_ok());
    });
}

#[test]
fn a_client_of_a_tier_without_headroom_is_told_to_wait_five_seconds_at_least() {
    run(async {
        let (admission, _enqueued) = started(|settings| {
            settings.admission.max_queued_requests_per_tier = 1;
        });
        submit(&admission, Tier::Standard).await.unwrap();
        let told = async |expected_wait_us, tier, headroom| {
            let queue_us = [Some(expected_wait_us); 4];
            let capacity = Capacity { queue_us, ..Capacity::default() };
            admission.send(PrefillCapacity(capacity)).await.unwrap();
            admission.send(Headroom { tier, headroom }).await.unwrap();
            match submit(&admission, Tier::Standard).await {
                Err(Refusal::QueueFull { retry_after_ms, .. }) => retry_after_ms,
                other => panic!("{other:?}"),
            }
        };
        // A retry time is at least 1 s, and up to a half longer, so that clients do not all come back at once.
        assert!((1_000..=1_500).contains(&told(0.0, Tier::Standard, 0.0).await));
        assert_eq!(told(0.0, Tier::Standard, -0.01).await, 5_000);
        assert!((20_000..=30_000).contains(&told(20e6, Tier::Standard, -0.01).await));
        assert!(
            (1_000..=1_500).contains(&told(0.0, Tier::Standard, 0.01).await),
            "in target again"
        );
        let of_another_tier = told(0.0, Tier::Premium, -0.01).await;
        assert!((1_000..=1_500).contains(&of_another_tier));
    });
}

#[test]
fn a_server_that_shuts_down_accepts_nothing() {
    run(async {
        let (admission, enqueued) = started(|_| ());
        admission.send(StopAdmitting).await.unwrap();
        let refused = admission.send(Consider(request(Tier::Premium))).await.unwrap();
        assert_eq!(refused, Err(Refusal::ShuttingDown));
        assert_eq!(submit(&admission, Tier::Premium).await, Err(Refusal::ShuttingDown));
        settle().await;
        assert!(enqueued.take().is_empty());
    });
}
