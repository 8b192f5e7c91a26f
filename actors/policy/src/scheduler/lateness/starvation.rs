//! Starvation: a late request that has waited too long counts as in time again, for good.
//!
//! Late requests wait behind all requests of their tier that can be in time (see
//! [`crate::scheduler::lateness::deadlines`]). Clients that send the next request as soon as they have an answer always
//! have a request that can be in time, so a late request would wait until its patience ends. A starving request
//! therefore counts as in time for good: its early arrival puts it before later requests of its tier, priority and
//! tenant. If no higher tier has requests, and only a few more requests come than can be in time, the tier is thereby
//! served nearly as by a plain first-come-first-served server.
//!
//! If a higher tier has requests, a late request without a retry credit starves only while the request's tier, which
//! must be above background, has a balanced flow (`flow`): in the last minute, the number of requests that came
//! (without those that ended before their first token) and the number of first tokens have been about equal. Clients
//! that wait for an answer before they send the next request make the flow balanced. If more requests come, the order
//! of arrival would make all requests late. If fewer requests come, as after a burst, the time that newcomers leave
//! drains the backlog.
//!
//! If no higher tier has requests, no request without a retry credit starves while its tenant's queue is so long that
//! in the order of arrival every request would wait for minutes. The time in which the queue of the tier drains follows
//! from the length of the queue and from the rate at which requests leave the queue (Little's law). The time in which a
//! tenant's queue drains follows from the tenant's fair part of the late requests by the weights of the tenants (see
//! [`fair_part`]). So a tenant with few requests does not wait until the backlog of a tenant with many is served.
//!
//! A late request with a retry credit (its client came back at its retry time) starves at once, whatever the traffic,
//! the flow and the length of the queue: the server told the client to come at that time. At most [`STARVING_MAX`]
//! requests of a tier starve at a time, the oldest of the requests that may starve.

use crate::Weight;
use crate::blocks::Salt;
use crate::scheduler::queue::arrivals::Traffic;
use crate::scheduler::sequence::Sequence;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use tiercel_device::{SeqId, Tier, Timestamp};

/// If no higher tier has requests, a late request starves (is in time for good) after at least this wait, us: a
/// person's attention lasts for about 10 s (Nielsen, Usability Engineering, 1993, chapter 5).
const ALONE_US: u64 = 10_000_000;
/// If no higher tier has requests, a late request starves only after at least this share of the time in which its
/// tenant's queue drains. If late requests of an overloaded tier starved after a fixed wait, the order of arrival would
/// make every request late. So a request waits the longer before it starves, the longer the queue is.
const ALONE_SHARE: f64 = 0.35;
/// If no higher tier has requests, a tenant's late requests starve only if its queue drains within this time, us.
const DRAIN_MAX_US: f64 = 300e6;
/// Wait after which a late request starves although a higher tier has requests, us: half of the default patience.
/// Background requests without a retry credit do not starve while higher tiers have requests: higher tiers leave
/// background so little time that all background requests would be late, and all would starve.
const BESIDE_HIGHER_US: u64 = 300_000_000;
/// Most requests of a tier that starve at a time: as many as one plan may open. Each tenant with late requests has a
/// part of this number in proportion to its weight, and at least one request. If the parts add up to more than this
/// number, only the oldest requests starve.
const STARVING_MAX: usize = 32;

/// Tenant in a tier: its late requests are one group.
type TierTenant = (Tier, Salt);

/// Sort key of a late request: whether its client is a newcomer (has no retry credit), its arrival, and its id.
/// Requests with a retry credit sort first, because they starve at once.
type LateEntry = (bool, Timestamp, SeqId);

/// Late requests, split into those that wait behind their tier and those that starve (count as in time for good).
#[derive(Debug, Clone, Default)]
pub(crate) struct LateRequests {
    /// Late requests that do not starve yet: they are served behind the requests of their tier that are in time. A
    /// tenant without such requests has no entry.
    behind: BTreeMap<TierTenant, Group<LateEntry>>,
    /// Requests that starve: late requests that count as in time for good, because the request has waited long or its
    /// client came back at the retry time. A tenant without such requests has no entry.
    starving: BTreeMap<TierTenant, Group<SeqId>>,
}

/// Requests of one tenant.
#[derive(Debug, Clone)]
struct Group<T> {
    /// Weight of the tenant, as the request that was added last states it.
    weight: Weight,
    requests: BTreeSet<T>,
}

impl<T> Default for Group<T> {
    fn default() -> Group<T> {
        Group { weight: Weight::default(), requests: BTreeSet::new() }
    }
}

impl<T> Group<T> {
    /// Returns the number of requests divided by the weight: the place of the last one in a fair queue, in turns of a
    /// tenant of weight 1.
    fn turns(&self) -> f64 {
        self.weight.virtual_time(self.requests.len() as f64)
    }
}

impl LateRequests {
    /// Adds a request to the set of late requests if it is marked late, and otherwise removes it from that set.
    pub(crate) fn update(&mut self, sequence: &Sequence) {
        let entry = entry(sequence);
        if sequence.service.late {
            let group = self.behind.entry(tier_tenant(sequence)).or_default();
            group.weight = sequence.service.weight;
            group.requests.insert(entry);
        } else {
            remove(&mut self.behind, tier_tenant(sequence), entry);
        }
    }

    /// Removes a request from the late and starving requests, because it got its first token, ended or moved to another
    /// tier.
    pub(crate) fn leave(&mut self, sequence: &Sequence) {
        remove(&mut self.behind, tier_tenant(sequence), entry(sequence));
        remove(&mut self.starving, tier_tenant(sequence), sequence.id);
    }

    /// Whether a request is late or starves.
    pub(crate) fn contains(&self, sequence: &Sequence) -> bool {
        let starving = self.starving.get(&tier_tenant(sequence));
        sequence.service.late || starving.is_some_and(|group| group.requests.contains(&sequence.id))
    }

    /// Whether no request is late or starves, for tests.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.behind.is_empty() && self.starving.is_empty()
    }

    /// Forgets all late and starving requests, because the policy does not judge lateness any more.
    pub(crate) fn clear(&mut self) {
        self.behind.clear();
        self.starving.clear();
    }

    /// Marks late requests of a tier that have waited long enough as starving, the oldest first, up to [`STARVING_MAX`]
    /// at a time. Returns the newly starving ones. `drain_us` is the time in which the tier's queue drains, if known;
    /// `balanced` says whether about as many requests of the tier have come as were served for a minute.
    pub(crate) fn take_starving(
        &mut self,
        tier: Tier,
        (drain_us, balanced): (Option<f64>, bool),
        traffic: Traffic,
        now: Timestamp,
    ) -> Vec<SeqId> {
        let starving = self.starving.range(tenants_of(tier));
        let starving: usize = starving.map(|(_, group)| group.requests.len()).sum();
        let free = STARVING_MAX.saturating_sub(starving);
        if free == 0 {
            return Vec::new();
        }
        let mut groups: Vec<&Group<LateEntry>> =
            self.behind.range(tenants_of(tier)).map(|(_, late)| late).collect();
        groups.sort_unstable_by(|a, b| a.turns().total_cmp(&b.turns()));
        let weights = self.weights(tier);
        let mut chosen = Vec::new();
        for (tier_tenant, late) in self.behind.range(tenants_of(tier)) {
            let drain_us = drain_us.unwrap_or(0.0) * fair_part(late.turns(), &groups);
            let wait_us = starving_after_us(tier, drain_us, traffic, balanced).unwrap_or(u64::MAX);
            let limit = Timestamp(now.0.saturating_sub(wait_us));
            let part = (STARVING_MAX as f64 * late.weight.get() / weights) as usize;
            let already = self.starving.get(tier_tenant).map_or(0, |group| group.requests.len());
            let oldest = eligible(&late.requests, limit, part.max(1).saturating_sub(already));
            chosen.extend(oldest.into_iter().map(|(arrival, seq)| (arrival, seq, *tier_tenant)));
        }
        chosen.sort_unstable();
        chosen.truncate(free);
        for (_, seq, tier_tenant) in &chosen {
            let weight = self.behind.get(tier_tenant).map(|late| late.weight).unwrap_or_default();
            let group = self.starving.entry(*tier_tenant).or_default();
            group.weight = weight;
            group.requests.insert(*seq);
        }
        chosen.into_iter().map(|(_, seq, _)| seq).collect()
    }

    /// Returns the sum of the weights of the tenants that have late or starving requests of a tier.
    fn weights(&self, tier: Tier) -> f64 {
        let late = self.behind.range(tenants_of(tier)).map(|(_, group)| group.weight);
        let only_starving = self.starving.range(tenants_of(tier));
        let only_starving =
            only_starving.filter(|(tier_tenant, _)| !self.behind.contains_key(tier_tenant));
        late.chain(only_starving.map(|(_, group)| group.weight)).map(Weight::get).sum()
    }
}

/// Returns the range of the keys of all tenants of a tier.
fn tenants_of(tier: Tier) -> RangeInclusive<TierTenant> {
    (tier, Salt([0; 16]))..=(tier, Salt([u8::MAX; 16]))
}

/// Returns the oldest `most` of a tenant's late requests that may starve: requests with a retry credit, and requests
/// that arrived before `limit`.
fn eligible(late: &BTreeSet<LateEntry>, limit: Timestamp, most: usize) -> Vec<(Timestamp, SeqId)> {
    let newcomers = (true, Timestamp(0), SeqId(0));
    let returned = late.range(..newcomers).take(most);
    let waited = late.range(newcomers..(true, limit, SeqId(0))).take(most);
    let mut oldest: Vec<(Timestamp, SeqId)> =
        returned.chain(waited).map(|(_, arrival, seq)| (*arrival, *seq)).collect();
    oldest.sort_unstable();
    oldest.truncate(most);
    oldest
}

/// Returns the part of a tier's late requests, 0 to 1, that a fair queue has served when a tenant's last one is served
/// in turn `turns`: in each turn a tenant of weight `w` has `w` requests served, so a tenant with `n` has had
/// `min(n, w * turns)`. `groups` holds all tenants' late requests, those with the fewest turns first.
fn fair_part(turns: f64, groups: &[&Group<LateEntry>]) -> f64 {
    let fewer = groups.partition_point(|group| group.turns() < turns);
    let (whole, part) = groups.split_at(fewer);
    let count = |group: &&Group<LateEntry>| group.requests.len() as f64;
    let before = whole.iter().map(count).sum::<f64>()
        + turns * part.iter().map(|group| group.weight.get()).sum::<f64>();
    before / groups.iter().map(count).sum::<f64>()
}

fn tier_tenant(sequence: &Sequence) -> TierTenant {
    (sequence.tier, sequence.service.tenant)
}

fn entry(sequence: &Sequence) -> LateEntry {
    (!sequence.service.has_retry_credit, sequence.arrival, sequence.id)
}

/// Removes an entry from the group of a tenant, and the group if nothing is left in it.
fn remove<T: Ord>(groups: &mut BTreeMap<TierTenant, Group<T>>, tier_tenant: TierTenant, entry: T) {
    let Some(of_owner) = groups.get_mut(&tier_tenant) else { return };
    of_owner.requests.remove(&entry);
    if of_owner.requests.is_empty() {
        groups.remove(&tier_tenant);
    }
}

/// Returns the wait after which a late request of the tier without a retry credit starves, us, if its tenant's queue
/// drains in `drain_us`; `None` if no such request of the tenant starves, however long it waits. `balanced` says
/// whether about as many requests of the tier have come as were served for a minute.
fn starving_after_us(tier: Tier, drain_us: f64, traffic: Traffic, balanced: bool) -> Option<u64> {
    if !traffic.higher_present(tier) {
        let wait_us = ALONE_US.max((ALONE_SHARE * drain_us) as u64);
        return (drain_us <= DRAIN_MAX_US).then_some(wait_us);
    }
    (tier < Tier::Background && balanced).then_some(BESIDE_HIGHER_US)
}

#[cfg(test)]
mod tests;
