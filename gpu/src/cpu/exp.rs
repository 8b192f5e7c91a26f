//! The exponential function that every CPU kernel uses.

/// Least argument of `exp` that is not clamped. Arguments are clamped to `LOW..=HIGH`, which keeps 2^n a normal number.
const LOW: f32 = -87.3;
const HIGH: f32 = 88.0;
/// Constant 1.5 * 2^23: adding it rounds a f32 to an integer and leaves the integer in the low bits.
const ROUND: f32 = 12_582_912.0;

/// Returns `e^x` with a relative error below 2e-7 for x in -87.3..=88, e^-87.3 (about 1e-38) for smaller x, e^88 for
/// larger x, and NaN for NaN. The arithmetic has no branches, so that loops over it become vector code. The arithmetic
/// is never fused, so that the bits are the same on every instruction set.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Limits the argument by comparisons instead of `clamp`, because each comparison compiles to one instruction and
    // keeps NaN.
    let bounded = if x < LOW { LOW } else { x };
    let bounded = if bounded > HIGH { HIGH } else { bounded };
    let shifted = bounded * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // Subtracts `n * ln 2` in two parts for precision; the product of `n` and the first part of ln 2 is exact.
    let r = (bounded - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_6e-1;
    p = p * r + 0.5;
    let e = (p * r * r + r) + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    e * power
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn close_to_the_true_value_everywhere() {
        let mut worst = 0.0_f64;
        for i in -873_000..=880_000 {
            let x = i as f32 * 1e-4;
            let expected = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - expected).abs() / expected);
        }
        assert!(worst < 2e-7, "worst relative error {worst}");
    }

    #[test]
    fn the_ends_of_the_range() {
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) > 0.0 && exp(f32::NEG_INFINITY) < 2e-38);
        assert_eq!(exp(-200.0), exp(f32::NEG_INFINITY));
        assert!(exp(1e9).is_finite() && exp(1e9) > 1e38);
        assert!(exp(f32::NAN).is_nan());
    }
}
