//! Arrivals: which tiers had requests lately.
//!
//! Steps reserve time for a tier's requests only while such requests arrive, and slack for premium streams only while
//! several tiers have requests.

use tiercel_device::{Tier, Timestamp};

const TIERS: usize = Tier::ALL.len();
/// Time since a tier's last arrival after which requests of the tier no longer count as arriving lately, us.
const LATELY_US: u64 = 60_000_000;

/// Arrival time of each tier's latest request. The server's own requests, such as its warm-up, are not counted: they
/// are no reason to reserve anything that clients' requests could have.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Arrivals([Option<Timestamp>; TIERS]);

impl Arrivals {
    /// Records that a request of the tier arrived at `at`.
    pub(crate) fn came(&mut self, tier: Tier, at: Timestamp) {
        if tier > Tier::System {
            self.0[tier.index()] = Some(at);
        }
    }

    /// Sets the arrival time of a tier's latest request, or clears it, for tests.
    #[cfg(test)]
    pub(crate) fn set(&mut self, tier: Tier, at: Option<Timestamp>) {
        self.0[tier.index()] = at;
    }

    /// Returns the traffic at `now`: which tiers had arrivals lately, and whether these and all prompts that wait are
    /// of one tier. Arrivals count by their own tier, and running streams do not count. `waiting_tokens` is the number
    /// of waiting prompt tokens of each tier, counted by effective tier before ageing: best-effort requests count as
    /// background.
    pub(crate) fn traffic(&self, waiting_tokens: [u64; TIERS], now: Timestamp) -> Traffic {
        let lately = self.0.map(|at| at.is_some_and(|at| now.since_us(at) <= LATELY_US));
        let present = std::array::from_fn(|tier| lately[tier] || waiting_tokens[tier] > 0);
        let one_tier = present.into_iter().filter(|present| *present).count() <= 1;
        Traffic { lately, present, one_tier }
    }
}

/// Traffic at one moment: which tiers had arrivals lately, and whether these and all prompts that wait are of one tier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traffic {
    /// Whether requests of each tier arrived lately.
    lately: [bool; TIERS],
    /// Whether requests of each tier arrived lately or wait.
    present: [bool; TIERS],
    /// Whether all requests that arrived lately, and all that wait, are of one tier, or there are none.
    pub(crate) one_tier: bool,
}

impl Traffic {
    /// Whether requests of the tier arrived lately.
    pub(crate) fn came(&self, tier: Tier) -> bool {
        self.lately[tier.index()]
    }

    /// Whether requests of a tier higher than `tier` arrived lately.
    pub(crate) fn higher_came(&self, tier: Tier) -> bool {
        self.lately[..tier.index()].contains(&true)
    }

    /// Whether requests of a tier higher than `tier` arrived lately or wait.
    pub(crate) fn higher_present(&self, tier: Tier) -> bool {
        self.present[..tier.index()].contains(&true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the traffic a minute after a premium request arrived, while `standard_tokens` prompt tokens of standard
    /// requests wait.
    fn traffic(standard_tokens: u64, late_us: u64) -> Traffic {
        let mut arrivals = Arrivals::default();
        arrivals.came(Tier::System, Timestamp(7));
        arrivals.came(Tier::Premium, Timestamp(7));
        arrivals.traffic([0, 0, standard_tokens, 0], Timestamp(7 + LATELY_US + late_us))
    }

    #[test]
    fn a_tier_comes_for_a_minute_and_the_server_s_own_requests_never() {
        let came = |late_us| Tier::ALL.map(|tier| traffic(0, late_us).came(tier));
        assert_eq!(came(0), [false, true, false, false]);
        assert_eq!(came(1), [false; 4]);
        let higher = Tier::ALL.map(|tier| traffic(0, 0).higher_came(tier));
        assert_eq!(higher, [false, false, true, true]);
    }

    #[test]
    fn a_tier_whose_prompts_wait_is_present_although_none_came_lately() {
        assert!(traffic(0, 0).one_tier && traffic(0, 1).one_tier);
        assert!(!traffic(5, 0).one_tier);
        assert!(traffic(5, 1).one_tier, "standard alone is left");
        let higher = |late_us| Tier::ALL.map(|tier| traffic(5, late_us).higher_present(tier));
        assert_eq!(higher(0), [false, false, true, true]);
        assert_eq!(higher(1), [false, false, false, true], "standard waits");
    }
}
