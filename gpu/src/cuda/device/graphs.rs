//! CUDA graphs: launches and matrix products that are captured from a CUDA stream once and then replayed by one call.
#![expect(unsafe_code, reason = "bindings to the CUDA driver")]

use super::calls::driver::DriverError;
use super::calls::work::{graph, stream};
use crate::cuda::CudaError;
use cudarc::driver::sys::{CUgraphExec, CUstream, CUstreamCaptureMode};
use std::collections::HashMap;

/// All CUDA graphs that were captured from one CUDA stream, by their numbers.
#[derive(Default)]
pub(super) struct Graphs {
    made: HashMap<usize, CUgraphExec>,
    next: usize,
}

// SAFETY: the CUDA graphs belong to this `Graphs` alone, and one thread at a time uses them.
unsafe impl Send for Graphs {}

impl Graphs {
    /// Captures a CUDA graph of the work that `ask` requests on the stream. The work does not run.
    pub(super) fn capture(
        stream: CUstream,
        ask: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<CUgraphExec, CudaError> {
        // Captures calls of this thread only, so that the copy thread can go on meanwhile.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the CUDA stream belongs to the driver, and no capture of it is active.
        unsafe { stream::begin_capture(stream, mode) }.map_err(refused)?;
        let asked = ask();
        // SAFETY: this function began the capture of the stream; it must be ended even if `ask` failed.
        let captured = unsafe { stream::end_capture(stream) }.map_err(refused)?;
        let made = match asked {
            // SAFETY: the graph was captured just now; the executable graph made of it stays valid when the captured
            // one is destroyed.
            Ok(()) => unsafe { graph::instantiate(captured) }.map_err(refused),
            Err(error) => Err(error),
        };
        // SAFETY: the captured graph is not used after its destruction; the executable graph stays valid.
        let _ = unsafe { graph::destroy(captured) };
        made
    }

    pub(super) fn keep(&mut self, graph: CUgraphExec) -> usize {
        let number = self.next;
        self.next += 1;
        self.made.insert(number, graph);
        number
    }

    pub(super) fn replay(&self, number: usize, stream: CUstream) -> Result<(), CudaError> {
        // SAFETY: the graph was captured from this CUDA stream and was not destroyed; the memory that it names lives as
        // long as the driver.
        unsafe { graph::launch(self.made[&number], stream) }.map_err(refused)
    }

    /// Destroys a CUDA graph. The driver frees a graph that is running when it has ended.
    pub(super) fn forget(&mut self, number: usize) {
        if let Some(made) = self.made.remove(&number) {
            // SAFETY: the CUDA graph was made by `capture` and is destroyed once.
            let _ = unsafe { graph::destroy_executable(made) };
        }
    }

    /// Destroys all CUDA graphs.
    pub(super) fn forget_all(&mut self) {
        let numbers: Vec<usize> = self.made.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.forget(number));
    }
}

/// Converts an error of a CUDA graph call to an error of a launch. It is never reported as a lost device: if the device
/// is lost, the next call reports that too.
fn refused(error: DriverError) -> CudaError {
    CudaError::Launch { kernel: "a graph".to_owned(), why: error.words() }
}
