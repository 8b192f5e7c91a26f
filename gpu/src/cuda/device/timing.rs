//! Time between two events on a GPU.
#![expect(unsafe_code, reason = "bindings to the CUDA driver")]

use super::calls::driver::DriverError;
use super::calls::work::event;
use super::context::lost;
use crate::cuda::CudaError;
use cudarc::driver::sys::CUevent;

/// Returns the time on the GPU between two events that were recorded with timing and have happened on one stream, us.
/// The time may include work of other streams that the GPU does in between. `None` if the driver does not have the
/// call.
pub(super) fn elapsed_us(from: CUevent, to: CUevent) -> Result<Option<u64>, CudaError> {
    // SAFETY: the only callers, `StepEvents::elapsed_us` and `CudaCopies::end`, own the events, so the events exist
    // during the call. The CUDA driver returns an error for an event without timing, that was not recorded, or that has
    // not happened yet.
    match unsafe { event::elapsed_ms(from, to) } {
        Ok(ms) => Ok(Some((f64::from(ms) * 1e3).round() as u64)),
        Err(DriverError::Absent(_)) => Ok(None),
        Err(error) => Err(lost(error)),
    }
}
