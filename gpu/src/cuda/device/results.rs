//! Return of sampled tokens from the GPU to the host: a few bytes per step, in pinned memory, with an event that marks
//! their arrival. Receiving a step's tokens does not wait for work requested later.
#![expect(unsafe_code, reason = "bindings to the CUDA driver")]

use super::calls::driver::memory;
use super::calls::work::event;
use super::context::{Context, lost};
use super::staging::pinned;
use crate::cuda::{CudaError, DevicePtr, SLOT_BYTES, SLOTS};
use cudarc::driver::sys::{CUevent, CUresult, CUstream};

/// Pinned memory for the tokens of the steps in flight, one result slot per step, and an event for the arrival of each
/// slot's content.
pub(super) struct Results {
    context: Context,
    memory: *mut u8,
    arrived: [CUevent; SLOTS],
}

// SAFETY: the pinned memory and the events belong to this `Results` alone, and one thread at a time uses them.
unsafe impl Send for Results {}

impl Results {
    pub(super) fn new(context: &Context) -> Result<Results, CudaError> {
        context.enter()?;
        let event = || event::create().map_err(lost);
        let arrived = [event()?, event()?];
        let memory = pinned(SLOTS * SLOT_BYTES)?;
        Ok(Results { context: context.clone(), memory, arrived })
    }

    /// Requests a copy from device memory to a result slot in stream order, and records an event after it.
    pub(super) fn send(
        &mut self,
        slot: usize,
        from: DevicePtr,
        bytes: usize,
        stream: CUstream,
    ) -> Result<(), CudaError> {
        assert!(slot < SLOTS && bytes <= SLOT_BYTES, "{bytes} bytes for slot {slot}");
        if bytes > 0 {
            // SAFETY: the result slot is inside the pinned memory, and the host does not read the slot before the event
            // recorded after this copy, because the slot's last content was received. The source is device memory of
            // the caller.
            let copied = unsafe {
                memory::copy_out(self.memory.add(slot * SLOT_BYTES), from.0, bytes, stream)
            };
            copied.map_err(|error| CudaError::Copy(error.words()))?;
        }
        // SAFETY: the event and the CUDA stream live as long as the driver that owns both.
        unsafe { event::record(self.arrived[slot], stream) }.map_err(lost)
    }

    /// Whether the content sent to a result slot has arrived, or never will because the device failed.
    pub(super) fn has_arrived(&self, slot: usize) -> bool {
        // SAFETY: the queried CUDA event belongs to `self`, so it exists during the call.
        let state = unsafe { event::query(self.arrived[slot]) };
        !state.is_err_and(|error| error.is(CUresult::CUDA_ERROR_NOT_READY))
    }

    /// Waits for the content sent to a result slot and copies it to `bytes`.
    pub(super) fn receive(&mut self, slot: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        assert!(slot < SLOTS && bytes.len() <= SLOT_BYTES, "{} bytes of slot {slot}", bytes.len());
        // SAFETY: the CUDA event belongs to this value; after the event, the GPU does not write to the result slot any
        // more.
        unsafe {
            event::synchronize(self.arrived[slot]).map_err(lost)?;
            let place = self.memory.add(slot * SLOT_BYTES);
            bytes.copy_from_slice(std::slice::from_raw_parts(place, bytes.len()));
        }
        Ok(())
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: pinned memory and events were made in `new` and are freed once; the driver waits for its CUDA
            // stream before it drops this value.
            unsafe {
                let _ = memory::free_pinned(self.memory);
                for arrived in self.arrived {
                    let _ = event::destroy(arrived);
                }
            }
        }
    }
}
