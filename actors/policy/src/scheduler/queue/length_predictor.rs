//! Prediction of output lengths.

use crate::ewma::Ewma;
use tiercel_device::Tier;

/// Number of classes of prompt lengths; class k holds the lengths from 2^k to 2^(k+1) - 1 tokens, and the last class
/// all greater ones too.
const LENGTH_CLASSES: usize = 24;
/// Weight of a newly finished request in the exponential means of output lengths of its class and of its tier.
const SMOOTHING: f64 = 0.05;

/// Predictor of output lengths: an exponentially weighted mean over finished requests, by tier and class of prompt
/// length. A request's true length is unknown to the predictor until the request ends.
#[derive(Debug, Clone)]
pub(crate) struct LengthPredictor {
    /// Mean output length by tier and class of prompt length, tokens; `None` before a request of the class has
    /// finished.
    mean: [[Option<Ewma>; LENGTH_CLASSES]; Tier::ALL.len()],
    /// Mean output length by tier, tokens, for classes of prompt length without a finished request.
    by_tier: [Option<Ewma>; Tier::ALL.len()],
    error: PredictionError,
}

/// Errors of predicted output lengths, summed over finished requests.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PredictionError {
    /// Number of finished requests whose predicted output length was compared with the true one.
    pub requests: u64,
    /// Sum of |predicted - true| output lengths, tokens.
    pub absolute_tokens: f64,
    /// Sum of true output lengths, tokens.
    pub tokens: u64,
}

impl LengthPredictor {
    pub(crate) fn new() -> LengthPredictor {
        LengthPredictor {
            mean: [[None; LENGTH_CLASSES]; Tier::ALL.len()],
            by_tier: [None; Tier::ALL.len()],
            error: PredictionError::default(),
        }
    }

    /// Returns the expected output length of a request, tokens, at most `max_tokens`; half of `max_tokens` before any
    /// request of the tier has finished.
    pub(crate) fn predict(&self, tier: Tier, prompt: u32, max_tokens: u32) -> f64 {
        let known = self.mean[tier.index()][class_of(prompt)].or(self.by_tier[tier.index()]);
        known.map_or(f64::from(max_tokens) / 2.0, |mean| mean.mean()).min(f64::from(max_tokens))
    }

    /// Adds a finished request to the mean output lengths, and the error of its prediction to the errors.
    pub(crate) fn observe(&mut self, tier: Tier, prompt: u32, predicted: f64, output: u32) {
        let output_tokens = f64::from(output);
        self.error.requests += 1;
        self.error.absolute_tokens += (predicted - output_tokens).abs();
        self.error.tokens += u64::from(output);
        for mean in
            [&mut self.mean[tier.index()][class_of(prompt)], &mut self.by_tier[tier.index()]]
        {
            match mean {
                Some(mean) => mean.observe(output_tokens),
                None => *mean = Some(Ewma::starting_at(output_tokens, SMOOTHING)),
            }
        }
    }

    pub(crate) fn error(&self) -> PredictionError {
        self.error
    }
}

fn class_of(prompt: u32) -> usize {
    (prompt.max(1).ilog2() as usize).min(LENGTH_CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_learned_per_tier_and_prompt_length() {
        let mut predictor = LengthPredictor::new();
        assert_eq!(predictor.predict(Tier::Standard, 100, 400), 200.0, "nothing is known");
        for _ in 0..200 {
            predictor.observe(Tier::Standard, 100, 0.0, 40);
            predictor.observe(Tier::Standard, 1000, 0.0, 300);
        }
        assert!((predictor.predict(Tier::Standard, 120, 400) - 40.0).abs() < 1.0);
        assert!((predictor.predict(Tier::Standard, 900, 400) - 300.0).abs() < 1.0);
        assert_eq!(predictor.predict(Tier::Standard, 900, 100), 100.0, "never more than allowed");
        let unseen = predictor.predict(Tier::Standard, 5, 400);
        assert!((40.0..300.0).contains(&unseen), "the tier's mean: {unseen}");
        assert_eq!(predictor.predict(Tier::Premium, 100, 60), 30.0);
        let error = predictor.error();
        assert_eq!((error.requests, error.tokens), (400, 200 * 340));
        assert_eq!(error.absolute_tokens, 200.0 * 340.0);
    }

    #[test]
    fn errors_add_up_whether_a_prediction_is_too_long_or_too_short() {
        let mut predictor = LengthPredictor::new();
        predictor.observe(Tier::Standard, 100, 50.0, 40);
        predictor.observe(Tier::Standard, 100, 5.0, 12);
        let expected = PredictionError { requests: 2, absolute_tokens: 17.0, tokens: 52 };
        assert_eq!(predictor.error(), expected);
    }

    #[test]
    fn the_last_class_holds_all_longer_prompts() {
        assert_eq!([0, 1, 3, 4].map(class_of), [0, 0, 1, 2]);
        assert_eq!([1 << 23, 1 << 24, u32::MAX].map(class_of), [LENGTH_CLASSES - 1; 3]);
    }
}
