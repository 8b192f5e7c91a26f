//! A fair queue of tenants.
//!
//! Start-time fair queueing (Goyal, Vin, Cheng 1997): the start tag of a request is the later of the virtual time and
//! the finish tag of its tenant's last request. Requests are served in the order of start tags, and the virtual time is
//! the greatest start tag of a request that has been served: one that has its first token (fair queues of tenants by
//! device time) or has opened (queue by tokens). Requests with a priority of their own, which are served out of the
//! order of start tags, advance the virtual time less (`TenantFairQueues::served`). Service is counted in tokens or in us of device time; the
//! service of an output is predicted until the output ends. A tenant's tags advance by service / weight, so that
//! tenants whose requests all wait have service in proportion to their weights. Each request counts with the weight
//! that its tenant had when the request arrived.

use crate::Weight;
use crate::blocks::Salt;
use std::collections::BTreeMap;
use tiercel_device::Tier;

/// Most tenants whose service is remembered. Beyond that, the tenant with the earliest finish tag is forgotten; tenants
/// without waiting requests go first.
const MAX_TENANTS: usize = 4096;

/// Charge for one sequence with a payer in the tiers' fair queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TierCharge {
    /// Tier that was charged.
    pub(crate) tier: Tier,
    /// Predicted device time of the sequence, us.
    pub(crate) device_us: f64,
    /// Share of the device's time that the tier was due when it was charged, 0 to 1.
    pub(crate) weight: f64,
}

/// A request's start tag and charge in the fair queue of one tier's tenants.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct FairTag {
    /// Tier whose fair queue of tenants the request entered last.
    pub(crate) queue: Tier,
    /// Start tag of the request: a virtual time, which counts us of device time divided by the tenant's weight.
    pub(crate) start: f64,
    /// Predicted device time of the request that its tenant was charged, us; 0 before the request entered a fair queue.
    pub(crate) charged_us: f64,
}

/// Fair queue, which serves tenants by their weights: holds its virtual time, and a record of the service (tokens or
/// device time) that each tenant was charged.
#[derive(Debug, Clone, Default)]
pub(crate) struct FairQueue {
    /// Virtual time of the fair queue: the greatest tag to which [`FairQueue::advance_to`] advanced it.
    virtual_time: f64,
    /// Tags of each tenant whose service is remembered.
    tags: BTreeMap<Salt, Tags>,
}

/// A tenant's tags in a fair queue.
#[derive(Debug, Clone)]
struct Tags {
    /// Finish tag of the tenant's last request (start tag + service / weight), which is the earliest start tag of its
    /// next one.
    finish: f64,
    /// Refund that is not deducted from `finish` yet, because the tenant's waiting requests must keep their order:
    /// virtual time, in the unit of the tags.
    refund: f64,
    /// Start tags of the tenant's requests that have no first token yet (the bits of the number, which order numbers
    /// from 0 on as the numbers), each with the number of requests that have this tag. A start tag is the virtual time,
    /// in start-time fair queueing, at which the service of a request begins.
    waiting: BTreeMap<u64, u32>,
}

impl Tags {
    /// Changes the finish tag by `by`, less the refund that is due, but not to less than the start tag of any request
    /// that waits.
    fn correct(&mut self, by: f64) {
        let finish = self.finish + by - self.refund;
        let last = self.waiting.last_key_value().map(|(bits, _)| f64::from_bits(*bits));
        self.finish = finish.max(last.unwrap_or(f64::NEG_INFINITY));
        self.refund = self.finish - finish;
    }
}

/// Returns the bits of a start tag, which is at least 0, as a key.
fn key(start: f64) -> u64 {
    // The sum is 0 for the number -0, whose bits are not in order.
    (start + 0.0).to_bits()
}

impl FairQueue {
    /// Adds a request of a tenant of the weight `weight` with the predicted service `service`, and returns its start
    /// tag.
    pub(crate) fn arrive(&mut self, (tenant, weight): (Salt, Weight), service: f64) -> f64 {
        if self.tags.len() >= MAX_TENANTS && !self.tags.contains_key(&tenant) {
            self.forget_least();
        }
        let tags = self.tags.entry(tenant).or_insert_with(|| Tags {
            finish: self.virtual_time,
            refund: 0.0,
            waiting: BTreeMap::new(),
        });
        let start = tags.finish.max(self.virtual_time);
        *tags.waiting.entry(key(start)).or_default() += 1;
        tags.finish = start + weight.virtual_time(service);
        start
    }

    /// Whether requests of another tenant than `tenant` wait.
    pub(crate) fn others_wait(&self, tenant: Salt) -> bool {
        self.tags.iter().any(|(other, tags)| *other != tenant && !tags.waiting.is_empty())
    }

    /// Returns the least start tag of all requests that wait; `None` if none waits.
    pub(crate) fn least_waiting(&self) -> Option<f64> {
        let least = |tags: &Tags| tags.waiting.first_key_value().map(|(bits, _)| *bits);
        self.tags.values().filter_map(least).min().map(f64::from_bits)
    }

    /// Records that a waiting request of a tenant, with the start tag `start`, got its first token, ended without one,
    /// or moved to another fair queue.
    pub(crate) fn stops_waiting(&mut self, (tenant, start): (Salt, f64)) {
        let Some(tags) = self.tags.get_mut(&tenant) else { return };
        // A tenant that was forgotten meanwhile has no such request.
        if let Some(number) = tags.waiting.get_mut(&key(start)) {
            *number -= 1;
            if *number == 0 {
                tags.waiting.remove(&key(start));
            }
            tags.correct(0.0);
        }
    }

    /// Records that a request is served: sets the virtual time to `tag`, mostly the start tag of that request, if `tag`
    /// is later than the virtual time.
    pub(crate) fn advance_to(&mut self, tag: f64) {
        self.virtual_time = self.virtual_time.max(tag);
    }

    /// Corrects the charge of a tenant by `service`, actual less predicted service of a request that arrived with the
    /// weight `weight`. The tenant's waiting requests keep their order.
    pub(crate) fn correct(&mut self, (tenant, weight): (Salt, Weight), service: f64) {
        if let Some(tags) = self.tags.get_mut(&tenant) {
            tags.correct(weight.virtual_time(service));
        }
    }

    /// Forgets the tenant with the earliest finish tag; tenants without waiting requests go first.
    fn forget_least(&mut self) {
        let least = self.tags.iter().min_by(|(_, a), (_, b)| {
            b.waiting.is_empty().cmp(&a.waiting.is_empty()).then(a.finish.total_cmp(&b.finish))
        });
        if let Some(tenant) = least.map(|(tenant, _)| *tenant) {
            self.tags.remove(&tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a tenant of weight 1.
    fn of(tenant: Salt) -> (Salt, Weight) {
        (tenant, Weight::default())
    }

    #[test]
    fn a_tenant_that_had_less_comes_first() {
        let mut queue = FairQueue::default();
        let (greedy, modest) = (Salt([1; 16]), Salt([2; 16]));
        let tags: Vec<f64> = (0..3).map(|_| queue.arrive(of(greedy), 100.0)).collect();
        assert_eq!(tags, [0.0, 100.0, 200.0]);
        queue.advance_to(100.0);
        assert_eq!(queue.arrive(of(modest), 100.0), 100.0, "no credit for having been away");
        queue.correct(of(modest), -60.0);
        assert_eq!(queue.arrive(of(modest), 10.0), 140.0, "what was not used is given back");
        queue.correct(of(modest), -90.0);
        assert_eq!(
            queue.arrive(of(modest), 10.0),
            140.0,
            "nobody overtakes an older request of its own"
        );
    }

    #[test]
    fn what_a_tenant_did_not_get_is_given_back_when_nothing_of_it_waits() {
        let mut queue = FairQueue::default();
        let (fickle, other) = (Salt([1; 16]), Salt([2; 16]));
        let starts: Vec<f64> = (0..100).map(|_| queue.arrive(of(fickle), 10.0)).collect();
        assert!(!queue.others_wait(fickle) && queue.others_wait(other));
        // All requests of the tenant give up without service, so their charge is refunded in full.
        for start in starts {
            queue.stops_waiting((fickle, start));
            queue.correct(of(fickle), -10.0);
        }
        assert!(!queue.others_wait(other));
        assert_eq!(queue.arrive(of(fickle), 10.0), 0.0, "it owes nothing");
    }

    #[test]
    fn what_the_last_requests_of_a_tenant_did_not_get_is_given_back_while_an_earlier_one_waits() {
        let mut queue = FairQueue::default();
        let tenant = Salt([1; 16]);
        let starts: Vec<f64> = (0..100).map(|_| queue.arrive(of(tenant), 10.0)).collect();
        for start in &starts[1..] {
            queue.stops_waiting((tenant, *start));
            queue.correct(of(tenant), -10.0);
        }
        assert_eq!(queue.least_waiting(), Some(0.0));
        assert_eq!(queue.arrive(of(tenant), 10.0), 10.0, "it owes only the request that waits");
    }

    #[test]
    fn tenants_are_bounded() {
        let mut queue = FairQueue::default();
        for tenant in 0..2 * MAX_TENANTS as u32 {
            let mut salt = [0; 16];
            salt[..4].copy_from_slice(&tenant.to_le_bytes());
            queue.arrive(of(Salt(salt)), 1.0);
        }
        assert_eq!(queue.tags.len(), MAX_TENANTS);
    }

    #[test]
    fn refunds_that_wait_for_an_older_request_are_deducted_later_in_full() {
        let mut queue = FairQueue::default();
        let tenant = Salt([1; 16]);
        for _ in 0..2 {
            queue.arrive(of(tenant), 10.0);
        }
        // Of the refund of 15 only 10 count at once, because the second request starts at 10; the other 5 are taken off
        // the next charge: 10 + 8 - 5.
        queue.correct(of(tenant), -15.0);
        queue.correct(of(tenant), 8.0);
        assert_eq!(queue.arrive(of(tenant), 10.0), 13.0);
    }

    #[test]
    fn a_tenant_without_waiting_requests_is_forgotten_before_those_that_wait() {
        let salt = |tenant: usize| {
            let mut salt = [0; 16];
            salt[..4].copy_from_slice(&(tenant as u32).to_le_bytes());
            Salt(salt)
        };
        let mut queue = FairQueue::default();
        let idle = MAX_TENANTS / 2;
        for tenant in 0..MAX_TENANTS {
            queue.arrive(of(salt(tenant)), if tenant == idle { 50.0 } else { 1.0 });
        }
        queue.stops_waiting((salt(idle), 0.0));
        queue.arrive(of(salt(MAX_TENANTS)), 1.0);
        assert!(!queue.tags.contains_key(&salt(idle)), "although it had most service");
        assert_eq!(queue.tags.len(), MAX_TENANTS);
    }

    #[test]
    fn tenants_that_all_wait_start_in_proportion_to_their_weights() {
        let mut queue = FairQueue::default();
        let tenants = [(Salt([1; 16]), Weight::new(3.0)), (Salt([2; 16]), Weight::new(0.5))];
        let mut tags: Vec<(f64, usize)> = Vec::new();
        for (number, tenant) in tenants.into_iter().enumerate() {
            tags.extend((0..700).map(|_| (queue.arrive(tenant, 10.0), number)));
        }
        tags.sort_by(|a, b| a.0.total_cmp(&b.0));
        let first = tags[..350].iter().filter(|(_, number)| *number == 0).count();
        assert!((299..=301).contains(&first), "{first} of 350 starts, expected 3 / 3.5");
    }

    #[test]
    fn a_refund_counts_with_the_weight_of_its_charge() {
        let mut queue = FairQueue::default();
        let (light, heavy) =
            ((Salt([1; 16]), Weight::default()), (Salt([1; 16]), Weight::new(4.0)));
        queue.arrive(light, 100.0);
        queue.stops_waiting((light.0, 0.0));
        // The keys were read again meanwhile, and the tenant has another weight.
        assert_eq!(queue.arrive(heavy, 100.0), 100.0);
        queue.stops_waiting((heavy.0, 100.0));
        queue.correct(light, -100.0);
        assert_eq!(queue.arrive(heavy, 100.0), 25.0, "only the second request is charged: 100 / 4");
    }
}
