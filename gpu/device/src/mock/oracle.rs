//! Tokens that the mock device "generates". Each token is a hash of the seed and of all tokens before it, so that any
//! stream can be checked without a second run.

use crate::mix::mix;
use crate::{TokenId, TokenMask};
use std::sync::Arc;

/// Returns the fingerprint of a prefix, computed from the fingerprint of all its tokens but the last (`prefix`) and the
/// last token. Never 0, which stands for memory that holds nothing.
pub(super) fn extend(prefix: u64, token: TokenId) -> u64 {
    mix(prefix ^ mix(u64::from(token))).max(1)
}

/// Oracle that knows every token that a mock device will sample, except the end tokens that its options may ask for.
#[derive(Debug, Clone)]
pub struct MockOracle {
    seed: u64,
    vocab_size: u32,
    reserved: Arc<[TokenId]>,
}

impl MockOracle {
    /// Returns an oracle for a device with this seed and vocabulary that never samples a `reserved` token.
    ///
    /// # Panics
    /// If the reserved tokens leave nothing to sample.
    pub fn new(seed: u64, vocab_size: u32, reserved: &[TokenId]) -> MockOracle {
        let mut reserved: Vec<TokenId> =
            reserved.iter().copied().filter(|token| *token < vocab_size).collect();
        reserved.sort_unstable();
        reserved.dedup();
        assert!((reserved.len() as u64) < u64::from(vocab_size), "every token is reserved");
        MockOracle { seed, vocab_size, reserved: reserved.into() }
    }

    /// Returns the first `n` output tokens that the mock device samples for a prompt if no end token comes before.
    pub fn output(&self, prompt: &[TokenId], n: usize) -> Vec<TokenId> {
        let mut prefix = prompt.iter().fold(0, |prefix, token| extend(prefix, *token));
        let mut output = Vec::with_capacity(n);
        for _ in 0..n {
            let token = self.after(prefix);
            prefix = extend(prefix, token);
            output.push(token);
        }
        output
    }

    /// Returns the token that is sampled after a prefix with this fingerprint.
    pub(super) fn after(&self, prefix: u64) -> TokenId {
        // Draws a number among the tokens that are not reserved, then skips each reserved token at or below it, so that
        // every unreserved token is equally likely.
        let choices = u64::from(self.vocab_size) - self.reserved.len() as u64;
        let mut token = (mix(prefix ^ mix(self.seed)) % choices) as TokenId;
        for reserved in self.reserved.iter() {
            if *reserved <= token {
                token += 1;
            }
        }
        token
    }

    /// Returns the token that the mock device samples from the set `mask`, which is not empty, after a prefix with the
    /// fingerprint `prefix`. A reserved token is sampled only if the set has no other tokens.
    pub(super) fn among(&self, prefix: u64, mask: &TokenMask) -> TokenId {
        let mut open = mask.clone();
        self.reserved.iter().for_each(|token| open.forbid(*token));
        let open = if open.count() > 0 { &open } else { mask };
        let at = mix(prefix ^ mix(self.seed)) % open.count().max(1) as u64;
        open.nth(at as usize).unwrap_or_default()
    }
}

/// Returns output token number `i` (from 0) that a mock device with this seed and vocabulary, without reserved tokens,
/// samples for a prompt.
pub fn mock_oracle(seed: u64, vocab_size: u32, prompt: &[TokenId], i: usize) -> TokenId {
    MockOracle::new(seed, vocab_size, &[]).output(prompt, i + 1)[i]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_tokens_are_never_sampled_and_all_others_are() {
        let oracle = MockOracle::new(1, 8, &[0, 3, 7, 7, 99]);
        let mut seen: Vec<TokenId> = oracle.output(&[1, 2], 500);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [1, 2, 4, 5, 6]);
    }

    #[test]
    fn every_token_of_the_prompt_and_the_seed_matter() {
        let output = |seed, prompt: &[TokenId]| MockOracle::new(seed, 1000, &[]).output(prompt, 8);
        assert_ne!(output(1, &[1, 2, 3]), output(2, &[1, 2, 3]));
        assert_ne!(output(1, &[1, 2, 3]), output(1, &[2, 1, 3]));
        assert_eq!(mock_oracle(1, 1000, &[1, 2, 3], 7), output(1, &[1, 2, 3])[7]);
    }
}
