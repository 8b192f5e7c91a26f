//! Recipients of the Scheduler's messages.

use crate::messages::{
    AbortPreempt, CommitPreempt, ExecuteStep, GetUsage, InUse, LeftQueue, Observe, PlanDue,
    PrefillCapacity, ReserveStep, Retarget, SetLimits, StepsCompleted, TierChanged,
};
use actix::Recipient;

/// Actors that the Scheduler sends messages to.
pub struct Peers {
    /// Recipients of the Scheduler's messages to Admission.
    pub admission: ToAdmission,
    /// Recipients of the Scheduler's messages to the BlockManager.
    pub block_manager: ToBlockManager,
    /// Recipient (the Executor) of the steps to run.
    pub executor: Recipient<ExecuteStep>,
    /// Recipients of the Scheduler's messages to the SloMonitor.
    pub monitor: ToMonitor,
    /// Recipient (the Scheduler itself) of the timer message that the next step is due to be planned.
    pub myself: Recipient<PlanDue>,
}

/// Recipients of the Scheduler's messages to Admission.
pub struct ToAdmission {
    /// Recipient (Admission) of sequences that left its queue, by their first token or by ending.
    pub left: Recipient<LeftQueue>,
    /// Recipient (Admission) of the device time that is available to prompts, sent with each request for a step's
    /// blocks.
    pub capacity: Recipient<PrefillCapacity>,
    /// Recipient (Admission) of the latency targets in effect, sent when they change.
    pub targets: Recipient<Retarget>,
    /// Recipient (Admission) of the message that an operator changed the tier of a sequence.
    pub tier: Recipient<TierChanged>,
    /// Recipient (Admission) of the limits and the patience that an operator set.
    pub limits: Recipient<SetLimits>,
}

/// Recipients of the Scheduler's messages to the BlockManager.
pub struct ToBlockManager {
    /// Recipient (the BlockManager) of requests for the KV blocks of a step.
    pub reserve: Recipient<ReserveStep>,
    /// Recipient (the BlockManager) of swaps to commit: the victim's device blocks come free.
    pub commit: Recipient<CommitPreempt>,
    /// Recipient (the BlockManager) of swaps to abort: the victim keeps its device blocks.
    pub abort: Recipient<AbortPreempt>,
    /// Recipient (the BlockManager) of completed steps, so that it may copy their blocks.
    pub completed: Recipient<StepsCompleted>,
    /// Recipient (the BlockManager) of questions how many blocks are free.
    pub usage: Recipient<GetUsage>,
}

/// Recipients of the Scheduler's messages to the SloMonitor.
pub struct ToMonitor {
    /// Recipient (the SloMonitor) of events that matter to latency targets, such as a request's first token.
    pub observe: Recipient<Observe>,
    /// Recipient (the SloMonitor) of the shares of slots and output buffers that are in use.
    pub in_use: Recipient<InUse>,
}
