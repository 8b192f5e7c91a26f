//! View: read-only state of the scheduler from which a step is planned.

use crate::scheduler::basis::Basis;
use crate::scheduler::budget::slack_reserve::SlackReserve;
use crate::scheduler::memory::Memory;
use crate::scheduler::plan::retry::Retry;
use crate::scheduler::queue::Queue;
use crate::scheduler::queue::arrivals::Traffic;
use crate::scheduler::sequence::Sequence;
use std::collections::BTreeSet;
use tiercel_device::{SeqId, Timestamp};

/// Read-only state of the scheduler from which a step is planned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) basis: &'a Basis,
    pub(crate) queue: &'a Queue,
    pub(crate) memory: &'a Memory,
    pub(crate) reserve: &'a SlackReserve,
    pub(crate) retry: &'a Retry,
    /// Suspects: sequences of a failed step that have neither succeeded nor failed alone yet.
    pub(crate) suspects: &'a BTreeSet<SeqId>,
    /// Whether sequences that never ran may start; `false` while a static batch must end first.
    pub(crate) may_start: bool,
    pub(crate) traffic: Traffic,
    /// Time at which the planned step begins.
    pub(crate) begins: Timestamp,
}

impl View<'_> {
    /// Whether the planned step may include the running sequence `sequence`.
    pub(crate) fn may_step(&self, sequence: &Sequence) -> bool {
        sequence.runnable(self.basis.rules.limits.max_model_len)
    }
}
