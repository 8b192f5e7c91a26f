//! Probability distributions of prompt and output lengths.

use crate::random::Random;
use serde::{Deserialize, Serialize};

/// Maximum length of a prompt or an output in a workload, tokens.
pub const MAX_TOKENS: u32 = 1_000_000;

/// Probability distribution of a prompt or output length, tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Length {
    /// Constant length: every prompt or output has this number of tokens.
    Fixed(u32),
    /// Uniform distribution: every length from `min` to `max`, both included, is equally likely.
    Uniform(Uniform),
    /// Log-normal distribution whose drawn lengths are clamped to `min ..= cap`.
    LogNormal(LogNormal),
    /// Mixture of two log-normal distributions, for example of short and long prompts.
    Mixture(Mixture),
}

/// Parameters of a mixture of two length distributions ([`Length::Mixture`]).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mixture {
    /// Probability with which a length is drawn from the distribution `some` instead of `others`, 0 to 1.
    pub share: f64,
    /// Length distribution that is used with probability `share`.
    pub some: LogNormal,
    /// Length distribution that is used with probability `1 - share`.
    pub others: LogNormal,
}

/// Bounds of a uniform length distribution ([`Length::Uniform`]).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uniform {
    /// Shortest prompt or output length of a uniform distribution, tokens.
    pub min: u32,
    /// Longest prompt or output length of a uniform distribution, tokens.
    pub max: u32,
}

/// Parameters of a log-normal length distribution ([`Length::LogNormal`]). Exactly one of `mean` and `p50` is given;
/// both describe the distribution before the limits `min` and `cap` apply.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogNormal {
    /// Mean of the log-normal length distribution, tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<f64>,
    /// Median of the log-normal length distribution, tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50: Option<f64>,
    /// Standard deviation of the logarithm of the length.
    pub sigma: f64,
    /// Lower limit of the drawn lengths, tokens; shorter draws are raised to it.
    #[serde(default = "one")]
    pub min: u32,
    /// Upper limit of the drawn lengths, tokens; longer draws are cut to it.
    pub cap: u32,
}

fn one() -> u32 {
    1
}

impl Length {
    /// Returns the name of the length distribution's first invalid parameter and what is wrong with it, or `None`.
    pub(crate) fn problem(&self) -> Option<(&'static str, String)> {
        match *self {
            Length::Fixed(n) => tokens("fixed", n),
            Length::Uniform(Uniform { min, max }) => tokens("uniform.min", min)
                .or_else(|| tokens("uniform.max", max))
                .or_else(|| (min > max).then(|| ("uniform.min", format!("is above max = {max}")))),
            Length::LogNormal(log_normal) => log_normal.problem(),
            Length::Mixture(Mixture { share, some, others }) => {
                if !(0.0..=1.0).contains(&share) {
                    return Some(("mixture.share", format!("is {share}; allowed: 0 to 1")));
                }
                let part = |name, part: LogNormal| {
                    part.problem().map(|(field, problem)| (name, format!("{field}: {problem}")))
                };
                part("mixture.some", some).or_else(|| part("mixture.others", others))
            }
        }
    }

    /// Returns the greatest length that the distribution can draw, tokens.
    pub fn longest(&self) -> u32 {
        match *self {
            Length::Fixed(n) => n,
            Length::Uniform(Uniform { max, .. }) => max,
            Length::LogNormal(LogNormal { cap, .. }) => cap,
            Length::Mixture(Mixture { some, others, .. }) => some.cap.max(others.cap),
        }
    }

    /// Draws a prompt or output length of at least 1 token from the distribution.
    pub(crate) fn draw(&self, random: &mut Random) -> u32 {
        match *self {
            Length::Fixed(n) => n,
            Length::Uniform(Uniform { min, max }) => {
                min + random.below(u64::from(max - min) + 1) as u32
            }
            Length::LogNormal(log_normal) => log_normal.draw(random),
            Length::Mixture(Mixture { share, some, others }) => {
                let part = if random.unit() < share { some } else { others };
                part.draw(random)
            }
        }
    }
}

impl LogNormal {
    fn problem(&self) -> Option<(&'static str, String)> {
        let LogNormal { mean, p50, sigma, min, cap } = *self;
        let (name, centre) = match (mean, p50) {
            (Some(mean), None) => ("log_normal.mean", mean),
            (None, Some(p50)) => ("log_normal.p50", p50),
            _ => return Some(("log_normal", "needs either mean or p50, one of them".into())),
        };
        if let Some(problem) = tokens("log_normal.min", min).or(tokens("log_normal.cap", cap)) {
            return Some(problem);
        }
        if min > cap {
            return Some(("log_normal.min", format!("is above cap = {cap}")));
        }
        if !(1.0..=f64::from(MAX_TOKENS)).contains(&centre) {
            return Some((name, format!("is {centre}; allowed: 1 to {MAX_TOKENS}")));
        }
        let wrong = !(0.0..=5.0).contains(&sigma);
        wrong.then(|| ("log_normal.sigma", format!("is {sigma}; allowed: 0 to 5")))
    }

    fn draw(&self, random: &mut Random) -> u32 {
        let LogNormal { mean, p50, sigma, min, cap } = *self;
        let mu = match (mean, p50) {
            (Some(mean), _) => mean.ln() - sigma * sigma / 2.0,
            (None, p50) => p50.unwrap_or(1.0).ln(),
        };
        let drawn = (mu + sigma * random.normal()).exp().round();
        (drawn as u32).clamp(min, cap)
    }
}

/// Checks that a number of tokens lies in `1 ..= MAX_TOKENS`. Returns the field's name and the problem if it does not.
fn tokens(name: &'static str, n: u32) -> Option<(&'static str, String)> {
    (n == 0 || n > MAX_TOKENS).then(|| (name, format!("is {n}; allowed: 1 to {MAX_TOKENS}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(length: Length) -> Vec<u32> {
        let mut random = Random::stream(5, &[1]);
        (0..100_000).map(|_| length.draw(&mut random)).collect()
    }

    fn mean(values: &[u32]) -> f64 {
        values.iter().map(|&n| f64::from(n)).sum::<f64>() / values.len() as f64
    }

    fn log_normal(mean: Option<f64>, p50: Option<f64>, cap: u32) -> Length {
        Length::LogNormal(LogNormal { mean, p50, sigma: 0.6, min: 16, cap })
    }

    #[test]
    fn uniform_reaches_both_ends_and_no_further() {
        let drawn = draws(Length::Uniform(Uniform { min: 64, max: 67 }));
        let (low, high) = (drawn.iter().min().unwrap(), drawn.iter().max().unwrap());
        assert_eq!((*low, *high), (64, 67));
        assert!((mean(&drawn) - 65.5).abs() < 0.02);
    }

    #[test]
    fn log_normal_has_the_stated_mean_or_median_and_limits() {
        let drawn = draws(log_normal(Some(256.0), None, 100_000));
        assert!((mean(&drawn) - 256.0).abs() < 3.0, "{}", mean(&drawn));
        let mut drawn = draws(log_normal(None, Some(256.0), 100_000));
        drawn.sort_unstable();
        assert!((f64::from(drawn[50_000]) - 256.0).abs() < 4.0);
        let drawn = draws(log_normal(Some(128.0), None, 512));
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&16), Some(&512)));
    }

    #[test]
    fn wrong_parameters_are_named() {
        let uniform = |min, max| Length::Uniform(Uniform { min, max });
        let cases = [
            (Length::Fixed(0), "fixed"),
            (uniform(0, 4), "uniform.min"),
            (uniform(5, 4), "uniform.min"),
            (uniform(5, MAX_TOKENS + 1), "uniform.max"),
            (log_normal(None, None, 9), "log_normal"),
            (log_normal(Some(1.0), Some(1.0), 9), "log_normal"),
            (log_normal(Some(f64::NAN), None, 99), "log_normal.mean"),
            (log_normal(None, Some(0.0), 99), "log_normal.p50"),
            (log_normal(Some(1.0), None, 9), "log_normal.min"),
        ];
        for (length, field) in cases {
            assert_eq!(length.problem().map(|(field, _)| field), Some(field), "{length:?}");
        }
        assert_eq!(log_normal(Some(128.0), None, 512).problem(), None);
    }

    #[test]
    fn a_mixture_draws_each_part_by_its_share() {
        let part = |p50, cap| LogNormal { mean: None, p50: Some(p50), sigma: 0.2, min: 1, cap };
        let (some, others) = (part(3500.0, 16_000), part(300.0, 1000));
        let drawn = draws(Length::Mixture(Mixture { share: 0.12, some, others }));
        let long = drawn.iter().filter(|n| **n > 1200).count() as f64 / drawn.len() as f64;
        assert!((long - 0.12).abs() < 0.005, "{long}");
        let wrong = Length::Mixture(Mixture { share: 1.5, some, others });
        assert_eq!(wrong.problem().map(|(field, _)| field), Some("mixture.share"));
    }
}
