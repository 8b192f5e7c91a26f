//! Calls from Rust into the C++ emulator that runs CUDA kernels.
#![expect(unsafe_code, reason = "the kernels are C++")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use tiercel_gpu::cuda::{CudaError, KernelShape, Launch, kv_format};

/// Length of a span (the stretch of positions that attention computes separately), positions: the value that `build.rs`
/// compiles the attention kernels with.
pub(crate) const SPAN: usize = 32;

unsafe extern "C" {
    fn tiercel_emulated_launch(
        name: *const c_char,
        grid: *const u32,
        threads: u32,
        shared_bytes: u32,
        args: *mut *mut c_void,
        backwards: c_int,
    ) -> c_int;
}

/// Runs all threads of a kernel launch, in descending order if `backwards` is set, so that tests notice results that
/// depend on the order of threads.
pub(crate) fn launch(
    launch: &Launch,
    shape: KernelShape,
    backwards: bool,
) -> Result<(), CudaError> {
    let grid = [launch.grid.0, launch.grid.1, 1];
    let mut values: Vec<[u8; 8]> = launch.args.iter().map(|arg| arg.bytes()).collect();
    let mut args: Vec<*mut c_void> =
        values.iter_mut().map(|value| value.as_mut_ptr().cast()).collect();
    let KernelShape { head_dim, queries, q8 } = shape;
    let shaped = format!("{}_{head_dim}_{queries}_{}", launch.kernel, kv_format(q8));
    let mut call = |name: &CStr| {
        // SAFETY: the name ends with a zero and the grid has three numbers. Each argument points to eight bytes that
        // start with its value; the callers of launches pass the number and types of arguments that the kernel has.
        // Kernels write only to memory of the driver that they were launched on, which outlives the call, at the
        // addresses that they were given.
        unsafe {
            tiercel_emulated_launch(
                name.as_ptr(),
                grid.as_ptr(),
                launch.threads,
                launch.shared_bytes,
                args.as_mut_ptr(),
                c_int::from(backwards),
            )
        }
    };
    let name = |text: &str| CString::new(text).expect("names of kernels have no zero");
    let plain = call(&name(launch.kernel));
    let status = if plain == 1 { call(&name(&shaped)) } else { plain };
    let why = match status {
        0 => return Ok(()),
        1 => format!("not compiled for {shape:?}; see gpu/src/cuda/shapes.rs"),
        2 => format!("no device takes {launch:?}"),
        4 => format!("it used more shared memory than {} bytes", launch.shared_bytes),
        _ => "its threads wait for each other for ever".to_owned(),
    };
    Err(CudaError::Launch { kernel: launch.kernel.to_owned(), why })
}
