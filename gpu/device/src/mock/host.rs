//! Time that a real server spends on requests and steps outside its device, and random spread of step times.
//! `tiercel bench --calibrate` measures both, so that the mock device can imitate them.

use super::faults::Draws;
use crate::Timestamp;
use serde::{Deserialize, Serialize};

/// Time that the simulated server spends on requests and steps outside the device. By default all fields are zero: it
/// spends none.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostCosts {
    /// Time from the end of a step until the device begins the next step, if the next step was not submitted yet at
    /// that end, us. In this time the host hands out tokens, plans and wakes threads. Each step reports this time as
    /// its host time. If this time is at least half a percent of a step, the engine keeps two steps in flight on a
    /// device that takes two. A step that was submitted before the end of the step in flight begins at that end,
    /// however late it was submitted; so a host that needs longer than a step is not modelled.
    pub step_us: f64,
    /// Time that the host takes for each decoding sequence of a step, us; added to the fixed time before the step
    /// (`step_us`).
    pub sequence_us: f64,
    /// Fixed time that a request spends outside the engine, us: from its sending until the engine has it, plus from a
    /// token until its client has it.
    pub request_us: f64,
    /// Time that a request spends outside the engine for each token of its prompt, us; added to the fixed time per
    /// request (`request_us`).
    pub prompt_token_us: f64,
}

impl HostCosts {
    /// Returns the time before the device begins a step that was not submitted yet when the step before ended, us.
    pub(super) fn before_step_us(&self, decode_tokens: u64) -> f64 {
        self.step_us + self.sequence_us * decode_tokens as f64
    }

    /// Returns the time that a request with a prompt of `prompt_tokens` tokens spends in HTTP and tokenizing, outside
    /// the engine, us.
    pub fn of_request_us(&self, prompt_tokens: u32) -> u64 {
        (self.request_us + self.prompt_token_us * f64::from(prompt_tokens)).round() as u64
    }

    pub(super) fn is_default(&self) -> bool {
        *self == HostCosts::default()
    }
}

/// Random spread of step times around their modelled values: the product of three random factors of mean 1. By default
/// all fields are zero: step times do not spread.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StepNoise {
    /// Sigma of a log-normal factor on the step time, drawn for each step.
    pub sigma: f64,
    /// Share of the steps that take longer by an exponentially distributed amount of time, from 0 to 1 (the tail).
    pub tail_share: f64,
    /// Mean of the exponentially distributed time by which some steps take longer, as a multiple of the step's
    /// duration.
    pub tail_mean: f64,
    /// Sigma of a log-normal factor on step times that changes slowly, as a real machine is faster at one time than at
    /// another.
    pub slow_sigma: f64,
    /// Time constant of the slow factor on step times, s: after this time its correlation with its old value has fallen
    /// to 1/e.
    pub slow_s: f64,
}

impl StepNoise {
    pub(super) fn is_default(&self) -> bool {
        *self == StepNoise::default()
    }

    /// Checks the settings of the noise. Returns the name of the first field with an unusable value and what is
    /// allowed, or `None`.
    pub(super) fn problem(&self) -> Option<(&'static str, &'static str)> {
        for (field, value, most) in [
            ("noise.sigma", self.sigma, 2.0),
            ("noise.tail_share", self.tail_share, 1.0),
            ("noise.tail_mean", self.tail_mean, 100.0),
            ("noise.slow_sigma", self.slow_sigma, 2.0),
            ("noise.slow_s", self.slow_s, 86_400.0),
        ] {
            if !(0.0..=most).contains(&value) {
                return Some((
                    field,
                    "from 0 to 2 (sigmas), 1 (shares), 100 (tail_mean) or 86400 (s)",
                ));
            }
        }
        None
    }
}

/// Source of random factors on the durations of steps.
pub(super) struct NoiseSource {
    noise: StepNoise,
    draws: Draws,
    /// Logarithm of the slowly changing factor on step times, in units of its sigma, and the time at which it was
    /// drawn.
    slow: (f64, Timestamp),
}

impl NoiseSource {
    pub(super) fn new(noise: StepNoise, mut draws: Draws) -> NoiseSource {
        let slow = if noise.slow_sigma > 0.0 { draws.normal() } else { 0.0 };
        NoiseSource { noise, draws, slow: (slow, Timestamp(0)) }
    }

    /// Returns the random factor on the duration of a step that begins at `now`.
    pub(super) fn factor(&mut self, now: Timestamp) -> f64 {
        if self.noise.is_default() {
            return 1.0;
        }
        let StepNoise { sigma, tail_share, tail_mean, .. } = self.noise;
        let fast = self.draws.noise(sigma);
        let (hit, length) = (self.draws.chance(tail_share), -(1.0 - self.draws.unit()).ln());
        let tail = 1.0 + if hit { tail_mean * length } else { 0.0 };
        fast * tail / (1.0 + tail_share * tail_mean) * self.slow_factor(now)
    }

    /// Returns the slowly changing factor on step times: the exponential of an Ornstein-Uhlenbeck process.
    fn slow_factor(&mut self, now: Timestamp) -> f64 {
        let StepNoise { slow_sigma, slow_s, .. } = self.noise;
        if slow_sigma <= 0.0 {
            return 1.0;
        }
        let (last, at) = self.slow;
        let elapsed_s = now.since_us(at) as f64 / 1e6;
        let kept = if slow_s > 0.0 { (-elapsed_s / slow_s).exp() } else { 0.0 };
        let value = kept * last + (1.0 - kept * kept).sqrt() * self.draws.normal();
        self.slow = (value, now);
        (slow_sigma * value - slow_sigma * slow_sigma / 2.0).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::faults::Purpose;

    fn factors(noise: StepNoise, every_us: u64) -> Vec<f64> {
        let mut source = NoiseSource::new(noise, Draws::new(7, Purpose::ProfileNoiseAndCopiesOut));
        (0..100_000).map(|step| source.factor(Timestamp(step * every_us))).collect()
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    #[test]
    fn without_noise_every_step_takes_its_time() {
        assert!(factors(StepNoise::default(), 1_000).iter().all(|factor| *factor == 1.0));
    }

    #[test]
    fn every_kind_of_noise_keeps_the_mean() {
        let none = StepNoise::default();
        for noise in [
            StepNoise { sigma: 0.3, ..none },
            StepNoise { tail_share: 0.02, tail_mean: 3.0, ..none },
            StepNoise { slow_sigma: 0.1, slow_s: 0.5, ..none },
        ] {
            let drawn = factors(noise, 20_000);
            assert!((mean(&drawn) - 1.0).abs() < 0.01, "{noise:?}: {}", mean(&drawn));
            assert!(drawn.iter().any(|factor| (factor - 1.0).abs() > 0.1));
        }
    }

    #[test]
    fn a_tail_is_rare_and_long() {
        let noise = StepNoise { tail_share: 0.02, tail_mean: 3.0, ..StepNoise::default() };
        let long = factors(noise, 1_000).into_iter().filter(|factor| *factor > 1.0).count();
        assert!((1_800..2_000).contains(&long), "{long} of 100000");
    }

    #[test]
    fn slow_noise_stays_for_a_while() {
        let noise = StepNoise { slow_sigma: 0.2, slow_s: 10.0, ..StepNoise::default() };
        let drawn = factors(noise, 10_000);
        let steps: Vec<f64> = drawn.windows(2).map(|pair| (pair[1] / pair[0]).ln().abs()).collect();
        assert!(mean(&steps) < 0.02, "neighbours are alike: {}", mean(&steps));
        let far: Vec<f64> = drawn.iter().step_by(5_000).map(|factor| factor.ln().abs()).collect();
        assert!(mean(&far) > 0.08, "far ones are not: {}", mean(&far));
    }
}
