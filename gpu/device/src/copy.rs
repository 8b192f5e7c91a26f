//! Copies of blocks between the device pool and the host pool.

use crate::{BlockId, CopyId, HostBlockId, SubmitError};

/// Direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CopyDirection {
    /// From the device pool to the host pool, as in a preemption.
    Out,
    /// From the host pool to the device pool, as in a resume.
    In,
}

/// One block to copy. The direction of the batch says whether the device block or the host block is the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CopyPair {
    /// Block in the device pool that the copy reads or writes.
    pub device: BlockId,
    /// Block in the host pool that the copy reads or writes.
    pub host: HostBlockId,
}

/// A batch of copies of whole blocks in one direction. The sender limits a batch to a few ms of the link's time.
#[derive(Debug, Clone)]
pub struct CopyBatch {
    /// Number of the batch of copies.
    pub id: CopyId,
    /// Direction of all copies in the batch.
    pub direction: CopyDirection,
    /// Pairs of blocks that the batch copies.
    pub pairs: Vec<CopyPair>,
}

/// Answer of the device to one [`CopyBatch`]. A batch succeeds or fails as a whole.
#[derive(Debug)]
pub struct CopyDone {
    /// Number of the batch of copies that is answered.
    pub id: CopyId,
    /// Time that the batch of copies kept the link busy, us.
    pub duration_us: u64,
    /// Outcome of the batch of copies.
    pub result: Result<(), CopyError>,
}

/// Failure of a batch of copies. The content of the destination blocks is undefined; the source blocks are intact.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The batch of copies failed, but the device is still usable. The engine recomputes the KV that the batch would
    /// have saved.
    #[error("copy failed: {0}")]
    Failed(String),
    /// The device is lost: no step or copy on it ever succeeds again.
    #[error("device lost: {0}")]
    DeviceLost(String),
}

/// The copy side of a device: copies in order, concurrently with compute, without blocking the caller.
pub trait CopyEngine: Send {
    /// Submits a batch of copies. The device calls `done` exactly once, from any thread.
    ///
    /// # Errors
    /// [`SubmitError`] if the batch was not accepted; `done` is then never called.
    fn submit(
        &mut self,
        batch: CopyBatch,
        done: Box<dyn FnOnce(CopyDone) + Send>,
    ) -> Result<(), SubmitError>;
}
