//! Fair queues of the tenants, one for each tier, in which service is counted in device time.
//!
//! The service of a request is the time that its prompt and its output add to steps, predicted when the request comes
//! and corrected when it has ended. Among tenants that all have requests waiting, the service / weight of the requests
//! that have their first token differs by at most the costliest request of each of two tenants (theorem 1 of the paper
//! that [`FairQueue`]'s module names), and by the prompts of the step under way, which have no first token yet.

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
        let FairTag { queue: before, start, charged_us } = sequence.service.tenant_tag;
        let known = charged_us > 0.0;
        if sequence.first_token_at.is_some() || (known && before == tier) {
            return;
        }
        let tenant = sequence.service.weighted_tenant();
        if known {
            let previous = &mut self.0[before.index()];
            previous.stops_waiting((tenant.0, start));
            previous.correct(tenant, -charged_us);
        }
        let prompt = sequence.prompt_len();
        let predicted = sequence.service.predicted_tokens;
        // Charge at least 1 us, because a charge of 0 marks a sequence that has not entered a fair queue.
        let charged_us = cost.request_us(prompt, predicted, prompt).max(1.0);
        let start = self.0[tier.index()].arrive(tenant, charged_us);
        sequence.service.tenant_tag = FairTag { queue: tier, start, charged_us };
    }

    /// Removes a sequence that got its first token from the waiting requests of its tenant, and advances the fair
    /// queue's virtual time to the sequence's start tag; but if the sequence has a priority of its own, at most to the
    /// least start tag of the requests that still wait.
    pub(crate) fn served(&mut self, sequence: &Sequence) {
        let start = sequence.service.tenant_tag.start;
        let queue = self.of(sequence);
        queue.stops_waiting((sequence.service.tenant, start));
        // A sequence with a priority of its own may have been served before requests with earlier start tags. With the
        // sequence's own start tag as the virtual time, a tenant that comes now would be served after those requests.
        // A request of priority 0 that overtakes requests of priorities above 0 advances the virtual time nevertheless.
        let by_priority = sequence.service.priority != 0;
        let least = by_priority.then(|| queue.least_waiting()).flatten();
        queue.advance_to(least.map_or(start, |least| least.min(start)));
    }

    /// Corrects the charge of a tenant when its sequence ends: from the predicted device time to the `used_us` that the
    /// sequence really used.
    pub(crate) fn end(&mut self, sequence: &Sequence, used_us: f64) {
        let (tenant, tag) = (sequence.service.weighted_tenant(), sequence.service.tenant_tag);
        let queue = self.of(sequence);
        if sequence.first_token_at.is_none() {
            queue.stops_waiting((tenant.0, tag.start));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::Salt;
    use crate::scheduler::budget::fixtures::{cost, prompt};
    use tiercel_device::Timestamp;

    /// Predicted device time of each request, us: 9 prompt tokens take 9 * 8 us and 0.25 us for each of 36 pairs, and 2
    /// output tokens take 7 us each, and 0.5 us for each of the 9 tokens that they read.
    const REQUEST_US: f64 = 81.0 + 23.0;

    /// Enters a request of a tenant into the fair queue of the standard tier.
    fn entered(queues: &mut TenantFairQueues, tenant: u8) -> Sequence {
        let mut sequence = prompt(1, Tier::Standard, 9, 0);
        sequence.service.tenant = Salt([tenant; 16]);
        sequence.service.predicted_tokens = 2.0;
        queues.enter(&mut sequence, Tier::Standard, &cost());
        sequence
    }

    /// Returns the start tag of the next standard request of a tenant.
    fn next_start(queues: &TenantFairQueues, tenant: u8) -> f64 {
        entered(&mut queues.clone(), tenant).service.tenant_tag.start
    }

    #[test]
    fn a_request_enters_a_queue_once_and_none_after_its_first_token() {
        let mut queues = TenantFairQueues::default();
        let mut first = entered(&mut queues, 1);
        let tag = FairTag { queue: Tier::Standard, start: 0.0, charged_us: REQUEST_US };
        assert_eq!(first.service.tenant_tag, tag);
        queues.enter(&mut first, Tier::Standard, &cost());
        assert_eq!(first.service.tenant_tag, tag);
        assert_eq!(next_start(&queues, 1), REQUEST_US);
        first.first_token_at = Some(Timestamp(5));
        queues.enter(&mut first, Tier::Premium, &cost());
        assert_eq!(first.service.tenant_tag, tag);
    }

    #[test]
    fn a_request_that_moves_to_another_tier_is_charged_there_and_no_longer_here() {
        let mut queues = TenantFairQueues::default();
        let _first = entered(&mut queues, 1);
        let mut second = entered(&mut queues, 1);
        assert_eq!(second.service.tenant_tag.start, REQUEST_US);
        queues.enter(&mut second, Tier::Premium, &cost());
        let tag = FairTag { queue: Tier::Premium, start: 0.0, charged_us: REQUEST_US };
        assert_eq!(second.service.tenant_tag, tag);
        assert_eq!(next_start(&queues, 1), REQUEST_US);
    }

    #[test]
    fn a_start_moves_the_virtual_time_but_one_by_priority_not_beyond_requests_that_wait() {
        for (priority, waits, start) in
            [(0, true, REQUEST_US), (5, true, 0.0), (0, false, REQUEST_US), (5, false, REQUEST_US)]
        {
            let mut queues = TenantFairQueues::default();
            let first = entered(&mut queues, 1);
            let mut second = entered(&mut queues, 1);
            second.service.priority = priority;
            if !waits {
                queues.served(&first);
            }
            queues.served(&second);
            assert_eq!(next_start(&queues, 2), start, "{priority} {waits}");
        }
    }

    #[test]
    fn a_tenant_that_comes_later_has_no_credit_where_all_requests_have_a_priority() {
        let mut queues = TenantFairQueues::default();
        for _ in 0..100 {
            let mut sequence = entered(&mut queues, 1);
            sequence.service.priority = 1;
            queues.served(&sequence);
        }
        assert_eq!(next_start(&queues, 2), 99.0 * REQUEST_US);
    }

    #[test]
    fn requests_wait_until_they_start_or_end() {
        let mut queues = TenantFairQueues::default();
        let [first, second] = [entered(&mut queues, 1), entered(&mut queues, 1)];
        let mut other = entered(&mut TenantFairQueues::default(), 2);
        assert!(queues.others_wait(&other) && !queues.others_wait(&first));
        queues.served(&first);
        assert!(queues.others_wait(&other), "one request waits yet");
        other.service.tenant_tag.queue = Tier::Premium;
        assert!(!queues.others_wait(&other), "in another tier");
        other.service.tenant_tag.queue = Tier::Standard;
        queues.end(&second, 0.0);
        assert!(!queues.others_wait(&other));
    }

    #[test]
    fn a_request_that_ends_is_charged_what_it_used() {
        let mut queues = TenantFairQueues::default();
        let mut first = entered(&mut queues, 1);
        queues.served(&first);
        first.first_token_at = Some(Timestamp(5));
        queues.end(&first, 50.0);
        assert_eq!(next_start(&queues, 1), 50.0);
    }
}
