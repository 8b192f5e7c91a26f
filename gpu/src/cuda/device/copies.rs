//! Copy side of a GPU: a separate CUDA stream, which no step waits for, between device memory and the host pool.
#![expect(unsafe_code, reason = "bindings to the CUDA driver")]

use super::calls::driver::memory;
use super::calls::work::stream;
use super::context::{Context, is_lost, lost};
use super::pinned_host::PinnedHost;
use crate::cuda::{CopyDriver, CudaError, DevicePtr};
use cudarc::driver::sys::CUstream;
use tiercel_device::CopyDirection;

/// CUDA stream for copies of KV blocks from and to the pinned memory of the host pool.
pub struct CudaCopies {
    context: Context,
    stream: CUstream,
    host: PinnedHost,
}

// SAFETY: the CUDA stream belongs to this `CudaCopies` alone, and one thread at a time uses it.
unsafe impl Send for CudaCopies {}

impl CudaCopies {
    /// Makes a CUDA stream for copies from and to the pinned memory of the host pool.
    ///
    /// # Errors
    /// [`CudaError::Lost`].
    pub(super) fn new(context: &Context, host: PinnedHost) -> Result<CudaCopies, CudaError> {
        context.enter()?;
        // Gives the copy stream the least priority, so that steps go before copies where both need the same units of
        // the GPU.
        let (least, _) = stream::get_priority_range().map_err(lost)?;
        let stream = stream::create_with_priority(least);
        let stream = stream.map_err(lost)?;
        Ok(CudaCopies { context: context.clone(), stream, host })
    }
}

impl CopyDriver for CudaCopies {
    fn start(
        &mut self,
        direction: CopyDirection,
        device: DevicePtr,
        host: usize,
        bytes: usize,
    ) -> Result<(), CudaError> {
        self.context.enter()?;
        let mut device = device;
        for (host, bytes) in self.host.parts(host, bytes)? {
            // SAFETY: the range is inside the pinned memory, which only this stream's copies touch; the engine never has
            // two copies of one block in flight, nor compute that writes a block that is being copied. `wait` is called
            // before the engine is told that the copy ended.
            let copied = unsafe {
                match direction {
                    CopyDirection::Out => memory::copy_out(host, device.0, bytes, self.stream),
                    CopyDirection::In => memory::copy_in(device.0, host, bytes, self.stream),
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

    fn wait(&mut self) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: the CUDA stream of the copies belongs to this `CudaCopies`.
        unsafe { stream::synchronize(self.stream) }.map_err(lost)
    }
}

impl Drop for CudaCopies {
    fn drop(&mut self) {
        if self.wait().is_ok() {
            // SAFETY: the CUDA stream was made in `new`, is destroyed once, and nothing uses it any more.
            let _ = unsafe { stream::destroy(self.stream) };
        }
    }
}
