//! Estimates the noise of step times: how observed times spread around the times that the fitted costs predict.

use std::f64::consts::FRAC_PI_2;
use tiercel_device::StepNoise;

/// Length of the time windows into which the observed steps are divided to estimate the machine's speed, s: shorter
/// than the time for which a machine stays slow, and much longer than a step.
const WINDOW_S: f64 = 1.0;
/// Minimum sample sizes of the noise estimate: steps in a time window to estimate the machine's speed in it, and
/// outlier steps to estimate the tail of the distribution. Twice as many time windows are needed to estimate how the
/// speed changes.
const LEAST_STEPS: usize = 5;
/// Border between the log-normal body of the step times and their tail of outliers, in standard deviations of the
/// logarithm of the time.
const TAIL_FROM: f64 = 2.5;

/// One observed step: the time at which it began, s, and its observed time divided by its predicted time.
pub(crate) type Ratio = (f64, f64);

/// Estimates the noise of step times from the ratios of observed to predicted times, which must be in order of time.
pub(crate) fn spread(ratios: &[Ratio]) -> StepNoise {
    let windows = windows(ratios);
    let speeds: Vec<f64> = windows.iter().map(|window| middle(window)).collect();
    let each = windows.iter().zip(&speeds);
    let fast: Vec<f64> = each
        .flat_map(|(window, speed)| window.iter().map(move |(_, ratio)| ratio / speed))
        .collect();
    let sigma = middle_sigma(&fast);
    let (tail_share, tail_mean) = tail(&fast, sigma);
    let (slow_sigma, slow_s) = slow(&windows, &speeds, sigma);
    StepNoise { sigma, tail_share, tail_mean, slow_sigma, slow_s }
}

/// Groups the time ratios of steps into time windows of `WINDOW_S` and drops windows with fewer than `LEAST_STEPS`
/// steps.
fn windows(ratios: &[Ratio]) -> Vec<&[Ratio]> {
    let number = |ratio: &Ratio| (ratio.0 / WINDOW_S).floor();
    let chunks = ratios.chunk_by(|a, b| number(a) == number(b));
    chunks.filter(|chunk| chunk.len() >= LEAST_STEPS).collect()
}

/// Returns the slowness of the machine in a time window: the median ratio of observed to predicted step times. Unlike a
/// mean, the median is not affected by outliers.
fn middle(window: &[Ratio]) -> f64 {
    let mut sorted: Vec<f64> = window.iter().map(|(_, ratio)| *ratio).collect();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, 0.5).unwrap_or(1.0).max(f64::MIN_POSITIVE)
}

/// Returns the sigma of the log-normal distribution that has the samples' quantiles at 15.87 % and 84.13 % (one
/// standard deviation below and above the median).
fn middle_sigma(fast: &[f64]) -> f64 {
    let mut sorted = fast.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (quantile(&sorted, 0.1587), quantile(&sorted, 0.8413)) {
        (Some(low), Some(high)) if low > 0.0 => (high / low).ln() / 2.0,
        _ => 0.0,
    }
}

/// Fits an exponential tail to outlier step times. Returns the share of steps in the tail, at most 0.2, and the mean
/// time that the tail adds to such a step, as a multiple of the step's predicted time. Both come from the steps beyond
/// the border of the log-normal body that are more than the body alone would have there. (0, 0) if these are too few.
fn tail(fast: &[f64], sigma: f64) -> (f64, f64) {
    let from = (TAIL_FROM * sigma).exp();
    let beyond: Vec<f64> = fast.iter().filter(|ratio| **ratio > from).map(|r| r - from).collect();
    // A log-normal distribution has 0.62 % of its samples beyond 2.5 standard deviations; these are not counted as
    // tail.
    let own = 0.0062 * fast.len() as f64;
    let tailed = beyond.len() as f64 - own;
    if tailed < LEAST_STEPS as f64 {
        return (0.0, 0.0);
    }
    let mean = beyond.iter().sum::<f64>() / tailed;
    let share = tailed / fast.len() as f64;
    // Extrapolate the exponential tail below the border, because steps of the tail that lie there were not counted.
    ((share * ((from - 1.0) / mean).exp()).min(0.2), mean)
}

/// Estimates how the machine's speed changes over seconds. Returns the sigma of these slow changes, without what the
/// noise of single steps contributes, and the mean time for which a speed lasts, s.
fn slow(windows: &[&[Ratio]], speeds: &[f64], sigma: f64) -> (f64, f64) {
    if speeds.len() < 2 * LEAST_STEPS {
        return (0.0, 0.0);
    }
    let speeds: Vec<f64> = speeds.iter().map(|speed| speed.ln()).collect();
    // The variance of a median of n values is pi/2 times the variance of one value, divided by n.
    let by_steps = mean(windows.iter().map(|w| FRAC_PI_2 * sigma * sigma / w.len() as f64));
    let total = variance(&speeds);
    let own = total - by_steps;
    if own <= 0.0 {
        return (0.0, 0.0);
    }
    let middle = mean(speeds.iter().copied());
    let products = speeds.windows(2).map(|pair| (pair[0] - middle) * (pair[1] - middle));
    let alike = (mean(products) / own).clamp(0.05, 0.99);
    (own.sqrt(), -WINDOW_S / alike.ln())
}

fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    sorted.get((q * sorted.len() as f64) as usize).copied()
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
    if count > 0.0 { sum / count } else { 0.0 }
}

fn variance(values: &[f64]) -> f64 {
    let middle = mean(values.iter().copied());
    mean(values.iter().map(|value| (value - middle).powi(2)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::SmallRng};

    fn normal(random: &mut SmallRng) -> f64 {
        (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0
    }

    fn ratios(noise: StepNoise) -> Vec<Ratio> {
        let mut random = SmallRng::seed_from_u64(7);
        let mut slow = 0.0_f64;
        let step = |i: u32| {
            if i.is_multiple_of(200) {
                // Simulate a machine whose speed changes every 200 steps, that is, every four seconds.
                slow = noise.slow_sigma * normal(&mut random);
            }
            let hit = random.random::<f64>() < noise.tail_share;
            let tail =
                if hit { -noise.tail_mean * (1.0 - random.random::<f64>()).ln() } else { 0.0 };
            let fast = (noise.sigma * normal(&mut random)).exp();
            (f64::from(i) * 0.02, fast * (1.0 + tail) * slow.exp())
        };
        (0..20_000).map(step).collect()
    }

    #[test]
    fn noise_of_every_kind_is_found_again() {
        let none = StepNoise::default();
        let made = StepNoise { sigma: 0.1, ..none };
        let found = spread(&ratios(made));
        assert!((found.sigma - 0.1).abs() < 0.01, "{found:?}");
        assert!(found.tail_share * found.tail_mean < 0.002, "next to no tail: {found:?}");
        assert!(found.slow_sigma < 0.01, "{found:?}");
        let made = StepNoise { sigma: 0.05, tail_share: 0.02, tail_mean: 2.0, ..none };
        let found = spread(&ratios(made));
        assert!((found.tail_share - 0.02).abs() < 0.006, "{found:?}");
        assert!((found.tail_mean - 2.0).abs() < 0.4, "{found:?}");
        let made = StepNoise { sigma: 0.05, slow_sigma: 0.1, ..none };
        let found = spread(&ratios(made));
        assert!((found.slow_sigma - 0.1).abs() < 0.03, "{found:?}");
        assert!((1.0..10.0).contains(&found.slow_s), "{found:?}");
    }

    #[test]
    fn too_few_steps_have_no_noise() {
        assert_eq!(spread(&[]), StepNoise::default());
        assert_eq!(spread(&[(0.0, 1.0), (0.1, 1.1)]), StepNoise::default());
    }
}
