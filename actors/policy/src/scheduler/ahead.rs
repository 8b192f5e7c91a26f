//! What steps in flight will have made of a sequence, if they succeed. The next step is planned on it; nothing of it is
//! believed before the step is done.

use crate::scheduler::pipeline::MAX_DEPTH;
use crate::scheduler::sequence::{Phase, Sequence};
use tiercel_device::StepId;

/// The steps in flight that a sequence is in, in order.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ahead {
    steps: [Option<Part>; MAX_DEPTH],
}

/// A sequence's part of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) step: StepId,
    /// Valid tokens once the step has succeeded; `None` once the blocks they are in were taken.
    pub(crate) computed: Option<u32>,
    /// Whether it samples a token.
    pub(crate) samples: bool,
}

impl Ahead {
    fn parts(&self) -> impl DoubleEndedIterator<Item = &Part> {
        self.steps.iter().flatten()
    }

    /// Whether it is in no step.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps[0].is_none()
    }

    /// Its part of a step, if the step was not in vain for it.
    pub(crate) fn part(&self, step: StepId) -> Option<Part> {
        self.parts().find(|part| part.step == step).copied()
    }

    /// Tokens that will be valid, of which `computed` are now.
    pub(crate) fn computed(&self, computed: u32) -> u32 {
        self.parts().filter_map(|part| part.computed).next_back().unwrap_or(computed)
    }

    /// Tokens that are being sampled.
    pub(crate) fn sampled(&self) -> u32 {
        self.parts().filter(|part| part.samples).count() as u32
    }

    /// The step that samples the last of them.
    pub(crate) fn last_sampling(&self) -> Option<StepId> {
        self.parts().rfind(|part| part.samples).map(|part| part.step)
    }

    /// It is in one more step.
    pub(crate) fn submit(&mut self, part: Part) {
        let free = self.steps.iter_mut().find(|place| place.is_none());
        *free.expect("no more steps are in flight than there are places") = Some(part);
    }

    /// A step has ended.
    pub(crate) fn ended(&mut self, step: StepId) {
        if self.steps[0].is_some_and(|part| part.step == step) {
            self.steps.rotate_left(1);
            self.steps[MAX_DEPTH - 1] = None;
        }
    }

    /// Its blocks were taken. What is being sampled is its next token all the same.
    pub(crate) fn lose_blocks(&mut self) {
        self.steps.iter_mut().flatten().for_each(|part| part.computed = None);
    }

    /// A step it was in failed: what follows was computed in vain.
    pub(crate) fn clear(&mut self) {
        *self = Ahead::default();
    }

    /// Why it cannot be right, if so: `steps` are in flight.
    pub(crate) fn violation(&self, mut steps: impl Iterator<Item = StepId>) -> Option<String> {
        let lost = self.parts().find(|part| !steps.any(|step| step == part.step))?;
        Some(format!("waits for {}, which is not in flight", lost.step))
    }
}

impl Sequence {
    /// Known tokens, and those that are being sampled.
    pub(crate) fn planned_len(&self) -> u32 {
        self.len() + self.ahead.sampled()
    }

    /// Tokens whose KV will be valid when the steps in flight have succeeded.
    pub(crate) fn planned_computed(&self) -> u32 {
        self.ahead.computed(self.computed)
    }

    /// Output tokens so far, and those that are being sampled.
    pub(crate) fn planned_output(&self) -> u32 {
        self.planned_len() - self.prompt_len()
    }

    /// Whether it may be in a step as it is; not if a token that is being sampled is its last.
    pub(crate) fn runnable(&self, max_model_len: u32) -> bool {
        let ends = !self.ahead.is_empty() && self.ends_at(self.planned_len(), max_model_len);
        self.phase == Phase::Running && !self.held() && !ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_leave_in_the_order_of_their_steps_and_sampled_tokens_outlive_blocks() {
        let mut ahead = Ahead::default();
        assert_eq!((ahead.computed(5), ahead.sampled()), (5, 0));
        ahead.submit(Part { step: StepId(3), computed: Some(8), samples: true });
        ahead.submit(Part { step: StepId(4), computed: Some(9), samples: true });
        assert_eq!((ahead.computed(5), ahead.sampled()), (9, 2));
        assert_eq!(ahead.last_sampling(), Some(StepId(4)));
        ahead.ended(StepId(4));
        assert_eq!(ahead.sampled(), 2, "the first is still under way");
        ahead.ended(StepId(3));
        assert_eq!((ahead.part(StepId(3)), ahead.sampled()), (None, 1));
        ahead.lose_blocks();
        assert_eq!((ahead.computed(0), ahead.sampled()), (0, 1));
        assert_eq!(ahead.violation([StepId(4)].into_iter()), None);
        assert!(ahead.violation([StepId(3), StepId(5)].into_iter()).is_some());
    }
}
