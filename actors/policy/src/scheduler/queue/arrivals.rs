//! Arrivals: which tiers' requests came lately.
//!
//! Time and slack are reserved for a tier only while its requests come.

use tiercel_device::{Tier, Timestamp};

const TIERS: usize = Tier::ALL.len();
/// A tier of which no request came for longer counts as absent, us.
const LATELY_US: u64 = 60_000_000;

/// When the last request of each tier came. The server's own requests, as that of its warm-up, are no reason to reserve
/// anything from its clients' requests, and are not counted.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Arrivals([Option<Timestamp>; TIERS]);

impl Arrivals {
    /// A request of the tier came.
    pub(crate) fn came(&mut self, tier: Tier, at: Timestamp) {
        if tier > Tier::System {
            self.0[tier.index()] = Some(at);
        }
    }

    /// Forgets a tier's requests, or pretends that one came at a time.
    #[cfg(test)]
    pub(crate) fn set(&mut self, tier: Tier, at: Option<Timestamp>) {
        self.0[tier.index()] = at;
    }

    /// The traffic at a time, while prompts of `waiting_tokens` tokens wait in each tier.
    pub(crate) fn traffic(&self, waiting_tokens: [u64; TIERS], now: Timestamp) -> Traffic {
        let lately = self.0.map(|at| at.is_some_and(|at| now.since_us(at) <= LATELY_US));
        let present =
            lately.iter().zip(waiting_tokens).filter(|(lately, tokens)| **lately || *tokens > 0);
        Traffic { lately, one_tier: present.count() <= 1 }
    }
}

/// Which tiers ask for service at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traffic {
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
