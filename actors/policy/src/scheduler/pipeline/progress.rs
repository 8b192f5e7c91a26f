//! Progress in flight: what steps in flight will have made of a sequence, if they succeed. The next step is planned on
//! this progress; it counts only when its step is done.

use crate::scheduler::pipeline::MAX_DEPTH;
use tiercel_device::StepId;

/// A sequence's parts of the steps in flight, in the order of the steps.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InFlightProgress {
    steps: [Option<Part>; MAX_DEPTH],
}

/// A sequence's part of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) step: StepId,
    /// Valid tokens of the sequence once the step has succeeded; `None` if the sequence lost its blocks since.
    pub(crate) computed: Option<u32>,
    /// Whether the step samples a token for the sequence.
    pub(crate) samples: bool,
}

impl InFlightProgress {
    fn parts(&self) -> impl DoubleEndedIterator<Item = &Part> {
        self.steps.iter().flatten()
    }

    /// Whether no step in flight includes the sequence.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps[0].is_none()
    }

    /// Returns the sequence's part of a step; `None` if the step does not include it, or was invalidated for it.
    pub(crate) fn part(&self, step: StepId) -> Option<Part> {
        self.parts().find(|part| part.step == step).copied()
    }

    /// Returns the number of tokens that will be valid once the steps in flight have succeeded, if `computed` tokens
    /// are valid now.
    pub(crate) fn computed(&self, computed: u32) -> u32 {
        self.parts().filter_map(|part| part.computed).next_back().unwrap_or(computed)
    }

    /// Returns the number of tokens that steps in flight are sampling.
    pub(crate) fn sampled(&self) -> u32 {
        self.parts().filter(|part| part.samples).count() as u32
    }

    /// Returns the last step in flight that samples a token for the sequence.
    pub(crate) fn last_sampling(&self) -> Option<StepId> {
        self.parts().rfind(|part| part.samples).map(|part| part.step)
    }

    /// Adds a part of one more step.
    pub(crate) fn submit(&mut self, part: Part) {
        let free = self.steps.iter_mut().find(|place| place.is_none());
        *free.expect("at most MAX_DEPTH steps are in flight") = Some(part);
    }

    /// Removes the part of a step that has ended.
    pub(crate) fn ended(&mut self, step: StepId) {
        if self.steps[0].is_some_and(|part| part.step == step) {
            self.steps.rotate_left(1);
            self.steps[MAX_DEPTH - 1] = None;
        }
    }

    /// Records that the sequence lost its blocks. Tokens that are being sampled are its next tokens all the same.
    pub(crate) fn lose_blocks(&mut self) {
        self.steps.iter_mut().flatten().for_each(|part| part.computed = None);
    }

    /// Returns, in words, a part that belongs to none of `steps`, the steps in flight; `None` if there is no such part.
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
        progress.submit(Part { step: StepId(3), computed: Some(8), samples: true });
        progress.submit(Part { step: StepId(4), computed: Some(9), samples: true });
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
}
