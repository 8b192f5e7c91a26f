//! Random choices for scenarios.

use std::ops::RangeInclusive;
use tiercel_workload::Random;

/// Source of random choices for one purpose, a function of the scenario's seed.
pub(super) struct Dice(Random);

impl Dice {
    pub(super) fn new(seed: u64, purpose: u64) -> Dice {
        Dice(Random::stream(seed, &[purpose]))
    }

    /// Draws a number from the range.
    pub(super) fn between(&mut self, range: RangeInclusive<u32>) -> u32 {
        let (low, high) = (*range.start(), *range.end());
        low + self.0.below(u64::from(high.saturating_sub(low)) + 1) as u32
    }

    /// Draws a time in microseconds below `us`, which must not be 0.
    pub(super) fn below_us(&mut self, us: u64) -> u64 {
        self.0.below(us)
    }

    /// Returns true with this probability.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.0.unit() < probability
    }

    /// Draws one of the choices, of which there must be at least one.
    pub(super) fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.0.below(choices.len() as u64) as usize].clone()
    }
}
