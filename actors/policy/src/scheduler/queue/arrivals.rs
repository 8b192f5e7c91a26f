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

    /// Returns the traffic at `now`: which tiers had arrivals lately, and whether all requests are of one tier.
    /// `waiting_tokens` is the number of waiting prompt tokens of each tier.
    pub(crate) fn traffic(&self, waiting_tokens: [u64; TIERS], now: Timestamp) -> Traffic {
        let lately = self.0.map(|at| at.is_some_and(|at| now.since_us(at) <= LATELY_US));
        let present =
            lately.iter().zip(waiting_tokens).filter(|(lately, tokens)| **lately || *tokens > 0);
        Traffic { lately, one_tier: present.count() <= 1 }
    }
}

/// Traffic at one moment: which tiers had arrivals lately, and whether all requests are of one tier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traffic {
    /// Whether requests of each tier arrived lately.
    lately: [bool; TIERS],
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
}
