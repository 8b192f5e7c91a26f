//! Constraints on the output of a sequence, for example a grammar.
//!
//! A [`Constraint`] is compiled once and shared by all sequences that follow the constraint. Each sequence has a
//! [`ConstraintState`], which computes the mask of the tokens that may come next and advances by each chosen token. The
//! crate `tiercel-grammar` compiles grammars to constraints.

use crate::TokenId;
use std::fmt;
use std::sync::atomic::AtomicBool;

/// Number of tokens in one word of a [`TokenMask`].
const WORD: usize = u32::BITS as usize;

/// Compiled constraint on the output of a sequence. A constraint is immutable, so that sequences can share it.
pub trait Constraint: fmt::Debug + Send + Sync {
    /// Returns the state of the constraint before the first output token.
    fn start(&self) -> Box<dyn ConstraintState>;

    /// Returns the flag that says whether masks of the constraint take long. Mask threads set and read the flag.
    /// `None`: the masks never take long.
    fn slow(&self) -> Option<&AtomicBool> {
        None
    }
}

/// Two constraints are equal if they are the same compiled object.
impl PartialEq for dyn Constraint {
    fn eq(&self, other: &dyn Constraint) -> bool {
        std::ptr::addr_eq(self, other)
    }
}

/// State of a constraint after some output tokens of one sequence.
pub trait ConstraintState: Send {
    /// Returns the mask of the tokens that may come next, which holds at least one token. The mask holds the end tokens
    /// exactly where the output may end.
    ///
    /// # Errors
    /// [`NoToken`] if no token may come next.
    fn mask(&mut self) -> Result<TokenMask, NoToken>;

    /// Advances the state by one output token, which must be in the mask of this state.
    ///
    /// # Errors
    /// [`NoToken`] if the constraint does not allow the token, or if the state cannot advance, for example because of a
    /// limit.
    fn advance(&mut self, token: TokenId) -> Result<(), NoToken>;
}

/// Reason why a constraint leaves no token for the next position of an output.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoToken {
    /// The output is complete: the constraint is satisfied and allows no further token.
    #[error("the output is complete")]
    Complete,
    /// The output cannot be continued, because no token of the vocabulary fits the constraint or because the constraint
    /// exceeds a limit. Holds the reason.
    #[error("the grammar of this request leaves no token to continue with: {0}")]
    Stuck(String),
}

/// Set of tokens, as a bitmap with one bit for each token of the vocabulary.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenMask {
    /// Bit `i` of word `w` stands for token `32 * w + i`.
    words: Vec<u32>,
}

impl TokenMask {
    /// Returns the empty set, with a bitmap for a vocabulary of `vocab` tokens.
    pub fn none(vocab: usize) -> TokenMask {
        TokenMask { words: vec![0; vocab.div_ceil(WORD)] }
    }

    /// Creates a set from the words of its bitmap: bit `i` of word `w` stands for token `32 * w + i`.
    pub fn from_words(words: Vec<u32>) -> TokenMask {
        TokenMask { words }
    }

    /// Returns the words of the bitmap: bit `i` of word `w` stands for token `32 * w + i`.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Adds a token to the set. A token beyond the end of the bitmap is ignored.
    pub fn allow(&mut self, token: TokenId) {
        if let Some(word) = self.words.get_mut(token as usize / WORD) {
            *word |= 1 << (token as usize % WORD);
        }
    }

    /// Removes a token from the set.
    pub fn forbid(&mut self, token: TokenId) {
        if let Some(word) = self.words.get_mut(token as usize / WORD) {
            *word &= !(1 << (token as usize % WORD));
        }
    }

    /// Returns whether a token is in the set.
    pub fn allows(&self, token: TokenId) -> bool {
        let word = self.words.get(token as usize / WORD).copied().unwrap_or(0);
        word >> (token as usize % WORD) & 1 == 1
    }

    /// Returns the number of tokens in the set.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns the tokens of the set in ascending order of their ids.
    pub fn tokens(&self) -> impl Iterator<Item = TokenId> + '_ {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            (0..WORD)
                .filter(move |bit| word >> bit & 1 == 1)
                .map(move |bit| (at * WORD + bit) as u32)
        })
    }

    /// Returns token number `n` (from 0) of the set in ascending order of ids; `None` if the set has `n` tokens or
    /// fewer.
    pub fn nth(&self, n: usize) -> Option<TokenId> {
        let mut left = n;
        for (at, &word) in self.words.iter().enumerate() {
            let here = word.count_ones() as usize;
            if left < here {
                let mut bits = (0..WORD).filter(|bit| word >> bit & 1 == 1);
                return bits.nth(left).map(|bit| (at * WORD + bit) as TokenId);
            }
            left -= here;
        }
        None
    }

    /// Sets the logits of all tokens outside the set to negative infinity.
    pub fn apply(&self, logits: &mut [f32]) {
        let mut words = self.words.iter().copied();
        for run in logits.chunks_mut(WORD) {
            match words.next().unwrap_or(0) {
                u32::MAX => {}
                0 => run.fill(f32::NEG_INFINITY),
                word => {
                    for (bit, logit) in run.iter_mut().enumerate() {
                        if word >> bit & 1 == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }
}

impl fmt::Debug for TokenMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenMask({} tokens)", self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_a_set_of_tokens() {
        let mut mask = TokenMask::none(70);
        let members = [0, 31, 32, 63, 64, 69];
        members.into_iter().for_each(|token| mask.allow(token));
        mask.allow(1_000);
        assert_eq!(mask.tokens().collect::<Vec<_>>(), members);
        assert_eq!(mask.count(), members.len());
        for (n, token) in members.into_iter().enumerate() {
            assert_eq!(mask.nth(n), Some(token));
            assert!(mask.allows(token) && !mask.allows(token + 2));
        }
        assert_eq!(mask.nth(members.len()), None);
        mask.forbid(32);
        mask.forbid(1_000);
        assert!(!mask.allows(32) && mask.count() == members.len() - 1);
    }

    #[test]
    fn logits_outside_the_mask_are_negative_infinity() {
        let mut full = vec![u32::MAX; 2];
        full.push(0b101);
        let mask = TokenMask::from_words(full);
        let mut logits = vec![1.0; 100];
        mask.apply(&mut logits);
        for (token, logit) in logits.iter().enumerate() {
            let expected = if mask.allows(token as TokenId) { 1.0 } else { f32::NEG_INFINITY };
            assert_eq!(*logit, expected, "token {token}");
        }
        assert_eq!(logits.iter().filter(|logit| logit.is_finite()).count(), 66);
    }
}
