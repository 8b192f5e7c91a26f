//! The outbox: reports that the scheduler collects for the block store and for the device, to be sent with the next
//! step request and the next batch.

use crate::protocol::Progress;
use tiercel_device::SeqId;

/// Reports that go to the block store with the next step request, and to the device with the next batch.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Reports to the block store of tokens whose KV became valid.
    pub(crate) progress: Vec<Progress>,
    /// Ended sequences whose KV blocks the block store shall release.
    pub(crate) released: Vec<SeqId>,
    /// Ended sequences whose sampler state the device shall discard.
    pub(crate) device_ends: Vec<SeqId>,
}

impl Outbox {
    /// Adds the end of a sequence. Progress reports about the sequence stay: the block store takes in progress before
    /// it releases ended sequences, so the reports still name the sequence's blocks.
    pub(crate) fn ended(&mut self, seq: SeqId, on_device: bool) {
        self.released.push(seq);
        if on_device {
            self.device_ends.push(seq);
        }
    }
}
