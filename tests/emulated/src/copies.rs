//! Block copies between device and host memory on the emulated GPU.
#![expect(unsafe_code, reason = "device memory is memory of the host, known by its address")]

use std::sync::{Arc, Mutex, PoisonError};
use tiercel_device::CopyDirection;
use tiercel_gpu::cuda::{CopyDriver, CudaError, DevicePtr, HostPlan, PinHost};

/// Memory of the host pool of the emulated GPU, which its copy side and the thread that pins more of it share.
pub struct EmulatedHost {
    plan: HostPlan,
    /// Pinned part of the pool's memory.
    pinned: Arc<Mutex<Vec<u8>>>,
    /// Number of pieces that can be pinned.
    pieces_max: usize,
}

/// Copy side of the emulated GPU: copies blocks between the memory of the host pool and the emulated device memory.
pub struct EmulatedCopies {
    pinned: Arc<Mutex<Vec<u8>>>,
}

impl EmulatedHost {
    /// Makes a host pool, of which only `pieces_max` pieces can be pinned, and its copy side.
    pub(crate) fn new(plan: HostPlan, pieces_max: usize) -> (EmulatedCopies, EmulatedHost) {
        let pinned = Arc::new(Mutex::new(Vec::new()));
        (EmulatedCopies { pinned: pinned.clone() }, EmulatedHost { plan, pinned, pieces_max })
    }
}

impl PinHost for EmulatedHost {
    fn pin(&mut self, piece: usize) -> Result<(), CudaError> {
        let bytes = self.plan.blocks_of(piece) as usize * self.plan.block_bytes;
        if piece >= self.pieces_max {
            let why = "a made-up fault".to_owned();
            return Err(CudaError::Memory { bytes, what: "pinned host", why });
        }
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(pinned.len(), piece * self.plan.piece_bytes(), "pieces are pinned in order");
        let held = pinned.len() + bytes;
        pinned.resize(held, 0xff);
        Ok(())
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
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let host = &mut pinned[host..host + bytes];
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
