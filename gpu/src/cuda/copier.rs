//! Copies of KV blocks between the device pool and the host pool in pinned memory, on a separate CUDA stream.

use super::driver::{CudaError, DevicePtr};
use super::memory::CudaKv;
use tiercel_device::{BlockingCopier, CopyBatch, CopyDirection, CopyError, CopyPair};

/// CUDA stream for copies, and the pinned host memory that the host pool is in.
pub trait CopyDriver: Send + 'static {
    /// Starts a copy of `bytes` bytes between device memory at the address `device` and pinned host memory from byte
    /// offset `host` on.
    ///
    /// # Errors
    /// [`CudaError::Copy`] if the driver does not accept the copy, [`CudaError::Lost`] if the device is lost.
    fn start(
        &mut self,
        direction: CopyDirection,
        device: DevicePtr,
        host: usize,
        bytes: usize,
    ) -> Result<(), CudaError>;
    /// Waits for all copies that were started. Kernels of steps go on meanwhile.
    ///
    /// # Errors
    /// [`CudaError::Lost`].
    fn wait(&mut self) -> Result<(), CudaError>;
}

/// Copier of whole KV blocks on a GPU, run by a copy thread. Copies are not ordered against steps, because the engine
/// never lets a step write a block that a running copy names, nor a copy write a block that a running step names.
pub struct CudaCopier<C> {
    driver: C,
    kv: CudaKv,
    host_blocks: u32,
}

impl<C: CopyDriver> CudaCopier<C> {
    /// Makes a copier between the KV blocks of `kv` on the device and `host_blocks` blocks of the driver's pinned host
    /// memory.
    pub fn new(driver: C, kv: CudaKv, host_blocks: u32) -> CudaCopier<C> {
        CudaCopier { driver, kv, host_blocks }
    }

    fn start(&mut self, direction: CopyDirection, pairs: &[CopyPair]) -> Result<(), CudaError> {
        let block_bytes = self.kv.block_bytes();
        for run in pairs.chunk_by(|a, b| a.device.0 + 1 == b.device.0 && a.host.0 + 1 == b.host.0) {
            let (device, host) =
                (self.kv.block(run[0].device), run[0].host.0 as usize * block_bytes);
            self.driver.start(direction, device, host, run.len() * block_bytes)?;
        }
        Ok(())
    }
}

impl<C: CopyDriver> BlockingCopier for CudaCopier<C> {
    fn copy(&mut self, batch: &CopyBatch) -> Result<(), CopyError> {
        let (device, host) = (self.kv.blocks, self.host_blocks);
        for pair in &batch.pairs {
            if pair.device.0 >= device || pair.host.0 >= host {
                return Err(CopyError::Failed(format!(
                    "no such block: {} of {device}, {} of {host}",
                    pair.device, pair.host
                )));
            }
        }
        let started = self.start(batch.direction, &batch.pairs);
        // Waits for all copies that were started, even after an error: when the function returns, the blocks may get
        // another use.
        let ended = self.driver.wait();
        ended.and(started).map_err(|error| match error {
            CudaError::Lost(why) => CopyError::DeviceLost(why),
            other => CopyError::Failed(other.to_string()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tiercel_device::{BlockId, CopyId, HostBlockId};

    /// Copy driver for tests that records the copies requested of it, and refuses copies from or to one host offset.
    #[derive(Clone, Default)]
    struct Noting {
        asked: Arc<Mutex<Vec<(u64, usize, usize)>>>,
        waited: Arc<Mutex<usize>>,
        refuses: Option<usize>,
        lost: bool,
    }

    impl CopyDriver for Noting {
        fn start(
            &mut self,
            _: CopyDirection,
            device: DevicePtr,
            host: usize,
            bytes: usize,
        ) -> Result<(), CudaError> {
            if self.refuses == Some(host) {
                return Err(CudaError::Copy("no".into()));
            }
            self.asked.lock().unwrap().push((device.0, host, bytes));
            Ok(())
        }

        fn wait(&mut self) -> Result<(), CudaError> {
            *self.waited.lock().unwrap() += 1;
            if self.lost { Err(CudaError::Lost("gone".into())) } else { Ok(()) }
        }
    }

    fn copy(driver: &Noting, pairs: &[(u32, u32)]) -> Result<(), CopyError> {
        let at = DevicePtr(1 << 20);
        let kv = CudaKv { at, blocks: 10, block_size: 16, layers: 1, kv_heads: 1, head_dim: 8 };
        assert_eq!(kv.block_bytes(), 512);
        let pairs = pairs
            .iter()
            .map(|(device, host)| CopyPair { device: BlockId(*device), host: HostBlockId(*host) });
        let (id, direction) = (CopyId(1), CopyDirection::Out);
        let batch = CopyBatch { id, direction, pairs: pairs.collect() };
        CudaCopier::new(driver.clone(), kv, 5).copy(&batch)
    }

    #[test]
    fn neighbours_on_both_sides_are_one_copy() {
        let driver = Noting::default();
        copy(&driver, &[(2, 0), (3, 1), (4, 2), (5, 4), (7, 3)]).expect("all exist");
        let base = 1 << 20;
        assert_eq!(
            *driver.asked.lock().unwrap(),
            [(base + 1024, 0, 1536), (base + 2560, 2048, 512), (base + 3584, 1536, 512)]
        );
    }

    #[test]
    fn what_was_started_is_over_before_a_failure_is_told() {
        let driver = Noting { refuses: Some(512), ..Noting::default() };
        let error = copy(&driver, &[(0, 0), (5, 1)]).expect_err("the second is refused");
        assert!(matches!(error, CopyError::Failed(why) if why.contains("no")));
        assert_eq!((driver.asked.lock().unwrap().len(), *driver.waited.lock().unwrap()), (1, 1));
    }

    #[test]
    fn blocks_that_do_not_exist_are_not_copied_and_a_lost_device_is_told_as_such() {
        let driver = Noting::default();
        assert!(matches!(copy(&driver, &[(0, 0), (10, 1)]), Err(CopyError::Failed(_))));
        assert!(matches!(copy(&driver, &[(0, 5)]), Err(CopyError::Failed(_))));
        assert!(driver.asked.lock().unwrap().is_empty());
        let driver = Noting { lost: true, ..Noting::default() };
        assert!(matches!(copy(&driver, &[(0, 0)]), Err(CopyError::DeviceLost(_))));
    }
}
