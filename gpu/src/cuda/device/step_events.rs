//! Events on the compute stream at the beginning and at the end of each step in flight. The compute side waits for the
//! ends and measures the steps; the copy side makes copies wait, on the GPU, for the steps of their fence.
#![expect(unsafe_code, reason = "bindings to the CUDA driver")]

use super::calls::work::{event, stream};
use super::context::{Context, lost};
use super::timing::elapsed_us;
use crate::cuda::{CudaError, SLOTS};
use cudarc::driver::sys::{CUevent, CUresult, CUstream};
use std::sync::{Mutex, PoisonError};
use tiercel_device::StepId;

/// Events of the steps in flight, by result slot. The compute side and the copy side share them.
pub(super) struct StepEvents {
    context: Context,
    begun: [CUevent; SLOTS],
    ended: [CUevent; SLOTS],
    /// For each result slot, the step that used it last.
    steps: Mutex<[Mark; SLOTS]>,
}

/// The step that used a result slot last.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    step: Option<StepId>,
    /// Whether the event at the end of the step is recorded, that is, whether the step was submitted.
    submitted: bool,
}

// SAFETY: CUDA events may be used from any thread in which the context is current; every user enters the context first.
unsafe impl Send for StepEvents {}
// SAFETY: CUDA events may be used by several threads at once, and the only field that changes is behind a mutex.
unsafe impl Sync for StepEvents {}

impl StepEvents {
    pub(super) fn new(context: &Context) -> Result<StepEvents, CudaError> {
        context.enter()?;
        let event = || event::create_timed().map_err(lost);
        Ok(StepEvents {
            begun: [event()?, event()?],
            ended: [event()?, event()?],
            steps: Mutex::default(),
            context: context.clone(),
        })
    }

    /// Records the beginning of a step on the compute stream.
    pub(super) fn begin(
        &self,
        slot: usize,
        step: StepId,
        stream: CUstream,
    ) -> Result<(), CudaError> {
        self.marks()[slot] = Mark { step: Some(step), submitted: false };
        // SAFETY: the event lives as long as `self`, and the CUDA stream as long as the driver, whose thread calls
        // this.
        unsafe { event::record(self.begun[slot], stream) }.map_err(lost)
    }

    /// Records the end of the step that began with the result slot.
    pub(super) fn end(&self, slot: usize, stream: CUstream) -> Result<(), CudaError> {
        // The lock is held until the event is recorded, so that no copy waits for the event of an earlier step.
        let mut marks = self.marks();
        // SAFETY: the event lives as long as `self`, and the CUDA stream as long as the driver, whose thread calls
        // this.
        unsafe { event::record(self.ended[slot], stream) }.map_err(lost)?;
        marks[slot].submitted = true;
        Ok(())
    }

    /// Whether the step that was submitted with the result slot has ended, or never will because the device failed.
    pub(super) fn has_ended(&self, slot: usize) -> bool {
        // SAFETY: the queried CUDA event belongs to `self`, so it exists during the call.
        let state = unsafe { event::query(self.ended[slot]) };
        !state.is_err_and(|error| error.is(CUresult::CUDA_ERROR_NOT_READY))
    }

    /// Waits until the latest step that uses the result slot has ended on the GPU.
    pub(super) fn wait(&self, slot: usize) -> Result<(), CudaError> {
        // SAFETY: the CUDA event belongs to `self`, so it exists during the call.
        unsafe { event::synchronize(self.ended[slot]) }.map_err(lost)
    }

    /// Returns the time on the GPU from the beginning of a step to its end, us. The end must have been waited for.
    pub(super) fn elapsed_us(&self, slot: usize) -> Result<Option<u64>, CudaError> {
        match self.marks()[slot].step {
            Some(_) => elapsed_us(self.begun[slot], self.ended[slot]),
            None => Ok(None),
        }
    }

    /// Makes later work on `stream` wait, on the GPU, for the steps up to `after` that were submitted. A step whose
    /// result slot another step has taken over has ended.
    pub(super) fn hold(&self, stream: CUstream, after: StepId) -> Result<(), CudaError> {
        let marks = self.marks();
        let is_held = |mark: &Mark| mark.submitted && mark.step.is_some_and(|step| step <= after);
        for (mark, ended) in marks.iter().zip(self.ended) {
            if is_held(mark) {
                // SAFETY: the event lives as long as `self`, and was recorded, because the step was submitted; the
                // caller owns the CUDA stream.
                unsafe { stream::wait_event(stream, ended) }.map_err(lost)?;
            }
        }
        Ok(())
    }

    fn marks(&self) -> std::sync::MutexGuard<'_, [Mark; SLOTS]> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StepEvents {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            for event in self.begun.into_iter().chain(self.ended) {
                // SAFETY: the event was made in `new` and is destroyed once; work that still waits for it goes on, as
                // the CUDA driver frees an event only when nothing needs it any more.
                let _ = unsafe { event::destroy(event) };
            }
        }
    }
}
