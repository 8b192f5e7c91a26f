//! Block copies between the device tier and the host tier.

use crate::{BlockId, CopyId, HostBlockId, SubmitError};

/// Which way a copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CopyDirection {
    /// Device to host (preemption).
    Out,
    /// Host to device (resume).
    In,
}

/// One block to copy; which side is the source is the batch's direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CopyPair {
    /// The device side.
    pub device: BlockId,
    /// The host side.
    pub host: HostBlockId,
}

/// A batch of whole-block copies in one direction, bounded by the sender to a few ms of link time.
#[derive(Debug, Clone)]
pub struct CopyBatch {
    /// Number of the batch.
    pub id: CopyId,
    /// Which way.
    pub direction: CopyDirection,
    /// The blocks.
    pub pairs: Vec<CopyPair>,
}

/// Answer to one [`CopyBatch`]. It succeeds or fails as a whole.
#[derive(Debug)]
pub struct CopyDone {
    /// Which batch.
    pub id: CopyId,
    /// Link time used, us.
    pub duration_us: u64,
    /// Outcome.
    pub result: Result<(), CopyError>,
}

/// A copy that did not happen. The content of its destination is undefined; its source is intact.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// This batch failed; the engine recomputes what it would have saved.
    #[error("copy failed: {0}")]
    Failed(String),
    /// The device is gone.
    #[error("device lost: {0}")]
    DeviceLost(String),
}

/// The copy side of a device: copies in order, concurrently with compute, without blocking the caller.
pub trait CopyEngine: Send {
    /// Starts a batch. `done` is called exactly once, from any thread.
    ///
    /// # Errors
    /// [`SubmitError`] if the batch was not accepted; `done` is then not called.
    fn submit(
        &mut self,
        batch: CopyBatch,
        done: Box<dyn FnOnce(CopyDone) + Send>,
    ) -> Result<(), SubmitError>;
}
