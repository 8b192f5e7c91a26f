//! What the mock device knows of each sequence: its tokens and the fingerprint of every prefix.

use super::oracle::{MockOracle, extend};
use crate::{BlockId, BySeq, SeqStart, SliceInput, StepId, TokenId};
use std::sync::Arc;

/// State of one sequence, from `StepBatch::starts` to `StepBatch::ends`.
#[derive(Debug, Default)]
pub(super) struct SequenceState {
    prompt_len: usize,
    /// Position of the token that ends the output, and that token, if the device ends outputs.
    end: Option<(usize, TokenId)>,
    /// Prompt and sampled tokens.
    tokens: Vec<TokenId>,
    /// Fingerprint of the prefix that ends with each token.
    pub(super) prints: Vec<u64>,
    /// Of these, the ones at the end of each full block.
    pub(super) block_prints: Vec<u64>,
    block_size: usize,
    /// The block table it was last computed with, and how many full blocks at its front it relies on.
    pub(super) table: Arc<[BlockId]>,
    pub(super) relies_on: usize,
    /// [`Memory::breaches`](super::memory::Memory) when it looked at these.
    pub(super) breaches: u64,
    /// The last step that it had a slice in.
    pub(super) last_step: Option<StepId>,
    /// The step that sampled the last token.
    sampled_by: Option<StepId>,
    /// Whether it asked for log-probabilities.
    pub(super) logprobs: Option<u8>,
}

/// All sequences.
pub(super) type Sequences = BySeq<SequenceState>;

impl SequenceState {
    /// A sequence that starts. See [`MockOptions::end_token`](super::MockOptions).
    pub(super) fn start(
        start: &SeqStart,
        end_token: Option<TokenId>,
        block_size: usize,
    ) -> SequenceState {
        let output_len = start.prompt.last().map_or(0, |last| *last as usize).max(1);
        let prompt_len = start.prompt.len();
        let mut state = SequenceState {
            prompt_len,
            block_size,
            end: end_token.map(|token| (prompt_len + output_len - 1, token)),
            logprobs: start.sampling.logprobs,
            ..SequenceState::default()
        };
        for token in start.prompt.iter() {
            state.push(*token);
        }
        state
    }

    fn push(&mut self, token: TokenId) {
        let prefix = self.prints.last().copied().unwrap_or(0);
        self.tokens.push(token);
        let print = extend(prefix, token);
        self.prints.push(print);
        if self.prints.len().is_multiple_of(self.block_size) {
            self.block_prints.push(print);
        }
    }

    /// Whether a slice of `len` tokens from `first_pos` on decodes, rather than computes the prompt (or
    /// recomputes what was lost).
    pub(super) fn decodes(&self, first_pos: usize, len: usize) -> bool {
        len == 1 && first_pos >= self.prompt_len
    }

    /// Whether the input is what the sequence holds from `first_pos` on.
    pub(super) fn input_is_right(&self, first_pos: usize, input: &SliceInput) -> bool {
        match input {
            SliceInput::Known(tokens) => {
                let known = self.tokens.get(first_pos..first_pos + tokens.len());
                known == Some(tokens.as_slice())
            }
            SliceInput::SampledBy(step) => {
                self.sampled_by == Some(*step) && first_pos + 1 == self.tokens.len()
            }
        }
    }

    /// Whether output `i` is what a slice that ends before position `end` samples.
    pub(super) fn samples(&self, end: usize, i: u32) -> bool {
        end == self.prompt_len + i as usize
    }

    /// Samples the token at position `end`.
    pub(super) fn sample(&mut self, end: usize, step: StepId, oracle: &MockOracle) -> TokenId {
        let token = match self.end {
            Some((position, token)) if position == end => token,
            _ => oracle.after(self.prints[end - 1]),
        };
        if end == self.tokens.len() {
            self.push(token);
        }
        if end + 1 == self.tokens.len() {
            self.sampled_by = Some(step);
        }
        token
    }
}
