//! View: the state that planning a step reads. Nothing in it changes while a step is planned.

use crate::scheduler::basis::Basis;
use crate::scheduler::budget::slack_reserve::SlackReserve;
use crate::scheduler::memory::Memory;
use crate::scheduler::plan::retry::Retry;
use crate::scheduler::queue::Queue;
use crate::scheduler::queue::arrivals::Traffic;
use crate::scheduler::sequence::Sequence;
use std::collections::BTreeSet;
use tiercel_device::{SeqId, Timestamp};

/// State that planning a step reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) basis: &'a Basis,
    pub(crate) queue: &'a Queue,
    pub(crate) memory: &'a Memory,
    pub(crate) reserve: &'a SlackReserve,
    pub(crate) retry: &'a Retry,
    /// Members of a failed step that have not run alone yet.
    pub(crate) suspects: &'a BTreeSet<SeqId>,
    /// Whether sequences that never ran may start.
    pub(crate) may_start: bool,
    pub(crate) traffic: Traffic,
    /// When the step begins.
    pub(crate) begins: Timestamp,
}

impl View<'_> {
    /// Whether the step may include a running sequence.
    pub(crate) fn may_step(&self, sequence: &Sequence) -> bool {
        sequence.runnable(self.basis.rules.limits.max_model_len)
    }
}
