//! Tests of the Scheduler actor alone: it has one open request for blocks at a time, submits a batch for each grant,
//! and sends tokens to the clients.

mod commands;
mod messages;
mod timelines;

use crate::run;
use actix::{Actor, Addr, Recipient};
use std::sync::Arc;
use tiercel_actors::kit::{Received, answering, dead, lifeline, recorder, settle, small_device};
use tiercel_actors::messages::{
    AbortPreempt, BlockUsage, Cancel, Command, CommitPreempt, CopiesEnded, Enqueue, ExecuteStep,
    GetUsage, InUse, LeftQueue, Observe, Outlet, PlanDue, PrefillCapacity, ReserveStep, Retarget,
    SetLimits, Shutdown, StepEnded, StepReserved, StepsCompleted, TakeSnapshot, Tick, TierChanged,
};
use tiercel_actors::trace::{SequenceTrace, Tracer};
use tiercel_actors::{
    Checks, Control, Obituary, Peers, RequestFault, SchedulerActor, SequenceState, Snapshots,
    StreamEvent, ToAdmission, ToBlockManager, ToMonitor,
};
use tiercel_config::{EngineSettings, SloTargets, Target};
use tiercel_device::{
    BlockId, Clock, DeviceInfo, Sampled, SamplingParams, SeqId, StepBatch, StepDone, StepOutput,
    StepTiming, Tier, Timestamp,
};
use tiercel_policy::Weight;
use tiercel_policy::admission::{Left, Patience};
use tiercel_policy::blocks::Salt;
use tiercel_policy::scheduler::{NewSequence, Scheduler};
use tiercel_policy::{
    Grant, GrantOutcome, PreemptOutcome, Preempted, StepGrant, StepRequest, StoreEvent, WantKind,
};
use tokio::sync::{Semaphore, mpsc};

/// Messages that the Scheduler under test sent to the other actors, except its requests for blocks.
struct Told {
    left: Received<LeftQueue>,
    limits: Received<SetLimits>,
    targets: Received<Retarget>,
    tiers: Received<TierChanged>,
    committed: Received<CommitPreempt>,
    aborted: Received<AbortPreempt>,
    completed: Received<StepsCompleted>,
    steps: Received<ExecuteStep>,
    observed: Received<Observe>,
    in_use: Received<InUse>,
    /// Timer messages of the Scheduler to itself, which do not reach it.
    plans: Received<PlanDue>,
}

/// Scheduler under test, and the messages that it sent to the other actors.
struct Alone {
    scheduler: Addr<SchedulerActor>,
    told: Told,
    reserved: Received<ReserveStep>,
    obituary: Obituary,
    clock: Clock,
    /// Tokens in a KV block of the device.
    block_size: u32,
    /// Channel on which the Scheduler publishes its snapshots.
    snapshots: Snapshots,
}

/// Starts a Scheduler whose requests for blocks name all possible victims, as they do with mirroring.
fn started() -> Alone {
    started_on(1, Clock::simulated())
}

/// Starts a Scheduler like [`started`], for a device that takes `steps_in_flight` steps at a time.
fn started_on(steps_in_flight: u32, clock: Clock) -> Alone {
    let (to_reserved, reserved) = recorder();
    Alone { reserved, ..started_with(to_reserved, steps_in_flight, clock) }
}

fn neighbours(to_reserved: Recipient<ReserveStep>) -> (Peers, Told) {
    let (to_left, left) = recorder();
    let (to_tiers, tiers) = recorder();
    let (to_limits, limits) = recorder();
    let (to_targets, targets) = recorder();
    let (to_committed, committed) = recorder();
    let (to_aborted, aborted) = recorder();
    let (to_completed, completed) = recorder();
    let (to_steps, steps) = recorder();
    let (to_observed, observed) = recorder();
    let (to_in_use, in_use) = recorder();
    let (myself, plans) = recorder();
    let peers = Peers {
        admission: ToAdmission {
            left: to_left,
            capacity: recorder::<PrefillCapacity>().0,
            targets: to_targets,
            tier: to_tiers,
            limits: to_limits,
        },
        block_manager: ToBlockManager {
            reserve: to_reserved,
            commit: to_committed,
            abort: to_aborted,
            completed: to_completed,
            usage: answering(|_| BlockUsage::default()).0,
        },
        executor: to_steps,
        monitor: ToMonitor { observe: to_observed, in_use: to_in_use },
        myself,
    };
    (
        peers,
        Told {
            left,
            tiers,
            limits,
            targets,
            committed,
            aborted,
            completed,
            steps,
            observed,
            in_use,
            plans,
        },
    )
}

/// Starts a Scheduler that sends its requests for blocks to `to_reserved`. The field `reserved` of the returned
/// [`Alone`] is a recorder that nothing sends to, so it stays empty.
fn started_with(to_reserved: Recipient<ReserveStep>, steps_in_flight: u32, clock: Clock) -> Alone {
    let mut settings = EngineSettings::default();
    settings.preemption.mirror_percent = 1;
    let (info, profile) = small_device();
    let info = DeviceInfo { max_steps_in_flight: steps_in_flight, ..info };
    let (peers, told) = neighbours(to_reserved);
    let (life, obituary) = lifeline("Scheduler");
    let trace = SequenceTrace::new(Tracer::new(None, clock.clone()));
    let (block_size, snapshots) = (info.block_size, Snapshots::default());
    let core = Scheduler::new(&settings, &info, profile);
    let scheduler = SchedulerActor::new(
        core,
        settings.stream,
        clock.clone(),
        peers,
        Checks::Always,
        (trace, None, snapshots.clone()),
        life,
    );
    let (scheduler, (_, reserved)) = (scheduler.start(), recorder());
    Alone { scheduler, told, reserved, obituary, clock, block_size, snapshots }
}

impl Alone {
    /// Sends the Scheduler a sequence with a prompt of six tokens; returns its response stream.
    async fn enqueue(&self, id: u64, tier: Tier) -> mpsc::Receiver<StreamEvent> {
        self.enqueue_with_buffer(id, tier, 64).await
    }

    /// Sends the Scheduler a sequence with a prompt of six tokens; returns its response stream, which buffers `buffer`
    /// events.
    async fn enqueue_with_buffer(
        &self,
        id: u64,
        tier: Tier,
        buffer: usize,
    ) -> mpsc::Receiver<StreamEvent> {
        let new = NewSequence {
            seq: SeqId(id),
            tier,
            priority: 0,
            salt: Salt([1; 16]),
            weight: Weight::default(),
            prompt: (0..6).collect(),
            max_tokens: 20,
            stop_tokens: Arc::from([]),
            sampling: Arc::new(SamplingParams::greedy()),
            targets: SloTargets::default(),
            may_tighten: None,
            patience: Patience::default(),
            has_retry_credit: false,
            cache_salt: None,
            arrival: Timestamp(id),
        };
        let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        let (events, stream) = mpsc::channel(buffer);
        let outlet = Outlet { events, permit, ended: None };
        self.scheduler.send(Enqueue { new, outlet }).await.unwrap();
        stream
    }

    /// Returns the Scheduler's open request for a step's blocks, and checks that it is the only one.
    async fn request(&self) -> StepRequest {
        settle().await;
        let mut requests = self.reserved.take();
        assert_eq!(requests.len(), 1, "one request for blocks at a time");
        requests.remove(0).0
    }

    /// Grants every sequence of a request all of its blocks, and returns the batch that the Scheduler then submits.
    async fn grant(&self, request: &StepRequest, preempted: Vec<Preempted>) -> Option<StepBatch> {
        let taken = |seq| preempted.iter().any(|victim| victim.ticket.seq == seq);
        let wants = request.wants.iter().filter(|want| !taken(want.ticket.seq));
        let grants = wants.map(|want| {
            let computed = match want.kind {
                WantKind::Open { .. } => 0,
                WantKind::Grow => want.len - want.new_tokens,
            };
            let blocks = want.len.div_ceil(self.block_size);
            let table: Arc<[BlockId]> = (0..blocks).map(BlockId).collect();
            let outcome = GrantOutcome::Run { computed, cover: want.len, table: Some(table) };
            Grant { ticket: want.ticket, outcome }
        });
        let grants = grants.collect();
        let grant = StepGrant { step: request.step, grants, preempted, free_blocks: 0 };
        self.scheduler.send(StepReserved(grant)).await.unwrap();
        settle().await;
        self.told.steps.take().pop().map(|step| step.0)
    }

    /// Tells the Scheduler that a step has ended in which every sequence that samples got the token 7.
    async fn end(&self, batch: &StepBatch) {
        let sampled = batch.slices.iter().filter(|slice| slice.sample.is_some());
        let sampled = sampled.map(|slice| (slice.seq, Ok(Sampled { token: 7, logprobs: None })));
        let timing = StepTiming { forward_us: 100, sampling_us: 1, host_us: 0 };
        let output = StepOutput { sampled: sampled.collect(), timing };
        let done = StepDone { id: batch.id, result: Ok(output) };
        self.scheduler.send(StepEnded(done)).await.unwrap();
    }

    /// Runs one whole step (request for blocks, grant, batch, end) and returns the request for its blocks.
    async fn step(&self) -> StepRequest {
        let request = self.request().await;
        let batch = self.grant(&request, Vec::new()).await.expect("it was granted");
        self.end(&batch).await;
        request
    }
}

#[test]
fn a_step_is_asked_for_run_and_delivered_in_this_order() {
    run(async {
        let alone = started();
        let mut stream = alone.enqueue(1, Tier::Standard).await;
        let request = alone.request().await;
        assert!(alone.told.steps.take().is_empty(), "nothing runs before blocks are granted");
        let batch = alone.grant(&request, Vec::new()).await.expect("it was granted");
        assert!(stream.try_recv().is_err(), "no token before the step has ended");
        alone.end(&batch).await;
        let next = alone.request().await;
        assert_eq!(next.completed_step, batch.id);
        assert_eq!(stream.try_recv().ok(), Some(StreamEvent::Token { token: 7, logprobs: None }));
        assert_eq!(
            alone.told.left.take().iter().map(|left| left.how).collect::<Vec<_>>(),
            [Left::Started]
        );
        assert_eq!(alone.told.observed.take().len(), 2, "the promise, and the first token");
        // The test sends the end of the step and the block store's answer for it a second time; the scheduler must
        // ignore both.
        alone.end(&batch).await;
        assert!(alone.grant(&request, Vec::new()).await.is_none());
        assert!(stream.try_recv().is_err() && alone.reserved.take().is_empty());
    });
}

#[test]
fn a_sequence_that_is_cancelled_while_its_step_runs_is_released_with_the_next_request() {
    run(async {
        let alone = started();
        let stream = alone.enqueue(1, Tier::Standard).await;
        let request = alone.request().await;
        let batch = alone.grant(&request, Vec::new()).await.expect("it was granted");
        drop(stream);
        alone.scheduler.send(Cancel(SeqId(1))).await.unwrap();
        alone.scheduler.send(Cancel(SeqId(1))).await.unwrap();
        alone.end(&batch).await;
        let request = alone.request().await;
        assert_eq!((request.released, request.wants.len()), (vec![SeqId(1)], 0));
        assert_eq!(
            alone.told.left.take().iter().map(|left| left.how).collect::<Vec<_>>(),
            [Left::Ended]
        );
    });
}

#[test]
fn a_sequence_whose_client_does_not_read_is_held_until_it_does() {
    run(async {
        let alone = started();
        let mut stream = alone.enqueue_with_buffer(1, Tier::Standard, 8).await;
        let report = loop {
            let request = alone.request().await;
            if request.wants.is_empty() {
                break request;
            }
            let batch = alone.grant(&request, Vec::new()).await.expect("it was granted");
            alone.end(&batch).await;
        };
        assert!((4..8).contains(&stream.len()), "held before its buffer is full");
        assert!(alone.grant(&report, Vec::new()).await.is_none());
        assert!(alone.scheduler.send(Tick).await.unwrap());
        settle().await;
        assert!(alone.reserved.take().is_empty(), "its client has read nothing");
        while stream.try_recv().is_ok() {}
        assert!(alone.scheduler.send(Tick).await.unwrap());
        assert_eq!(alone.request().await.wants.len(), 1);
    });
}

#[test]
fn a_dead_neighbour_does_not_take_the_scheduler_along() {
    run(async {
        let alone = started_with(dead(), 1, Clock::simulated());
        let _stream = alone.enqueue(1, Tier::Standard).await;
        settle().await;
        assert!(alone.scheduler.connected() && alone.reserved.take().is_empty());
        alone.scheduler.send(Cancel(SeqId(1))).await.unwrap();
        assert_eq!(alone.told.left.take().len(), 1);
    });
}

#[test]
fn reprioritizing_up_and_down_changes_who_is_preempted_next() {
    run(async {
        let alone = started();
        let _streams =
            [alone.enqueue(1, Tier::Standard).await, alone.enqueue(2, Tier::Standard).await];
        alone.step().await;
        alone.step().await;
        let first_victim = async |tier: Option<Tier>| {
            if let Some(tier) = tier {
                let control = Control::Reprioritize { seq: SeqId(1), tier, priority: 0 };
                assert!(alone.scheduler.send(Command(control)).await.unwrap().known);
                alone.step().await;
            }
            alone.step().await.victims[0].ticket.seq.0
        };
        assert_eq!(first_victim(None).await, 2, "of equals the one that came last");
        assert_eq!(first_victim(Some(Tier::Background)).await, 1);
        assert_eq!(first_victim(Some(Tier::Premium)).await, 2);
        let told: Vec<Tier> = alone.told.tiers.take().iter().map(|changed| changed.tier).collect();
        assert_eq!(told, [Tier::Background, Tier::Premium]);
        let unknown = Control::Reprioritize { seq: SeqId(9), tier: Tier::Premium, priority: 0 };
        assert!(!alone.scheduler.send(Command(unknown)).await.unwrap().known);
        settle().await;
        assert!(alone.told.tiers.take().is_empty());
    });
}

#[test]
fn a_preemption_is_committed_once_its_copies_have_ended_and_a_stale_event_is_ignored() {
    run(async {
        let alone = started();
        let _streams = [
            alone.enqueue(1, Tier::Premium).await,
            alone.enqueue(2, Tier::Background).await,
            alone.enqueue(3, Tier::Background).await,
        ];
        alone.step().await;
        let request = alone.request().await;
        let victim = request.victims[0].ticket;
        let copying = PreemptOutcome::Copying { blocks: 1, retained: 0 };
        let preempted = Preempted { ticket: victim, outcome: copying };
        let batch = alone.grant(&request, vec![preempted]).await.expect("the others run");
        assert!(batch.slices.iter().all(|slice| slice.seq != victim.seq));
        let _waits = alone.enqueue(4, Tier::Premium).await;
        let copied = || CopiesEnded {
            events: vec![StoreEvent::PreemptCopied {
                ticket: victim,
                copied: 1,
                failed: 0,
                on_host: 1,
            }],
            blocks: 1,
            duration_us: 10,
        };
        alone.scheduler.send(copied()).await.unwrap();
        alone.scheduler.send(copied()).await.unwrap();
        settle().await;
        assert_eq!(alone.told.committed.take().iter().map(|c| c.0).collect::<Vec<_>>(), [victim]);
        assert!(alone.told.aborted.take().is_empty());
        alone.end(&batch).await;
        settle().await;
        assert!(alone.told.completed.take().is_empty(), "the next request tells it");
    });
}
