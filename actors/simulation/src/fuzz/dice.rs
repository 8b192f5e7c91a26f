//! Random choices from which fuzzing scenarios are drawn.

use std::ops::RangeInclusive;
use tiercel_workload::Random;

/// Random generator of a fuzzing scenario. It depends only on the scenario's seed and on the purpose of the choices.
pub(super) struct Dice(Random);

impl Dice {
    pub(super) fn new(seed: u64, purpose: u64) -> Dice {
        Dice(Random::stream(seed, &[purpose]))
    }

    /// Draws a random integer from the range, both ends included.
    pub(super) fn between(&mut self, range: RangeInclusive<u32>) -> u32 {
        let (low, high) = (*range.start(), *range.end());
        low + self.0.below(u64::from(high.saturating_sub(low)) + 1) as u32
    }

    /// Draws a random time below `us`, in microseconds; `us` must not be 0.
    pub(super) fn below_us(&mut self, us: u64) -> u64 {
        self.0.below(us)
    }

    /// Returns true with the given probability.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.0.unit() < probability
    }

    /// Draws one of the choices with equal probability; there must be at least one choice.
    pub(super) fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.0.below(choices.len() as u64) as usize].clone()
    }
}
