//! The messages of the engine. A step is a handful of them, whatever the batch size.

use crate::request::{Control, EngineStatus, Refusal, Request, StreamEvent};
use actix::Message;
use tiercel_device::{
    CopyBatch, CopyDone, SeqId, StepBatch, StepDone, StepId, StepRecord, Tier, Timestamp,
};
use tiercel_policy::admission::Capacity;
use tiercel_policy::blocks::Salt;
use tiercel_policy::pressure::{Level, Resource};
use tiercel_policy::scheduler::NewSequence;
use tiercel_policy::slo::{Observation, Targets};
use tiercel_policy::{StepGrant, StepRequest, StoreEvent};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

/// Where a sequence's events go, and the permit that bounds how many there are.
#[derive(Debug)]
pub(crate) struct Outlet {
    pub(crate) events: mpsc::Sender<StreamEvent>,
    /// Returned when the sequence ends: this is the engine's back-pressure. Mailboxes have none.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// api -> Admission. Accepted with a sequence id, or refused with a reason.
#[derive(Debug, Message)]
#[rtype(result = "Result<SeqId, Refusal>")]
pub(crate) struct Submit {
    pub(crate) request: Request,
    pub(crate) outlet: Outlet,
}

/// Admission -> Scheduler.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Enqueue {
    pub(crate) new: NewSequence,
    pub(crate) outlet: Outlet,
}

/// Scheduler -> Admission: a sequence left the queue, by its first token or by its end.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub(crate) struct LeftQueue {
    pub(crate) seq: SeqId,
    pub(crate) how: Left,
}

/// api -> Admission: so many for whom there was no place were told to come back after so long.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub(crate) struct Told {
    pub(crate) tier: Tier,
    pub(crate) tenant: Salt,
    pub(crate) retry_after_ms: u64,
    pub(crate) requests: usize,
}

/// How a sequence left the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// It had its first token.
    Started,
    /// It was turned away and told to come back after so long.
    TurnedAway { retry_after_ms: u64 },
    /// It ended in any other way: its client left, it failed, it had no output.
    Ended,
}

/// Scheduler -> Admission, once a step: the time there is for prompts.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub(crate) struct TimeLeft(pub(crate) Capacity);

/// Scheduler -> BlockManager, one per step, one outstanding.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct ReserveStep(pub(crate) StepRequest);

/// BlockManager -> Scheduler.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct StepReserved(pub(crate) StepGrant);

/// Scheduler -> BlockManager: drop the references of a prepared victim.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub(crate) struct CommitPreempt(pub(crate) tiercel_device::Ticket);

/// Scheduler -> BlockManager: restore a prepared victim exactly.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub(crate) struct AbortPreempt(pub(crate) tiercel_device::Ticket);

/// BlockManager -> Scheduler: copies ended. Sent after every batch, also when no sequence waited for
/// it, because blocks may have come free.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct CopiesEnded {
    pub(crate) events: Vec<StoreEvent>,
    /// Blocks of the batch and how long it took, us; for the cost model.
    pub(crate) blocks: u32,
    pub(crate) duration_us: u64,
}

/// BlockManager -> SwapManager.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct CopyBlocks(pub(crate) CopyBatch);

/// SwapManager -> BlockManager, and copy thread -> SwapManager.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct CopyEnded(pub(crate) CopyDone);

/// Scheduler -> Executor.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct ExecuteStep(pub(crate) StepBatch);

/// Executor -> Scheduler, sent from the device's thread.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct StepEnded(pub(crate) StepDone);

/// api -> Scheduler: idempotent, legal in every state.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub(crate) struct Cancel(pub(crate) SeqId);

/// api -> Scheduler: the output is complete, as after a stop string; idempotent.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub(crate) struct Stop(pub(crate) SeqId);

/// api -> Admission: whether the request would be let in if there were a place for it. Changes nothing.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), Refusal>")]
pub(crate) struct Consider(pub(crate) Request);

/// api -> Scheduler: the engine is full and somebody of that tier has come. Answers whether somebody worse who
/// had not started was turned away for it.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "bool")]
pub(crate) struct Displace(pub(crate) Tier);

/// Operator -> Scheduler. Answers whether it named something that exists.
#[derive(Debug, Message)]
#[rtype(result = "bool")]
pub(crate) struct Command(pub(crate) Control);

/// Scheduler -> SloMonitor: once per event, not per step.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub(crate) struct Observe {
    pub(crate) seq: SeqId,
    pub(crate) at: Timestamp,
    pub(crate) what: Observation,
}

/// Scheduler -> Admission: the latency targets in effect from now on.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub(crate) struct Retarget(pub(crate) Targets);

/// SloMonitor -> Admission: the least headroom of a tier's targets (1: all slack left, 0: at the limit).
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub(crate) struct Headroom {
    pub(crate) tier: Tier,
    pub(crate) headroom: f64,
}

/// Scheduler and BlockManager -> SloMonitor: so much of a resource is in use, percent.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub(crate) struct InUse {
    pub(crate) resource: Resource,
    pub(crate) used_percent: f64,
}

/// api -> SloMonitor: the levels of pressure, for a snapshot.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "PressureLevels")]
pub(crate) struct GetPressure;

/// Levels of pressure, in the order of [`Resource::ALL`].
#[derive(Debug, Clone, Copy, Default, actix::MessageResponse)]
pub(crate) struct PressureLevels(pub(crate) [Level; Resource::ALL.len()]);

/// Scheduler -> BlockManager: every step up to this one has completed, told where no [`ReserveStep`] does.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub(crate) struct StepsCompleted(pub(crate) StepId);

/// Timer -> Scheduler: the step in flight is about to end.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub(crate) struct PlanDue;

/// The clock's beat: stalled streams, gauges, drain deadlines. Answers whether to go on.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "bool")]
pub(crate) struct Tick;

/// api -> Scheduler: a snapshot.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "EngineStatus")]
pub(crate) struct GetStatus;

/// api -> Scheduler: the steps it remembers that came after this one.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "Steps")]
pub(crate) struct GetSteps {
    pub(crate) after: u64,
}

/// Scheduler -> api, oldest first.
#[derive(Debug, actix::MessageResponse)]
pub(crate) struct Steps(pub(crate) Vec<StepRecord>);

/// api -> Admission: places taken in its queues, by tier, for a snapshot.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "QueuedPlaces")]
pub(crate) struct GetQueued;

/// Places taken in the queues of admission, by tier.
#[derive(Debug, Clone, Copy, actix::MessageResponse)]
pub(crate) struct QueuedPlaces(pub(crate) [u32; 4]);

/// Scheduler -> BlockManager: block usage for a snapshot.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "BlockUsage")]
pub(crate) struct GetUsage;

/// Free and total blocks of both tiers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, actix::MessageResponse)]
pub(crate) struct BlockUsage {
    pub(crate) device_total: u32,
    pub(crate) device_free: u32,
    pub(crate) host_total: u32,
    pub(crate) host_free: u32,
}

/// main -> Admission: refuse everything from now on.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub(crate) struct CloseDoor;

/// main -> Scheduler: finish what runs until the deadline, then end the rest; answer when nothing is left.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Drain {
    pub(crate) deadline: Timestamp,
    pub(crate) done: oneshot::Sender<()>,
}

/// main -> every actor, after the drain: stop without it being taken for a death.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub(crate) struct Shutdown;
