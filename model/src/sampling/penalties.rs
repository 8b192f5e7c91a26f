//! Repetition, presence and frequency penalties, as Hugging Face and vLLM define them.

use std::collections::BTreeMap;
use tiercel_device::{SamplingParams, TokenId};

/// Penalties of one sequence, with counts of its tokens so far. When an output index is sampled again, its earlier
/// token and all later ones are forgotten first, so that a repeated step counts its token once.
#[derive(Debug)]
pub(super) struct Penalties {
    repetition: f32,
    presence: f32,
    frequency: f32,
    tokens: BTreeMap<TokenId, Seen>,
    outputs: Vec<TokenId>,
}

#[derive(Debug, Default)]
struct Seen {
    in_prompt: bool,
    outputs: u32,
}

impl Penalties {
    /// Returns whether `params` turn on any of the repetition, presence and frequency penalties.
    pub(super) fn are_on(params: &SamplingParams) -> bool {
        let SamplingParams { repetition_penalty, presence_penalty, frequency_penalty, .. } =
            *params;
        repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0
    }

    /// Creates the penalties of a sequence; `None` if every penalty is off, so that its tokens need not be counted.
    pub(super) fn new(params: &SamplingParams, prompt: &[TokenId]) -> Option<Penalties> {
        if !Penalties::are_on(params) {
            return None;
        }
        let repetition = params.repetition_penalty;
        let (presence, frequency) = (params.presence_penalty, params.frequency_penalty);
        let mut tokens: BTreeMap<TokenId, Seen> = BTreeMap::new();
        if repetition != 1.0 {
            for &token in prompt {
                tokens.entry(token).or_default().in_prompt = true;
            }
        }
        Some(Penalties { repetition, presence, frequency, tokens, outputs: Vec::new() })
    }

    /// Removes the output tokens from number `output_index` on from the counts for penalties.
    pub(super) fn rewind(&mut self, output_index: u32) {
        debug_assert!(output_index as usize <= self.outputs.len(), "an output was skipped");
        while self.outputs.len() > output_index as usize {
            let token = self.outputs.pop().expect("longer than the index");
            let seen = self.tokens.get_mut(&token).expect("every output was recorded");
            seen.outputs -= 1;
        }
    }

    /// Counts `token` as the next output token.
    pub(super) fn record(&mut self, token: TokenId) {
        self.outputs.push(token);
        self.tokens.entry(token).or_default().outputs += 1;
    }

    /// Applies the penalties to the logits: repetition to all tokens that occur in prompt or output, frequency and
    /// presence to those in the output. Token ids beyond the row are ignored.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        for (&token, seen) in &self.tokens {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            if seen.in_prompt || seen.outputs > 0 {
                *logit =
                    if *logit > 0.0 { *logit / self.repetition } else { *logit * self.repetition };
            }
            if seen.outputs > 0 {
                *logit -= self.frequency * seen.outputs as f32;
                *logit -= self.presence;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Straightforward reference implementation of the penalties: counts all tokens anew for every logit.
    fn naive(params: &SamplingParams, prompt: &[u32], outputs: &[u32], logits: &mut [f32]) {
        for (id, logit) in logits.iter_mut().enumerate() {
            let id = id as u32;
            let count = outputs.iter().filter(|&&token| token == id).count();
            if count > 0 || prompt.contains(&id) {
                let by = params.repetition_penalty;
                *logit = if *logit > 0.0 { *logit / by } else { *logit * by };
            }
            if count > 0 {
                *logit -= params.frequency_penalty * count as f32;
                *logit -= params.presence_penalty;
            }
        }
    }

    proptest! {
        #[test]
        fn matches_recounting_under_any_replay(
            prompt in prop::collection::vec(0u32..24, 0..20),
            steps in prop::collection::vec((0u32..24, 0usize..4), 0..30),
            logits in prop::collection::vec(-8.0f32..8.0, 20),
            repetition in prop_oneof![Just(1.0f32), 0.5f32..2.0],
            presence in prop_oneof![Just(0.0f32), -2.0f32..2.0],
            frequency in prop_oneof![Just(0.0f32), -2.0f32..2.0],
        ) {
            let params = SamplingParams {
                repetition_penalty: repetition,
                presence_penalty: presence,
                frequency_penalty: frequency,
                ..SamplingParams::default()
            };
            let Some(mut penalties) = Penalties::new(&params, &prompt) else { return Ok(()) };
            let mut outputs: Vec<u32> = Vec::new();
            for (token, back) in steps {
                let index = outputs.len().saturating_sub(back);
                outputs.truncate(index);
                penalties.rewind(index as u32);
                let (mut actual, mut expected) = (logits.clone(), logits.clone());
                penalties.apply(&mut actual);
                naive(&params, &prompt, &outputs, &mut expected);
                prop_assert_eq!(actual, expected);
                penalties.record(token);
                outputs.push(token);
            }
        }
    }

    #[test]
    fn nothing_is_tracked_when_every_penalty_is_off() {
        assert!(Penalties::new(&SamplingParams::default(), &[1, 2, 3]).is_none());
    }
}
