//! Draws of tokens on a device, and the drawn tokens as inputs of the next step.

use tiercel_device::{TokenId, TokenMask};

/// Parameters with which a device draws a token from a row of logits. A token outside the mask has the logit -infinity.
/// The weight of a token is `exp((logit - largest) / temperature)`. Tokens are ranked by weight, the lower id first
/// among equals. Min-p, then top-k, then top-p each keep a prefix of this ranking. The weights of the kept tokens are
/// summed in order of token id, and the token at which the sum passes the fraction `at` of the total is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw<'a> {
    /// Row of the logits tensor from which the token is drawn.
    pub row: usize,
    /// Sampling temperature of the draw; 0 takes the largest logit, the lowest token id on a tie.
    pub temperature: f32,
    /// Number of tokens that top-k keeps in a draw; 0 keeps all.
    pub top_k: u32,
    /// Share of the sum of weights (probability) that top-p keeps in a draw; 1 keeps all.
    pub top_p: f32,
    /// Least weight that min-p keeps in a draw, as a share of the largest weight; 0 keeps all.
    pub min_p: f32,
    /// Random number in `[0, 1)` that chooses the token: the fraction of the kept tokens' total weight at which the
    /// drawn token lies.
    pub at: f64,
    /// Tokens that may be drawn; `None` allows all tokens.
    pub mask: Option<&'a TokenMask>,
}

impl Draw<'_> {
    /// Returns a draw of the token with the largest logit from row `row`.
    pub fn greedy(row: usize) -> Self {
        Draw { row, temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, at: 0.0, mask: None }
    }
}

/// Source of the input token of a row in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowInput {
    /// Input token that the host knows.
    Token(TokenId),
    /// Input token that the device drew in the step submitted last, from the sampled row of that step with this number.
    Drawn(usize),
}

/// Result of a draw: the number of a sampled row of a step, and the token that the device drew from the row; `None` if
/// the row has no usable logit.
pub type Drawn = (usize, Option<TokenId>);

impl From<TokenId> for RowInput {
    fn from(token: TokenId) -> RowInput {
        RowInput::Token(token)
    }
}
