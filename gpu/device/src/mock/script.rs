//! Script of a mock device: the outputs that the mock device returns for certain prompts in place of made-up outputs.

use super::oracle::MockOracle;
use crate::TokenId;
use std::fmt;
use std::sync::Arc;

/// Script of a mock device: a function from prompts to output tokens.
pub trait MockScript: fmt::Debug + Send + Sync {
    /// Returns the output tokens for a prompt, with the end token if the output ends by itself; `None` if the mock
    /// device makes the output up. The result must depend on the prompt alone, so that preempted, repeated and parallel
    /// sequences of one prompt have the same output.
    fn output(&self, prompt: &[TokenId]) -> Option<Arc<[TokenId]>>;
}

/// Scripted output of one sequence, and the length of the part that the sequence has followed.
#[derive(Debug)]
pub(super) struct Part {
    output: Arc<[TokenId]>,
    /// Length of the longest common prefix of the sequence's output and of the scripted output, tokens.
    followed: usize,
}

impl Part {
    pub(super) fn new(output: Arc<[TokenId]>) -> Part {
        Part { output, followed: 0 }
    }

    /// Records output token number `i` (from 0) of the sequence.
    pub(super) fn heard(&mut self, i: usize, token: TokenId) {
        if self.followed == i && self.output.get(i) == Some(&token) {
            self.followed += 1;
        }
    }

    /// Returns output token number `i` of the script; `None` after the end of the script, or if an earlier output token
    /// of the sequence differs from the script.
    pub(super) fn token(&self, i: usize) -> Option<TokenId> {
        self.output.get(i).copied().filter(|_| self.followed >= i)
    }
}

/// Returns output token number `i` of a sequence without a constraint, after a prefix with the fingerprint `prefix`:
/// the token of the script if there is one, otherwise a made-up token.
pub(super) fn own_token(
    part: Option<&Part>,
    i: usize,
    prefix: u64,
    oracle: &MockOracle,
) -> TokenId {
    part.and_then(|part| part.token(i)).unwrap_or_else(|| oracle.after(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_left_at_the_first_other_token_and_repeats_what_came_before() {
        let mut part = Part::new(Arc::from([5, 6, 7, 8]));
        assert_eq!([part.token(0), part.token(1)], [Some(5), None]);
        part.heard(0, 5);
        part.heard(1, 6);
        assert_eq!([0, 1, 2, 3].map(|i| part.token(i)), [Some(5), Some(6), Some(7), None]);
        part.heard(2, 99);
        part.heard(3, 8);
        assert_eq!([1, 2, 3, 4].map(|i| part.token(i)), [Some(6), Some(7), None, None]);
    }

    #[test]
    fn behind_the_script_tokens_are_made_up() {
        let oracle = MockOracle::new(0, 100, &[]);
        let mut part = Part::new(Arc::from([5]));
        assert_eq!(own_token(Some(&part), 0, 77, &oracle), 5);
        part.heard(0, 5);
        assert_eq!(own_token(Some(&part), 1, 77, &oracle), oracle.after(77));
        assert_eq!(own_token(None, 0, 77, &oracle), oracle.after(77));
    }
}
