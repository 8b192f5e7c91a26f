//! Arrivals: which tiers' requests came lately.
//!
//! Time and slack are reserved for a tier only while its requests come.

use tiercel_device::{Tier, Timestamp};

const TIERS: usize = Tier::ALL.len();
/// Time without requests of a tier after which the tier counts as absent, us.
const LATELY_US: u64 = 60_000_000;

/// Time of each tier's last request. The server's own requests, such as its warm-up, are not counted: they are no
/// reason to reserve anything that clients' requests could have.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Arrivals([Option<Timestamp>; TIERS]);

impl Arrivals {
    /// Records that a request of the tier came at `at`.
    pub(crate) fn came(&mut self, tier: Tier, at: Timestamp) {
        if tier > Tier::System {
            self.0[tier.index()] = Some(at);
        }
    }

    /// Forgets a tier's requests, or pretends that one came at a time, for tests.
    #[cfg(test)]
    pub(crate) fn set(&mut self, tier: Tier, at: Option<Timestamp>) {
        self.0[tier.index()] = at;
    }

    /// Returns the traffic at `now`, while prompts of `waiting_tokens` tokens wait in each tier.
    pub(crate) fn traffic(&self, waiting_tokens: [u64; TIERS], now: Timestamp) -> Traffic {
        let lately = self.0.map(|at| at.is_some_and(|at| now.since_us(at) <= LATELY_US));
        let present =
            lately.iter().zip(waiting_tokens).filter(|(lately, tokens)| **lately || *tokens > 0);
        Traffic { lately, one_tier: present.count() <= 1 }
    }
}

/// Traffic: which tiers ask for service at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traffic {
    /// Whether requests of each tier came lately.
    lately: [bool; TIERS],
    /// Whether all requests that came lately, and all that wait, are of one tier.
    pub(crate) one_tier: bool,
}

impl Traffic {
    /// Whether requests of the tier came lately.
    pub(crate) fn came(&self, tier: Tier) -> bool {
        self.lately[tier.index()]
    }

    /// Whether requests of a higher tier came lately.
    pub(crate) fn higher_came(&self, tier: Tier) -> bool {
        self.lately[..tier.index()].contains(&true)
    }
}
