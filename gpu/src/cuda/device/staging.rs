//! Pinned staging memory on the host for uploads to and downloads from the GPU. Uploaded bytes are copied to it, so the
//! caller may reuse them as soon as an upload is requested, although the GPU reads later.
#![expect(unsafe_code, reason = "bindings to the CUDA driver")]

use super::calls::driver::memory;
use super::calls::work::{event, stream};
use super::context::{Context, lost};
use super::moves::{BY_KERNEL_BYTES, Moves};
use crate::cuda::{CudaError, DevicePtr};
use cudarc::driver::sys::{CUevent, CUstream};

/// Size of one half of the staging memory, bytes. A long copy fills one half while the GPU reads the other.
const HALF_BYTES: usize = 8 << 20;

/// Pinned staging memory in two halves. Uploads to the device fill the halves alternately.
pub(super) struct Staging {
    context: Context,
    memory: *mut u8,
    /// For each half of the staging memory, the event that marks that the GPU has read it.
    read: [CUevent; 2],
    half: usize,
    used: usize,
}

// SAFETY: the staging memory and the events belong to this value alone, and one thread at a time uses them.
unsafe impl Send for Staging {}

impl Staging {
    pub(super) fn new(context: &Context) -> Result<Staging, CudaError> {
        context.enter()?;
        let event = || event::create().map_err(lost);
        let read = [event()?, event()?];
        let memory = pinned(2 * HALF_BYTES)?;
        Ok(Staging { context: context.clone(), memory, read, half: 0, used: 0 })
    }

    /// Uploads bytes through the staging memory to device memory, in stream order.
    pub(super) fn upload(
        &mut self,
        to: DevicePtr,
        bytes: &[u8],
        moves: Moves,
    ) -> Result<(), CudaError> {
        let mut to = to;
        for chunk in bytes.chunks(HALF_BYTES) {
            if self.used + chunk.len() > HALF_BYTES {
                self.turn(moves.stream())?;
            }
            let at = self.half * HALF_BYTES + self.used;
            // SAFETY: the destination is inside the current half of the staging memory. Earlier copies of the half
            // either lie before the destination or have been read by the GPU: `turn` waited for that. No other value
            // uses the memory.
            let staged = unsafe {
                let place = self.memory.add(at);
                std::ptr::copy_nonoverlapping(chunk.as_ptr(), place, chunk.len());
                place
            };
            // SAFETY: the staged bytes do not change until their half of the staging memory is filled again; the
            // destination is device memory of the caller.
            unsafe { moves.to_device(to, staged, chunk.len()) }?;
            // Rounds up the filled part of the staging memory, so that the next upload starts on a cache line of 64
            // bytes.
            self.used += chunk.len().next_multiple_of(64);
            to = to.offset(chunk.len());
        }
        Ok(())
    }

    /// Waits for all requested work, then copies from device memory to `bytes` through the half of the staging memory
    /// that is not being filled: the GPU writes pinned memory at the link's speed, and other memory much slower.
    pub(super) fn download(
        &mut self,
        from: DevicePtr,
        bytes: &mut [u8],
        moves: Moves,
    ) -> Result<(), CudaError> {
        let stream = moves.stream();
        self.turn(stream)?;
        let mut from = from;
        for chunk in bytes.chunks_mut(BY_KERNEL_BYTES) {
            // SAFETY: the half of the staging memory belongs to this value, the GPU has read its earlier content, and
            // the stream is synchronized before the host reads the memory. The source is device memory of the caller.
            unsafe {
                let place = self.memory.add(self.half * HALF_BYTES);
                let moved = moves.to_host(place, from, chunk.len());
                stream::synchronize(stream).map_err(lost)?;
                moved?;
                chunk.copy_from_slice(std::slice::from_raw_parts(place, chunk.len()));
            }
            from = from.offset(chunk.len());
        }
        Ok(())
    }

    /// Switches uploads to the other half of the staging memory, after waiting until the GPU has read it.
    fn turn(&mut self, stream: CUstream) -> Result<(), CudaError> {
        // SAFETY: the events and the CUDA stream live as long as the driver that owns both.
        unsafe {
            event::record(self.read[self.half], stream).map_err(lost)?;
            self.half ^= 1;
            self.used = 0;
            // Waits until the GPU has read the half that is filled next; for an event that was never recorded, this
            // returns at once.
            event::synchronize(self.read[self.half]).map_err(lost)
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: staging memory and events were made in `new` and are freed once; the driver waits for its CUDA
            // stream before it drops this value.
            unsafe {
                let _ = memory::free_pinned(self.memory);
                for read in self.read {
                    let _ = event::destroy(read);
                }
            }
        }
    }
}

/// Allocates pinned host memory, cached rather than write-combined: the host reads write-combined memory very slowly.
pub(super) fn pinned(bytes: usize) -> Result<*mut u8, CudaError> {
    memory::allocate_pinned(bytes).map_err(|error| CudaError::Memory {
        bytes,
        what: "pinned host",
        why: error.words(),
    })
}
