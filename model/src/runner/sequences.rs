//! Sampler state of the sequences the engine has started and not ended.

use crate::sampling::Sampler;
use std::collections::HashMap;
use tiercel_device::{Sampled, SeqFault, SeqId, SeqStart, StepId, TokenId};
use tiercel_gpu::RowInput;

/// State of one sequence. Survives preemption.
pub(super) struct Sequence {
    sampler: Sampler,
    /// The step that sampled last, and its token, if there was one to sample.
    last: Option<(StepId, Option<RowInput>)>,
}

impl Sequence {
    /// Samples one output and remembers it.
    pub(super) fn sample(
        &mut self,
        step: StepId,
        logits: &mut [f32],
        output_index: u32,
    ) -> Result<Sampled, SeqFault> {
        let sampled = self.sampler.sample(logits, output_index);
        let token = sampled.as_ref().ok().map(|sampled| RowInput::Token(sampled.token));
        self.last = Some((step, token));
        sampled
    }
}

impl Sequence {
    pub(super) fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// The device draws its next output from a sampled row of a step.
    pub(super) fn draws(&mut self, step: StepId, row: usize) {
        self.last = Some((step, Some(RowInput::Drawn(row))));
    }
}

/// All sequences, at most `limit`.
pub(super) struct Sequences {
    // Boxed: they are taken out and put back every step.
    states: HashMap<SeqId, Box<Sequence>>,
    limit: usize,
    vocab: usize,
}

impl Sequences {
    pub(super) fn new(limit: usize, vocab: usize) -> Sequences {
        Sequences { states: HashMap::new(), limit, vocab }
    }

    /// Creates a sequence's state; one that exists begins anew. Beyond the limit there is none, and
    /// the sequence faults when it samples.
    pub(super) fn start(&mut self, start: &SeqStart) {
        if self.states.len() >= self.limit && !self.states.contains_key(&start.seq) {
            let limit = self.limit;
            tracing::error!(seq = %start.seq, limit, "too many live sequences; this one will fail");
            return;
        }
        let sampler = Sampler::new(start.sampling.clone(), &start.prompt, self.vocab);
        self.states.insert(start.seq, Box::new(Sequence { sampler, last: None }));
    }

    pub(super) fn end(&mut self, seq: SeqId) {
        self.states.remove(&seq);
    }

    pub(super) fn contains(&self, seq: SeqId) -> bool {
        self.states.contains_key(&seq)
    }

    /// Whether the host samples for a sequence that it knows.
    pub(super) fn is_sampled_by_host(&self, seq: SeqId) -> bool {
        self.states.get(&seq).is_some_and(|state| state.sampler.draw_on_device(0, 0).is_none())
    }

    /// The token that `step` sampled for a sequence, if that was the sequence's last; `None` in it if there was none to
    /// sample.
    pub(super) fn sampled_by(&self, seq: SeqId, step: StepId) -> Option<Option<RowInput>> {
        let (last, token) = self.states.get(&seq)?.last?;
        (last == step).then_some(token)
    }

    /// The device drew this token for a sequence in a step.
    pub(super) fn drew(&mut self, seq: SeqId, step: StepId, token: TokenId) {
        let last = self.states.get_mut(&seq).and_then(|state| state.last.as_mut());
        // The step after it may have been begun.
        if let Some((_, input)) = last.filter(|(last, _)| *last == step) {
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
