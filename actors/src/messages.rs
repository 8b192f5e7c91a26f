//! The messages between the actors of the engine. A step takes a handful of messages, whatever its batch size.

use crate::request::{
    Changed, Control, Drained, EngineStatus, Refusal, Request, Snapshot, StreamEvent, Work,
};
use crate::timeline::{EndedTimeline, Timeline};
use crate::trace::{Capture, CaptureBusy};
use actix::Message;
use std::sync::Arc;
use tiercel_config::{AdmissionSettings, PatienceSettings, ReservationSettings};
use tiercel_device::{
    CopyBatch, CopyDone, SeqId, StepBatch, StepDone, StepId, StepRecord, Tier, Timestamp,
};
use tiercel_policy::admission::{Capacity, Left};
use tiercel_policy::blocks::{BlockMap, Salt};
use tiercel_policy::pressure::{Level, Resource};
use tiercel_policy::scheduler::{NewSequence, SequenceView};
use tiercel_policy::slo::{GroupReport, Observation, Targets};
use tiercel_policy::{StepGrant, StepRequest, StoreEvent};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

/// Channel that carries the response stream of a sequence to its client, and the permit that the sequence holds in the
/// engine.
#[derive(Debug)]
pub struct Outlet {
    /// Channel that carries tokens and the end of the sequence to its client.
    pub events: mpsc::Sender<StreamEvent>,
    /// Permit that is returned when the sequence ends. The number of permits is limited, which also bounds the messages
    /// in the actors' mailboxes: these have no limit of their own.
    pub permit: OwnedSemaphorePermit,
    /// Channel on which the Scheduler sends the sequence's timeline when the sequence ends; `None` if nobody wants it.
    pub ended: Option<oneshot::Sender<EndedTimeline>>,
}

/// api -> Admission: submits a request. The answer is the id of the accepted sequence, or the reason of the refusal.
#[derive(Debug, Message)]
#[rtype(result = "Result<SeqId, Refusal>")]
pub struct Submit {
    /// Request that a client submits: prompt, limits and tier.
    pub request: Request,
    /// Channel for the response stream of the request, and its permit.
    pub outlet: Outlet,
}

/// Admission -> Scheduler: hands over an accepted sequence and the channel to its client.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Enqueue {
    /// Sequence that admission accepted, with its prompt and limits.
    pub new: NewSequence,
    /// Channel for the response stream of the request, and its permit.
    pub outlet: Outlet,
}

/// Scheduler -> Admission: a sequence left the queue of requests without a first token, by getting its first token or
/// by ending.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct LeftQueue {
    /// Sequence that left the queue of requests without a first token.
    pub seq: SeqId,
    /// How the sequence left the queue: by its first token, by being turned away, or by another end.
    pub how: Left,
}

/// Scheduler -> Admission: an operator changed the tier of a sequence.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct TierChanged {
    /// Sequence whose tier an operator changed.
    pub seq: SeqId,
    /// New tier of the sequence.
    pub tier: Tier,
}

/// api -> Admission: requests of a tenant were refused without a decision of admission, and their clients were told to
/// come back after `retry_after_ms`. Admission gives them retry credits.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct RetryAdvised {
    /// Tier of the refused requests.
    pub tier: Tier,
    /// Tenant of the refused requests.
    pub tenant: Salt,
    /// Retry time that the clients of the refused requests were told, ms.
    pub retry_after_ms: u64,
    /// Number of refused requests.
    pub requests: usize,
    /// Whether the clients say that they come back after an earlier refusal. Such a client uses up the credit of that
    /// refusal, if it has one.
    pub returning: bool,
}

/// Scheduler -> Admission: an operator changed the limits of the queues, the patience of tiers or the reservations.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct SetLimits {
    /// Limits of requests in the queues.
    pub admission: AdmissionSettings,
    /// Patience by tier, for requests that come from now on.
    pub patience: PatienceSettings,
    /// Reservations of blocks and slots for tiers.
    pub reservation: ReservationSettings,
}

/// Scheduler -> Admission, with each request for a step's blocks: the device time that is available to prompts, from
/// which admission forecasts TTFTs.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct PrefillCapacity(pub Capacity);

/// Scheduler -> BlockManager: asks for the blocks of a step. Sent once per step; at most one such message is
/// unanswered.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ReserveStep(pub StepRequest);

/// BlockManager -> Scheduler: the KV blocks that are granted to the sequences of a step, and the victims that are
/// preempted for them.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct StepReserved(pub StepGrant);

/// Scheduler -> BlockManager: commit the swap of a victim whose blocks have been copied out: its device blocks come
/// free.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct CommitPreempt(pub tiercel_device::Ticket);

/// Scheduler -> BlockManager: abort the swap of a victim whose blocks have been copied out, because no other sequence
/// needs them: the victim goes on with its device blocks.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct AbortPreempt(pub tiercel_device::Ticket);

/// BlockManager -> Scheduler: a batch of block copies between device and host ended. Sent after every batch, even if no
/// sequence waited for it, because blocks may have come free.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct CopiesEnded {
    /// What follows from the ended copies: swaps that can be committed, and sequences whose blocks are back on the
    /// device.
    pub events: Vec<StoreEvent>,
    /// Number of blocks in the batch of copies, from which the cost model learns the speed of the link.
    pub blocks: u32,
    /// Duration of the batch of copies, us.
    pub duration_us: u64,
}

/// BlockManager -> SwapManager: copy a batch of blocks between the device pool and the host pool.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct CopyBlocks(pub CopyBatch);

/// Copy thread -> BlockManager: a batch of block copies between device and host ended.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct CopyEnded(pub CopyDone);

/// Scheduler -> Executor: run a step on the device.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ExecuteStep(pub StepBatch);

/// Executor -> Scheduler: a step ended, with the sampled tokens or an error. Sent from the device's thread.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct StepEnded(pub StepDone);

/// api -> Scheduler: cancel a sequence, in whatever phase it is. A repeated cancel has no effect.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Cancel(pub SeqId);

/// api -> Scheduler: end a sequence because its output is complete, for example after a stop string. A repeated stop
/// has no effect.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Stop(pub SeqId);

/// api -> Admission: asks whether a request would be accepted if a permit were free, without accepting it. The answer
/// is the retry time for its client in case that no permit comes free, ms, or the refusal.
#[derive(Debug, Message)]
#[rtype(result = "Result<u64, Refusal>")]
pub struct Consider(pub Request);

/// api -> Scheduler: a choice of a request found no free permit. Asks the scheduler to turn away a sequence of a lower
/// tier that has not started, so that its permit comes free. The answer is whether a sequence was turned away.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "bool")]
pub struct Displace {
    /// Tier of the request.
    pub tier: Tier,
    /// Number of choices of the request that need a permit yet. No sequence is turned away if lower tiers have fewer
    /// waiting sequences (sequences on hold count too).
    pub choices: u32,
}

/// Operator -> Scheduler: an operator's command. The answer says what it changed.
#[derive(Debug, Message)]
#[rtype(result = "Changed")]
pub struct Command(pub Control);

/// api -> Scheduler: asks for a new snapshot of all live sequences, which the Scheduler publishes when it is complete.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct TakeSnapshot;

/// Scheduler -> itself: add the next sequences to the snapshot that is being taken. The other actors have a turn before
/// it arrives.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct ContinueSnapshot;

/// Scheduler -> SloMonitor: an event of a request that matters to its latency targets, such as its first token or its
/// end. Sent once per such event, not per step.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Observe {
    /// Sequence of the request that the event is about.
    pub seq: SeqId,
    /// Time at which the event `what` of the request happened.
    pub at: Timestamp,
    /// Event of the request: promised targets, first token, or end.
    pub what: Observation,
}

/// Scheduler -> Admission: the latency targets in effect from now on. Sent when derived targets change with the speed
/// of the device, and when an operator changes the settings of targets (`slo.*`).
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Retarget(pub Targets);

/// SloMonitor -> Admission: the least headroom (share of the target that is left) among the latency targets of a tier.
/// 1 means that all of the target is left, 0 that the 99th percentile of the latency is at its target.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Headroom {
    /// Tier whose headroom is reported.
    pub tier: Tier,
    /// Least headroom among the tier's TTFT, TPOT and E2E: 1 - p99 of latency / target.
    pub headroom: f64,
}

/// Scheduler and BlockManager -> SloMonitor: the share of a resource (slots, blocks, copies, buffers) that is in use,
/// from which pressure levels follow.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct InUse {
    /// Resource whose use is reported, such as device blocks or slots of a step.
    pub resource: Resource,
    /// Share of the resource that is in use, percent.
    pub used_percent: f64,
}

/// api -> SloMonitor: asks for the pressure levels of all resources, for the engine's status.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "PressureLevels")]
pub struct GetPressure;

/// Answer of the SloMonitor: pressure level of each resource (none, warning, critical), in the order of
/// [`Resource::ALL`].
#[derive(Debug, Clone, Copy, Default, actix::MessageResponse)]
pub struct PressureLevels(pub [Level; Resource::ALL.len()]);

/// Scheduler -> BlockManager: this step and all before it have completed, so their blocks may be copied. Sent only when
/// no [`ReserveStep`] follows that would tell it.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct StepsCompleted(pub StepId);

/// Timer -> Scheduler: it is time to plan the next step, for example because the step in flight is about to end.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct PlanDue;

/// Clock tick to an actor, which then does its periodic work, such as looking for stalled streams, updating metrics and
/// checking the deadline of a drain. The answer `true` only shows that the tick was handled.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "bool")]
pub struct Tick;

/// api -> Scheduler: asks for the engine's status: sequences, blocks and counters.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "EngineStatus")]
pub struct GetStatus;

/// api -> Scheduler: asks for the records (work and duration) of the steps whose number is greater than `after`.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "Steps")]
pub struct GetSteps {
    /// Step number above which records are asked for: that of the last step whose record the asker already has.
    pub after: u64,
}

/// Answer of the Scheduler: records of steps (work and duration), oldest first.
#[derive(Debug, actix::MessageResponse)]
pub struct Steps(pub Vec<StepRecord>);

/// api -> Admission: asks for the numbers of requests in the admission queues, for the engine's status.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "QueuedPlaces")]
pub struct GetQueued;

/// Answer of Admission: numbers of accepted requests without a first token, by tier.
#[derive(Debug, Clone, Copy, actix::MessageResponse)]
pub struct QueuedPlaces(pub [u32; 4]);

/// Thread that grows the host pool -> BlockManager: number of host blocks that have become usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct HostGrown(pub u32);

/// Scheduler -> BlockManager: asks how many blocks of the device pool and the host pool are free, for the engine's
/// status and metrics.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "BlockUsage")]
pub struct GetUsage;

/// Total and free blocks of the device pool and of the host pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, actix::MessageResponse)]
pub struct BlockUsage {
    /// Number of KV blocks in the device pool.
    pub device_total: u32,
    /// Number of free KV blocks in the device pool.
    pub device_free: u32,
    /// Number of KV blocks in the host pool.
    pub host_total: u32,
    /// Number of free KV blocks in the host pool.
    pub host_free: u32,
    /// Number of full KV blocks of possible victims that mirroring has yet to copy to the host pool; 0 with mirroring
    /// off.
    pub mirroring_lag: u32,
}

/// api -> BlockManager: asks for the numbers of blocks by their states and by the tiers of their owners, which are
/// those of the snapshot. The time that the answer takes grows with the number of blocks, some 10 us for 10,000.
#[derive(Debug, Clone, Message)]
#[rtype(result = "BlocksMapped")]
pub struct GetBlockMap(pub Arc<Snapshot>);

/// Answer of the BlockManager: numbers of blocks of both pools.
#[derive(Debug, Clone, Copy, actix::MessageResponse)]
pub struct BlocksMapped(pub BlockMap);

/// api -> Scheduler: asks what steps have computed and how long the latest ones took.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "Work")]
pub struct GetWork;

/// api -> SloMonitor: asks for the latest statistics of the latencies of each tier.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "SloReports")]
pub struct GetSlo;

/// Answer of the SloMonitor: statistics of each tier in its sliding windows, as of the last clock tick; none before the
/// first tick.
#[derive(Debug, actix::MessageResponse)]
pub struct SloReports(pub Vec<GroupReport>);

/// main -> Admission: the engine is shutting down; refuse every request from now on.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct StopAdmitting;

/// api -> Scheduler: asks for views and timelines of these sequences.
#[derive(Debug, Clone, Message)]
#[rtype(result = "Inspected")]
pub struct Inspect(pub Vec<SeqId>);

/// Answer of the Scheduler: those of the sequences that are live, in the order of the question.
#[derive(Debug, Default, actix::MessageResponse)]
pub struct Inspected {
    /// Step that was planned last.
    pub step: StepId,
    /// View and timeline of each live sequence.
    pub live: Vec<(SequenceView, Timeline)>,
}

/// main -> Scheduler: drain the engine. Live sequences may finish until the deadline; then the rest is ended with an
/// error. The scheduler reports through `done` when no sequence is left.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Drain {
    /// End of the drain's grace period, at which sequences that are still live are ended with an error.
    pub deadline: Timestamp,
    /// Channel on which the scheduler reports that no sequence is left, and how the sequences ended.
    pub done: oneshot::Sender<Drained>,
}

/// main -> every actor, after the drain: stop in an orderly way, which does not count as the death of the actor.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Shutdown;

/// api -> Scheduler: capture the engine's events from now on.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), CaptureBusy>")]
pub struct BeginCapture {
    /// Number of the capture, which no other capture of the engine has.
    pub number: u64,
    /// Channel on which the Scheduler sends the capture when it ends: by [`EndCapture`], or because the engine stops.
    pub captured: oneshot::Sender<Capture>,
}

/// api -> Scheduler: end the capture of this number, if it is under way.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct EndCapture(pub u64);
