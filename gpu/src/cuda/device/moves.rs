//! Moves bytes between pinned host memory and device memory, in the order of the compute stream.
//!
//! A GPU has few copy engines, and a copy engine finishes one copy before it begins the next, whichever streams they
//! are of. So a step's few bytes would wait for gigabytes of KV blocks: on an H100, decode steps took three times as
//! long beside copies of 2 GiB. A kernel moves small ranges instead: it reads and writes pinned memory over the same
//! link, but waits for no copy engine.
#![expect(unsafe_code, reason = "bindings to the CUDA driver")]

use super::calls::driver::{DriverError, memory};
use super::calls::work::kernel;
use super::context::{is_lost, lost};
use crate::cuda::{CudaError, DevicePtr};
use cudarc::driver::sys::{CUfunction, CUstream};
use std::ffi::c_void;

/// Name of the kernel that moves words of 32 bits.
pub(super) const MOVE_WORDS: &str = "move_words";
/// Largest range that the kernel moves, bytes: the masks of 256 rows for a vocabulary of 131,072 tokens. A copy engine
/// moves larger ranges faster.
pub(super) const BY_KERNEL_BYTES: usize = 4 << 20;
/// Threads of a thread block of the kernel.
const THREADS: u32 = 256;
/// Most thread blocks of the kernel. Each thread moves several words if the range has more.
const BLOCKS_MAX: usize = 256;

/// Way in which bytes are moved on a CUDA stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moves {
    stream: CUstream,
    /// Kernel that moves words; `None` before the kernels are loaded, when copy engines move all bytes.
    kernel: Option<CUfunction>,
}

impl Moves {
    /// Makes moves on a CUDA stream, at first by copy engines alone.
    pub(super) fn new(stream: CUstream) -> Moves {
        Moves { stream, kernel: None }
    }

    /// Lets the kernel `move_words` move small ranges from now on.
    pub(super) fn use_kernel(&mut self, kernel: CUfunction) {
        self.kernel = Some(kernel);
    }

    /// Returns the stream of the moves.
    pub(super) fn stream(self) -> CUstream {
        self.stream
    }

    /// Moves bytes from pinned host memory to device memory.
    ///
    /// # Safety
    /// Both ranges have `bytes` bytes, live until the stream has reached the move, and are not written until then.
    pub(super) unsafe fn to_device(
        self,
        to: DevicePtr,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), CudaError> {
        // Pinned memory has the same address on the device as on the host.
        match self.kernel_for(to.0 | from as u64, bytes) {
            // SAFETY: the caller's promise.
            Some(kernel) => unsafe { self.launch(kernel, to.0, from as u64, bytes) },
            // SAFETY: the caller's promise.
            None => refused(unsafe { memory::copy_in(to.0, from, bytes, self.stream) }),
        }
    }

    /// Moves bytes from device memory to pinned host memory.
    ///
    /// # Safety
    /// As for [`Moves::to_device`]; and the host does not read its range until the stream has reached the move.
    pub(super) unsafe fn to_host(
        self,
        to: *mut u8,
        from: DevicePtr,
        bytes: usize,
    ) -> Result<(), CudaError> {
        match self.kernel_for(to as u64 | from.0, bytes) {
            // SAFETY: the caller's promise.
            Some(kernel) => unsafe { self.launch(kernel, to as u64, from.0, bytes) },
            // SAFETY: the caller's promise.
            None => refused(unsafe { memory::copy_out(to, from.0, bytes, self.stream) }),
        }
    }

    /// Returns the kernel if it is loaded and can move the range; `addresses` is the bitwise or of both addresses.
    fn kernel_for(self, addresses: u64, bytes: usize) -> Option<CUfunction> {
        let whole_words = addresses.is_multiple_of(4) && bytes.is_multiple_of(4);
        self.kernel.filter(|_| whole_words && (1..=BY_KERNEL_BYTES).contains(&bytes))
    }

    /// # Safety
    /// The kernel is `move_words` and stays loaded; the rest is the promise of [`Moves::to_device`].
    unsafe fn launch(
        self,
        kernel: CUfunction,
        mut to: u64,
        mut from: u64,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let mut words = (bytes / 4) as u64;
        let mut args: [*mut c_void; 3] =
            [(&raw mut from).cast(), (&raw mut to).cast(), (&raw mut words).cast()];
        let blocks = (words as usize).div_ceil(THREADS as usize).min(BLOCKS_MAX) as u32;
        // SAFETY: the arguments have the number and types that the kernel has, and the driver copies them before it
        // returns; the rest is the caller's promise.
        refused(unsafe { kernel::launch(kernel, (blocks, 1), THREADS, 0, self.stream, &mut args) })
    }
}

/// Converts the outcome of a requested move.
fn refused(outcome: Result<(), DriverError>) -> Result<(), CudaError> {
    outcome.map_err(|error| match is_lost(error) {
        true => lost(error),
        false => CudaError::Copy(error.words()),
    })
}
