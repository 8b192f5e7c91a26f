//! Graphs: launches and products that were captured from a stream, to be done again by one call.
#![expect(unsafe_code, reason = "bindings to the CUDA driver")]

use super::context::words;
use crate::cuda::CudaError;
use cudarc::driver::DriverError;
use cudarc::driver::result::{graph, stream};
use cudarc::driver::sys::{CUgraphExec, CUgraphInstantiate_flags, CUstream, CUstreamCaptureMode};

/// All graphs of a stream.
#[derive(Default)]
pub(super) struct Graphs {
    made: Vec<CUgraphExec>,
}

// SAFETY: the graphs are this value's own, and used by one thread at a time.
unsafe impl Send for Graphs {}

impl Graphs {
    /// Makes a graph of what `ask` asks the stream for, which is not done.
    pub(super) fn capture(
        stream: CUstream,
        ask: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<CUgraphExec, CudaError> {
        // Only what this thread does counts: the copy side goes on meanwhile.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is the driver's own, and nothing captures it yet.
        unsafe { stream::begin_capture(stream, mode) }.map_err(refused)?;
        let asked = ask();
        // SAFETY: the capture was begun above; it must be ended whatever happened in it.
        let captured = unsafe { stream::end_capture(stream) }.map_err(refused)?;
        let made = match asked {
            // SAFETY: the graph was captured just now; what is made of it stays when it is destroyed.
            Ok(()) => unsafe { graph::instantiate(captured, CUgraphInstantiate_flags(0)) }
                .map_err(refused),
            Err(error) => Err(error),
        };
        // SAFETY: it is not used after this.
        let _ = unsafe { graph::destroy(captured) };
        made
    }

    pub(super) fn keep(&mut self, graph: CUgraphExec) -> usize {
        self.made.push(graph);
        self.made.len() - 1
    }

    pub(super) fn replay(&self, number: usize, stream: CUstream) -> Result<(), CudaError> {
        // SAFETY: the graph is one of this stream's, and was not destroyed; the memory it names lives as long as the
        // driver.
        unsafe { graph::launch(self.made[number], stream) }.map_err(refused)
    }

    /// Gives up all graphs; one that is under way is freed when it is done.
    pub(super) fn forget(&mut self) {
        for made in self.made.drain(..) {
            // SAFETY: it was made by `capture` and is destroyed once.
            let _ = unsafe { graph::exec_destroy(made) };
        }
    }
}

/// None of these says that the device is lost: if it is, whatever comes next says so too.
fn refused(error: DriverError) -> CudaError {
    CudaError::Launch { kernel: "a graph".to_owned(), why: words(error) }
}
