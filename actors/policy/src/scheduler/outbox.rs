//! The outbox: news for the block store and the device, which go with the next request and the next batch.

use crate::protocol::Progress;
use tiercel_device::SeqId;

/// News that goes to the block store with the next request, and to the device with the next batch.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Reports to the block store of tokens that became valid.
    pub(crate) progress: Vec<Progress>,
    /// Ended sequences, to report to the block store, which still holds their blocks.
    pub(crate) released: Vec<SeqId>,
    /// Ended sequences, to report to the device, which still keeps their sampler state.
    pub(crate) device_ends: Vec<SeqId>,
}

impl Outbox {
    /// Adds the end of a sequence. Removes reports about the sequence, because they would name blocks that it no longer
    /// has.
    pub(crate) fn ended(&mut self, seq: SeqId, on_device: bool) {
        self.progress.retain(|progress| progress.seq != seq);
        self.released.push(seq);
        if on_device {
            self.device_ends.push(seq);
        }
    }
}
