//! Copy side of a GPU: a separate CUDA stream, which no step waits for, and the host pool in pinned memory.
#![expect(unsafe_code, reason = "bindings to the CUDA driver")]

use super::context::{Context, is_lost, lost, words};
use super::staging::pinned;
use crate::cuda::{CopyDriver, CudaError, DevicePtr};
use cudarc::driver::result::stream::{self, StreamKind};
use cudarc::driver::result::{free_host, memcpy_dtoh_async, memcpy_htod_async};
use cudarc::driver::sys::CUstream;
use tiercel_device::CopyDirection;

/// CUDA stream for copies of KV blocks, and the pinned host memory of the host pool.
pub struct CudaCopies {
    context: Context,
    stream: CUstream,
    host: *mut u8,
    host_bytes: usize,
}

// SAFETY: the CUDA stream and the pinned memory belong to this `CudaCopies` alone, and one thread at a time uses them.
unsafe impl Send for CudaCopies {}

impl CudaCopies {
    /// Makes a CUDA stream for copies and allocates `host_bytes` bytes of pinned memory for the host pool.
    ///
    /// # Errors
    /// [`CudaError::Memory`] if the pinned memory cannot be allocated.
    pub(super) fn new(context: &Context, host_bytes: usize) -> Result<CudaCopies, CudaError> {
        context.enter()?;
        // Gives the copy stream the least priority, so that steps go before copies where both need the same units of
        // the GPU.
        let (least, _) = stream::get_priority_range().map_err(lost)?;
        let host = if host_bytes == 0 { std::ptr::null_mut() } else { pinned(host_bytes)? };
        let stream = stream::create_with_priority(StreamKind::NonBlocking, least);
        let stream = stream.map_err(lost)?;
        Ok(CudaCopies { context: context.clone(), stream, host, host_bytes })
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
        assert!(host + bytes <= self.host_bytes, "{bytes} bytes at {host} of {}", self.host_bytes);
        self.context.enter()?;
        // SAFETY: the range is inside the pinned memory, which only this stream's copies touch; the engine never has
        // two copies of one block in flight, nor compute that writes a block that is being copied. `wait` is called
        // before the engine is told that the copy ended.
        let copied = unsafe {
            let host = std::slice::from_raw_parts_mut(self.host.add(host), bytes);
            match direction {
                CopyDirection::Out => memcpy_dtoh_async(host, device.0, self.stream),
                CopyDirection::In => memcpy_htod_async(device.0, host, self.stream),
            }
        };
        copied.map_err(|error| match is_lost(error) {
            true => lost(error),
            false => CudaError::Copy(words(error)),
        })
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
            // SAFETY: pinned memory and CUDA stream were made in `new`, are freed once, and nothing uses them any more.
            unsafe {
                if !self.host.is_null() {
                    let _ = free_host(self.host.cast());
                }
                let _ = stream::destroy(self.stream);
            }
        }
    }
}
