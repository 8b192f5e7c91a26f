//! A device that does not stay as fast as it was when it was measured.

use crate::Timestamp;

/// The fixed cost of steps is larger for a while, then as the profile says for as long, and so on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MockDrift {
    /// What the fixed cost is multiplied by.
    pub base_factor: f64,
    /// How long each half of the cycle is, us.
    pub half_us: u64,
}

impl Default for MockDrift {
    /// A fifth more for a minute, then back for a minute.
    fn default() -> Self {
        MockDrift { base_factor: 1.2, half_us: 60_000_000 }
    }
}

impl MockDrift {
    /// The factor on the fixed cost of a step that starts `now`.
    pub(super) fn factor(self, now: Timestamp) -> f64 {
        let slow = (now.0 / self.half_us.max(1)).is_multiple_of(2);
        if slow { self.base_factor } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_minute_is_slow_the_second_is_not_and_so_on() {
        let drift = MockDrift::default();
        let factor = |s: u64| drift.factor(Timestamp(s * 1_000_000));
        assert_eq!([0, 59, 60, 119, 120].map(factor), [1.2, 1.2, 1.0, 1.0, 1.2]);
    }
}
