//! Calls of the CUDA driver. The functions have the contracts of NVIDIA's "CUDA Driver API"; safe functions are those
//! that may be called at any time with any value.

use super::calls;
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction,
    CUfunction_attribute, CUgraph, CUgraphExec, CUmodule, CUresult, CUstream, CUstreamCaptureMode,
};
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::ptr::null_mut;

/// Status with which a call of the CUDA driver failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DriverError {
    /// Status that the driver returned, a number of `CUresult` that may be newer than this program.
    Status(u32),
    /// The driver has no function of this name.
    Absent(&'static str),
}

impl DriverError {
    /// Whether the driver returned the status `known`.
    pub(crate) fn is(self, known: CUresult) -> bool {
        self == DriverError::Status(known as u32)
    }

    /// Returns the text with which the driver describes the error, or its number if the driver has no text.
    pub(crate) fn words(self) -> String {
        let status = match self {
            DriverError::Absent(name) => {
                return format!("NVIDIA's driver has no function {name}; install a newer driver");
            }
            DriverError::Status(status) => status,
        };
        type Call = unsafe extern "C" fn(u32, *mut *const c_char) -> u32;
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the driver was found, since it returned a status. cuGetErrorString takes a number of `CUresult`,
        // known or not, and writes the address of a text that lives as long as the driver, or null.
        let described = unsafe {
            let call = cudarc::driver::sys::culib().get::<Call>(b"cuGetErrorString\0");
            call.is_ok_and(|call| call(status, &raw mut text) == 0) && !text.is_null()
        };
        match described {
            // SAFETY: the driver returned the address of a text that ends with a zero.
            true => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
            false => format!("error {status}, which NVIDIA's driver does not describe"),
        }
    }
}

/// Outcome of a call of the CUDA driver.
pub(crate) type Outcome<T> = Result<T, DriverError>;

calls! {
    cudarc::driver::sys, CUresult, DriverError;
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(version: *mut c_int);
    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    fn cuDeviceGetAttribute(value: *mut c_int, which: CUdevice_attribute, device: CUdevice);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    fn cuCtxSetCurrent(context: CUcontext);
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemAlloc_v2(at: *mut CUdeviceptr, bytes: usize);
    fn cuMemFree_v2(at: CUdeviceptr);
    fn cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, flags: c_uint);
    fn cuMemFreeHost(at: *mut c_void);
    fn cuMemsetD8Async(at: CUdeviceptr, value: c_uchar, bytes: usize, stream: CUstream);
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    fn cuGraphInstantiateWithFlags(made: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    fn cuGraphDestroy(graph: CUgraph);
    fn cuGraphLaunch(graph: CUgraphExec, stream: CUstream);
    fn cuGraphExecDestroy(graph: CUgraphExec);
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventQuery(event: CUevent);
    fn cuEventSynchronize(event: CUevent);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuModuleUnload(module: CUmodule);
    fn cuFuncSetAttribute(function: CUfunction, which: CUfunction_attribute, value: c_int);
    fn cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
}

/// Start of the driver, and devices.
pub(crate) mod device {
    use super::*;

    pub(crate) fn init() -> Outcome<()> {
        // SAFETY: cuInit may be called any number of times; its flags must be 0.
        unsafe { raw::cuInit(0) }
    }

    /// Returns the CUDA version that the driver supports, as `1000 * major + 10 * minor`.
    pub(crate) fn driver_version() -> Outcome<c_int> {
        let mut version = 0;
        // SAFETY: the driver writes one number to a valid address.
        unsafe { raw::cuDriverGetVersion(&raw mut version) }.map(|()| version)
    }

    pub(crate) fn count() -> Outcome<c_int> {
        let mut count = 0;
        // SAFETY: the driver writes one number to a valid address.
        unsafe { raw::cuDeviceGetCount(&raw mut count) }.map(|()| count)
    }

    pub(crate) fn get(ordinal: c_int) -> Outcome<CUdevice> {
        let mut device = 0;
        // SAFETY: the driver writes one number to a valid address, and returns an error if there is no such device.
        unsafe { raw::cuDeviceGet(&raw mut device, ordinal) }.map(|()| device)
    }

    pub(crate) fn name(device: CUdevice) -> Outcome<String> {
        let mut name = [0_u8; 128];
        // NVIDIA does not say whether the length counts the zero at the end.
        let most = name.len() as c_int - 1;
        // SAFETY: the driver writes at most `most` bytes and a zero, which the buffer has room for.
        unsafe { raw::cuDeviceGetName(name.as_mut_ptr().cast(), most, device) }?;
        let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Ok(String::from_utf8_lossy(&name[..len]).into_owned())
    }

    pub(crate) fn attribute(device: CUdevice, which: CUdevice_attribute) -> Outcome<c_int> {
        let mut value = 0;
        // SAFETY: the driver writes one number to a valid address.
        unsafe { raw::cuDeviceGetAttribute(&raw mut value, which, device) }.map(|()| value)
    }

    /// Retains the primary context of a device; each success needs one [`release`].
    pub(crate) fn retain(device: CUdevice) -> Outcome<CUcontext> {
        let mut context = null_mut();
        // SAFETY: the driver writes one address to a valid address.
        unsafe { raw::cuDevicePrimaryCtxRetain(&raw mut context, device) }.map(|()| context)
    }

    /// # Safety
    /// The primary context was retained, and no object of the context is used any more.
    pub(crate) unsafe fn release(device: CUdevice) -> Outcome<()> {
        // SAFETY: the caller's promise.
        unsafe { raw::cuDevicePrimaryCtxRelease_v2(device) }
    }

    /// # Safety
    /// The context is retained.
    pub(crate) unsafe fn enter(context: CUcontext) -> Outcome<()> {
        // SAFETY: the caller's promise.
        unsafe { raw::cuCtxSetCurrent(context) }
    }
}

/// Memory of the device, and pinned memory of the host.
pub(crate) mod memory {
    use super::*;

    /// Returns the bytes of device memory that are free.
    pub(crate) fn free_bytes() -> Outcome<usize> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver writes two numbers to valid addresses.
        unsafe { raw::cuMemGetInfo_v2(&raw mut free, &raw mut total) }.map(|()| free)
    }

    /// Allocates device memory, aligned for any type.
    pub(crate) fn allocate(bytes: usize) -> Outcome<CUdeviceptr> {
        let mut at = 0;
        // SAFETY: the driver writes one address to a valid address.
        unsafe { raw::cuMemAlloc_v2(&raw mut at, bytes) }.map(|()| at)
    }

    /// # Safety
    /// The memory is of [`allocate`], and nothing uses it any more.
    pub(crate) unsafe fn free(at: CUdeviceptr) -> Outcome<()> {
        // SAFETY: the caller's promise.
        unsafe { raw::cuMemFree_v2(at) }
    }

    /// Allocates pinned host memory of undefined content, cached rather than write-combined.
    pub(crate) fn allocate_pinned(bytes: usize) -> Outcome<*mut u8> {
        let mut at = null_mut();
        // SAFETY: the driver writes one address to a valid address.
        unsafe { raw::cuMemHostAlloc(&raw mut at, bytes, 0) }.map(|()| at.cast())
    }

    /// # Safety
    /// The memory is of [`allocate_pinned`], and nothing uses it any more.
    pub(crate) unsafe fn free_pinned(at: *mut u8) -> Outcome<()> {
        // SAFETY: the caller's promise.
        unsafe { raw::cuMemFreeHost(at.cast()) }
    }

    /// Sets device memory to zero, in stream order.
    ///
    /// # Safety
    /// The range is device memory that lives until the stream has reached the call.
    pub(crate) unsafe fn clear(at: CUdeviceptr, bytes: usize, stream: CUstream) -> Outcome<()> {
        // SAFETY: the caller's promise.
        unsafe { raw::cuMemsetD8Async(at, 0, bytes, stream) }
    }

    /// Copies pinned host memory to device memory, in stream order.
    ///
    /// # Safety
    /// Both ranges have `bytes` bytes, live until the stream has reached the copy, and are not written until then.
    pub(crate) unsafe fn copy_in(
        to: CUdeviceptr,
        from: *const u8,
        bytes: usize,
        stream: CUstream,
    ) -> Outcome<()> {
        // SAFETY: the caller's promise.
        unsafe { raw::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream) }
    }

    /// Copies device memory to pinned host memory, in stream order.
    ///
    /// # Safety
    /// Both ranges have `bytes` bytes and live until the stream has reached the copy; the host neither reads nor writes
    /// its range until then.
    pub(crate) unsafe fn copy_out(
        to: *mut u8,
        from: CUdeviceptr,
        bytes: usize,
        stream: CUstream,
    ) -> Outcome<()> {
        // SAFETY: the caller's promise.
        unsafe { raw::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, stream) }
    }
}
