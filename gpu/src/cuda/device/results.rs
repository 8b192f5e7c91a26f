//! Return of sampled tokens from the GPU to the host: a few bytes per step, in pinned memory. The event at the end of
//! the step marks their arrival. Receiving a step's tokens does not wait for work requested later.
#![expect(unsafe_code, reason = "bindings to the CUDA driver")]

use super::calls::driver::memory;
use super::context::Context;
use super::moves::Moves;
use super::staging::pinned;
use super::step_events::StepEvents;
use crate::cuda::{CudaError, DevicePtr, SLOT_BYTES, SLOTS};
use std::sync::Arc;

/// Pinned memory for the tokens of the steps in flight, one result slot per step, and the events of these steps.
pub(super) struct Results {
    context: Context,
    memory: *mut u8,
    events: Arc<StepEvents>,
}

// SAFETY: the pinned memory belongs to this `Results` alone, one thread at a time uses it, and the events may be used
// from any thread.
unsafe impl Send for Results {}

impl Results {
    pub(super) fn new(context: &Context) -> Result<Results, CudaError> {
        let events = Arc::new(StepEvents::new(context)?);
        let memory = pinned(SLOTS * SLOT_BYTES)?;
        Ok(Results { context: context.clone(), memory, events })
    }

    /// Returns the events of the steps in flight.
    pub(super) fn events(&self) -> &Arc<StepEvents> {
        &self.events
    }

    /// Requests a move from device memory to a result slot in stream order, and records the end of the step after it.
    pub(super) fn send(
        &mut self,
        slot: usize,
        from: DevicePtr,
        bytes: usize,
        moves: Moves,
    ) -> Result<(), CudaError> {
        assert!(slot < SLOTS && bytes <= SLOT_BYTES, "{bytes} bytes for slot {slot}");
        if bytes > 0 {
            // SAFETY: the result slot is inside the pinned memory, and the host does not read the slot before the event
            // recorded after this move, because the slot's last content was received. The source is device memory of
            // the caller.
            unsafe { moves.to_host(self.memory.add(slot * SLOT_BYTES), from, bytes) }?;
        }
        self.events.end(slot, moves.stream())
    }

    /// Waits for the content sent to a result slot and copies it to `bytes`.
    pub(super) fn receive(&mut self, slot: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        assert!(slot < SLOTS && bytes.len() <= SLOT_BYTES, "{} bytes of slot {slot}", bytes.len());
        self.events.wait(slot)?;
        // SAFETY: the range is inside the pinned memory, and after the event at the end of the step the GPU does not
        // write to the result slot any more.
        let sent =
            unsafe { std::slice::from_raw_parts(self.memory.add(slot * SLOT_BYTES), bytes.len()) };
        bytes.copy_from_slice(sent);
        Ok(())
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: the pinned memory was made in `new` and is freed once; the driver waits for its CUDA stream
            // before it drops this value.
            let _ = unsafe { memory::free_pinned(self.memory) };
        }
    }
}
