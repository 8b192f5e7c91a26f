//! Calls of the CUDA driver for work: streams, events, graphs, kernels.

use super::driver::{DriverError, Outcome, raw};
use cudarc::driver::sys::{
    self, CUevent, CUevent_flags, CUfunction, CUfunction_attribute, CUgraph, CUgraphExec, CUmodule,
    CUresult, CUstream, CUstream_flags, CUstreamCaptureMode,
};
use std::ffi::{CString, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// CUDA streams.
pub(crate) mod stream {
    use super::*;

    /// Returns the least and the greatest priority of streams. Lower numbers are greater priorities.
    pub(crate) fn get_priority_range() -> Outcome<(c_int, c_int)> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the driver writes two numbers to valid addresses.
        unsafe { raw::cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest) }
            .map(|()| (least, greatest))
    }

    /// Makes a stream that never waits for the default stream.
    pub(crate) fn create_with_priority(priority: c_int) -> Outcome<CUstream> {
        let mut stream = null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: the driver writes one address to a valid address.
        unsafe { raw::cuStreamCreateWithPriority(&raw mut stream, flags, priority) }
            .map(|()| stream)
    }

    /// Waits for all work that was requested on the stream.
    ///
    /// # Safety
    /// The stream exists.
    pub(crate) unsafe fn synchronize(stream: CUstream) -> Outcome<()> {
        // SAFETY: the caller's promise.
        unsafe { raw::cuStreamSynchronize(stream) }
    }

    /// # Safety
    /// The stream exists and is not used any more.
    pub(crate) unsafe fn destroy(stream: CUstream) -> Outcome<()> {
        // SAFETY: the caller's promise.
        unsafe { raw::cuStreamDestroy_v2(stream) }
    }

    /// Makes later work on the stream wait, on the GPU, for the work that the event marks now.
    ///
    /// # Safety
    /// Stream and event exist.
    pub(crate) unsafe fn wait_event(stream: CUstream, event: CUevent) -> Outcome<()> {
        // SAFETY: the caller's promise.
        unsafe { raw::cuStreamWaitEvent(stream, event, 0) }
    }

    /// # Safety
    /// The stream exists, and no capture of it is active.
    pub(crate) unsafe fn begin_capture(stream: CUstream, mode: CUstreamCaptureMode) -> Outcome<()> {
        // SAFETY: the caller's promise.
        unsafe { raw::cuStreamBeginCapture_v2(stream, mode) }
    }

    /// # Safety
    /// A capture of the stream was begun by this thread.
    pub(crate) unsafe fn end_capture(stream: CUstream) -> Outcome<CUgraph> {
        let mut graph = null_mut();
        // SAFETY: the caller's promise; the driver writes one address to a valid address.
        unsafe { raw::cuStreamEndCapture(stream, &raw mut graph) }.map(|()| graph)
    }
}

/// CUDA graphs.
pub(crate) mod graph {
    use super::*;

    /// # Safety
    /// The graph exists.
    pub(crate) unsafe fn instantiate(graph: CUgraph) -> Outcome<CUgraphExec> {
        let mut made = null_mut();
        // SAFETY: the caller's promise; the driver writes one address to a valid address.
        unsafe { raw::cuGraphInstantiateWithFlags(&raw mut made, graph, 0) }.map(|()| made)
    }

    /// # Safety
    /// The graph exists and is not used any more.
    pub(crate) unsafe fn destroy(graph: CUgraph) -> Outcome<()> {
        // SAFETY: the caller's promise.
        unsafe { raw::cuGraphDestroy(graph) }
    }

    /// # Safety
    /// Graph and stream exist, and so does all memory that the graph names until it has run.
    pub(crate) unsafe fn launch(graph: CUgraphExec, stream: CUstream) -> Outcome<()> {
        // SAFETY: the caller's promise.
        unsafe { raw::cuGraphLaunch(graph, stream) }
    }

    /// # Safety
    /// The executable graph exists and is not launched any more. It may still run.
    pub(crate) unsafe fn destroy_executable(graph: CUgraphExec) -> Outcome<()> {
        // SAFETY: the caller's promise.
        unsafe { raw::cuGraphExecDestroy(graph) }
    }
}

/// Events.
pub(crate) mod event {
    use super::*;

    /// Makes an event without timing.
    pub(crate) fn create() -> Outcome<CUevent> {
        create_with(CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// Makes an event with timing, for [`elapsed_ms`].
    pub(crate) fn create_timed() -> Outcome<CUevent> {
        create_with(CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn create_with(flags: CUevent_flags) -> Outcome<CUevent> {
        let mut event = null_mut();
        let flags = flags as c_uint;
        // SAFETY: the driver writes one address to a valid address.
        unsafe { raw::cuEventCreate(&raw mut event, flags) }.map(|()| event)
    }

    /// # Safety
    /// Event and stream exist.
    pub(crate) unsafe fn record(event: CUevent, stream: CUstream) -> Outcome<()> {
        // SAFETY: the caller's promise.
        unsafe { raw::cuEventRecord(event, stream) }
    }

    /// # Safety
    /// The event exists.
    pub(crate) unsafe fn query(event: CUevent) -> Outcome<()> {
        // SAFETY: the caller's promise.
        unsafe { raw::cuEventQuery(event) }
    }

    /// # Safety
    /// The event exists.
    pub(crate) unsafe fn synchronize(event: CUevent) -> Outcome<()> {
        // SAFETY: the caller's promise.
        unsafe { raw::cuEventSynchronize(event) }
    }

    /// Returns the time on the GPU between two events, ms.
    ///
    /// # Safety
    /// Both events exist, were made with timing, were recorded, and have happened.
    pub(crate) unsafe fn elapsed_ms(from: CUevent, to: CUevent) -> Outcome<f32> {
        let mut ms = 0.0;
        // SAFETY: the caller's promise; the driver writes one number to a valid address.
        unsafe { raw_elapsed_time(&raw mut ms, from, to) }.map(|()| ms)
    }

    /// # Safety
    /// The event exists and is not used any more.
    pub(crate) unsafe fn destroy(event: CUevent) -> Outcome<()> {
        // SAFETY: the caller's promise.
        unsafe { raw::cuEventDestroy_v2(event) }
    }
}

/// Calls `cuEventElapsedTime`. cudarc for CUDA 13 declares only the form of CUDA 12.8 and later,
/// `cuEventElapsedTime_v2`; this binding calls the older form, which every supported driver has, with the same
/// arguments.
///
/// # Safety
/// The contract of the driver's function.
unsafe fn raw_elapsed_time(ms: *mut f32, from: CUevent, to: CUevent) -> Outcome<()> {
    type Call = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> u32;
    const _: unsafe fn(*mut f32, CUevent, CUevent) -> CUresult = sys::cuEventElapsedTime_v2;
    static FOUND: OnceLock<Option<Call>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        // SAFETY: the library was found before, because the events exist, and its function has the type of `Call`.
        let call = unsafe { sys::culib().get::<Call>(b"cuEventElapsedTime\0") };
        call.ok().map(|call| *call)
    });
    let Some(call) = found else { return Err(DriverError::Absent("cuEventElapsedTime")) };
    // SAFETY: the caller keeps the contract of the driver's function.
    match unsafe { call(ms, from, to) } {
        0 => Ok(()),
        status => Err(DriverError::Status(status)),
    }
}

/// Kernels.
pub(crate) mod kernel {
    use super::*;

    /// Loads machine code of kernels.
    ///
    /// # Safety
    /// `code` is a complete cubin, which states its own size.
    pub(crate) unsafe fn load(code: &[u8]) -> Outcome<CUmodule> {
        let mut module = null_mut();
        // SAFETY: the caller's promise; the driver writes one address to a valid address, and copies the code.
        unsafe { raw::cuModuleLoadData(&raw mut module, code.as_ptr().cast()) }.map(|()| module)
    }

    /// # Safety
    /// The module is loaded.
    pub(crate) unsafe fn find(module: CUmodule, name: &str) -> Outcome<CUfunction> {
        let mut function = null_mut();
        let name = CString::new(name).expect("names of kernels have no zero");
        // SAFETY: the caller's promise; the driver writes one address to a valid address.
        unsafe { raw::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) }
            .map(|()| function)
    }

    /// # Safety
    /// The module is loaded, and no kernel of it is used any more.
    pub(crate) unsafe fn unload(module: CUmodule) -> Outcome<()> {
        // SAFETY: the caller's promise.
        unsafe { raw::cuModuleUnload(module) }
    }

    /// Allows launches of a kernel with up to `bytes` bytes of dynamic shared memory.
    ///
    /// # Safety
    /// The kernel's module is loaded.
    pub(crate) unsafe fn allow_shared(function: CUfunction, bytes: u32) -> Outcome<()> {
        let which = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the caller's promise.
        unsafe { raw::cuFuncSetAttribute(function, which, bytes as c_int) }
    }

    /// Launches a kernel on a two-dimensional grid of one-dimensional thread blocks.
    ///
    /// # Safety
    /// The kernel's module is loaded, the stream exists, and `arguments` points to as many arguments as the kernel has,
    /// of its types. Memory that the arguments name lives until the kernel has run.
    pub(crate) unsafe fn launch(
        function: CUfunction,
        grid: (u32, u32),
        threads: u32,
        shared_bytes: u32,
        stream: CUstream,
        arguments: &mut [*mut c_void],
    ) -> Outcome<()> {
        let ((x, y), arguments) = (grid, arguments.as_mut_ptr());
        // SAFETY: the caller's promise; the driver copies the arguments before it returns.
        unsafe {
            raw::cuLaunchKernel(
                function,
                x,
                y,
                1,
                threads,
                1,
                1,
                shared_bytes,
                stream,
                arguments,
                null_mut(),
            )
        }
    }
}
