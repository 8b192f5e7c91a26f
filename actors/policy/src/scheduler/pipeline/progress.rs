//! Progress in flight: the state in which the steps in flight will leave a sequence, if they succeed. The next step is
//! planned for that state; the progress counts only once its step has succeeded.

use crate::scheduler::pipeline::MAX_DEPTH;
use tiercel_device::StepId;

/// What each step in flight computes of one sequence, in the order of the steps.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InFlightProgress {
    steps: [Option<Part>; MAX_DEPTH],
}

/// What one step in flight computes of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) step: StepId,
    /// Number of tokens with valid KV once the step has succeeded; `None` if the sequence was preempted since and lost
    /// its blocks.
    pub(crate) computed: Option<u32>,
    /// Whether the step samples a token for the sequence.
    pub(crate) samples: bool,
    /// Whether the part does not count, because its input is a token that was not drawn: the draw was postponed.
    pub(crate) void: bool,
}

impl InFlightProgress {
    fn parts(&self) -> impl DoubleEndedIterator<Item = &Part> {
        self.steps.iter().flatten()
    }

    /// Returns the parts that count.
    fn valid(&self) -> impl DoubleEndedIterator<Item = &Part> {
        self.parts().filter(|part| !part.void)
    }

    /// Whether the sequence has no part of a step in flight, not even a void one. A failed step removes the parts of
    /// all its sequences, also those of later steps that are still in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps[0].is_none()
    }

    /// Returns what a step computes of the sequence; `None` if the step does not include the sequence, or its result
    /// for the sequence was invalidated or is void.
    pub(crate) fn part(&self, step: StepId) -> Option<Part> {
        self.valid().find(|part| part.step == step).copied()
    }

    /// Makes what later steps than `step` compute of the sequence void. The parts stay until their steps end.
    pub(crate) fn void_after(&mut self, step: StepId) {
        let later = self.steps.iter_mut().flatten().filter(|part| part.step > step);
        later.for_each(|part| part.void = true);
    }

    /// Returns the number of tokens with valid KV once the steps in flight have succeeded; `computed` is their number
    /// now.
    pub(crate) fn computed(&self, computed: u32) -> u32 {
        self.valid().filter_map(|part| part.computed).next_back().unwrap_or(computed)
    }

    /// Returns the number of output tokens that steps in flight are sampling for the sequence.
    pub(crate) fn sampled(&self) -> u32 {
        self.valid().filter(|part| part.samples).count() as u32
    }

    /// Returns the last step in flight that samples a token for the sequence.
    pub(crate) fn last_sampling(&self) -> Option<StepId> {
        self.valid().rfind(|part| part.samples).map(|part| part.step)
    }

    /// Records that one more step was submitted that computes tokens of the sequence; `part` says which step and which
    /// tokens.
    pub(crate) fn submit(&mut self, part: Part) {
        let free = self.steps.iter_mut().find(|place| place.is_none());
        *free.expect("at most MAX_DEPTH steps are in flight") = Some(part);
    }

    /// Removes the part of a step that has ended, if it is the sequence's first step in flight.
    pub(crate) fn ended(&mut self, step: StepId) {
        if self.steps[0].is_some_and(|part| part.step == step) {
            self.steps.rotate_left(1);
            self.steps[MAX_DEPTH - 1] = None;
        }
    }

    /// Records that the sequence was preempted: steps in flight make no KV valid any more, but the tokens that they
    /// sample still count.
    pub(crate) fn lose_blocks(&mut self) {
        self.steps.iter_mut().flatten().for_each(|part| part.computed = None);
    }

    /// Checks that every step whose result the sequence waits for is one of `steps`, the steps in flight. Returns an
    /// error text that names a step that is not; `None` if all are in flight.
    pub(crate) fn violation(&self, mut steps: impl Iterator<Item = StepId>) -> Option<String> {
        let lost = self.parts().find(|part| !steps.any(|step| step == part.step))?;
        Some(format!("waits for {}, which is not in flight", lost.step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_leave_in_the_order_of_their_steps_and_sampled_tokens_outlive_blocks() {
        let mut progress = InFlightProgress::default();
        assert_eq!((progress.computed(5), progress.sampled()), (5, 0));
        progress.submit(Part { step: StepId(3), computed: Some(8), samples: true, void: false });
        progress.submit(Part { step: StepId(4), computed: Some(9), samples: true, void: false });
        assert_eq!((progress.computed(5), progress.sampled()), (9, 2));
        assert_eq!(progress.last_sampling(), Some(StepId(4)));
        progress.ended(StepId(4));
        assert_eq!(progress.sampled(), 2, "the first is still under way");
        progress.ended(StepId(3));
        assert_eq!((progress.part(StepId(3)), progress.sampled()), (None, 1));
        progress.lose_blocks();
        assert_eq!((progress.computed(0), progress.sampled()), (0, 1));
        assert_eq!(progress.violation([StepId(4)].into_iter()), None);
        assert!(progress.violation([StepId(3), StepId(5)].into_iter()).is_some());
    }

    #[test]
    fn a_void_part_counts_for_nothing_but_stays_until_its_step_ends() {
        let mut progress = InFlightProgress::default();
        progress.submit(Part { step: StepId(3), computed: Some(8), samples: true, void: false });
        progress.submit(Part { step: StepId(4), computed: Some(9), samples: true, void: false });
        progress.void_after(StepId(3));
        assert_eq!((progress.computed(5), progress.sampled()), (8, 1));
        assert_eq!(progress.last_sampling(), Some(StepId(3)));
        assert!(progress.part(StepId(4)).is_none());
        progress.ended(StepId(3));
        assert!(!progress.is_empty());
        progress.ended(StepId(4));
        assert!(progress.is_empty());
    }
}
