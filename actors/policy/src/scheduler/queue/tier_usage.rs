//! Usage of tiers: the device's time that each tier had lately.

use tiercel_device::{Tier, Timestamp};

const TIERS: usize = Tier::ALL.len();
/// Time after which a third (1/e) of a tier's usage still counts, us.
const MEMORY_US: f64 = 60e6;

/// Usage by tier, forgotten exponentially.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TierUsage {
    /// Usage of each tier, us.
    us: [f64; TIERS],
    /// When usage was added last.
    at: Timestamp,
}

impl TierUsage {
    /// Adds the time that each tier took of a step that ended at `now`, us.
    pub(crate) fn add(&mut self, us: [f64; TIERS], now: Timestamp) {
        let kept = (-(now.since_us(self.at) as f64) / MEMORY_US).exp();
        self.at = now;
        for (usage, us) in self.us.iter_mut().zip(us) {
            *usage = *usage * kept + us;
        }
    }

    /// Returns the share of each tier in the usage of all, 0 to 1; 0 if no tier used anything.
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
}
