//! Pinned memory that uploads go through: the GPU reads it by itself, and the caller's bytes may be reused at once.
#![expect(unsafe_code, reason = "bindings to the CUDA driver")]

use super::context::{Context, lost, words};
use crate::cuda::{CudaError, DevicePtr};
use cudarc::driver::result::{
    event, free_host, malloc_host, memcpy_dtoh_async, memcpy_htod_async, stream,
};
use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream};

/// Bytes of a half. Long copies fill one half while the GPU reads the other.
const HALF_BYTES: usize = 8 << 20;

/// Two halves, filled in turn.
pub(super) struct Staging {
    context: Context,
    memory: *mut u8,
    /// When the GPU has read each half.
    read: [CUevent; 2],
    half: usize,
    used: usize,
}

// SAFETY: the memory and the events are this value's own, and used by one thread at a time.
unsafe impl Send for Staging {}

impl Staging {
    pub(super) fn new(context: &Context) -> Result<Staging, CudaError> {
        context.enter()?;
        let event = || event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(lost);
        let read = [event()?, event()?];
        let memory = pinned(2 * HALF_BYTES)?;
        Ok(Staging { context: context.clone(), memory, read, half: 0, used: 0 })
    }

    /// Copies to the device in stream order.
    pub(super) fn upload(
        &mut self,
        to: DevicePtr,
        bytes: &[u8],
        stream: CUstream,
    ) -> Result<(), CudaError> {
        let mut to = to;
        for chunk in bytes.chunks(HALF_BYTES) {
            if self.used + chunk.len() > HALF_BYTES {
                self.turn(stream)?;
            }
            let at = self.half * HALF_BYTES + self.used;
            // SAFETY: the place is inside the half, whose earlier copies either lie before it or have been read: `turn`
            // waited for that. Nobody else has the memory.
            let staged = unsafe {
                let place = self.memory.add(at);
                std::ptr::copy_nonoverlapping(chunk.as_ptr(), place, chunk.len());
                std::slice::from_raw_parts(place, chunk.len())
            };
            // SAFETY: the staged bytes stay as they are until the half is filled again; the destination is device memory
            // of the caller.
            unsafe { memcpy_htod_async(to.0, staged, stream) }
                .map_err(|error| CudaError::Copy(words(error)))?;
            // The next one starts on a cache line.
            self.used += chunk.len().next_multiple_of(64);
            to = to.offset(chunk.len());
        }
        Ok(())
    }

    /// Waits for all that was asked for and copies from the device: by way of the half that is not filled, since the GPU
    /// writes pinned memory at the link's speed and other memory much slower.
    pub(super) fn download(
        &mut self,
        from: DevicePtr,
        bytes: &mut [u8],
        stream: CUstream,
    ) -> Result<(), CudaError> {
        self.turn(stream)?;
        let mut from = from;
        for chunk in bytes.chunks_mut(HALF_BYTES) {
            // SAFETY: the half is this value's own, the GPU has read what it held, and it is waited for before the memory
            // is read. The source is device memory of the caller.
            unsafe {
                let place = self.memory.add(self.half * HALF_BYTES);
                let staged = std::slice::from_raw_parts_mut(place, chunk.len());
                let copied = memcpy_dtoh_async(staged, from.0, stream);
                stream::synchronize(stream).map_err(lost)?;
                copied.map_err(|error| CudaError::Copy(words(error)))?;
                chunk.copy_from_slice(staged);
            }
            from = from.offset(chunk.len());
        }
        Ok(())
    }

    /// Goes on with the other half, once the GPU has read it.
    fn turn(&mut self, stream: CUstream) -> Result<(), CudaError> {
        // SAFETY: events and stream live as long as the driver that owns both.
        unsafe {
            event::record(self.read[self.half], stream).map_err(lost)?;
            self.half ^= 1;
            self.used = 0;
            // One that was never recorded is over.
            event::synchronize(self.read[self.half]).map_err(lost)
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made in `new`, given back once; the driver waits for its stream before it drops this.
            unsafe {
                let _ = free_host(self.memory.cast());
                for read in self.read {
                    let _ = event::destroy(read);
                }
            }
        }
    }
}

/// Pinned host memory, of the plain kind: write-combined memory crawls when the host reads it.
pub(super) fn pinned(bytes: usize) -> Result<*mut u8, CudaError> {
    // SAFETY: a fresh allocation, given back by whoever asked for it.
    let memory = unsafe { malloc_host(bytes, 0) };
    memory.map(<*mut _>::cast).map_err(|error| CudaError::Memory {
        bytes,
        what: "pinned host",
        why: words(error),
    })
}
