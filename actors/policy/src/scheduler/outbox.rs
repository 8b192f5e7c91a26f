//! The outbox: news for the block store and the device, which go with the next request and the next batch.

use crate::protocol::Progress;
use tiercel_device::SeqId;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Tokens that became valid, for the block store.
    pub(crate) progress: Vec<Progress>,
    /// Ended sequences whose blocks the block store still counts.
    pub(crate) released: Vec<SeqId>,
    /// Ended sequences whose sampler state the device still keeps.
    pub(crate) device_ends: Vec<SeqId>,
}

impl Outbox {
    /// A sequence has ended. Reports about it would name blocks that it no longer has.
    pub(crate) fn ended(&mut self, seq: SeqId, on_device: bool) {
        self.progress.retain(|progress| progress.seq != seq);
        self.released.push(seq);
        if on_device {
            self.device_ends.push(seq);
        }
    }
}
