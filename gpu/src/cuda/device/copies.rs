//! Copy side of a GPU: a CUDA stream for each direction, which no step waits for, between device memory and the host
//! pool. A GPU has a copy engine for each direction, so copies out and copies in run at once.
#![expect(unsafe_code, reason = "bindings to the CUDA driver")]

use super::calls::driver::memory;
use super::calls::work::{event, stream};
use super::context::{Context, is_lost, lost};
use super::pinned_host::PinnedHost;
use super::step_events::StepEvents;
use super::timing::elapsed_us;
use crate::cuda::{CopyDriver, CudaError, DevicePtr};
use cudarc::driver::sys::{CUevent, CUresult, CUstream};
use std::sync::Arc;
use tiercel_device::{COPIES_IN_FLIGHT, CopyDirection, StepId};

/// CUDA streams for copies of KV blocks from and to the pinned memory of the host pool.
pub struct CudaCopies {
    context: Context,
    steps: Arc<StepEvents>,
    directions: [DirectionState; 2],
    host: PinnedHost,
}

/// One direction of copies.
struct DirectionState {
    stream: CUstream,
    /// Events at the beginning and at the end of each batch in flight. A batch takes the pair after that of the batch
    /// before.
    events: [(CUevent, CUevent); COPIES_IN_FLIGHT],
    /// Number of batches begun so far.
    begun: usize,
    /// Number of batches ended so far.
    ended: usize,
}

// SAFETY: the CUDA streams and the events of the batches belong to this `CudaCopies` alone, and one thread at a time
// uses them.
unsafe impl Send for CudaCopies {}

impl CudaCopies {
    /// Makes the CUDA streams for copies from and to the pinned memory of the host pool. `steps` are the events of the
    /// compute side.
    ///
    /// # Errors
    /// [`CudaError::Lost`].
    pub(super) fn new(
        context: &Context,
        steps: &Arc<StepEvents>,
        host: PinnedHost,
    ) -> Result<CudaCopies, CudaError> {
        context.enter()?;
        let directions = [DirectionState::new()?, DirectionState::new()?];
        let (context, steps) = (context.clone(), Arc::clone(steps));
        Ok(CudaCopies { context, steps, directions, host })
    }
}

impl DirectionState {
    fn new() -> Result<DirectionState, CudaError> {
        // Gives the copy streams the least priority, so that steps go before copies where both need the same units of
        // the GPU.
        let (least, _) = stream::get_priority_range().map_err(lost)?;
        let stream = stream::create_with_priority(least).map_err(lost)?;
        let event = || event::create_timed().map_err(lost);
        let events = [(event()?, event()?), (event()?, event()?)];
        Ok(DirectionState { stream, events, begun: 0, ended: 0 })
    }

    /// Returns the events of the batch begun last.
    fn newest(&self) -> (CUevent, CUevent) {
        self.events[(self.begun + COPIES_IN_FLIGHT - 1) % COPIES_IN_FLIGHT]
    }

    /// Returns the events of the oldest batch in flight.
    fn oldest(&self) -> (CUevent, CUevent) {
        assert!(self.ended < self.begun, "no batch is in flight");
        self.events[self.ended % COPIES_IN_FLIGHT]
    }
}

impl CopyDriver for CudaCopies {
    fn begin(&mut self, direction: CopyDirection, after: StepId) -> Result<(), CudaError> {
        self.context.enter()?;
        let state = &mut self.directions[direction.index()];
        assert!(state.begun - state.ended < COPIES_IN_FLIGHT, "more batches than may be in flight");
        self.steps.hold(state.stream, after)?;
        state.begun += 1;
        // SAFETY: the event and the CUDA stream belong to `self`; the batch that used the event before has ended.
        unsafe { event::record(state.newest().0, state.stream) }.map_err(lost)
    }

    fn add(
        &mut self,
        direction: CopyDirection,
        device: DevicePtr,
        host: usize,
        bytes: usize,
    ) -> Result<(), CudaError> {
        self.context.enter()?;
        let stream = self.directions[direction.index()].stream;
        let mut device = device;
        for (host, bytes) in self.host.parts(host, bytes)? {
            // SAFETY: the host range is inside the pinned memory, which only the copies of this value touch and which
            // `self.host` keeps pinned. The device range is inside the KV cache, because `CudaCopier` checks the block
            // numbers of each batch. The driver frees the KV cache only when no batch is in flight: `Driver::host_pool`
            // demands this order. The engine never has two copies of one block in flight, and submits no step that
            // writes a block while the block is copied. The stream waits for the fence of the batch, which includes
            // every earlier step that writes the block. The engine learns that the copy has ended only after the event
            // that `close` records.
            let copied = unsafe {
                match direction {
                    CopyDirection::Out => memory::copy_out(host, device.0, bytes, stream),
                    CopyDirection::In => memory::copy_in(device.0, host, bytes, stream),
                }
            };
            copied.map_err(|error| match is_lost(error) {
                true => lost(error),
                false => CudaError::Copy(error.words()),
            })?;
            device = device.offset(bytes);
        }
        Ok(())
    }

    fn close(&mut self, direction: CopyDirection) -> Result<(), CudaError> {
        self.context.enter()?;
        let state = &self.directions[direction.index()];
        // SAFETY: the event and the CUDA stream belong to `self`; the batch that used the event before has ended.
        unsafe { event::record(state.newest().1, state.stream) }.map_err(lost)
    }

    fn has_ended(&mut self, direction: CopyDirection) -> bool {
        if self.context.enter().is_err() {
            return true;
        }
        let (_, ended) = self.directions[direction.index()].oldest();
        // SAFETY: the queried CUDA event belongs to `self`, so it exists during the call.
        let state = unsafe { event::query(ended) };
        !state.is_err_and(|error| error.is(CUresult::CUDA_ERROR_NOT_READY))
    }

    fn end(&mut self, direction: CopyDirection) -> Result<u64, CudaError> {
        self.context.enter()?;
        let state = &mut self.directions[direction.index()];
        let (begun, ended) = state.oldest();
        state.ended += 1;
        // SAFETY: the CUDA event belongs to `self`, so it exists during the call.
        unsafe { event::synchronize(ended) }.map_err(lost)?;
        // If the driver lacks the call, no time is measured, and the engine keeps its estimate of the link's speed.
        Ok(elapsed_us(begun, ended)?.unwrap_or(0))
    }
}

impl Drop for CudaCopies {
    fn drop(&mut self) {
        // Destroys streams and events only if the device still works; NVIDIA's driver frees those of a lost device by
        // itself.
        let entered = self.context.enter().is_ok();
        // SAFETY: the CUDA streams belong to this value.
        let idle = |state: &DirectionState| unsafe { stream::synchronize(state.stream) }.is_ok();
        if !(entered && self.directions.iter().all(idle)) {
            return;
        }
        for state in &self.directions {
            for event in state.events.into_iter().flat_map(|(begun, ended)| [begun, ended]) {
                // SAFETY: the event was made in `DirectionState::new`, is destroyed once, and no work uses it any more.
                let _ = unsafe { event::destroy(event) };
            }
            // SAFETY: the CUDA stream was made in `DirectionState::new`, is destroyed once, and is idle.
            let _ = unsafe { stream::destroy(state.stream) };
        }
    }
}
