//! The block store: see the [module](super) for what it keeps and promises.

use super::{StoreConfig, StoreSnapshot, Violation};
use crate::{PreemptOutcome, StepGrant, StepRequest, StoreEvent, Victim};
use tiercel_device::{CopyBatch, CopyId, SeqId, Ticket};

/// Two tiers of KV blocks with their owners, names, pins and copies.
#[derive(Debug)]
pub struct BlockStore {
    config: StoreConfig,
}

impl BlockStore {
    /// An empty store.
    pub fn new(config: StoreConfig) -> BlockStore {
        BlockStore { config }
    }

    /// The sizes and bounds it was made with.
    pub fn config(&self) -> &StoreConfig {
        &self.config
    }

    /// Answers one step's request: progress, releases, then wants with the victims they may take.
    pub fn reserve(&mut self, request: &StepRequest) -> StepGrant {
        StepGrant { step: request.step, ..StepGrant::default() }
    }

    /// Prepares the preemption of one sequence outside of a step request. `None` if the sequence has
    /// no table or is already being preempted or resumed.
    pub fn prepare_preempt(&mut self, _victim: Victim) -> Option<PreemptOutcome> {
        None
    }

    /// Drops the references of a prepared sequence. Stale and repeated tickets do nothing and
    /// return `false`.
    pub fn commit_preempt(&mut self, _ticket: Ticket) -> bool {
        false
    }

    /// Takes a preparation back: the sequence keeps its table and may run. Stale and repeated tickets
    /// do nothing and return `false`.
    pub fn abort_preempt(&mut self, _ticket: Ticket) -> bool {
        false
    }

    /// Copies that may start now: every step that names their blocks has completed, and the bound on
    /// blocks in transit allows them.
    pub fn take_copies(&mut self) -> Vec<CopyBatch> {
        Vec::new()
    }

    /// A batch taken by [`BlockStore::take_copies`] ended. Unknown ids do nothing.
    pub fn copy_done(&mut self, _copy: CopyId, _ok: bool) -> Vec<StoreEvent> {
        Vec::new()
    }

    /// A sequence ended: drops its references. Legal in every state, idempotent; the same as
    /// `StepRequest::released`.
    pub fn release(&mut self, _seq: SeqId) {}

    /// Usage, for metrics and tests.
    pub fn snapshot(&self) -> StoreSnapshot {
        StoreSnapshot::default()
    }

    /// Checks every invariant.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), Violation> {
        Ok(())
    }
}
