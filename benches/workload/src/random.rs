//! Random number generator whose output never changes: a workload's seed gives the same traffic under any version of
//! any dependency. The algorithm is `SplitMix64` (Steele, Lea, Flood 2014).

use tiercel_device::mix::{GOLDEN, finalize};

/// Deterministic random number generator. Not cryptographically secure.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Returns the random number generator for one purpose, which `path` names. Equal `(seed, path)` gives equal
    /// numbers; different paths give independent numbers.
    pub fn stream(seed: u64, path: &[u64]) -> Random {
        let start = Random { state: seed }.next_u64();
        let state = path.iter().fold(start, |state, part| {
            Random { state: state ^ part.wrapping_add(1).wrapping_mul(GOLDEN) }.next_u64()
        });
        Random { state }
    }

    /// Draws 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        finalize(self.state)
    }

    /// Draws a number uniformly from `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws an integer uniformly from `0..n`; `n` must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Draws a number from the exponential distribution with mean `1 / rate`.
    pub fn exponential(&mut self, rate: f64) -> f64 {
        -(1.0 - self.unit()).ln() / rate
    }

    /// Draws a number from the standard normal distribution (Box-Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // First numbers that the published SplitMix64 algorithm gives from state 1234567.
        let mut random = Random { state: 1_234_567 };
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn streams_differ_by_every_part_of_their_path() {
        let mut first: Vec<u64> = [&[0, 0][..], &[0, 1], &[1, 0], &[0], &[0, 0, 0]]
            .iter()
            .map(|path| Random::stream(7, path).next_u64())
            .collect();
        first.push(Random::stream(8, &[0, 0]).next_u64());
        let count = first.len();
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), count);
    }

    #[test]
    fn moments_are_right() {
        let mut random = Random::stream(3, &[]);
        let n = 200_000;
        let mean = |mut draw: Box<dyn FnMut() -> f64 + '_>| {
            (0..n).map(|_| draw()).sum::<f64>() / f64::from(n)
        };
        assert!((mean(Box::new(|| random.exponential(4.0))) - 0.25).abs() < 0.005);
        assert!(mean(Box::new(|| random.normal())).abs() < 0.01);
        assert!((mean(Box::new(|| random.normal().powi(2))) - 1.0).abs() < 0.02);
        assert!((mean(Box::new(|| random.below(10) as f64)) - 4.5).abs() < 0.03);
    }
}
