//! Copies of KV blocks between the device pool and the host pool (swap).

use crate::{BlockId, CopyId, HostBlockId, StepId, SubmitError};

/// Direction of a copy of KV blocks between device memory and host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CopyDirection {
    /// Copy from the device pool to the host pool, as when a victim is swapped out.
    Out,
    /// Copy from the host pool to the device pool, as when a swapped sequence resumes.
    In,
}

impl CopyDirection {
    /// Both directions of copies.
    pub const BOTH: [CopyDirection; 2] = [CopyDirection::Out, CopyDirection::In];

    /// Returns the place of the direction in [`CopyDirection::BOTH`], for arrays with one element for each direction.
    pub fn index(self) -> usize {
        match self {
            CopyDirection::Out => 0,
            CopyDirection::In => 1,
        }
    }
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
    /// Whether the batch is copied ahead of need (mirroring). It goes after the batches of its direction that sequences
    /// wait for.
    pub ahead_of_need: bool,
    /// Fence of the batch: the copies begin when the steps up to this one that were submitted before the batch have
    /// ended on the device. `StepId(0)` for none.
    pub after: StepId,
    /// KV blocks to copy, as pairs of a block in the device pool and a block in the host pool.
    pub pairs: Vec<CopyPair>,
}

impl CopyBatch {
    /// Makes a batch of copies that a sequence waits for, without a fence.
    pub fn needed(id: CopyId, direction: CopyDirection, pairs: Vec<CopyPair>) -> CopyBatch {
        CopyBatch { id, direction, ahead_of_need: false, after: StepId(0), pairs }
    }
}

/// Answer of the device to one [`CopyBatch`]. A batch succeeds or fails as a whole.
#[derive(Debug)]
pub struct CopyDone {
    /// Number of the batch of copies whose outcome this answer reports.
    pub id: CopyId,
    /// Time that the batch of copies occupied the link, us, without the batch's time in the queue. 0 if the batch
    /// failed before its first copy.
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

/// Copy side of a device: copies KV blocks between device and host, concurrently with the steps, without blocking the
/// caller. The two directions are independent of each other. In each direction, batches that sequences wait for run in
/// the order of submission, and batches ahead of need after them. A batch that has begun is not overtaken. At most
/// [`COPIES_IN_FLIGHT`](crate::COPIES_IN_FLIGHT) batches of a direction have begun and not ended, so a batch that
/// sequences wait for starts behind few others.
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
