//! Rotary embedding (RoPE): base frequencies and their scaling.

/// Settings of a model's rotary embedding (RoPE).
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Base of the rotary frequencies: frequency `i` is `theta^(-2 i / head_dim)` before scaling.
    pub theta: f32,
    /// Scaling of the rotary frequencies for long contexts.
    pub scaling: RopeScaling,
}

/// Scaling of the rotary (RoPE) frequencies, by which a model can use longer contexts.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// The rotary frequencies are not scaled.
    None,
    /// Linear scaling: all rotary frequencies are divided by `factor`.
    Linear {
        /// Divisor of all rotary frequencies, at least 1.
        factor: f32,
    },
    /// Scaling of Llama 3: low rotary frequencies are divided by `factor`, high ones are unchanged, and those between
    /// are interpolated.
    Llama3 {
        /// Divisor of the low rotary frequencies, at least 1.
        factor: f32,
        /// Rotary frequencies with a wavelength above `original_positions / low_freq_factor` are divided by `factor`.
        low_freq_factor: f32,
        /// Rotary frequencies with a wavelength below `original_positions / high_freq_factor` are unchanged.
        high_freq_factor: f32,
        /// Context length that the model was first trained with, tokens.
        original_positions: f32,
    },
    /// Each rotary frequency has its own divisor (`rope_freqs.weight` of a GGUF file).
    Factors(Vec<f32>),
}

impl RopeConfig {
    /// Returns the `head_dim / 2` scaled rotary frequencies, radians per position. The arithmetic is in f32 and in the
    /// order of the Hugging Face implementation: at position 8,000, an error of one unit in the last place of a
    /// frequency is already visible in the logits.
    pub fn inv_freq(&self, head_dim: usize) -> Vec<f32> {
        (0..head_dim / 2).map(|i| self.scaled(i, self.base(i, head_dim))).collect()
    }

    fn base(&self, i: usize, head_dim: usize) -> f32 {
        1.0 / self.theta.powf((2 * i) as f32 / head_dim as f32)
    }

    fn scaled(&self, i: usize, freq: f32) -> f32 {
        match &self.scaling {
            RopeScaling::None => freq,
            RopeScaling::Linear { factor } => freq / factor,
            RopeScaling::Factors(factors) => freq / factors[i],
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_positions,
            } => {
                let wave = 2.0 * std::f32::consts::PI / freq;
                if wave > original_positions / low_freq_factor {
                    freq / factor
                } else if wave < original_positions / high_freq_factor {
                    freq
                } else {
                    let smooth = (original_positions / wave - low_freq_factor)
                        / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * freq / factor + smooth * freq
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llama3() -> RopeConfig {
        RopeConfig {
            theta: 500_000.0,
            scaling: RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_positions: 8192.0,
            },
        }
    }

    #[test]
    fn plain_frequencies_fall_from_one() {
        let rope = RopeConfig { theta: 10_000.0, scaling: RopeScaling::None };
        let freqs = rope.inv_freq(64);
        assert_eq!(freqs.len(), 32);
        assert_eq!(freqs[0], 1.0);
        assert!((freqs[16] - 0.01).abs() < 1e-8);
        assert!(freqs.windows(2).all(|pair| pair[0] > pair[1]));
    }

    #[test]
    fn llama3_keeps_high_divides_low_and_ramps_between() {
        let plain = RopeConfig { scaling: RopeScaling::None, ..llama3() }.inv_freq(128);
        let scaled = llama3().inv_freq(128);
        assert_eq!(scaled[0], plain[0]);
        assert_eq!(scaled[63], plain[63] / 8.0);
        let ratios: Vec<f32> = plain.iter().zip(&scaled).map(|(p, s)| p / s).collect();
        assert!(ratios.windows(2).all(|pair| pair[0] <= pair[1] + 1e-6));
        assert!(ratios.iter().any(|&ratio| ratio > 1.1 && ratio < 7.9));
    }

    #[test]
    fn linear_and_table_factors_divide() {
        let base = RopeConfig { theta: 100.0, scaling: RopeScaling::None }.inv_freq(4);
        let linear =
            RopeConfig { theta: 100.0, scaling: RopeScaling::Linear { factor: 2.0 } }.inv_freq(4);
        let table = RopeConfig { theta: 100.0, scaling: RopeScaling::Factors(vec![1.0, 4.0]) };
        assert_eq!(linear, vec![base[0] / 2.0, base[1] / 2.0]);
        assert_eq!(table.inv_freq(4), vec![base[0], base[1] / 4.0]);
    }
}
