//! Drift of a mock device: at times its steps are slower than its profile says.

use crate::Timestamp;
use std::ops::Range;

/// Drift of a mock device: at times the fixed cost of its steps is larger.
#[derive(Debug, Clone, PartialEq)]
pub struct MockDrift {
    /// Factor by which drift lengthens the fixed cost of a step while the device is slow.
    pub base_factor: f64,
    /// Range of engine time in which the drifting device is slow, us. `None`: every other minute, from the first one
    /// on.
    pub slow_us: Option<Range<u64>>,
}

/// One minute, us. By default a drifting device is slow for a minute and normal for the next.
const MINUTE_US: u64 = 60_000_000;

impl Default for MockDrift {
    /// Returns the default drift: the fixed cost of a step is 20 % larger in every other minute, beginning with the
    /// first minute.
    fn default() -> Self {
        MockDrift { base_factor: 1.2, slow_us: None }
    }
}

impl MockDrift {
    /// Returns the factor by which drift lengthens the fixed cost of a step that starts at `now`.
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
