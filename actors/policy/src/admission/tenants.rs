//! Counts each tenant's requests and prompt tokens in the admission queues of the tiers.

use crate::admission::Queue;
use crate::blocks::Salt;
use std::collections::BTreeMap;
use tiercel_config::AdmissionSettings;
use tiercel_device::Tier;

/// `1 / KEPT_PART` of an admission queue's capacity is reserved for tenants that hold at most that part of the queue.
const KEPT_PART: u32 = 8;

/// Waiting requests of each tenant in the admission queue of each tier. A tenant without a waiting request has no
/// entry, so the map is no larger than the queues.
#[derive(Debug, Clone, Default)]
pub struct Tenants(BTreeMap<(Tier, Salt), Queue>);

impl Tenants {
    /// Adds an accepted request of a tenant to the counts of its tier's queue.
    pub fn enter(&mut self, tier: Tier, tenant: Salt, prompt: u32) {
        self.0.entry((tier, tenant)).or_default().add(prompt);
    }

    /// Records that a request of a tenant left the admission queue: it got its first token, ended or moved to another
    /// tier.
    pub fn leave(&mut self, tier: Tier, tenant: Salt, prompt: u32) {
        if let Some(queue) = self.0.get_mut(&(tier, tenant)) {
            queue.leave(prompt);
            if queue.requests == 0 {
                self.0.remove(&(tier, tenant));
            }
        }
    }

    /// Returns the share of a tier's waiting prompt tokens that fair queueing serves before a new request of the
    /// tenant: all tokens that the tenant itself has waiting, and of every other tenant at most as many as the tenant
    /// has with the new request. 1 if no request waits.
    pub fn ahead(&self, tier: Tier, tenant: Salt, prompt: u32) -> f64 {
        let own = self.of(tier, tenant).tokens;
        let turn = own + u64::from(prompt);
        let (mut all, mut before) = (own, own);
        for (_, queue) in self.of_tier(tier).filter(|(other, _)| *other != tenant) {
            all += queue.tokens;
            before += queue.tokens.min(turn);
        }
        if all == 0 { 1.0 } else { before as f64 / all as f64 }
    }

    /// Returns the limits of a tier's admission queue for one tenant. A tenant that holds more than an eighth of the
    /// queue cannot fill its last eighth.
    pub fn limits(
        &self,
        tier: Tier,
        tenant: Salt,
        limits: &AdmissionSettings,
    ) -> AdmissionSettings {
        let own = self.of(tier, tenant);
        let requests = limits.max_queued_requests_per_tier;
        let tokens = limits.max_queued_tokens_per_tier;
        let part = u64::from(KEPT_PART);
        let much = own.requests > requests / KEPT_PART || own.tokens > tokens / part;
        if !much {
            return limits.clone();
        }
        AdmissionSettings {
            max_queued_requests_per_tier: requests - requests / KEPT_PART,
            max_queued_tokens_per_tier: tokens - tokens / part,
            ..limits.clone()
        }
    }

    fn of(&self, tier: Tier, tenant: Salt) -> Queue {
        self.0.get(&(tier, tenant)).copied().unwrap_or_default()
    }

    fn of_tier(&self, tier: Tier) -> impl Iterator<Item = (Salt, &Queue)> {
        let all = (tier, Salt([0; 16]))..=(tier, Salt([u8::MAX; 16]));
        self.0.range(all).map(|((_, tenant), queue)| (*tenant, queue))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREEDY: Salt = Salt([1; 16]);
    const MODEST: Salt = Salt([2; 16]);

    #[test]
    fn a_tenant_with_little_waits_for_no_more_than_its_turn() {
        let mut tenants = Tenants::default();
        assert_eq!(tenants.ahead(Tier::Standard, MODEST, 100), 1.0, "nobody is there");
        for _ in 0..9 {
            tenants.enter(Tier::Standard, GREEDY, 100);
            tenants.enter(Tier::Premium, GREEDY, 100);
        }
        assert_eq!(tenants.ahead(Tier::Standard, GREEDY, 100), 1.0);
        assert_eq!(tenants.ahead(Tier::Standard, MODEST, 100), 100.0 / 900.0);
        tenants.enter(Tier::Standard, MODEST, 100);
        // Of ten waiting prompts of 100 tokens, three are before the new request: one of its own tenant, and two of the
        // other tenant (as many as its own tenant then has).
        assert_eq!(tenants.ahead(Tier::Standard, MODEST, 100), 0.3);
        assert_eq!(tenants.ahead(Tier::Standard, GREEDY, 100), 1.0);
        tenants.leave(Tier::Standard, MODEST, 100);
        for _ in 0..9 {
            tenants.leave(Tier::Standard, GREEDY, 100);
            tenants.leave(Tier::Premium, GREEDY, 100);
        }
        assert!(tenants.0.is_empty());
    }

    #[test]
    fn the_last_part_of_a_queue_is_kept_for_those_who_hold_little() {
        let limits = AdmissionSettings {
            max_queued_requests_per_tier: 16,
            max_queued_tokens_per_tier: 1000,
            ..AdmissionSettings::default()
        };
        let mut tenants = Tenants::default();
        let requests = |tenants: &Tenants, tenant| {
            let limits = tenants.limits(Tier::Standard, tenant, &limits);
            (limits.max_queued_requests_per_tier, limits.max_queued_tokens_per_tier)
        };
        for _ in 0..2 {
            tenants.enter(Tier::Standard, GREEDY, 10);
            assert_eq!(requests(&tenants, GREEDY), (16, 1000));
        }
        tenants.enter(Tier::Standard, GREEDY, 10);
        assert_eq!(requests(&tenants, GREEDY), (14, 875));
        assert_eq!(requests(&tenants, MODEST), (16, 1000));
        tenants.enter(Tier::Standard, MODEST, 125);
        assert_eq!(requests(&tenants, MODEST), (16, 1000), "exactly an eighth of the tokens");
        tenants.enter(Tier::Standard, MODEST, 1);
        assert_eq!(requests(&tenants, MODEST), (14, 875), "it counts in tokens too");
    }
}
