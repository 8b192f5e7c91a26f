//! Opens a GPU, and checks that the libraries it needs are present and not newer than its driver.
#![expect(unsafe_code, reason = "bindings to the CUDA driver")]

use super::calls::driver::{DriverError, device, memory};
use super::compile::compiler_version;
use crate::cuda::CudaError;
use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};
use cudarc::{cublaslt, nvrtc};
use std::sync::Arc;

/// CUDA version of the oldest supported driver, as `1000 * major + 10 * minor`: 12.0, the oldest that runs code made by
/// the compiler of CUDA 12.
const OLDEST_DRIVER: i32 = 12_000;

/// Whether NVIDIA's driver is installed and finds a GPU. The check opens no context on the GPU.
pub fn gpu_present() -> bool {
    // SAFETY: the call only checks whether the library can be loaded. Loading runs the library's initialisers, which
    // NVIDIA's driver allows at any time.
    let driver = unsafe { sys::is_culib_present() };
    driver && device::init().is_ok() && device::count().is_ok_and(|count| count > 0)
}

/// Primary context of a GPU. Clones share it; dropping the last clone releases it.
#[derive(Debug, Clone)]
pub struct Context {
    held: Arc<Held>,
}

#[derive(Debug)]
struct Held {
    device: sys::CUdevice,
    context: sys::CUcontext,
    ordinal: u32,
    name: String,
    capability: (i32, i32),
}

// SAFETY: a CUDA context handle may be used from any thread: `Context::enter` makes it current there first.
unsafe impl Send for Held {}
// SAFETY: a CUDA context handle may be used from any thread, and no field changes after construction.
unsafe impl Sync for Held {}

impl Context {
    /// Opens GPU number `ordinal` and retains its primary context.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`], saying which library or GPU is missing and what to do.
    pub fn open(ordinal: u32) -> Result<Context, CudaError> {
        // SAFETY: the call only checks whether the library can be loaded.
        if !unsafe { sys::is_culib_present() } {
            let why = "libcuda was not found: install NVIDIA's driver, or use --device cpu";
            return Err(CudaError::Unavailable(why.to_owned()));
        }
        device::init().map_err(|error| unavailable("the driver could not be started", error))?;
        let driver = driver_version()?;
        check_libraries(driver)?;
        check_versions(driver)?;
        let count = device::count().map_err(|error| unavailable("no GPU was found", error))?;
        if ordinal as i32 >= count {
            let why =
                format!("there is no GPU {ordinal}: the driver knows {count}; use --device cpu");
            return Err(CudaError::Unavailable(why));
        }
        let failed = |error| unavailable("the GPU could not be opened", error);
        let device = device::get(ordinal as i32).map_err(failed)?;
        let name = device::name(device).map_err(failed)?;
        use CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        let attribute = |which| device::attribute(device, which).map_err(failed);
        let capability = (attribute(MAJOR)?, attribute(MINOR)?);
        if capability.0 < 8 {
            let (major, minor) = capability;
            let why = format!(
                "{name} has compute capability {major}.{minor}, and the kernels need 8.0 (Ampere) or \
                 later; use --device cpu"
            );
            return Err(CudaError::Unavailable(why));
        }
        // The context is released when the last clone is dropped.
        let context = device::retain(device).map_err(failed)?;
        let held = Held { device, context, ordinal, name, capability };
        Ok(Context { held: Arc::new(held) })
    }

    /// Makes the CUDA context of this GPU the current one of the calling thread.
    pub(super) fn enter(&self) -> Result<(), CudaError> {
        // SAFETY: the CUDA context is retained as long as `self` lives.
        unsafe { device::enter(self.held.context) }.map_err(lost)
    }

    /// Returns the GPU's name for logs and errors: number and product name.
    pub fn name(&self) -> String {
        format!("cuda:{}, {}", self.held.ordinal, self.held.name)
    }

    /// Returns the GPU architecture that kernels are compiled for, such as `sm_90`.
    pub fn architecture(&self) -> String {
        let (major, minor) = self.held.capability;
        format!("sm_{major}{minor}")
    }

    /// Returns how much device memory can still be allocated, bytes.
    ///
    /// # Errors
    /// [`CudaError::Lost`].
    pub fn free_bytes(&self) -> Result<u64, CudaError> {
        self.enter()?;
        memory::free_bytes().map(|free| free as u64).map_err(lost)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: the CUDA context is retained once and released once; every object made in the context held a clone,
        // and is gone.
        let released = unsafe { device::release(self.device) };
        if let Err(error) = released {
            tracing::warn!("the GPU's context could not be released: {}", error.words());
        }
    }
}

/// Returns advice for an error message: which CUDA packages to install beside a driver for CUDA `driver` (major
/// version).
fn remedy(driver: i32) -> String {
    let packages = match driver {
        ..=12 => "nvidia-cuda-nvrtc-cu12 nvidia-cublas-cu12",
        _ => "'nvidia-cuda-nvrtc<13.1' 'nvidia-cublas<13.2'",
    };
    format!(
        "`pip install {packages}` and name the folders of the libraries in LD_LIBRARY_PATH, or use \
         --device cpu"
    )
}

fn check_libraries(driver: i32) -> Result<(), CudaError> {
    // SAFETY: the call only checks whether the libraries of the CUDA toolkit can be loaded. Loading runs their
    // initialisers, which the toolkit allows at any time.
    let found = unsafe {
        [
            ("libnvrtc", nvrtc::sys::is_culib_present()),
            ("libcublasLt", cublaslt::sys::is_culib_present()),
        ]
    };
    match found.iter().find(|(_, found)| !found) {
        None => Ok(()),
        Some((library, _)) => {
            let why = format!("{library} was not found: {}", remedy(driver));
            Err(CudaError::Unavailable(why))
        }
    }
}

/// Checks that libnvrtc and libcublasLt are not of a later major version of CUDA than the GPU's driver supports
/// (`driver`).
fn check_versions(driver: i32) -> Result<(), CudaError> {
    let compiler = compiler_version().map_or(0, |(major, _)| major);
    // SAFETY: libcublasLt was found; the call only returns its version, as 10,000 times the major version plus the
    // rest.
    let products = unsafe { cublaslt::sys::cublasLtGetVersion() } / 10_000;
    for (library, major) in [("libnvrtc", compiler), ("libcublasLt", products as i32)] {
        if major > driver {
            let why = format!(
                "{library} is of CUDA {major}, and NVIDIA's driver of CUDA {driver}: {}, or install a newer \
                 driver",
                remedy(driver)
            );
            return Err(CudaError::Unavailable(why));
        }
    }
    Ok(())
}

/// Returns the major version of CUDA that the GPU's driver supports; an error if the driver is older than 12.0.
fn driver_version() -> Result<i32, CudaError> {
    let version = device::driver_version()
        .map_err(|error| unavailable("the driver's version could not be read", error))?;
    if version < OLDEST_DRIVER {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        let why = format!(
            "NVIDIA's driver is for CUDA {major}.{minor}, and 12.0 or later is needed: install a newer \
             one, or use --device cpu"
        );
        return Err(CudaError::Unavailable(why));
    }
    Ok(version / 1000)
}

fn unavailable(what: &str, error: DriverError) -> CudaError {
    CudaError::Unavailable(format!("{what}: {}; use --device cpu", error.words()))
}

pub(super) fn lost(error: DriverError) -> CudaError {
    CudaError::Lost(error.words())
}

/// Statuses of the CUDA driver that leave the context usable.
const HARMLESS: [CUresult; 10] = [
    CUresult::CUDA_ERROR_INVALID_VALUE,
    CUresult::CUDA_ERROR_OUT_OF_MEMORY,
    CUresult::CUDA_ERROR_INVALID_IMAGE,
    CUresult::CUDA_ERROR_INVALID_HANDLE,
    CUresult::CUDA_ERROR_NOT_FOUND,
    CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
    CUresult::CUDA_ERROR_NOT_SUPPORTED,
    CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
    CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
    CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
];

/// Whether an error of the CUDA driver means that the context is unusable, so that the device is lost: true for every
/// status that is not known to leave it usable, such as one that only newer drivers have. The driver may report such a
/// status for work that it accepted earlier.
pub(super) fn is_lost(error: DriverError) -> bool {
    match error {
        DriverError::Absent(_) => false,
        status => !HARMLESS.into_iter().any(|known| status.is(known)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_that_only_a_newer_driver_knows_is_a_lost_device() {
        assert!(is_lost(DriverError::Status(4_242)));
        assert!(is_lost(DriverError::Status(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS as u32)));
        assert!(!is_lost(DriverError::Status(CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32)));
        assert!(!is_lost(DriverError::Absent("cuNew")));
    }
}
