//! Starvation: a late request that has waited too long is served first of its tier.
//!
//! Late requests wait behind all requests of their tier that can be in time (see
//! [`crate::scheduler::lateness::deadlines`]). Clients that send the next request as soon as they have an answer always
//! have a request that can be in time, so a late request would wait until its patience ends. A starving request
//! therefore counts as in time for good: its early arrival puts it before the other requests of its tier and priority.
//! If all requests are of one tier, and only a few more than can be in time, the tier is thereby served nearly as by a
//! plain first-come-first-served server.
//!
//! If several tiers have requests, a late request starves only while about as many requests of its tier come as are
//! served ([`Flow`]), as with clients that wait for their answers. If more come, the order of arrival would make all
//! requests late. If fewer come, as after a burst, the time that the newcomers leave drains the backlog.
//!
//! If all requests are of one tier, no request starves while its tenant's queue is so long that in the order of arrival
//! every request would wait for minutes. The time in which the queue of the tier drains follows from its length and from
//! the rate at which requests leave it (Little's law). That of a tenant follows from the tenant's part of the late
//! requests, if tenants with late requests get equal shares. So a tenant with few requests does not wait until the
//! backlog of a tenant with many is served.
//!
//! A late request whose client came back at its retry time starves at once: the server told the client to come then.

use crate::blocks::Salt;
use crate::scheduler::lateness::flow::Flow;
use crate::scheduler::queue::arrivals::Traffic;
use crate::scheduler::sequence::Sequence;
use std::collections::{BTreeMap, BTreeSet};
use tiercel_device::{SeqId, Tier, Timestamp};

/// If all requests are of one tier, a late request starves (is served first) after at least this wait, us: a person's
/// attention lasts for about 10 s (Nielsen, Usability Engineering, 1993, chapter 5).
const ALONE_US: u64 = 10_000_000;
/// If all requests are of one tier, a late request starves (is served first) only after at least this share of the time
/// in which its tenant's queue drains. In an overloaded tier, whose queue grows faster than requests age, the order of
/// arrival would make every request late.
const ALONE_SHARE: f64 = 0.35;
/// Longest time, us, in which the queue of a tenant may drain for its late requests to starve (be served first), if all
/// requests are of one tier. Also the wait after which a late request starves if several tiers have requests: half of
/// the default patience. Background requests do not starve while higher tiers have requests, which leave so little time
/// that all of background would be late.
const ANY_US: u64 = 300_000_000;
/// Most starving requests of a tier that are served first at a time: more than start within a step. Tenants with late
/// requests have equal parts of them, and at least one each.
const STARVING_MAX: usize = 32;

/// Tier and tenant of a request.
type Owner = (Tier, Salt);

/// Late requests, split into those that wait behind their tier and those that starve (are served first).
#[derive(Debug, Clone, Default)]
pub(crate) struct LateRequests {
    /// Late requests that do not starve yet, by the time since which they wait: they are served behind the requests of
    /// their tier that are in time. A tenant without such requests has no entry.
    late: BTreeMap<Owner, BTreeSet<(Timestamp, SeqId)>>,
    /// Late requests that have waited too long (starve): they are served first of their tiers. A tenant without such
    /// requests has no entry.
    starving: BTreeMap<Owner, BTreeSet<SeqId>>,
    /// Flow of requests through each tier.
    pub(crate) flow: [Flow; Tier::ALL.len()],
}

impl LateRequests {
    /// Adds a request to the set of late requests if it is marked late, and otherwise removes it from that set.
    pub(crate) fn update(&mut self, sequence: &Sequence) {
        let entry = (waits_since(sequence), sequence.id);
        if sequence.service.late {
            self.late.entry(owner(sequence)).or_default().insert(entry);
        } else {
            remove(&mut self.late, owner(sequence), entry);
        }
    }

    /// Removes a request from the late and starving ones, because it got its first token, ended or was reprioritized.
    pub(crate) fn leave(&mut self, sequence: &Sequence) {
        remove(&mut self.late, owner(sequence), (waits_since(sequence), sequence.id));
        remove(&mut self.starving, owner(sequence), sequence.id);
    }

    /// Marks late requests of a tier that have waited long enough as starving (to be served first), of each tenant the
    /// oldest first, up to [`STARVING_MAX`] at a time. Returns the newly starving ones. `drain_us` is the time in which
    /// the tier's queue drains, if known.
    pub(crate) fn take_starving(
        &mut self,
        tier: Tier,
        drain_us: Option<f64>,
        traffic: Traffic,
        now: Timestamp,
    ) -> Vec<SeqId> {
        let of_tier = || self.late.range((tier, Salt([0; 16]))..=(tier, Salt([u8::MAX; 16])));
        let tenants = of_tier().count();
        let all = of_tier().map(|(_, late)| late.len()).sum::<usize>() as f64;
        let balanced = self.flow[tier.index()].balanced();
        let mut chosen = Vec::new();
        for (owner, late) in of_tier() {
            let drain_us = drain_us.unwrap_or(0.0) * (late.len() * tenants) as f64 / all;
            let wait_us = starving_after_us(tier, drain_us, traffic, balanced).unwrap_or(u64::MAX);
            // The least limit is 1 us after 0, the time since which requests wait whose clients came back.
            let limit = Timestamp(now.0.saturating_sub(wait_us).max(1));
            let already = self.starving.get(owner).map_or(0, BTreeSet::len);
            let free = (STARVING_MAX / tenants).max(1).saturating_sub(already);
            let older = late.range(..(limit, SeqId(0))).take(free);
            chosen.extend(older.map(|(_, seq)| (*owner, *seq)));
        }
        for (owner, seq) in &chosen {
            self.starving.entry(*owner).or_default().insert(*seq);
        }
        chosen.into_iter().map(|(_, seq)| seq).collect()
    }
}

fn owner(sequence: &Sequence) -> Owner {
    (sequence.tier, sequence.service.tenant)
}

/// Returns the time since which a request waits: its arrival, or 0 if its client came back at its retry time.
fn waits_since(sequence: &Sequence) -> Timestamp {
    if sequence.service.returns { Timestamp(0) } else { sequence.arrival }
}

/// Removes an entry from the set of its owner, and the set if nothing is left in it.
fn remove<T: Ord>(sets: &mut BTreeMap<Owner, BTreeSet<T>>, owner: Owner, entry: T) {
    let Some(of_owner) = sets.get_mut(&owner) else { return };
    of_owner.remove(&entry);
    if of_owner.is_empty() {
        sets.remove(&owner);
    }
}

/// Returns the wait after which a late request of the tier starves (is served first), us, if its tenant's queue drains
/// in `drain_us`; `None` if no request of the tenant starves, however long it waits. `balanced` says whether about as
/// many requests of the tier come as are served.
fn starving_after_us(tier: Tier, drain_us: f64, traffic: Traffic, balanced: bool) -> Option<u64> {
    if traffic.one_tier {
        let wait_us = ALONE_US.max((ALONE_SHARE * drain_us) as u64);
        return (drain_us <= ANY_US as f64).then_some(wait_us);
    }
    (tier < Tier::Background && balanced).then_some(ANY_US)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::queue::arrivals::Arrivals;
    use crate::scheduler::sequence::NewSequence;
    use crate::scheduler::state::State;
    use crate::scheduler::tests::{scheduler, sequence};
    use tiercel_config::Policy;

    /// Returns a scheduler with two waiting requests of a tier: number 1, which cannot be in time, and number 2, which
    /// arrives `wait_us` after 1 was judged late and can be in time.
    fn with_a_late_one(first: NewSequence, better_came: bool, wait_us: u64) -> State {
        let mut s = scheduler(|settings| settings.use_policy(Policy::Tiercel));
        let tier = first.tier;
        let targets = if tier == Tier::Standard {
            &mut s.basis.targets.standard
        } else {
            &mut s.basis.targets.background
        };
        targets.ttft_ms = Some(5.0);
        s.enqueue(first);
        judge(&mut s, Timestamp(10_000));
        assert!(s.queue.table.get(SeqId(1)).expect("it waits").service.late);
        let now = Timestamp(10_000 + wait_us);
        let mut second = sequence(2, tier, 20);
        second.arrival = now;
        s.enqueue(second);
        s.queue.arrivals = Arrivals::default();
        s.queue.arrivals.set(tier, Some(now));
        s.queue.arrivals.set(Tier::Premium, better_came.then_some(now));
        // As many requests come as are served.
        (0..2).for_each(|_| s.deadlines.late.flow[tier.index()].serves(now));
        s.deadlines.late.flow[tier.index()].comes(now);
        judge(&mut s, now);
        s
    }

    fn late_one(tier: Tier) -> NewSequence {
        sequence(1, tier, 900)
    }

    fn judge(s: &mut State, now: Timestamp) {
        s.deadlines.judge(&mut s.queue, &s.basis, now);
    }

    fn starves_after_us(s: &State, now: Timestamp) -> Option<u64> {
        let drain_us = s.queue.drain[Tier::Standard.index()].wait_us(now).unwrap_or(0.0);
        starving_after_us(Tier::Standard, drain_us, s.queue.traffic(now), true)
    }

    fn order(s: &State) -> Vec<u64> {
        s.queue.table.queue().map(|(_, sequence)| sequence.id.0).collect()
    }

    #[test]
    fn a_late_request_of_the_only_tier_goes_first_after_ten_seconds() {
        for tier in [Tier::Standard, Tier::Background] {
            assert_eq!(order(&with_a_late_one(late_one(tier), false, 9_000_000)), [2, 1]);
            assert_eq!(order(&with_a_late_one(late_one(tier), false, 10_000_000)), [1, 2]);
        }
    }

    #[test]
    fn the_servers_own_requests_do_not_count_as_another_tier() {
        let mut s = scheduler(|settings| settings.use_policy(Policy::Tiercel));
        s.enqueue(sequence(1, Tier::System, 1));
        s.cancel(SeqId(1));
        s.enqueue(sequence(2, Tier::Standard, 20));
        assert_eq!(starves_after_us(&s, Timestamp(0)), Some(ALONE_US));
    }

    #[test]
    fn beside_premium_a_late_request_goes_first_after_half_of_the_patience() {
        let [standard, background] = [Tier::Standard, Tier::Background].map(late_one);
        assert_eq!(order(&with_a_late_one(standard.clone(), true, 299_000_000)), [2, 1]);
        assert_eq!(order(&with_a_late_one(standard, true, 300_000_000)), [1, 2]);
        assert_eq!(order(&with_a_late_one(background, true, 599_000_000)), [2, 1]);
    }

    #[test]
    fn beside_premium_no_request_starves_while_more_or_fewer_come_than_are_served() {
        let mut s = with_a_late_one(late_one(Tier::Standard), true, 299_000_000);
        let now = Timestamp(310_010_000);
        (0..10).for_each(|_| s.deadlines.late.flow[Tier::Standard.index()].serves(now));
        judge(&mut s, now);
        assert_eq!(order(&s), [2, 1], "the backlog drains");
        (0..20).for_each(|_| s.deadlines.late.flow[Tier::Standard.index()].comes(now));
        judge(&mut s, now);
        assert_eq!(order(&s), [2, 1], "the backlog grows");
        (0..10).for_each(|_| s.deadlines.late.flow[Tier::Standard.index()].serves(now));
        judge(&mut s, now);
        assert_eq!(order(&s), [1, 2]);
    }

    #[test]
    fn a_client_that_came_back_goes_first_at_once() {
        for (tier, better_came) in [(Tier::Standard, false), (Tier::Background, true)] {
            let first = NewSequence { returns: true, ..late_one(tier) };
            assert_eq!(order(&with_a_late_one(first, better_came, 1)), [1, 2]);
            assert_eq!(order(&with_a_late_one(late_one(tier), better_came, 1)), [2, 1]);
        }
    }

    #[test]
    fn a_starving_request_is_not_judged_again() {
        let mut s = with_a_late_one(late_one(Tier::Standard), false, 10_000_000);
        judge(&mut s, Timestamp(10_020_000));
        assert_eq!(order(&s)[0], 1);
        s.cancel(SeqId(1));
        assert!(s.deadlines.late.starving.is_empty());
    }

    #[test]
    fn no_request_starves_where_a_plain_server_would_make_all_wait_for_as_long() {
        let mut s = scheduler(|settings| settings.use_policy(Policy::Tiercel));
        let queue = &mut s.queue.drain[Tier::Standard.index()];
        // The queue of 600 waiting requests serves one request in a second, so it drains in ten minutes: no request
        // starves.
        (0..601).for_each(|_| queue.entered(Timestamp(0)));
        queue.left(Timestamp(1_000_000));
        let now = Timestamp(1_000_000);
        assert_eq!(starves_after_us(&s, now), None);
        (0..300).for_each(|_| s.queue.drain[Tier::Standard.index()].gave_up());
        assert_eq!(starves_after_us(&s, now), Some((ALONE_SHARE * 300e6) as u64));
        (0..280).for_each(|_| s.queue.drain[Tier::Standard.index()].gave_up());
        assert_eq!(starves_after_us(&s, now), Some(ALONE_US));
    }

    /// Returns late standard requests that arrive every microsecond: `few` of tenant 1, then `many` of tenant 2.
    fn of_tenants(few: u64, many: u64) -> LateRequests {
        let mut late = LateRequests::default();
        for id in 0..few + many {
            let tenant = Salt([if id < few { 1 } else { 2 }; 16]);
            let of_tenant = late.late.entry((Tier::Standard, tenant)).or_default();
            of_tenant.insert((Timestamp(id + 1), SeqId(id)));
        }
        late
    }

    fn taken(late: &mut LateRequests, drain_s: f64, now_s: u64) -> Vec<u64> {
        let traffic = Arrivals::default().traffic([0; 4], Timestamp(0));
        let (drain_us, now) = (Some(drain_s * 1e6), Timestamp(now_s * 1_000_000));
        let taken = late.take_starving(Tier::Standard, drain_us, traffic, now);
        taken.into_iter().map(|seq| seq.0).collect()
    }

    #[test]
    fn few_starve_at_a_time() {
        let mut late = of_tenants(100, 0);
        let first: Vec<u64> = (0..STARVING_MAX as u64).collect();
        assert_eq!(taken(&mut late, 60.0, 100), first);
        assert_eq!(taken(&mut late, 60.0, 100), []);
        let mut late = of_tenants(100, 100);
        let half = STARVING_MAX as u64 / 2;
        let first: Vec<u64> = (0..half).chain(100..100 + half).collect();
        assert_eq!(taken(&mut late, 60.0, 100), first, "an equal part for each tenant");
    }

    #[test]
    fn a_tenant_with_few_requests_does_not_wait_for_the_backlog_of_another() {
        // The queue drains in 600 s. Under equal shares the ten late requests of tenant 1 would need 600 * 10 * 2 / 1000 =
        // 12 s, so they starve after 10 s; those of tenant 2 would need 1188 s, so none of them starves.
        let mut late = of_tenants(10, 990);
        assert_eq!(taken(&mut late, 600.0, 9), []);
        assert_eq!(taken(&mut late, 600.0, 11), (0..10).collect::<Vec<u64>>());
        // The scheduler takes starving requests off the late ones.
        late.late.remove(&(Tier::Standard, Salt([1; 16])));
        assert_eq!(taken(&mut late, 600.0, 599), []);
    }
}
