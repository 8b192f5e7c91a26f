//! Random draws of tokens. The random numbers depend only on `(seed, output index)`.

use super::numeric::CHUNK;
use tiercel_device::TokenId;
use tiercel_device::mix::{GOLDEN, finalize, mix};

/// Returns a uniformly distributed random number in `[0, 1)`: a hash of the seed and the output index, so there is no
/// generator state to lose or to replay.
pub(super) fn uniform(seed: u64, output_index: u32) -> f64 {
    let counter = u64::from(output_index).wrapping_add(1).wrapping_mul(GOLDEN);
    let bits = finalize(mix(seed).wrapping_add(counter));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Draws a token: returns the token at which the running sum of the weights passes the fraction `at` (in `[0, 1)`) of
/// their total. `chunk_sums` are the sums of consecutive [`CHUNK`]s of weights. Returns `None` if no token has a
/// positive weight.
pub(super) fn pick(weights: &[f32], chunk_sums: &[f64], at: f64) -> Option<TokenId> {
    let total: f64 = chunk_sums.iter().sum();
    let mut left = at * total;
    let mut last = None;
    for (chunk, &sum) in chunk_sums.iter().enumerate() {
        if sum <= 0.0 {
            continue;
        }
        let start = chunk * CHUNK;
        let inside = left < sum;
        let members = &weights[start..weights.len().min(start + CHUNK)];
        if inside {
            for (offset, &weight) in members.iter().enumerate().filter(|(_, weight)| **weight > 0.0)
            {
                last = Some((start + offset) as TokenId);
                left -= f64::from(weight);
                if left < 0.0 {
                    return last;
                }
            }
            // The weights of the chunk, summed one by one, fell short of the chunk's sum by a rounding error: take its
            // last token with a positive weight.
            return last;
        }
        left -= sum;
        last = members.iter().rposition(|&weight| weight > 0.0).map(|i| (start + i) as TokenId);
    }
    last
}

#[cfg(test)]
mod tests {
    use super::super::numeric::chunk_sums;
    use super::*;

    #[test]
    fn uniform_is_even_over_seeds_and_over_indices() {
        const BINS: usize = 64;
        for by_seed in [true, false] {
            let mut counts = [0u32; BINS];
            let draws = 64_000;
            for i in 0..draws {
                let u = if by_seed { uniform(i, 0) } else { uniform(7, i as u32) };
                assert!((0.0..1.0).contains(&u));
                counts[(u * BINS as f64) as usize] += 1;
            }
            let expected = draws as f64 / BINS as f64;
            let chi2: f64 =
                counts.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
            // Chi-square test with 63 degrees of freedom: a uniform generator exceeds 103.4 with probability 0.001.
            assert!(chi2 < 103.4, "chi-square {chi2}");
        }
    }

    #[test]
    fn neighbouring_keys_are_unrelated() {
        let pairs = 20_000;
        let mean_product: f64 =
            (0..pairs).map(|i| (uniform(i, 3) - 0.5) * (uniform(i + 1, 3) - 0.5)).sum::<f64>()
                / pairs as f64;
        assert!(mean_product.abs() < 0.003, "{mean_product}");
    }

    #[test]
    fn pick_walks_the_weights_in_order() {
        let mut weights = vec![0.0; 1000];
        (weights[3], weights[300], weights[999]) = (1.0, 2.0, 1.0);
        let sums: Vec<f64> = chunk_sums(&weights).collect();
        let pick = |at| pick(&weights, &sums, at);
        assert_eq!([0.0, 0.249].map(pick), [Some(3); 2]);
        assert_eq!([0.25, 0.749].map(pick), [Some(300); 2]);
        assert_eq!([0.75, 0.999_999].map(pick), [Some(999); 2]);
        assert_eq!(super::pick(&[0.0; 4], &[0.0], 0.5), None);
    }
}
