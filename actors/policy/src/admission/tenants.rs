//! Counts each tenant's requests and prompt tokens in the admission queues of the tiers.

use crate::Weight;
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
pub struct Tenants(BTreeMap<(Tier, Salt), OfTenant>);

/// Waiting requests of one tenant in one tier.
#[derive(Debug, Clone, Copy, Default)]
struct OfTenant {
    /// Requests of the tenant in the admission queue, and the prompt tokens that they add to it: of the choices of a
    /// client request only the first adds tokens.
    queue: Queue,
    /// Length of the prompts of all these requests together, tokens. Further choices count too, because the scheduler's
    /// fair queue counts them.
    prompts: u64,
    /// Weight of the tenant in the fair queues, as the request that entered last states it.
    weight: Weight,
}

impl Tenants {
    /// Adds an accepted request of a tenant to the counts of its tier's queue. The request's prompt has `prompt`
    /// tokens, of which the queue counts `counted`.
    pub fn enter(
        &mut self,
        tier: Tier,
        (tenant, weight): (Salt, Weight),
        (prompt, counted): (u32, u32),
    ) {
        let of_tenant = self.0.entry((tier, tenant)).or_default();
        of_tenant.queue.add(counted);
        of_tenant.prompts += u64::from(prompt);
        of_tenant.weight = weight;
    }

    /// Records that a request of a tenant left the admission queue: it got its first token, ended or moved to another
    /// tier. The request's prompt has `prompt` tokens, of which the queue counted `counted`.
    pub fn leave(&mut self, tier: Tier, tenant: Salt, (prompt, counted): (u32, u32)) {
        if let Some(OfTenant { queue, prompts, .. }) = self.0.get_mut(&(tier, tenant)) {
            queue.leave(counted);
            *prompts = prompts.saturating_sub(u64::from(prompt));
            if queue.requests == 0 {
                self.0.remove(&(tier, tenant));
            }
        }
    }

    /// Returns the share of a tier's waiting prompt tokens that fair queueing serves before a new request of the
    /// tenant: all tokens that the tenant itself has waiting, and of every other tenant at most as many as the tenant
    /// has with the new request, times the ratio of the other tenant's weight to its own. 1 if no request waits.
    pub fn ahead(&self, tier: Tier, (tenant, weight): (Salt, Weight), prompt: u32) -> f64 {
        let own = self.of(tier, tenant).prompts as f64;
        let turn = weight.virtual_time(own + f64::from(prompt));
        let (mut all, mut before) = (own, own);
        for (_, other) in self.of_tier(tier).filter(|(other, _)| *other != tenant) {
            let tokens = other.prompts as f64;
            all += tokens;
            before += tokens.min(turn * other.weight.get());
        }
        if all == 0.0 { 1.0 } else { before / all }
    }

    /// Returns the limits of a tier's admission queue for one tenant. A tenant that holds more than an eighth of the
    /// queue cannot fill its last eighth. This holds for tenants of every weight, because it leaves room for newcomers;
    /// how soon requests are served does not depend on the room that their tenant has in the queue.
    pub fn limits(
        &self,
        tier: Tier,
        tenant: Salt,
        limits: &AdmissionSettings,
    ) -> AdmissionSettings {
        let own = self.of(tier, tenant).queue;
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

    fn of(&self, tier: Tier, tenant: Salt) -> OfTenant {
        self.0.get(&(tier, tenant)).copied().unwrap_or_default()
    }

    fn of_tier(&self, tier: Tier) -> impl Iterator<Item = (Salt, &OfTenant)> {
        let all = (tier, Salt([0; 16]))..=(tier, Salt([u8::MAX; 16]));
        self.0.range(all).map(|((_, tenant), of_tenant)| (*tenant, of_tenant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREEDY: Salt = Salt([1; 16]);
    const MODEST: Salt = Salt([2; 16]);

    /// Returns a tenant of weight 1.
    fn of(tenant: Salt) -> (Salt, Weight) {
        (tenant, Weight::default())
    }

    #[test]
    fn a_tenant_with_little_waits_for_no_more_than_its_turn() {
        let mut tenants = Tenants::default();
        assert_eq!(tenants.ahead(Tier::Standard, of(MODEST), 100), 1.0, "nobody is there");
        for _ in 0..9 {
            tenants.enter(Tier::Standard, of(GREEDY), (100, 100));
            tenants.enter(Tier::Premium, of(GREEDY), (100, 100));
        }
        assert_eq!(tenants.ahead(Tier::Standard, of(GREEDY), 100), 1.0);
        assert_eq!(tenants.ahead(Tier::Standard, of(MODEST), 100), 100.0 / 900.0);
        tenants.enter(Tier::Standard, of(MODEST), (100, 100));
        // Of ten waiting prompts of 100 tokens, three are before the new request: one of its own tenant, and two of the
        // other tenant (as many as its own tenant then has).
        assert_eq!(tenants.ahead(Tier::Standard, of(MODEST), 100), 0.3);
        assert_eq!(tenants.ahead(Tier::Standard, of(GREEDY), 100), 1.0);
        tenants.leave(Tier::Standard, MODEST, (100, 100));
        for _ in 0..9 {
            tenants.leave(Tier::Standard, GREEDY, (100, 100));
            tenants.leave(Tier::Premium, GREEDY, (100, 100));
        }
        assert!(tenants.0.is_empty());
    }

    #[test]
    fn the_fair_queue_serves_every_choice_of_a_request_though_the_queue_counts_only_the_first() {
        let mut tenants = Tenants::default();
        tenants.enter(Tier::Standard, of(GREEDY), (100, 100));
        (0..8).for_each(|_| tenants.enter(Tier::Standard, of(GREEDY), (100, 0)));
        assert_eq!(tenants.ahead(Tier::Standard, of(MODEST), 100), 100.0 / 900.0);
        assert_eq!(tenants.of(Tier::Standard, GREEDY).queue.tokens, 100);
        (0..8).for_each(|_| tenants.leave(Tier::Standard, GREEDY, (100, 0)));
        assert_eq!(tenants.of(Tier::Standard, GREEDY).prompts, 100);
    }

    #[test]
    fn a_tenant_of_more_weight_waits_for_less_of_the_others() {
        let mut tenants = Tenants::default();
        let heavy = (MODEST, Weight::new(4.0));
        (0..9).for_each(|_| tenants.enter(Tier::Standard, of(GREEDY), (100, 100)));
        assert_eq!(tenants.ahead(Tier::Standard, heavy, 100), 25.0 / 900.0);
        (0..3).for_each(|_| tenants.enter(Tier::Standard, heavy, (100, 100)));
        assert_eq!(tenants.ahead(Tier::Standard, heavy, 100), 400.0 / 1200.0, "100 of the other");
        // A tenant of weight 1 has its first 100 tokens after 100 of the greedy tenant and all 300 of the heavy one.
        let newcomer = of(Salt([3; 16]));
        assert_eq!(tenants.ahead(Tier::Standard, newcomer, 100), 400.0 / 1200.0);
    }

    #[test]
    fn the_last_part_of_a_queue_is_kept_for_tenants_that_hold_little() {
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
            tenants.enter(Tier::Standard, of(GREEDY), (10, 10));
            assert_eq!(requests(&tenants, GREEDY), (16, 1000));
        }
        tenants.enter(Tier::Standard, of(GREEDY), (10, 10));
        assert_eq!(requests(&tenants, GREEDY), (14, 875));
        assert_eq!(requests(&tenants, MODEST), (16, 1000));
        tenants.enter(Tier::Standard, of(MODEST), (125, 125));
        assert_eq!(requests(&tenants, MODEST), (16, 1000), "exactly an eighth of the tokens");
        tenants.enter(Tier::Standard, of(MODEST), (1, 1));
        assert_eq!(requests(&tenants, MODEST), (14, 875), "it counts in tokens too");
    }
}
