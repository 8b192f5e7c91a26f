//! Emulated time of the device's streams, and the marks that the compute stream and the copy streams share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tiercel_device::StepId;
use tiercel_gpu::cuda::SLOTS;

/// Emulated time of a kernel launch or a matrix product, us.
pub const LAUNCH_US: u64 = 5;

/// Bytes that an emulated copy engine copies in one microsecond of emulated time.
pub const BYTES_PER_US: usize = 16 << 10;

/// State that the compute side and the copy side of an emulated GPU share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<State>>);

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Whether the device is lost.
    pub(crate) lost: bool,
    /// For each result slot, the step that used it last.
    pub(crate) steps: [Mark; SLOTS],
}

/// Step on the compute stream, with its begin and its end in emulated time of the compute stream.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mark {
    pub(crate) step: StepId,
    pub(crate) submitted: bool,
    pub(crate) begun_us: u64,
    pub(crate) ended_us: Option<u64>,
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the result slots and the numbers of the steps up to `after` that were submitted and have not ended.
    pub(crate) fn unended(&self, after: StepId) -> Vec<(usize, StepId)> {
        let is_held = |mark: &Mark| mark.submitted && mark.ended_us.is_none() && mark.step <= after;
        let slots = self.steps.iter().enumerate().filter(|(_, mark)| is_held(mark));
        slots.map(|(slot, mark)| (slot, mark.step)).collect()
    }

    /// Whether a step that used a result slot has ended. If another step has taken over the slot, the earlier step has
    /// ended.
    pub(crate) fn has_ended(&self, (slot, step): (usize, StepId)) -> bool {
        self.steps[slot].step != step || self.steps[slot].ended_us.is_some()
    }
}
