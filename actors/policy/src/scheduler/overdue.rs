//! Late requests that have waited for so long that they go first after all.
//!
//! Late requests wait behind all of their tier that can be in time (see [`crate::scheduler::deadlines`]). Where requests
//! that can be in time never end, as with clients that send the next request when they have their answer, late ones
//! would wait until their patience ends. So a late request that is overdue is not late any more: it goes first of its
//! tier, in the order of arrival. Where one tier comes alone, more than it can have in time, this makes its order
//! that of a plain server.

use crate::scheduler::sequence::Sequence;
use crate::scheduler::state::Scheduler;
use std::collections::BTreeSet;
use tiercel_device::{SeqId, Tier, Timestamp};

/// Time after which a late request is overdue if requests of one tier come alone, us: a person's attention lasts for
/// about 10 s (Nielsen, Usability Engineering, 1993, chapter 5).
const ALONE_US: u64 = 10_000_000;
/// The same if several tiers come, us: half of the default patience. Background requests are not overdue while better
/// ones come, who leave them so little time that all of them would be late.
const BESIDE_OTHERS_US: u64 = 300_000_000;

/// Late requests by tier and arrival.
#[derive(Debug, Clone, Default)]
pub(crate) struct LateRequests(BTreeSet<(Tier, Timestamp, SeqId)>);

impl LateRequests {
    /// Enters the request if it is late, and takes it out if it is not.
    pub(crate) fn enter(&mut self, sequence: &Sequence) {
        if sequence.late {
            self.0.insert((sequence.tier, sequence.arrival, sequence.id));
        } else {
            self.leave(sequence);
        }
    }

    /// The request has its first token, or needs none any more.
    pub(crate) fn leave(&mut self, sequence: &Sequence) {
        self.0.remove(&(sequence.tier, sequence.arrival, sequence.id));
    }

    /// Those of a tier that came before `arrival`, first come first.
    fn before(&self, tier: Tier, arrival: Timestamp) -> impl Iterator<Item = SeqId> + '_ {
        let range = (tier, Timestamp(0), SeqId(0))..(tier, arrival, SeqId(0));
        self.0.range(range).map(|(_, _, seq)| *seq)
    }
}

impl Scheduler {
    /// Puts overdue requests first of their tiers.
    pub(crate) fn advance_overdue(&mut self, now: Timestamp) {
        let alone = self.one_tier_comes(now);
        for tier in Tier::ALL {
            let wait_us = match tier {
                _ if alone => ALONE_US,
                Tier::Background => continue,
                _ => BESIDE_OTHERS_US,
            };
            let arrival = Timestamp(now.0.saturating_sub(wait_us));
            let overdue: Vec<SeqId> = self.deadlines.late.before(tier, arrival).collect();
            for seq in overdue {
                if let Some(sequence) = self.sequences.get(seq) {
                    self.deadlines.leave(sequence);
                }
                self.set_late(seq, false);
            }
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
        assert!(
            s.deadlines.late.0.is_empty() || !s.deadlines.late.0.iter().any(|e| e.2 == SeqId(1))
        );
    }
}
