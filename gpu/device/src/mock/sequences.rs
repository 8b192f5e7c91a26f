//! State that the mock device keeps of each sequence: its tokens and the fingerprint of each of its prefixes.

use super::oracle::{MockOracle, extend};
use super::script::{MockScript, Part, own_token};
use crate::{
    BlockId, BySeq, ConstrainedOutput, MaskThreads, MaskWait, NotSampled, SeqStart, SliceInput,
    StepId, TokenId,
};
use std::sync::Arc;

/// State of one sequence on the mock device, from the step that starts the sequence (`StepBatch::starts`) to the step
/// that ends it (`StepBatch::ends`).
#[derive(Debug, Default)]
pub(super) struct SequenceState {
    prompt_len: usize,
    /// Position and id of the end token of the sequence's output; `None` if the device does not end outputs.
    end: Option<(usize, TokenId)>,
    /// Scripted output of the sequence; `None` if the mock device has no script, or the script has no output for the
    /// prompt.
    part: Option<Part>,
    /// Prompt tokens and sampled tokens of the sequence.
    tokens: Vec<TokenId>,
    /// For each token of the sequence, the fingerprint of the prefix that ends with the token.
    pub(super) prints: Vec<u64>,
    /// Fingerprints of the prefixes that end with a full block of the sequence.
    pub(super) block_prints: Vec<u64>,
    block_size: usize,
    /// Block table of the sequence in its last step. The first `relies_on` blocks of the table are full and were
    /// checked; they are not checked again unless the content of some checked block changes.
    pub(super) table: Arc<[BlockId]>,
    pub(super) relies_on: usize,
    /// Value of [`Memory::breaches`](super::memory::Memory) (changes of checked blocks) when the blocks of the sequence
    /// were last checked; if it differs now, they are checked again.
    pub(super) breaches: u64,
    /// Last step of the mock device that had a slice of the sequence.
    pub(super) last_step: Option<StepId>,
    /// Step that sampled the last token of the sequence.
    sampled_by: Option<StepId>,
    /// Last step that sampled no token of the sequence, because the mask was late or allowed no token.
    drawn_none_in: Option<StepId>,
    /// Number of most likely tokens whose log-probabilities the sequence asked for; `None` if it asked for no
    /// log-probabilities.
    pub(super) logprobs: Option<u8>,
    /// Constrained output of the sequence; `None` for a sequence without a constraint.
    constrained: Option<ConstrainedOutput>,
}

/// States of all sequences that the mock device knows.
pub(super) type Sequences = BySeq<SequenceState>;

impl SequenceState {
    /// Returns the state of a sequence that starts on the mock device. [`MockOptions::end_token`](super::MockOptions)
    /// explains how the prompt determines the end of the output.
    pub(super) fn start(
        start: &SeqStart,
        (end_token, script): (Option<TokenId>, Option<&dyn MockScript>),
        block_size: usize,
        masks: &MaskThreads,
    ) -> SequenceState {
        let output_len = start.prompt.last().map_or(0, |last| *last as usize).max(1);
        let prompt_len = start.prompt.len();
        let mut state = SequenceState {
            prompt_len,
            block_size,
            end: end_token.map(|token| (prompt_len + output_len - 1, token)),
            part: script.and_then(|script| script.output(&start.prompt)).map(Part::new),
            logprobs: start.sampling.logprobs,
            constrained: start
                .sampling
                .constraint
                .clone()
                .map(|constraint| ConstrainedOutput::start(constraint, masks)),
            ..SequenceState::default()
        };
        for token in start.prompt.iter() {
            state.push(*token);
        }
        state
    }

    fn push(&mut self, token: TokenId) {
        if let (Some(part), Some(i)) =
            (&mut self.part, self.tokens.len().checked_sub(self.prompt_len))
        {
            part.heard(i, token);
        }
        let prefix = self.prints.last().copied().unwrap_or(0);
        self.tokens.push(token);
        let print = extend(prefix, token);
        self.prints.push(print);
        if self.prints.len().is_multiple_of(self.block_size) {
            self.block_prints.push(print);
        }
    }

    /// Whether a slice of `len` tokens from position `first_pos` on counts as a decode: it has one token, after the
    /// prompt. All other slices count as prefill.
    pub(super) fn decodes(&self, first_pos: usize, len: usize) -> bool {
        len == 1 && first_pos >= self.prompt_len
    }

    /// Whether the input tokens of a slice equal the tokens that the sequence holds from position `first_pos` on; if
    /// not, the engine made a mistake.
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

    /// Whether the input of a slice is a token that was not drawn.
    pub(super) fn lacks(&self, input: &SliceInput) -> bool {
        matches!(input, SliceInput::SampledBy(step) if self.drawn_none_in == Some(*step))
    }

    /// Records that `step` samples no token of the sequence, because the mask is late, and returns this reason.
    pub(super) fn postpone_draw(&mut self, step: StepId) -> NotSampled {
        self.drawn_none_in = Some(step);
        NotSampled::MaskLate
    }

    /// Whether a slice that ends before position `end` is the one from which output token number `i` is sampled.
    pub(super) fn samples(&self, end: usize, i: u32) -> bool {
        end == self.prompt_len + i as usize
    }

    /// Samples the token of the sequence at position `end` and adds it to the sequence, unless the sequence has it
    /// already (a repeated step).
    ///
    /// # Errors
    /// [`NotSampled`] if the constraint of the sequence leaves no token, or if the mask of the sequence is not
    /// ready before `wait` ends.
    pub(super) fn sample(
        &mut self,
        end: usize,
        step: StepId,
        oracle: &MockOracle,
        wait: &MaskWait,
    ) -> Result<TokenId, NotSampled> {
        let token = match (&self.constrained, self.tokens.get(end)) {
            (Some(_), Some(token)) => *token,
            (Some(_), None) => match self.draw(end, oracle, wait) {
                Err(why) => {
                    self.drawn_none_in = Some(step);
                    return Err(why);
                }
                Ok(drawn) => drawn,
            },
            (None, _) => self.wish(end, oracle),
        };
        if end == self.tokens.len() {
            self.push(token);
        }
        if end + 1 == self.tokens.len() {
            self.sampled_by = Some(step);
        }
        Ok(token)
    }

    /// Returns the token at position `end` that the mock device samples without a constraint.
    fn wish(&self, end: usize, oracle: &MockOracle) -> TokenId {
        match self.end {
            Some((position, token)) if position == end => token,
            _ => own_token(self.part.as_ref(), end - self.prompt_len, self.prints[end - 1], oracle),
        }
    }

    /// Samples the new token at position `end` of a constrained sequence: the token that is sampled without a
    /// constraint if the mask allows this token, otherwise a token of the mask that the prefix determines. From the
    /// planned end of the output on, the end token is sampled as soon as the mask allows it.
    fn draw(
        &mut self,
        end: usize,
        oracle: &MockOracle,
        wait: &MaskWait,
    ) -> Result<TokenId, NotSampled> {
        let wish = match self.end {
            Some((position, token)) if position <= end => token,
            _ => self.wish(end, oracle),
        };
        let Some(constrained) = &mut self.constrained else { return Ok(wish) };
        let mask = constrained.mask((end - self.prompt_len) as u32, wait)?;
        let token = match mask.allows(wish) {
            true => wish,
            false => oracle.among(self.prints[end - 1], mask),
        };
        constrained.push(token);
        Ok(token)
    }
}
