//! Fair queues of the tenants, one for each tier, in which service is counted in device time.
//!
//! The service of a request is the time that its prompt and its output add to steps, predicted when the request comes
//! and corrected when it has ended. Among tenants that all have requests waiting, the service of the requests that have
//! started differs by at most the costliest request of each of two tenants, and the prompts of the step under way
//! (theorem 1 of the paper that [`FairQueue`]'s module names: a tenant is ahead of another by its last start, and by
//! the service of the request that started).

use crate::scheduler::cost::CostModel;
use crate::scheduler::queue::fair_queue::{FairQueue, FairTag};
use crate::scheduler::sequence::Sequence;
use tiercel_device::Tier;

/// Fair queue of the tenants of each tier, in which service is counted in device time.
#[derive(Debug, Clone, Default)]
pub(crate) struct TenantFairQueues([FairQueue; Tier::ALL.len()]);

impl TenantFairQueues {
    /// Enters a sequence into the fair queue of a tier's tenants. A sequence that has its first token, or is in that
    /// queue already, keeps its start tag.
    pub(crate) fn enter(&mut self, sequence: &mut Sequence, tier: Tier, cost: &CostModel) {
        let FairTag { queue: before, charged_us, .. } = sequence.service.tenant_tag;
        let known = charged_us > 0.0;
        if sequence.first_token_at.is_some() || (known && before == tier) {
            return;
        }
        let tenant = sequence.service.tenant;
        if known {
            let left = &mut self.0[before.index()];
            left.left(tenant);
            left.correct(tenant, -charged_us);
        }
        let prompt = sequence.prompt_len();
        let predicted = sequence.service.predicted_tokens;
        // Charge at least 1 us, because a charge of 0 marks a sequence that has not entered a fair queue.
        let charged_us = cost.request_us(prompt, predicted, prompt).max(1.0);
        let start = self.0[tier.index()].arrive(tenant, charged_us);
        sequence.service.tenant_tag = FairTag { queue: tier, start, charged_us };
    }

    /// Removes a sequence that got its first token from the waiting requests of its tenant, and advances the fair
    /// queue's virtual time to its start tag.
    pub(crate) fn start(&mut self, sequence: &Sequence) {
        let queue = self.of(sequence);
        queue.left(sequence.service.tenant);
        // Do not advance the virtual time for a sequence with a priority of its own, because it may have been served
        // out of the order of start tags.
        if sequence.service.priority == 0 {
            queue.start(sequence.service.tenant_tag.start);
        }
    }

    /// Corrects the charge of a tenant when its sequence ends: from the predicted device time to the `used_us` that the
    /// sequence really used.
    pub(crate) fn end(&mut self, sequence: &Sequence, used_us: f64) {
        let (tenant, tag) = (sequence.service.tenant, sequence.service.tenant_tag);
        let queue = self.of(sequence);
        if sequence.first_token_at.is_none() {
            queue.left(tenant);
        }
        queue.correct(tenant, used_us - tag.charged_us);
    }

    /// Whether other tenants than that of the sequence have requests waiting in the same fair queue.
    pub(crate) fn others_wait(&self, sequence: &Sequence) -> bool {
        let tag = sequence.service.tenant_tag;
        self.0[tag.queue.index()].others_wait(sequence.service.tenant)
    }

    fn of(&mut self, sequence: &Sequence) -> &mut FairQueue {
        &mut self.0[sequence.service.tenant_tag.queue.index()]
    }
}
