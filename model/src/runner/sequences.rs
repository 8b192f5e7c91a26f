//! Sampler state of the sequences that the engine has started and not ended.

use crate::sampling::Sampler;
use std::collections::HashMap;
use tiercel_device::{
    MaskThreads, MaskWait, NotSampled, Sampled, SamplingParams, SeqId, SeqStart, StepId, TokenId,
    TokenMask,
};
use tiercel_gpu::RowInput;

/// Sampler state of one sequence, which survives preemption.
pub(super) struct Sequence {
    sampler: Sampler,
    /// Step that last sampled for the sequence, and the token that it sampled or the row from which the device draws
    /// it; neither if sampling on the host failed, if the sequence's constraint left no token, or if its mask was late.
    last: Option<(StepId, Option<RowInput>)>,
}

impl Sequence {
    /// Samples one output token of the sequence on the host and records it.
    pub(super) fn sample(
        &mut self,
        step: StepId,
        logits: &mut [f32],
        output_index: u32,
        wait: &MaskWait,
    ) -> Result<Sampled, NotSampled> {
        let sampled = self.sampler.sample(logits, output_index, wait);
        let token = sampled.as_ref().ok().map(|sampled| RowInput::Token(sampled.token));
        self.last = Some((step, token));
        sampled
    }
}

impl Sequence {
    pub(super) fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// Whether a device that draws tokens draws output token number `output_index` of the sequence with a mask.
    pub(super) fn is_masked(&self, output_index: u32) -> bool {
        let params = self.sampler.params();
        params.constraint.is_some() && Sampler::is_drawn(params, output_index)
    }

    /// Records that the device draws output token number `output_index` of the sequence from sampled row `row` of
    /// `step`, and returns the mask of the draw; `None` if the sequence has no constraint.
    ///
    /// # Errors
    /// [`NotSampled`] if the constraint of the sequence leaves no token, or if its mask is not ready before `wait`
    /// ends: the device must not draw.
    pub(super) fn draws(
        &mut self,
        step: StepId,
        row: usize,
        output_index: u32,
        wait: &MaskWait,
    ) -> Result<Option<&TokenMask>, NotSampled> {
        let mask = self.sampler.mask(output_index, wait);
        self.last = Some((step, mask.is_ok().then_some(RowInput::Drawn(row))));
        mask
    }
}

/// Sampler states of all sequences, at most `limit`.
pub(super) struct Sequences {
    // Sampler states are boxed, because each is moved out and back in every step.
    states: HashMap<SeqId, Box<Sequence>>,
    limit: usize,
    vocab: usize,
    /// Threads that compute the masks of constrained sequences.
    masks: MaskThreads,
}

impl Sequences {
    pub(super) fn new(limit: usize, vocab: usize) -> Sequences {
        Sequences { states: HashMap::new(), limit, vocab, masks: MaskThreads::default() }
    }

    /// Creates the sampler state of a sequence, or replaces an existing one. Beyond `limit` states, creates none:
    /// sampling for the sequence then fails.
    pub(super) fn start(&mut self, start: &SeqStart) {
        if self.states.len() >= self.limit && !self.states.contains_key(&start.seq) {
            let limit = self.limit;
            tracing::error!(seq = %start.seq, limit, "too many live sequences; this sequence will fail");
            return;
        }
        let sampler = Sampler::new(start.sampling.clone(), &start.prompt, self.vocab, &self.masks);
        self.states.insert(start.seq, Box::new(Sequence { sampler, last: None }));
    }

    pub(super) fn end(&mut self, seq: SeqId) {
        self.states.remove(&seq);
    }

    pub(super) fn contains(&self, seq: SeqId) -> bool {
        self.states.contains_key(&seq)
    }

    /// Returns the sampling parameters of a sequence, if it is known.
    pub(super) fn params(&self, seq: SeqId) -> Option<&SamplingParams> {
        self.states.get(&seq).map(|state| state.sampler.params())
    }

    /// Returns the token that `step` sampled for a sequence, or the row from which the device draws it, if no later
    /// step has sampled for the sequence. The inner `None` means that nothing could be sampled in `step`.
    pub(super) fn sampled_by(&self, seq: SeqId, step: StepId) -> Option<Option<RowInput>> {
        let (last, token) = self.states.get(&seq)?.last?;
        (last == step).then_some(token)
    }

    /// Records the token that the device drew for a sequence in `step`: in the output of the sequence's constraint, and
    /// as the input of the sequence's next step, unless a later step already samples for the sequence.
    pub(super) fn drew(&mut self, seq: SeqId, step: StepId, token: TokenId) {
        let Some(state) = self.states.get_mut(&seq) else { return };
        state.sampler.record(token);
        // If a later step has already begun for the sequence, leave that step's record as it is: only a record of
        // `step` gets the token.
        if let Some((_, input)) = state.last.as_mut().filter(|(last, _)| *last == step) {
            *input = Some(RowInput::Token(token));
        }
    }

    pub(super) fn take(&mut self, seq: SeqId) -> Option<Box<Sequence>> {
        self.states.remove(&seq)
    }

    pub(super) fn put_back(&mut self, seq: SeqId, state: Box<Sequence>) {
        self.states.insert(seq, state);
    }

    pub(super) fn len(&self) -> usize {
        self.states.len()
    }
}
