//! Loops over a row of logits (maximum, exponentials, sums), written so that the compiler vectorises them.

/// Number of sampling weights in a chunk. Each chunk is summed, so that a draw can skip most of the vocabulary.
pub(super) const CHUNK: usize = 256;

const LANES: usize = 16;

/// Returns the largest logit; `None` if a logit is NaN or +inf, or if none is finite.
pub(super) fn usable_max(logits: &[f32]) -> Option<f32> {
    let mut best = [f32::NEG_INFINITY; LANES];
    let mut nan = [0u32; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut take = |lane: usize, value: f32| {
        nan[lane] |= u32::from(value.is_nan());
        best[lane] = if value > best[lane] { value } else { best[lane] };
    };
    for chunk in chunks {
        for (lane, &value) in chunk.iter().enumerate() {
            take(lane, value);
        }
    }
    for (lane, &value) in rest.iter().enumerate() {
        take(lane, value);
    }
    let max = best.into_iter().fold(f32::NEG_INFINITY, f32::max);
    (nan == [0; LANES] && max.is_finite()).then_some(max)
}

/// Returns the index of the first element of the row that equals `value`.
pub(super) fn position(row: &[f32], value: f32) -> Option<usize> {
    let run =
        row.chunks(CHUNK).position(|run| run.iter().fold(false, |hit, &x| hit | (x == value)))?;
    let start = run * CHUNK;
    row[start..].iter().position(|&x| x == value).map(|at| start + at)
}

/// Returns `e^x` for `x <= 0`, within 2 units in the last place, and 0 for `x` below -87.
#[inline(always)]
pub(super) fn exp_neg(x: f32) -> f32 {
    // Algorithm of `expf` in the Cephes library. Adding 1.5 * 2^23 rounds to the nearest integer and leaves the integer
    // in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x > -87.0 { x } else { -87.0 };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = clamped - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_6e-1;
    p = p * r + 5.000_000_3e-1;
    let value = p * r * r + r + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    let scaled = value * f32::from_bits(exponent);
    if x >= -87.0 { scaled } else { 0.0 }
}

/// Replaces logits by sampling weights `e^((logit - max) / temperature)`; the most likely token has weight 1.
pub(super) fn to_weights(logits: &mut [f32], max: f32, temperature: f32) {
    let scale = 1.0 / temperature;
    for logit in logits {
        *logit = exp_neg((*logit - max) * scale);
    }
}

/// Returns `ln Σ e^logit`, where `max` is the largest logit.
pub(super) fn log_sum_exp(logits: &[f32], max: f32) -> f64 {
    let sum: f64 = logits.chunks(CHUNK).map(|chunk| chunk_sum(chunk, |l| exp_neg(l - max))).sum();
    f64::from(max) + sum.ln()
}

/// Returns the sum of the sampling weights in each chunk of [`CHUNK`] tokens.
pub(super) fn chunk_sums(weights: &[f32]) -> impl Iterator<Item = f64> {
    weights.chunks(CHUNK).map(|chunk| chunk_sum(chunk, |weight| weight))
}

#[inline(always)]
fn chunk_sum(chunk: &[f32], value: impl Fn(f32) -> f32) -> f64 {
    let mut sums = [0.0f64; 4];
    let quads = chunk.chunks_exact(4);
    let rest = quads.remainder();
    for quad in quads {
        for lane in 0..4 {
            sums[lane] += f64::from(value(quad[lane]));
        }
    }
    let rest: f64 = rest.iter().map(|&x| f64::from(value(x))).sum();
    (sums[0] + sums[1]) + (sums[2] + sums[3]) + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_finds_the_largest_in_every_lane_and_tail() {
        for len in [1, 15, 16, 17, 100] {
            for at in 0..len {
                let mut logits = vec![-3.0; len];
                logits[at] = 2.5;
                assert_eq!(usable_max(&logits), Some(2.5));
                logits[at] = f32::NAN;
                assert_eq!(usable_max(&logits), None, "NaN at {at} of {len}");
                logits[at] = f32::INFINITY;
                assert_eq!(usable_max(&logits), None);
            }
        }
        assert_eq!(usable_max(&[f32::NEG_INFINITY; 40]), None);
        assert_eq!(usable_max(&[]), None);
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let mut worst = 0u32;
        for i in 0..200_000 {
            let x = -87.0 * (i as f32 / 200_000.0);
            let exact = f64::from(x).exp() as f32;
            worst = worst.max(exp_neg(x).to_bits().abs_diff(exact.to_bits()));
        }
        assert!(worst <= 2, "{worst} units off");
        assert_eq!(exp_neg(0.0), 1.0);
        assert_eq!(exp_neg(-88.0), 0.0);
        assert_eq!(exp_neg(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn log_sum_exp_matches_f64() {
        let logits: Vec<f32> = (0..1000).map(|i| ((i * 37) % 101) as f32 / 7.0 - 9.0).collect();
        let exact = logits.iter().map(|&l| f64::from(l).exp()).sum::<f64>().ln();
        let max = usable_max(&logits).unwrap();
        assert!((log_sum_exp(&logits, max) - exact).abs() < 1e-6);
    }
}
