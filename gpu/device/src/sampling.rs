//! Settings of sampling: how the next token is chosen from the logits. They are plain data; the device that samples
//! interprets them.

use crate::{Constraint, TokenId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Least number of output tokens of a sequence.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MinTokens {
    /// Number of output tokens before which no token of `ends` is chosen; 0 is off.
    pub count: u32,
    /// Tokens that end the output.
    pub ends: Vec<TokenId>,
}

/// Sampling settings of one sequence, already validated by the API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// Temperature of sampling. 0 (in effect, any value below 1e-5) is greedy: the most likely token after penalties
    /// and bias, on an exact tie the lowest token id.
    pub temperature: f32,
    /// Sampling keeps only the `top_k` most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Sampling keeps only the most likely tokens, as few as reach the share `top_p` of the probability that min-p and
    /// top-k left; 1 keeps all.
    pub top_p: f32,
    /// Sampling drops tokens that are less likely than `min_p` times the most likely token; 0 keeps all.
    pub min_p: f32,
    /// Divisor of the positive and factor on the negative logits of tokens seen in the prompt or the output; 1 is off.
    pub repetition_penalty: f32,
    /// Number subtracted once from the logit of each token that is already in the output; 0 is off.
    pub presence_penalty: f32,
    /// Number subtracted from a token's logit once for each occurrence of the token in the output; 0 is off.
    pub frequency_penalty: f32,
    /// Logit biases: tokens, each with a number that is added to its logit before penalties and temperature.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Least number of output tokens. Where the constraint leaves only tokens that end the output, the output ends
    /// before.
    pub min_tokens: MinTokens,
    /// Seed of the random draws. The random number with which output token `i` is drawn depends on `(seed, i)` alone,
    /// not on other sequences in the batch.
    pub seed: u64,
    /// Which log-probabilities are returned with each output token: `None` for none, `Some(k)` for those of the chosen
    /// token and of the `k` most likely tokens.
    pub logprobs: Option<u8>,
    /// Constraint that the output must follow, for example a grammar; `None` for any output. Serialized settings do not
    /// have the constraint.
    #[serde(skip)]
    pub constraint: Option<Arc<dyn Constraint>>,
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
            min_tokens: MinTokens::default(),
            seed: 0,
            logprobs: None,
            constraint: None,
        }
    }
}

impl SamplingParams {
    /// Returns sampling settings for greedy decoding, with all other options off.
    pub fn greedy() -> Self {
        SamplingParams { temperature: 0.0, ..Self::default() }
    }
}
