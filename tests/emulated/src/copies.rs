//! Block copies between device and host memory on the emulated GPU.
#![expect(unsafe_code, reason = "device memory is memory of the host, known by its address")]

use tiercel_device::CopyDirection;
use tiercel_gpu::cuda::{CopyDriver, CudaError, DevicePtr};

/// Copy side of the emulated GPU: holds the memory of the host pool, and copies blocks between it and the emulated
/// device memory.
pub struct EmulatedCopies {
    host: Vec<u8>,
}

impl EmulatedCopies {
    pub(crate) fn new(bytes: usize) -> EmulatedCopies {
        EmulatedCopies { host: vec![0xff; bytes] }
    }
}

impl CopyDriver for EmulatedCopies {
    fn start(
        &mut self,
        direction: CopyDirection,
        device: DevicePtr,
        host: usize,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let host = &mut self.host[host..host + bytes];
        let device = device.0 as *mut u8;
        // SAFETY: the copier checks that the blocks exist on both sides, and no other code uses them until the copy is
        // answered; the caller keeps the device, and so its memory, alive.
        unsafe {
            match direction {
                CopyDirection::Out => {
                    std::ptr::copy_nonoverlapping(device, host.as_mut_ptr(), bytes);
                }
                CopyDirection::In => std::ptr::copy_nonoverlapping(host.as_ptr(), device, bytes),
            }
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<(), CudaError> {
        Ok(())
    }
}
