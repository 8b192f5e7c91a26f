//! Device time that the requests of each tier used lately, older time counting less.

use tiercel_device::{Tier, Timestamp};

const TIERS: usize = Tier::ALL.len();
/// Time constant of the usage of tiers, us: usage of that age counts 1/e, about a third.
const TIME_CONSTANT_US: f64 = 60e6;

/// Device time that each tier used lately, as an exponentially decaying sum.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TierUsage {
    /// Decayed sum of the device time that each tier used, us.
    us: [f64; TIERS],
    /// Time at which device time was last added to the tiers' sums.
    at: Timestamp,
}

impl TierUsage {
    /// Adds the device time that each tier used in a step that ended at `now`, us.
    pub(crate) fn add(&mut self, us: [f64; TIERS], now: Timestamp) {
        let decay = (-(now.since_us(self.at) as f64) / TIME_CONSTANT_US).exp();
        self.at = now;
        for (usage, us) in self.us.iter_mut().zip(us) {
            *usage = *usage * decay + us;
        }
    }

    /// Returns the share of each tier in the device time used lately, 0 to 1; 0 for all if no tier used any.
    pub(crate) fn shares(&self) -> [f64; TIERS] {
        let all: f64 = self.us.iter().sum();
        self.us.map(|us| if all > 0.0 { us / all } else { 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_forgotten() {
        let mut usage = TierUsage::default();
        usage.add([0.0, 30.0, 0.0, 10.0], Timestamp(0));
        assert_eq!(usage.shares(), [0.0, 0.75, 0.0, 0.25]);
        usage.add([0.0, 0.0, 40.0, 0.0], Timestamp(3_600_000_000));
        assert!(usage.shares()[2] > 0.999, "{:?}", usage.shares());
        assert_eq!(TierUsage::default().shares(), [0.0; TIERS]);
    }

    #[test]
    fn usage_of_a_minute_ago_counts_a_third() {
        let mut usage = TierUsage::default();
        usage.add([0.0, 10.0, 0.0, 0.0], Timestamp(0));
        usage.add([0.0, 0.0, 10.0, 0.0], Timestamp(60_000_000));
        // Premium's 10 us count 10 / e beside standard's 10 us.
        let premium = 1.0 / (1.0 + 1.0_f64.exp());
        assert!((usage.shares()[1] - premium).abs() < 1e-9, "{:?}", usage.shares());
    }
}
