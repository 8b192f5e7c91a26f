//! Copies of KV blocks between the device pool and the host pool in pinned memory, on a separate CUDA stream for each
//! direction.

use super::driver::{CudaError, DevicePtr};
use super::memory::CudaKv;
use std::collections::VecDeque;
use tiercel_device::{CopyBatch, CopyDirection, CopyError, CopyPair, QueuedCopier, StepId};

/// CUDA streams for copies, one for each direction, and the pinned host memory that the host pool is in. A batch of
/// copies is begun, filled and closed; then it is in flight until it is ended. Batches of one direction run in order,
/// at most [`COPIES_IN_FLIGHT`](tiercel_device::COPIES_IN_FLIGHT) are in flight; the directions are independent.
pub trait CopyDriver: Send + 'static {
    /// Begins a batch of copies in a direction. On the device, its copies come after the steps up to `after` that were
    /// submitted before; the host does not wait.
    ///
    /// # Errors
    /// [`CudaError::Lost`].
    fn begin(&mut self, direction: CopyDirection, after: StepId) -> Result<(), CudaError>;
    /// Adds a copy of `bytes` bytes between device memory at the address `device` and pinned host memory from byte
    /// offset `host` on to the batch begun last in the direction.
    ///
    /// # Errors
    /// [`CudaError::Copy`] if the driver does not accept the copy, [`CudaError::Lost`] if the device is lost.
    fn add(
        &mut self,
        direction: CopyDirection,
        device: DevicePtr,
        host: usize,
        bytes: usize,
    ) -> Result<(), CudaError>;
    /// Closes the batch begun last in the direction. From then on, the driver tells whether the batch has ended.
    ///
    /// # Errors
    /// [`CudaError::Lost`]: without a mark on the device, nothing tells when the copies end.
    fn close(&mut self, direction: CopyDirection) -> Result<(), CudaError>;
    /// Whether the oldest batch in flight in the direction has ended or failed.
    fn has_ended(&mut self, direction: CopyDirection) -> bool;
    /// Waits for the oldest batch in flight in the direction. Returns the time from the beginning of its copies to
    /// their end on the device, us.
    ///
    /// # Errors
    /// [`CudaError::Lost`].
    fn end(&mut self, direction: CopyDirection) -> Result<u64, CudaError>;
}

/// Copier of whole KV blocks on a GPU, run by a copy thread. The fence of a batch orders its copies against steps on
/// the device. Later steps need no order: the engine submits a step that uses copied blocks only when it knows that the
/// copies have ended.
pub struct CudaCopier<C> {
    driver: C,
    kv: CudaKv,
    host_blocks: u32,
    /// For each direction, the batches in flight, oldest first: for each the error of the copy that the driver refused.
    in_flight: [VecDeque<Option<CudaError>>; 2],
}

impl<C: CopyDriver> CudaCopier<C> {
    /// Makes a copier between the KV blocks of `kv` on the device and `host_blocks` blocks of the driver's pinned host
    /// memory.
    pub fn new(driver: C, kv: CudaKv, host_blocks: u32) -> CudaCopier<C> {
        CudaCopier { driver, kv, host_blocks, in_flight: Default::default() }
    }

    fn add(&mut self, direction: CopyDirection, pairs: &[CopyPair]) -> Result<(), CudaError> {
        let block_bytes = self.kv.block_bytes();
        for run in pairs.chunk_by(|a, b| a.device.0 + 1 == b.device.0 && a.host.0 + 1 == b.host.0) {
            let (device, host) =
                (self.kv.block(run[0].device), run[0].host.0 as usize * block_bytes);
            self.driver.add(direction, device, host, run.len() * block_bytes)?;
        }
        Ok(())
    }
}

impl<C: CopyDriver> QueuedCopier for CudaCopier<C> {
    fn begin(&mut self, batch: &CopyBatch) -> Result<(), CopyError> {
        let (device, host) = (self.kv.blocks, self.host_blocks);
        for pair in &batch.pairs {
            if pair.device.0 >= device || pair.host.0 >= host {
                return Err(CopyError::Failed(format!(
                    "no such block: {} of {device}, {} of {host}",
                    pair.device, pair.host
                )));
            }
        }
        self.driver.begin(batch.direction, batch.after).map_err(failed)?;
        // A batch whose copy was refused stays in flight until the copies before the refused one have ended, because
        // the blocks may get another use when the batch is answered.
        let refused = self.add(batch.direction, &batch.pairs).err();
        self.driver.close(batch.direction).map_err(failed)?;
        self.in_flight[batch.direction.index()].push_back(refused);
        Ok(())
    }

    fn has_ended(&mut self, direction: CopyDirection) -> bool {
        self.driver.has_ended(direction)
    }

    fn end(&mut self, direction: CopyDirection) -> Result<u64, CopyError> {
        let Some(refused) = self.in_flight[direction.index()].pop_front() else {
            return Err(CopyError::Failed("no batch is in flight".to_owned()));
        };
        let ended = self.driver.end(direction).map_err(failed)?;
        refused.map_or(Ok(ended), |error| Err(failed(error)))
    }
}

fn failed(error: CudaError) -> CopyError {
    match error {
        CudaError::Lost(why) => CopyError::DeviceLost(why),
        other => CopyError::Failed(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CopyDirection::{In, Out};
    use std::sync::{Arc, Mutex};
    use tiercel_device::{BlockId, CopyId, HostBlockId};

    /// Copy driver for tests that records the copies requested of it, and refuses copies from or to one host offset.
    /// The device is lost at the call named by `lost`.
    #[derive(Clone, Default)]
    struct Noting {
        asked: Arc<Mutex<Vec<(u64, usize, usize)>>>,
        /// Calls other than those that add copies.
        calls: Arc<Mutex<Vec<(&'static str, CopyDirection)>>>,
        refuses: Option<usize>,
        lost: &'static str,
    }

    impl Noting {
        fn call(&self, call: &'static str, direction: CopyDirection) -> Result<(), CudaError> {
            self.calls.lock().unwrap().push((call, direction));
            if self.lost == call { Err(CudaError::Lost("gone".into())) } else { Ok(()) }
        }
    }

    impl CopyDriver for Noting {
        fn begin(&mut self, direction: CopyDirection, _: StepId) -> Result<(), CudaError> {
            self.call("begin", direction)
        }

        fn add(
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

        fn close(&mut self, direction: CopyDirection) -> Result<(), CudaError> {
            self.call("close", direction)
        }

        fn has_ended(&mut self, _: CopyDirection) -> bool {
            true
        }

        fn end(&mut self, direction: CopyDirection) -> Result<u64, CudaError> {
            self.call("end", direction).map(|()| 7)
        }
    }

    fn batch(direction: CopyDirection, pairs: &[(u32, u32)]) -> CopyBatch {
        let pairs = pairs
            .iter()
            .map(|(device, host)| CopyPair { device: BlockId(*device), host: HostBlockId(*host) });
        CopyBatch::needed(CopyId(1), direction, pairs.collect())
    }

    fn copier(driver: &Noting) -> CudaCopier<Noting> {
        let at = DevicePtr(1 << 20);
        let kv = CudaKv {
            at,
            blocks: 10,
            block_size: 16,
            layers: 1,
            kv_heads: 1,
            head_dim: 8,
            q8: false,
        };
        assert_eq!(kv.block_bytes(), 512);
        CudaCopier::new(driver.clone(), kv, 5)
    }

    fn copy(driver: &Noting, pairs: &[(u32, u32)]) -> Result<u64, CopyError> {
        copier(driver).copy(&batch(Out, pairs))
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
    fn a_batch_with_a_refused_copy_is_in_flight_until_its_other_copies_have_ended() {
        let driver = Noting { refuses: Some(512), ..Noting::default() };
        let mut copier = copier(&driver);
        assert_eq!(copier.begin(&batch(Out, &[(0, 0), (5, 1)])), Ok(()));
        assert_eq!(copier.begin(&batch(Out, &[(1, 3)])), Ok(()));
        assert!(matches!(copier.end(Out), Err(CopyError::Failed(why)) if why.contains("no")));
        assert_eq!(copier.end(Out), Ok(7), "the next batch is not affected");
        assert_eq!(driver.asked.lock().unwrap().len(), 2);
        let calls: Vec<&str> = driver.calls.lock().unwrap().iter().map(|(call, _)| *call).collect();
        assert_eq!(calls, ["begin", "close", "begin", "close", "end", "end"]);
    }

    #[test]
    fn each_direction_has_its_own_batches_in_flight() {
        let driver = Noting { refuses: Some(0), ..Noting::default() };
        let mut copier = copier(&driver);
        assert_eq!(copier.begin(&batch(Out, &[(0, 0)])), Ok(()));
        assert_eq!(copier.begin(&batch(In, &[(1, 1)])), Ok(()));
        assert_eq!(copier.end(In), Ok(7));
        assert!(copier.end(Out).is_err());
        assert_eq!(driver.calls.lock().unwrap()[4..], [("end", In), ("end", Out)]);
    }

    #[test]
    fn blocks_that_do_not_exist_are_not_copied_and_a_lost_device_is_reported_as_lost() {
        let driver = Noting::default();
        assert!(matches!(copy(&driver, &[(0, 0), (10, 1)]), Err(CopyError::Failed(_))));
        assert!(matches!(copy(&driver, &[(0, 5)]), Err(CopyError::Failed(_))));
        assert!(driver.asked.lock().unwrap().is_empty());
        for lost in ["begin", "close", "end"] {
            let driver = Noting { lost, ..Noting::default() };
            assert!(matches!(copy(&driver, &[(0, 0)]), Err(CopyError::DeviceLost(_))), "{lost}");
        }
    }
}
