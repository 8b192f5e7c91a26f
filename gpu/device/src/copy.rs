//! Copies of KV blocks between the device pool and the host pool (swap).

use crate::{BlockId, CopyId, HostBlockId, SubmitError};

/// Direction of a copy of KV blocks between device memory and host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CopyDirection {
    /// Copy from the device pool to the host pool, as when a victim is swapped out.
    Out,
    /// Copy from the host pool to the device pool, as when a swapped sequence resumes.
    In,
}

/// One KV block to copy: its numbers in the device pool and in the host pool. The direction of the batch of copies says
/// which of the two is the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CopyPair {
    /// Number of the device-pool block that the copy reads or writes.
    pub device: BlockId,
    /// Number of the host-pool block that the copy reads or writes.
    pub host: HostBlockId,
}

/// A batch of copies of whole blocks in one direction. The sender limits a batch to a few ms of the link's time.
#[derive(Debug, Clone)]
pub struct CopyBatch {
    /// Number of the batch of copies.
    pub id: CopyId,
    /// Direction of all copies in the batch.
    pub direction: CopyDirection,
    /// KV blocks to copy, as pairs of a block in the device pool and a block in the host pool.
    pub pairs: Vec<CopyPair>,
}

/// Answer of the device to one [`CopyBatch`]. A batch succeeds or fails as a whole.
#[derive(Debug)]
pub struct CopyDone {
    /// Number of the batch of copies whose outcome this answer reports.
    pub id: CopyId,
    /// Time that the batch of copies kept the link busy, us.
    pub duration_us: u64,
    /// Outcome of the batch of copies: all blocks are copied, or the error for which the batch failed.
    pub result: Result<(), CopyError>,
}

/// Failure of a batch of copies. The content of the destination blocks is undefined; the source blocks are intact.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The batch of copies failed, but the device is still usable. The engine recomputes the KV that the copies did not
    /// bring over.
    #[error("copy failed: {0}")]
    Failed(String),
    /// The device is lost: no step or copy on it ever succeeds again.
    #[error("device lost: {0}")]
    DeviceLost(String),
}

/// Part of a device that copies KV blocks in one direction between device and host: batches run in order of submission,
/// concurrently with the steps, without blocking the caller.
pub trait CopyEngine: Send {
    /// Submits a batch of copies. When it has ended, the device calls the callback `done` exactly once, from any
    /// thread.
    ///
    /// # Errors
    /// [`SubmitError`] if the batch was not accepted; `done` is then never called.
    fn submit(
        &mut self,
        batch: CopyBatch,
        done: Box<dyn FnOnce(CopyDone) + Send>,
    ) -> Result<(), SubmitError>;
}
