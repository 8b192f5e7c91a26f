//! A device that does not stay as fast as it was when it was measured.

use crate::Timestamp;
use std::ops::Range;

/// The fixed cost of steps is larger for a while.
#[derive(Debug, Clone, PartialEq)]
pub struct MockDrift {
    /// What the fixed cost is multiplied by.
    pub base_factor: f64,
    /// When that is so, us; `None`: every other minute, the first one included.
    pub slow_us: Option<Range<u64>>,
}

/// Half of the cycle, us.
const MINUTE_US: u64 = 60_000_000;

impl Default for MockDrift {
    /// A fifth more for a minute, then back for a minute.
    fn default() -> Self {
        MockDrift { base_factor: 1.2, slow_us: None }
    }
}

impl MockDrift {
    /// The factor on the fixed cost of a step that starts `now`.
    pub(super) fn factor(&self, now: Timestamp) -> f64 {
        let slow = match &self.slow_us {
            Some(slow_us) => slow_us.contains(&now.0),
            None => (now.0 / MINUTE_US).is_multiple_of(2),
        };
        if slow { self.base_factor } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_other_minute_is_slow_or_only_the_time_asked_for() {
        let factors = |drift: MockDrift| {
            [0, 59, 60, 119, 120].map(|s: u64| drift.factor(Timestamp(s * 1_000_000)))
        };
        assert_eq!(factors(MockDrift::default()), [1.2, 1.2, 1.0, 1.0, 1.2]);
        let once = MockDrift { slow_us: Some(59_000_000..119_000_000), ..MockDrift::default() };
        assert_eq!(factors(once), [1.0, 1.2, 1.2, 1.0, 1.0]);
    }
}
