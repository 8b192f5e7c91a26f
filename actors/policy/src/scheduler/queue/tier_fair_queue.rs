//! A fair queue of the tiers, over the device's time that is left to best-effort requests.
//!
//! Best-effort requests come after all requests with a TTFT or TPOT target; requests of the background tier count as
//! best effort here even if they have one. Among best-effort requests the higher tier does not get everything: tiers
//! start their requests by start-time fair queueing over the device's time (Goyal, Vin, Cheng 1997), weighted by the
//! shares that `shares.*` states. So among tiers that all have such requests waiting, usage divided by share differs by
//! at most the costliest request of each of two tiers, as far as there are blocks for the requests. Time that a tier
//! does not ask for goes to the others. The order within a tier stays as it is.

use crate::scheduler::queue::fair_queue::TierCharge;
use crate::scheduler::sequence::Sequence;
use tiercel_config::SharesSettings;
use tiercel_device::Tier;

const TIERS: usize = Tier::ALL.len();
/// Largest credit of a tier, us of device time divided by the tier's share. A tier gains credit while it waits and
/// others start, because it lacks blocks or its requests took less than predicted. A larger credit would shut out the
/// other tiers for too long.
const CREDIT_MAX_US: f64 = 60e6;

/// Fair queue of the tiers, over the device time that requests with latency targets leave to best-effort requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TierFairQueue {
    /// Share of the device's time that each tier is due, 0 to 1.
    weights: [f64; TIERS],
    /// Virtual time: greatest start tag of a request that has started.
    virtual_time: f64,
    /// Start tag of each tier's next request, us of device time divided by the tier's share.
    next_start: [f64; TIERS],
    /// Whether each tier was the payer of waiting requests before the last plan.
    waited: [bool; TIERS],
}

impl TierFairQueue {
    pub(crate) fn new(shares: &SharesSettings) -> TierFairQueue {
        let weights = weights(shares);
        TierFairQueue {
            weights,
            virtual_time: 0.0,
            next_start: [0.0; TIERS],
            waited: [false; TIERS],
        }
    }

    /// Changes the shares that tiers are due. Requests that start from now on are charged by them.
    pub(crate) fn set_shares(&mut self, shares: &SharesSettings) {
        self.weights = weights(shares);
    }

    /// Records which tiers are the payers of waiting requests. A tier that had none before starts at the virtual time
    /// or, if later, at its own start tag; a tier that had some keeps its start tag, and so its credit (at most
    /// [`CREDIT_MAX_US`]) for service that it did not get.
    pub(crate) fn set_waiting(&mut self, waits: [bool; TIERS]) {
        for (at, waits) in waits.into_iter().enumerate() {
            let least =
                if self.waited[at] { self.virtual_time - CREDIT_MAX_US } else { self.virtual_time };
            if waits {
                self.next_start[at] = self.next_start[at].max(least);
            }
        }
        self.waited = waits;
    }

    /// Returns the tier that is served next: the one with the lowest start tag among those that have requests waiting.
    pub(crate) fn next(&self, waits: [bool; TIERS]) -> Option<Tier> {
        let waiting = Tier::ALL.into_iter().filter(|tier| waits[tier.index()]);
        waiting.min_by(|a, b| self.next_start[a.index()].total_cmp(&self.next_start[b.index()]))
    }

    /// Records that a request of the tier starts, which will take about `us` of device time: advances the virtual time
    /// and charges the tier.
    pub(crate) fn start(&mut self, tier: Tier, us: f64) {
        let next_start = &mut self.next_start[tier.index()];
        self.virtual_time = self.virtual_time.max(*next_start);
        *next_start += us / self.weights[tier.index()];
    }

    /// Charges the payer of a sequence that gets its first blocks with the sequence's predicted device time.
    pub(crate) fn open(&mut self, sequence: &mut Sequence) {
        if sequence.service.key.class.payer().is_some() && !sequence.has_started() {
            let (tier, device_us) = (sequence.tier, sequence.service.tenant_tag.charged_us);
            let weight = self.weights[tier.index()];
            sequence.service.tier_charge = Some(TierCharge { tier, device_us, weight });
            self.start(tier, device_us);
        }
    }

    /// Corrects the charge of a tier when a sequence that it pays for ends: from the predicted device time to the
    /// `used_us` that the sequence really used. The correction is divided by the tier's share at the time of the
    /// charge.
    pub(crate) fn end(&mut self, sequence: &Sequence, used_us: f64) {
        if let Some(TierCharge { tier, device_us, weight }) = sequence.service.tier_charge {
            self.next_start[tier.index()] += (used_us - device_us) / weight;
        }
    }
}

/// Returns the share of the device's time that each tier is due, 0 to 1: at least 1 %, because a tier with a share of 0
/// would never be served.
fn weights(shares: &SharesSettings) -> [f64; TIERS] {
    shares.percent().map(|percent| (percent / 100.0).max(0.01))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::budget::fixtures::prompt;
    use crate::scheduler::queue::service_class::ServiceClass;

    #[test]
    fn a_tier_that_was_away_has_no_credit_and_one_that_is_alone_no_debt_for_long() {
        let mut turns = TierFairQueue::new(&SharesSettings::default());
        let [premium, background] = [Tier::Premium, Tier::Background];
        let waits = |tiers: &[Tier]| Tier::ALL.map(|tier| tiers.contains(&tier));
        for _ in 0..100 {
            turns.set_waiting(waits(&[background]));
            assert_eq!(turns.next(waits(&[background])), Some(background));
            turns.start(background, 15.0);
        }
        let mut started = [0; TIERS];
        for _ in 0..65 {
            turns.set_waiting(waits(&[premium, background]));
            let tier = turns.next(waits(&[premium, background])).expect("both wait");
            started[tier.index()] += 1;
            turns.start(tier, if tier == premium { 10.0 } else { 3.0 });
        }
        // Expected starts: premium is due 50 parts of the time and background 15, with 10 us and 3 us per request, so
        // about 33 to 32. Premium gets more to make up for the last background request before.
        assert_eq!(started, [0, 35, 0, 30]);
        assert_eq!(turns.next(waits(&[])), None);
    }

    #[test]
    fn what_a_tier_did_not_use_it_has_yet_while_it_waits() {
        let mut turns = TierFairQueue::new(&SharesSettings::default());
        let both = Tier::ALL.map(|tier| tier == Tier::Premium || tier == Tier::Standard);
        let mut had = [0.0; TIERS];
        for _ in 0..1000 {
            turns.set_waiting(both);
            let tier = turns.next(both).expect("both wait");
            // Standard requests use a third of their predicted time. The refund must give the tier more starts, so that
            // both tiers get their shares of the time used.
            let mut sequence = best_effort(tier);
            turns.open(&mut sequence);
            let used = if tier == Tier::Standard { 10.0 } else { 30.0 };
            turns.end(&sequence, used);
            had[tier.index()] += used;
        }
        let share = had[Tier::Premium.index()] / had.iter().sum::<f64>();
        assert!((share - 50.0 / 85.0).abs() < 0.01, "{had:?}");
    }

    #[test]
    fn arrears_are_bounded() {
        let mut turns = TierFairQueue::new(&SharesSettings::default());
        let both = Tier::ALL.map(|tier| tier == Tier::Premium || tier == Tier::Background);
        turns.set_waiting(both);
        // Background gets no blocks for an hour of device time. Its credit must not grow beyond the limit.
        for _ in 0..3600 {
            turns.set_waiting(both);
            turns.start(Tier::Premium, 1e6);
        }
        let mut alone = 0;
        while turns.next(both) == Some(Tier::Background) {
            turns.set_waiting(both);
            turns.start(Tier::Background, 0.15e6);
            alone += 1;
        }
        assert!((60..=63).contains(&alone), "{alone} s over its share");
    }

    /// Creates a best-effort request whose predicted device time is 30 us.
    fn best_effort(tier: Tier) -> Sequence {
        let mut sequence = prompt(1, tier, 9, 0);
        sequence.service.key.class = ServiceClass::new(tier, Tier::Background, true);
        sequence.service.tenant_tag.charged_us = 30.0;
        sequence
    }

    #[test]
    fn a_best_effort_request_is_charged_by_its_prediction_and_in_the_end_by_what_it_used() {
        let mut turns = TierFairQueue::new(&SharesSettings::default());
        let mut sequence = best_effort(Tier::Premium);
        turns.open(&mut sequence);
        // Premium's share is a half.
        assert_eq!(turns.next_start, [0.0, 60.0, 0.0, 0.0]);
        // The refund goes by the share of the charge, also after an operator changed the shares.
        turns.weights[Tier::Premium.index()] = 0.1;
        turns.end(&sequence, 12.0);
        assert_eq!(turns.next_start, [0.0, 24.0, 0.0, 0.0]);
    }

    #[test]
    fn a_resumed_request_and_one_that_no_share_pays_for_are_not_charged() {
        let mut turns = TierFairQueue::new(&SharesSettings::default());
        let (mut resumed, mut with_target) =
            (best_effort(Tier::Premium), best_effort(Tier::Premium));
        resumed.kv.cached_tokens = Some(0);
        with_target.service.key.class = ServiceClass::new(Tier::Premium, Tier::Premium, true);
        for sequence in [&mut resumed, &mut with_target] {
            turns.open(sequence);
            turns.end(sequence, 12.0);
            assert!(sequence.service.tier_charge.is_none() && turns.next_start == [0.0; TIERS]);
        }
    }
}
