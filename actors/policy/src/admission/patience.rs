//! Patience: how long an accepted request waits for its first token before the server ends it.

use tiercel_config::PatienceSettings;
use tiercel_device::Tier;

/// Longest wait of one request for its first token, after which the server gives the request up. A request without a
/// limit waits for ever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Patience {
    /// Longest wait of the request for its first token, us; `None` for no limit.
    pub us: Option<u64>,
    /// Time that the request had waited when it arrived at admission, us.
    pub before_us: u64,
    /// Whether the request itself stated its patience; otherwise the patience is the setting of its tier.
    pub stated: bool,
}

impl Patience {
    /// Returns the patience of a request that waited `before_us` before its arrival: the patience that the request
    /// states, ms, or the patience of its tier if the request states none.
    pub fn of(
        settings: &PatienceSettings,
        tier: Tier,
        (stated_ms, before_us): (Option<u64>, u64),
    ) -> Patience {
        if let Some(ms) = stated_ms {
            return Patience { us: Some(ms.saturating_mul(1000)), before_us, stated: true };
        }
        let s = settings.seconds()[tier.index()];
        Patience { us: (s > 0.0).then_some((s * 1e6) as u64), before_us, stated: false }
    }

    /// Returns the longest time from the arrival of the request to its first token, us; `None` for no limit.
    pub fn left_us(&self) -> Option<u64> {
        self.us.map(|us| us.saturating_sub(self.before_us))
    }

    /// Returns the patience, us, if a wait of `wait_us` after the arrival exceeds it; `None` if the request would wait
    /// that long.
    pub fn exceeded_by(&self, wait_us: f64) -> Option<u64> {
        self.us.filter(|us| wait_us + self.before_us as f64 > *us as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_states_its_own_patience_or_has_its_tiers() {
        let settings = PatienceSettings { background_s: 2.0, ..PatienceSettings::default() };
        let of = |tier, stated| Patience::of(&settings, tier, (stated, 0));
        assert_eq!(of(Tier::Premium, None).us, None, "for ever");
        assert_eq!(
            of(Tier::Premium, Some(5)),
            Patience { us: Some(5_000), before_us: 0, stated: true }
        );
        let background = of(Tier::Background, None);
        assert_eq!(background, Patience { us: Some(2_000_000), before_us: 0, stated: false });
        assert_eq!(background.exceeded_by(2e6), None);
        assert_eq!(background.exceeded_by(2e6 + 1.0), Some(2_000_000));
        assert_eq!(of(Tier::Premium, None).exceeded_by(f64::INFINITY), None);
    }

    #[test]
    fn a_wait_before_the_arrival_counts() {
        let patience = Patience::of(&PatienceSettings::default(), Tier::Premium, (Some(5), 2_000));
        assert_eq!(patience.left_us(), Some(3_000));
        assert_eq!([3_000.0, 3_001.0].map(|us| patience.exceeded_by(us)), [None, Some(5_000)]);
        assert_eq!(Patience { before_us: 6_000, ..patience }.left_us(), Some(0));
    }
}
