//! Shedding by shares (`shedding.form = share`): under load, requests of tiers below premium that use more than their
//! due share of the device's time are refused at random. This is the form of shedding that the project's first source
//! document meant.
//!
//! The probability of a refusal grows with the excess of a tier's usage over its due share. Three rules were meant but
//! not stated in that document: shares are computed among the tiers that had any device time lately, so that no request
//! is refused for time that no other tier wants; refusals begin at a higher load than they end; and no state is kept
//! that would make refusals outlast their cause.

use tiercel_device::Tier;
use tiercel_device::mix::mix;

const TIERS: usize = Tier::ALL.len();
/// `probability of refusal = min(STEEPNESS * excess, MOST)`, where the excess is a tier's used share of the device's
/// time less its due share. Both constants are from the project's source document.
const STEEPNESS: f64 = 5.0;
const MOST: f64 = 0.8;
/// Share of the device's time below which a tier counts as inactive, because it has no requests or had them long ago.
const ACTIVE: f64 = 0.01;
/// Hysteresis of random refusals: they end at a load that is this much below the load at which they begin, as a share
/// of the capacity.
const HYSTERESIS: f64 = 0.1;

/// The scheduler's report for shedding by shares: the server's load, and each tier's used and due share of the device's
/// time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ShareReport {
    /// Server load, 0 to 1: the greater of the used share of the slots of a step and the used share of the KV blocks.
    pub load: f64,
    /// Each tier's share of the device time that all tiers used lately. The shares add up to 1; all are 0 if no tier
    /// used device time lately.
    pub had: [f64; TIERS],
    /// Share of the device's time that each tier is due by the settings.
    pub due: [f64; TIERS],
}

/// Refuses requests at random if the load is high and the request's tier is below premium and uses more than its due
/// share of the device's time.
#[derive(Debug, Clone, Default)]
pub struct ShareShedder {
    report: ShareReport,
    refusing: bool,
}

impl ShareShedder {
    /// Takes over the scheduler's next report of load and shares. Random refusals begin at the load `from`, 0 to 1.
    pub fn update(&mut self, report: ShareReport, from: f64) {
        self.refusing = match self.refusing {
            true => report.load > from - HYSTERESIS,
            false => report.load >= from,
        };
        self.report = report;
    }

    /// Decides by a random draw, determined by the request number `number`, whether to refuse a request of `tier`. If
    /// it is refused, returns the tier's used and due share of the device's time.
    pub fn refuses(&self, tier: Tier, number: u64) -> Option<(f64, f64)> {
        let (had, due) = (self.report.had[tier.index()], self.due(tier));
        (draw(number) < self.probability(tier)).then_some((had, due))
    }

    fn probability(&self, tier: Tier) -> f64 {
        if tier <= Tier::Premium || !self.refusing {
            return 0.0;
        }
        let excess = self.report.had[tier.index()] - self.due(tier);
        (STEEPNESS * excess).clamp(0.0, MOST)
    }

    /// Returns a tier's due share of the device's time, rescaled so that the due shares of the tiers that used device
    /// time lately add up to 1. Returns 1 if no tier used device time lately.
    fn due(&self, tier: Tier) -> f64 {
        let ShareReport { had, due, .. } = &self.report;
        let active = had.iter().zip(due).filter(|(had, _)| **had >= ACTIVE);
        let active: f64 = active.map(|(_, due)| due).sum();
        if active > 0.0 { due[tier.index()] / active } else { 1.0 }
    }
}

/// Returns a pseudo-random number from 0 to 1. Equal request numbers give equal numbers, so runs can be repeated.
fn draw(number: u64) -> f64 {
    mix(number) as f64 / u64::MAX as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUE: [f64; TIERS] = [0.0, 0.5, 0.35, 0.15];

    fn refused(shedder: &ShareShedder, tier: Tier) -> usize {
        (0..1000).filter(|number| shedder.refuses(tier, *number).is_some()).count()
    }

    fn shedder(load: f64, had: [f64; TIERS]) -> ShareShedder {
        let mut shedder = ShareShedder::default();
        shedder.update(ShareReport { load, had, due: DUE }, 0.8);
        shedder
    }

    #[test]
    fn who_has_more_than_is_due_is_refused_in_proportion_and_never_altogether() {
        let shedder = shedder(0.9, [0.0, 0.3, 0.4, 0.3]);
        // Standard uses 0.05 more than its due share, background 0.15 more: refusal probabilities of 0.25 and 0.75.
        assert!((200..300).contains(&refused(&shedder, Tier::Standard)));
        assert!((700..800).contains(&refused(&shedder, Tier::Background)));
        let shedder = self::shedder(0.9, [0.0, 0.1, 0.9, 0.0]);
        assert!((760..840).contains(&refused(&shedder, Tier::Standard)), "no more than 0.8");
        assert_eq!(refused(&shedder, Tier::Background), 0, "it had nothing");
        assert_eq!(refused(&self::shedder(1.0, [0.0, 1.0, 0.0, 0.0]), Tier::Premium), 0);
    }

    #[test]
    fn no_request_is_refused_for_time_that_no_other_tier_wants() {
        let shedder = shedder(1.0, [0.0, 0.0, 0.0, 1.0]);
        assert_eq!(refused(&shedder, Tier::Background), 0);
        let shedder = self::shedder(1.0, [0.0, 0.0, 0.7, 0.3]);
        assert_eq!(refused(&shedder, Tier::Standard), 0, "what it is due beside background alone");
        let shedder = self::shedder(1.0, [0.0, 0.001, 0.0, 0.999]);
        assert_eq!(refused(&shedder, Tier::Background), 0, "premium was there long ago");
        assert_eq!(refused(&ShareShedder::default(), Tier::Background), 0, "nothing is known");
    }

    #[test]
    fn refusing_ends_some_way_below_where_it_begins() {
        let mut shedder = shedder(0.79, [0.0, 0.2, 0.0, 0.8]);
        let mut at = |load| {
            shedder.update(ShareReport { load, had: [0.0, 0.2, 0.0, 0.8], due: DUE }, 0.8);
            refused(&shedder, Tier::Background) > 0
        };
        assert_eq!([0.79, 0.8, 0.75, 0.71].map(&mut at), [false, true, true, true]);
        assert_eq!([0.69, 0.79, 0.81].map(&mut at), [false, false, true]);
    }

    #[test]
    fn refusing_ends_at_exactly_the_load_at_which_it_shall_end() {
        let had = [0.0, 0.2, 0.0, 0.8];
        let mut shedder = shedder(0.9, had);
        assert!(refused(&shedder, Tier::Background) > 0);
        shedder.update(ShareReport { load: 0.8 - HYSTERESIS, had, due: DUE }, 0.8);
        assert_eq!(refused(&shedder, Tier::Background), 0);
    }
}
