//! Late requests that have waited for so long that they go first after all.
//!
//! Late requests wait behind all of their tier that can be in time (see [`crate::scheduler::deadlines`]). Where requests
//! that can be in time never end, as with clients that send the next request when they have their answer, late ones
//! would wait until their patience ends. So a late request that is overdue is not late any more: it goes first of its
//! tier, in the order of arrival. A tier that comes alone, and a little more of it than can be in time, so has the order
//! of a plain server.
//!
//! No request is overdue where a plain server would make all of them wait for long as well: that only makes all of them
//! late. How long that is says the queue's length and how fast it drains (Little's law).

use crate::scheduler::sequence::Sequence;
use crate::scheduler::state::Scheduler;
use std::collections::BTreeSet;
use tiercel_device::{SeqId, Tier, Timestamp};

/// Wait after which a late request is overdue if requests of one tier come alone, us: a person's attention lasts for
/// about 10 s (Nielsen, Usability Engineering, 1993, chapter 5).
const ALONE_US: u64 = 10_000_000;
/// That holds while the tier's queue takes no longer than this, us.
const ALONE_QUEUE_US_MAX: f64 = 60e6;
/// Wait after which any late request is overdue, us, while the tier's queue takes no longer: half of the default patience.
/// Background requests are not overdue while better ones come, who leave them so little time that all of them would
/// be late.
const ANY_US: u64 = 300_000_000;

/// Most overdue requests of a tier that go first at a time: more than start within a step.
const OVERDUE_MAX: usize = 32;

type Entry = (Tier, Timestamp, SeqId);

/// Late requests, and those that were late until they were overdue, by tier and arrival.
#[derive(Debug, Clone, Default)]
pub(crate) struct LateRequests {
    late: BTreeSet<Entry>,
    overdue: BTreeSet<Entry>,
}

impl LateRequests {
    /// Enters the request if it is late, and takes it out if it is not.
    pub(crate) fn enter(&mut self, sequence: &Sequence) {
        let entry = (sequence.tier, sequence.arrival, sequence.id);
        if sequence.late {
            self.late.insert(entry);
        } else {
            self.late.remove(&entry);
        }
    }

    /// The request has its first token, or needs none any more.
    pub(crate) fn leave(&mut self, sequence: &Sequence) {
        let entry = (sequence.tier, sequence.arrival, sequence.id);
        self.late.remove(&entry);
        self.overdue.remove(&entry);
    }

    /// Makes late requests of a tier that came before `arrival` overdue, first come first, as many as may be at a time.
    fn make_overdue(&mut self, tier: Tier, arrival: Timestamp) -> Vec<SeqId> {
        let of_tier = |until| (tier, Timestamp(0), SeqId(0))..(tier, until, SeqId(0));
        let already = self.overdue.range(of_tier(Timestamp(u64::MAX))).count();
        let free = OVERDUE_MAX.saturating_sub(already);
        let chosen: Vec<Entry> = self.late.range(of_tier(arrival)).take(free).copied().collect();
        self.overdue.extend(&chosen);
        chosen.into_iter().map(|(_, _, seq)| seq).collect()
    }
}

impl Scheduler {
    /// Puts overdue requests first of their tiers.
    pub(crate) fn advance_overdue(&mut self, now: Timestamp) {
        for tier in Tier::ALL {
            let Some(wait_us) = self.overdue_after_us(tier, now) else { continue };
            let arrival = Timestamp(now.0.saturating_sub(wait_us));
            for seq in self.deadlines.late.make_overdue(tier, arrival) {
                if let Some(sequence) = self.sequences.get(seq) {
                    self.deadlines.forget(sequence);
                }
                self.set_late(seq, false);
            }
        }
    }

    /// Wait after which a late request of the tier is overdue, us; `None` if none is however long it has waited.
    fn overdue_after_us(&self, tier: Tier, now: Timestamp) -> Option<u64> {
        let queue_us = self.drain[tier.index()].wait_us(now).unwrap_or(0.0);
        let alone = self.one_tier_comes(now);
        match tier {
            _ if alone && queue_us <= ALONE_QUEUE_US_MAX => Some(ALONE_US),
            Tier::Background if !alone => None,
            _ => (queue_us <= ANY_US as f64).then_some(ANY_US),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::tests::{scheduler, sequence};
    use tiercel_config::Policy;

    /// A scheduler with two requests of a tier: one late for ever, one that comes after `wait_us` and can be in time.
    fn with_a_late_one(tier: Tier, better_came: bool, wait_us: u64) -> Scheduler {
        let mut s = scheduler(|settings| settings.use_policy(Policy::Tiercel));
        let targets =
            if tier == Tier::Standard { &mut s.slo.standard } else { &mut s.slo.background };
        targets.ttft_ms = Some(5.0);
        s.enqueue(sequence(1, tier, 900));
        s.judge_deadlines(Timestamp(10_000));
        assert!(s.sequences.get(SeqId(1)).expect("it waits").late);
        let now = Timestamp(10_000 + wait_us);
        let mut second = sequence(2, tier, 20);
        second.arrival = now;
        s.enqueue(second);
        s.came_at = [None; 4];
        s.came_at[tier.index()] = Some(now);
        s.came_at[Tier::Premium.index()] = better_came.then_some(now);
        s.judge_deadlines(now);
        s
    }

    fn order(s: &Scheduler) -> Vec<u64> {
        s.sequences.queue().map(|(_, sequence)| sequence.id.0).collect()
    }

    #[test]
    fn a_late_request_of_the_only_tier_goes_first_after_ten_seconds() {
        assert_eq!(order(&with_a_late_one(Tier::Standard, false, 9_000_000)), [2, 1]);
        assert_eq!(order(&with_a_late_one(Tier::Standard, false, 10_000_000)), [1, 2]);
        assert_eq!(order(&with_a_late_one(Tier::Background, false, 10_000_000)), [1, 2]);
    }

    #[test]
    fn beside_premium_a_late_request_goes_first_after_half_of_the_patience() {
        assert_eq!(order(&with_a_late_one(Tier::Standard, true, 299_000_000)), [2, 1]);
        assert_eq!(order(&with_a_late_one(Tier::Standard, true, 300_000_000)), [1, 2]);
        assert_eq!(order(&with_a_late_one(Tier::Background, true, 599_000_000)), [2, 1]);
    }

    #[test]
    fn an_overdue_request_is_not_judged_again() {
        let mut s = with_a_late_one(Tier::Standard, false, 10_000_000);
        s.judge_deadlines(Timestamp(10_020_000));
        assert_eq!(order(&s)[0], 1);
        s.cancel(SeqId(1));
        assert!(s.deadlines.late.overdue.is_empty());
    }

    #[test]
    fn no_request_is_overdue_where_a_plain_server_would_make_all_wait_for_as_long() {
        let mut s = scheduler(|settings| settings.use_policy(Policy::Tiercel));
        let queue = &mut s.drain[Tier::Standard.index()];
        // One a second is served, and ten minutes of them wait.
        (0..601).for_each(|_| queue.entered(Timestamp(0)));
        queue.left(Timestamp(1_000_000));
        let now = Timestamp(1_000_000);
        assert_eq!(s.overdue_after_us(Tier::Standard, now), None);
        (0..300).for_each(|_| s.drain[Tier::Standard.index()].gave_up());
        assert_eq!(s.overdue_after_us(Tier::Standard, now), Some(ANY_US));
        (0..240).for_each(|_| s.drain[Tier::Standard.index()].gave_up());
        assert_eq!(s.overdue_after_us(Tier::Standard, now), Some(ALONE_US));
    }

    #[test]
    fn few_are_overdue_at_a_time() {
        let mut late = LateRequests::default();
        let entry = |id| (Tier::Standard, Timestamp(id), SeqId(id));
        late.late.extend((0..100).map(entry));
        let first: Vec<SeqId> = (0..OVERDUE_MAX as u64).map(SeqId).collect();
        assert_eq!(late.make_overdue(Tier::Standard, Timestamp(1_000)), first);
        assert_eq!(late.make_overdue(Tier::Standard, Timestamp(1_000)), []);
    }
}
