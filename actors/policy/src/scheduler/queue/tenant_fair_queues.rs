//! Fair queues of the tenants, one for each tier, over device time.
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

/// Fair queue of the tenants of each tier, over device time.
#[derive(Debug, Clone, Default)]
pub(crate) struct TenantFairQueues([FairQueue; Tier::ALL.len()]);

impl TenantFairQueues {
    /// Enters a sequence into the fair queue of a tier. A sequence that has started, or is in that queue, keeps its
    /// tag.
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
        // At least 1 us: a charge of 0 stands for a sequence without a tag.
        let charged_us = cost.request_us(prompt, predicted, prompt).max(1.0);
        let start = self.0[tier.index()].arrive(tenant, charged_us);
        sequence.service.tenant_tag = FairTag { queue: tier, start, charged_us };
    }

    /// Takes a sequence that got its first token out of the waiting requests of its tenant, and advances the virtual
    /// time.
    pub(crate) fn start(&mut self, sequence: &Sequence) {
        let queue = self.of(sequence);
        queue.left(sequence.service.tenant);
        // A sequence that went first by its priority does not advance the virtual time, because it was out of the order
        // of tags.
        if sequence.service.priority == 0 {
            queue.start(sequence.service.tenant_tag.start);
        }
    }

    /// Corrects the charge of a sequence that has ended: its tenant is charged the `used_us` that the sequence really
    /// used.
    pub(crate) fn end(&mut self, sequence: &Sequence, used_us: f64) {
        let (tenant, tag) = (sequence.service.tenant, sequence.service.tenant_tag);
        let queue = self.of(sequence);
        if sequence.first_token_at.is_none() {
            queue.left(tenant);
        }
        queue.correct(tenant, used_us - tag.charged_us);
    }

    /// Whether requests of other tenants wait in the fair queue of a sequence.
    pub(crate) fn others_wait(&self, sequence: &Sequence) -> bool {
        let tag = sequence.service.tenant_tag;
        self.0[tag.queue.index()].others_wait(sequence.service.tenant)
    }

    fn of(&mut self, sequence: &Sequence) -> &mut FairQueue {
        &mut self.0[sequence.service.tenant_tag.queue.index()]
    }
}
