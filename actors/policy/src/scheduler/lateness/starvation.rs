//! Starvation: a late request that has waited too long is served first of its tier.
//!
//! Late requests wait behind all requests of their tier that can be in time (see
//! [`crate::scheduler::lateness::deadlines`]). Clients that send the next request as soon as they have an answer always
//! have a request that can be in time, so a late request would wait until its patience ends. A starving request
//! therefore counts as in time for good: its early arrival puts it before the other requests of its tier and priority.
//! If all requests are of one tier, and only a few more than can be in time, the tier is thereby served nearly as by a
//! plain first-come-first-served server.
//!
//! No request starves while the tier's queue is so long that in the order of arrival every request of the tier would
//! wait for minutes: that order would only make all of them late. The time in which a queue drains follows from its
//! length and from the rate at which requests leave it (Little's law).

use crate::scheduler::queue::arrivals::Traffic;
use crate::scheduler::sequence::Sequence;
use std::collections::BTreeSet;
use tiercel_device::{SeqId, Tier, Timestamp};

/// If all requests are of one tier, a late request starves (is served first) after at least this wait, us: a person's
/// attention lasts for about 10 s (Nielsen, Usability Engineering, 1993, chapter 5).
const ALONE_US: u64 = 10_000_000;
/// If all requests are of one tier, a late request starves (is served first) only after at least this share of the time
/// in which the tier's queue drains. In an overloaded tier, whose queue grows faster than requests age, the order of
/// arrival would make every request late.
const ALONE_SHARE: f64 = 0.35;
/// Wait after which a late request starves (is served first) while several tiers have requests, us: half of the default
/// patience. No request starves in a queue that takes longer than this to drain. Background requests do not starve
/// while higher tiers have requests, which leave so little time that all of background would be late.
const ANY_US: u64 = 300_000_000;
/// Most starving requests of a tier that are served first at a time: more than start within a step.
const STARVING_MAX: usize = 32;

/// Sort key of a request: tier, time of arrival and id.
type Entry = (Tier, Timestamp, SeqId);

/// Late requests, split into those that wait behind their tier and those that starve (are served first), by tier and
/// arrival.
#[derive(Debug, Clone, Default)]
pub(crate) struct LateRequests {
    /// Late requests that do not starve yet: they wait behind the requests of their tier that are in time.
    late: BTreeSet<Entry>,
    /// Late requests that have waited too long (starve): they are served first of their tiers.
    starving: BTreeSet<Entry>,
}

impl LateRequests {
    /// Adds a request to the set of late requests if it is marked late, and otherwise removes it from that set.
    pub(crate) fn update(&mut self, sequence: &Sequence) {
        let entry = (sequence.tier, sequence.arrival, sequence.id);
        if sequence.service.late {
            self.late.insert(entry);
        } else {
            self.late.remove(&entry);
        }
    }

    /// Removes a request from the late and starving ones, because it got its first token, ended or was reprioritized.
    pub(crate) fn leave(&mut self, sequence: &Sequence) {
        let entry = (sequence.tier, sequence.arrival, sequence.id);
        self.late.remove(&entry);
        self.starving.remove(&entry);
    }

    /// Marks late requests of a tier that have waited long enough as starving (to be served first), oldest first, up to
    /// [`STARVING_MAX`] at a time. Returns the newly starving ones. `drain_us` is the time in which the tier's queue
    /// drains, if known.
    pub(crate) fn take_starving(
        &mut self,
        tier: Tier,
        drain_us: Option<f64>,
        traffic: Traffic,
        now: Timestamp,
    ) -> Vec<SeqId> {
        let wait_us = starving_after_us(tier, drain_us.unwrap_or(0.0), traffic);
        let Some(wait_us) = wait_us else { return Vec::new() };
        self.take_older(tier, Timestamp(now.0.saturating_sub(wait_us)))
    }

    /// Marks the oldest late requests of a tier that arrived before `arrival` as starving, and returns them.
    fn take_older(&mut self, tier: Tier, arrival: Timestamp) -> Vec<SeqId> {
        let of_tier = |until| (tier, Timestamp(0), SeqId(0))..(tier, until, SeqId(0));
        let already = self.starving.range(of_tier(Timestamp(u64::MAX))).count();
        let free = STARVING_MAX.saturating_sub(already);
        let chosen: Vec<Entry> = self.late.range(of_tier(arrival)).take(free).copied().collect();
        self.starving.extend(&chosen);
        chosen.into_iter().map(|(_, _, seq)| seq).collect()
    }
}

/// Returns the wait after which a late request of the tier starves (is served first), us, if the tier's queue drains in
/// `drain_us`; `None` if no request of the tier starves, however long it waits.
fn starving_after_us(tier: Tier, drain_us: f64, traffic: Traffic) -> Option<u64> {
    let wait_us = match tier {
        _ if traffic.one_tier => ALONE_US.max((ALONE_SHARE * drain_us) as u64),
        Tier::Background => return None,
        _ => ANY_US,
    };
    (drain_us <= ANY_US as f64).then_some(wait_us)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::queue::arrivals::Arrivals;
    use crate::scheduler::state::State;
    use crate::scheduler::tests::{scheduler, sequence};
    use tiercel_config::Policy;

    /// Returns a scheduler with two waiting requests of a tier: number 1, which cannot be in time, and number 2, which
    /// arrives `wait_us` after 1 was judged late and can be in time.
    fn with_a_late_one(tier: Tier, better_came: bool, wait_us: u64) -> State {
        let mut s = scheduler(|settings| settings.use_policy(Policy::Tiercel));
        let targets = if tier == Tier::Standard {
            &mut s.basis.targets.standard
        } else {
            &mut s.basis.targets.background
        };
        targets.ttft_ms = Some(5.0);
        s.enqueue(sequence(1, tier, 900));
        judge(&mut s, Timestamp(10_000));
        assert!(s.queue.table.get(SeqId(1)).expect("it waits").service.late);
        let now = Timestamp(10_000 + wait_us);
        let mut second = sequence(2, tier, 20);
        second.arrival = now;
        s.enqueue(second);
        s.queue.arrivals = Arrivals::default();
        s.queue.arrivals.set(tier, Some(now));
        s.queue.arrivals.set(Tier::Premium, better_came.then_some(now));
        judge(&mut s, now);
        s
    }

    fn judge(s: &mut State, now: Timestamp) {
        s.deadlines.judge(&mut s.queue, &s.basis, now);
    }

    fn starves_after_us(s: &State, now: Timestamp) -> Option<u64> {
        let drain_us = s.queue.drain[Tier::Standard.index()].wait_us(now).unwrap_or(0.0);
        starving_after_us(Tier::Standard, drain_us, s.queue.traffic(now))
    }

    fn order(s: &State) -> Vec<u64> {
        s.queue.table.queue().map(|(_, sequence)| sequence.id.0).collect()
    }

    #[test]
    fn a_late_request_of_the_only_tier_goes_first_after_ten_seconds() {
        assert_eq!(order(&with_a_late_one(Tier::Standard, false, 9_000_000)), [2, 1]);
        assert_eq!(order(&with_a_late_one(Tier::Standard, false, 10_000_000)), [1, 2]);
        assert_eq!(order(&with_a_late_one(Tier::Background, false, 10_000_000)), [1, 2]);
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
        assert_eq!(order(&with_a_late_one(Tier::Standard, true, 299_000_000)), [2, 1]);
        assert_eq!(order(&with_a_late_one(Tier::Standard, true, 300_000_000)), [1, 2]);
        assert_eq!(order(&with_a_late_one(Tier::Background, true, 599_000_000)), [2, 1]);
    }

    #[test]
    fn a_starving_request_is_not_judged_again() {
        let mut s = with_a_late_one(Tier::Standard, false, 10_000_000);
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

    #[test]
    fn few_starve_at_a_time() {
        let mut late = LateRequests::default();
        let entry = |id| (Tier::Standard, Timestamp(id), SeqId(id));
        late.late.extend((0..100).map(entry));
        let first: Vec<SeqId> = (0..STARVING_MAX as u64).map(SeqId).collect();
        assert_eq!(late.take_older(Tier::Standard, Timestamp(1_000)), first);
        assert_eq!(late.take_older(Tier::Standard, Timestamp(1_000)), []);
    }
}
