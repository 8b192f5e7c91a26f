//! CUDA graphs: launches and matrix products that are captured from a CUDA stream once and then replayed by one call.
#![expect(unsafe_code, reason = "bindings to the CUDA driver")]

use super::context::words;
use crate::cuda::CudaError;
use cudarc::driver::DriverError;
use cudarc::driver::result::{graph, stream};
use cudarc::driver::sys::{CUgraphExec, CUgraphInstantiate_flags, CUstream, CUstreamCaptureMode};

/// All CUDA graphs that were captured from one CUDA stream.
#[derive(Default)]
pub(super) struct Graphs {
    made: Vec<CUgraphExec>,
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
            Ok(()) => unsafe { graph::instantiate(captured, CUgraphInstantiate_flags(0)) }
                .map_err(refused),
            Err(error) => Err(error),
        };
        // SAFETY: the captured graph is not used after its destruction; the executable graph stays valid.
        let _ = unsafe { graph::destroy(captured) };
        made
    }

    pub(super) fn keep(&mut self, graph: CUgraphExec) -> usize {
        self.made.push(graph);
        self.made.len() - 1
    }

    pub(super) fn replay(&self, number: usize, stream: CUstream) -> Result<(), CudaError> {
        // SAFETY: the graph was captured from this CUDA stream and was not destroyed; the memory that it names lives as
        // long as the driver.
        unsafe { graph::launch(self.made[number], stream) }.map_err(refused)
    }

    /// Destroys all CUDA graphs. The driver frees a graph that is running when it has ended.
    pub(super) fn forget(&mut self) {
        for made in self.made.drain(..) {
            // SAFETY: the CUDA graph was made by `capture` and is destroyed once.
            let _ = unsafe { graph::exec_destroy(made) };
        }
    }
}

/// Converts an error of a CUDA graph call to an error of a launch. It is never reported as a lost device: if the device
/// is lost, the next call reports that too.
fn refused(error: DriverError) -> CudaError {
    CudaError::Launch { kernel: "a graph".to_owned(), why: words(error) }
}
