//! How the next token is chosen. Plain data; the device that samples interprets it.

use crate::TokenId;
use serde::{Deserialize, Serialize};

/// Sampling settings of one sequence, validated by the API before they get here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// 0 is greedy: the arg max after penalties and bias, lowest token id on an exact tie.
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of tokens whose probability reaches `top_p`; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than `min_p` times the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens already in the output; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted once per occurrence in the output; 0 is off.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens, before temperature.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Randomness of output `i` depends on `(seed, i)` alone, so neighbours cannot change the text.
    pub seed: u64,
    /// Log-probabilities wanted with each token: `None` for none, `Some(k)` for the chosen token and
    /// the `k` best.
    pub logprobs: Option<u8>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Greedy decoding with everything else off.
    pub fn greedy() -> Self {
        SamplingParams { temperature: 0.0, ..Self::default() }
    }
}
