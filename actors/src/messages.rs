//! The messages between the actors of the engine. A step takes a handful of messages, whatever its batch size.

use crate::request::{Control, EngineStatus, Refusal, Request, StreamEvent};
use actix::Message;
use tiercel_device::{
    CopyBatch, CopyDone, SeqId, StepBatch, StepDone, StepId, StepRecord, Tier, Timestamp,
};
use tiercel_policy::admission::{Capacity, Left};
use tiercel_policy::blocks::Salt;
use tiercel_policy::pressure::{Level, Resource};
use tiercel_policy::scheduler::NewSequence;
use tiercel_policy::slo::{Observation, Targets};
use tiercel_policy::{StepGrant, StepRequest, StoreEvent};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

/// Channel that takes a sequence's events to its client, and the permit that the sequence holds.
#[derive(Debug)]
pub struct Outlet {
    /// Channel to the client.
    pub events: mpsc::Sender<StreamEvent>,
    /// Permit that is returned when the sequence ends. The number of permits is limited, and this limit is the engine's
    /// only back-pressure: the mailboxes of actors have none.
    pub permit: OwnedSemaphorePermit,
}

/// api -> Admission: submits a request. The answer is the id of the accepted sequence, or the reason of the refusal.
#[derive(Debug, Message)]
#[rtype(result = "Result<SeqId, Refusal>")]
pub struct Submit {
    /// The request.
    pub request: Request,
    /// Channel to the request's client.
    pub outlet: Outlet,
}

/// Admission -> Scheduler: hands over an accepted sequence and the channel to its client.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Enqueue {
    /// The accepted sequence.
    pub new: NewSequence,
    /// Channel to the request's client.
    pub outlet: Outlet,
}

/// Scheduler -> Admission: a sequence left the queue of requests without a first token, by getting its first token or
/// by ending.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct LeftQueue {
    /// The sequence.
    pub seq: SeqId,
    /// How the sequence left the queue.
    pub how: Left,
}

/// Scheduler -> Admission: an operator changed the tier of a sequence.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct TierChanged {
    /// The sequence.
    pub seq: SeqId,
    /// Tier that the message is about.
    pub tier: Tier,
}

/// api -> Admission: requests of a tenant were refused without a decision of admission, and their clients were told to
/// come back after `retry_after_ms`.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct RetryAdvised {
    /// Tier that the message is about.
    pub tier: Tier,
    /// Tenant of the requests.
    pub tenant: Salt,
    /// Retry time that the clients were told, ms.
    pub retry_after_ms: u64,
    /// Number of requests.
    pub requests: usize,
}

/// Scheduler -> Admission, once a step: the device time that there is for prompts.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct PrefillCapacity(pub Capacity);

/// Scheduler -> BlockManager: asks for the blocks of a step. Sent once per step; at most one such message is
/// unanswered.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ReserveStep(pub StepRequest);

/// BlockManager -> Scheduler: the blocks that are granted for a step.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct StepReserved(pub StepGrant);

/// Scheduler -> BlockManager: commit the preemption of a prepared victim, which drops the victim's references to
/// blocks.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct CommitPreempt(pub tiercel_device::Ticket);

/// Scheduler -> BlockManager: abort the preemption of a prepared victim, which restores the victim exactly.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct AbortPreempt(pub tiercel_device::Ticket);

/// BlockManager -> Scheduler: a batch of copies ended. Sent after every batch, even if no sequence waited for the
/// batch, because blocks may have come free.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct CopiesEnded {
    /// Events of the block store that follow from the copies.
    pub events: Vec<StoreEvent>,
    /// Number of blocks in the batch of copies, for the cost model.
    pub blocks: u32,
    /// Duration of the batch, us.
    pub duration_us: u64,
}

/// BlockManager -> SwapManager: copy a batch of blocks.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct CopyBlocks(pub CopyBatch);

/// Copy thread -> SwapManager -> BlockManager: a batch of copies ended.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct CopyEnded(pub CopyDone);

/// Scheduler -> Executor: run a step on the device.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ExecuteStep(pub StepBatch);

/// Executor -> Scheduler: a step ended. Sent from the device's thread.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct StepEnded(pub StepDone);

/// api -> Scheduler: cancel a sequence. Idempotent, and legal in every state of the sequence.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Cancel(pub SeqId);

/// api -> Scheduler: end a sequence because its output is complete, for example after a stop string. Idempotent.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Stop(pub SeqId);

/// api -> Admission: asks whether a request would be accepted if a permit were free. Does not accept the request.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), Refusal>")]
pub struct Consider(pub Request);

/// api -> Scheduler: a request of this tier found no free permit. Asks the scheduler to turn away a sequence of a lower
/// tier that has not started. The answer is whether a sequence was turned away.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "bool")]
pub struct Displace(pub Tier);

/// Operator -> Scheduler: an operator's command. The answer is whether the command named something that exists.
#[derive(Debug, Message)]
#[rtype(result = "bool")]
pub struct Command(pub Control);

/// Scheduler -> SloMonitor: an event of a request that matters to its latency targets, such as its first token. Sent
/// once per such event, not per step.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Observe {
    /// The sequence.
    pub seq: SeqId,
    /// Time of the event.
    pub at: Timestamp,
    /// The event.
    pub what: Observation,
}

/// Scheduler -> Admission: the latency targets in effect from now on.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Retarget(pub Targets);

/// SloMonitor -> Admission: the least headroom among the latency targets of a tier. 1 means that all of the target is
/// left, 0 that the latency is at its target.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Headroom {
    /// Tier that the message is about.
    pub tier: Tier,
    /// Least headroom, as a share of the target.
    pub headroom: f64,
}

/// Scheduler and BlockManager -> SloMonitor: the share of a resource that is in use, percent.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct InUse {
    /// The resource.
    pub resource: Resource,
    /// Share of the resource that is in use, percent.
    pub used_percent: f64,
}

/// api -> SloMonitor: asks for the pressure levels of all resources, for a snapshot of the engine.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "PressureLevels")]
pub struct GetPressure;

/// How near each resource is to its limit (none, warning, critical), in the order of [`Resource::ALL`].
#[derive(Debug, Clone, Copy, Default, actix::MessageResponse)]
pub struct PressureLevels(pub [Level; Resource::ALL.len()]);

/// Scheduler -> BlockManager: every step up to this one has completed. Sent when no [`ReserveStep`] reports the
/// completion.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct StepsCompleted(pub StepId);

/// Timer -> Scheduler: the step in flight is about to end, so the next step is due to be planned.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct PlanDue;

/// Tick of the clock: an actor does its periodic work, such as looking for stalled streams, updating gauges and
/// checking the deadline of a drain. The answer is always `true`; it only shows that the actor has handled the tick.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "bool")]
pub struct Tick;

/// api -> Scheduler: asks for a snapshot of the engine.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "EngineStatus")]
pub struct GetStatus;

/// api -> Scheduler: asks for the recorded steps whose number is greater than `after`.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "Steps")]
pub struct GetSteps {
    /// Number of the last step that the asker knows.
    pub after: u64,
}

/// Scheduler -> api: recorded steps, oldest first.
#[derive(Debug, actix::MessageResponse)]
pub struct Steps(pub Vec<StepRecord>);

/// api -> Admission: asks for the numbers of requests in the queues of admission, for a snapshot of the engine.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "QueuedPlaces")]
pub struct GetQueued;

/// Numbers of requests in the queues of admission, by tier.
#[derive(Debug, Clone, Copy, actix::MessageResponse)]
pub struct QueuedPlaces(pub [u32; 4]);

/// Scheduler -> BlockManager: asks for the usage of both block pools, for a snapshot of the engine and for metrics.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "BlockUsage")]
pub struct GetUsage;

/// Total and free blocks of the device pool and of the host pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, actix::MessageResponse)]
pub struct BlockUsage {
    /// Blocks of the device pool.
    pub device_total: u32,
    /// Free blocks of the device pool.
    pub device_free: u32,
    /// Blocks of the host pool.
    pub host_total: u32,
    /// Free blocks of the host pool.
    pub host_free: u32,
}

/// main -> Admission: refuse every request from now on.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct StopAdmitting;

/// main -> Scheduler: drain the engine. Live sequences may finish until the deadline, then the rest is ended. The
/// scheduler answers through `done` when nothing is left.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Drain {
    /// Time at which live sequences are ended.
    pub deadline: Timestamp,
    /// Channel that tells when nothing is left.
    pub done: oneshot::Sender<()>,
}

/// main -> every actor, after the drain: stop. The stop is orderly and does not count as the death of the actor.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Shutdown;
